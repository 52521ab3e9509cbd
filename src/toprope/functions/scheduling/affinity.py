"""Affinity rules: the nodes that an instance may use, and its preference among them; pure.

The schedulers of both backends call it. Affinities of the same kind and type are alternatives; those of different
kinds or types must all be met. These rules, the older spelling and its words are openYuanrong's (its documentation of
affinity, master of 2026-08); a rank only has to order nodes. Tests: tests/functions/test_functions_groups.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.functions.options import Affinity, InvokeOptions

__all__ = ["Wishes", "instance_labels"]

_LEGACY = {"preferred": 10, "preferred_anti": 11, "required": 20, "required_anti": 21}


def instance_labels(labels: Iterable[str]) -> dict[str, str]:
    """The labels of an instance by name: "name:value", or a name alone.

    Example:
        >>> instance_labels(["stage:first", "big"])
        {'stage': 'first', 'big': ''}
    """
    parts = (each.partition(":") for each in labels)
    return {name.strip(): value.strip() for name, _, value in parts}


class Wishes:
    """The affinities of an instance.

    Args:
        options: its options.
    """

    def __init__(self, options: InvokeOptions) -> None:
        self._affinities = (*_as_tuple(options.schedule_affinities), *_legacy(options.affinity))
        self._options = options

    def __bool__(self) -> bool:
        return bool(self._affinities)

    def allow(self, node: Mapping[str, str], instances: Sequence[Mapping[str, str]]) -> bool:
        """True if the instance may run on a node.

        Args:
            node: the node's labels.
            instances: the labels of each instance that lives there.
        """
        from toprope.functions.options import AffinityType

        held: dict[tuple[int, int], bool] = {}
        preferred: list[bool] = []
        for each in self._affinities:
            holds = _holds(each, node, instances)
            if each.affinity_type in (AffinityType.REQUIRED, AffinityType.REQUIRED_ANTI):
                key = each.affinity_kind, each.affinity_type
                held[key] = held.get(key, False) or holds
            else:
                preferred.append(holds)
        if self._options.preferred_anti_other_labels and preferred and not any(preferred):
            return False
        return all(held.values())

    def rank(self, node: Mapping[str, str], instances: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the instance's preference for a node; the smallest value is the best.

        The alternatives that are required come first where `required_priority` ranks them, then those preferred. Where
        `preferred_priority` is off, what counts is how many preferences a node meets, and not which.
        """
        from toprope.functions.options import AffinityType

        held = [(each.affinity_type, _holds(each, node, instances)) for each in self._affinities]
        required = [holds for kind, holds in held if kind in (AffinityType.REQUIRED, AffinityType.REQUIRED_ANTI)]
        preferred = [holds for kind, holds in held if kind in (AffinityType.PREFERRED, AffinityType.PREFERRED_ANTI)]
        first = _first_true(required) if self._options.required_priority else 0
        then = _first_true(preferred) if self._options.preferred_priority else len(preferred) - sum(preferred)
        return first, then


def _holds(affinity: Affinity, node: Mapping[str, str], instances: Sequence[Mapping[str, str]]) -> bool:
    from toprope.functions.options import AffinityKind, AffinityType

    labels = [node] if affinity.affinity_kind == AffinityKind.RESOURCE else instances
    there = any(affinity.holds(each) for each in labels)
    anti = affinity.affinity_type in (AffinityType.PREFERRED_ANTI, AffinityType.REQUIRED_ANTI)
    return there != anti


def _first_true(holds: Sequence[bool]) -> int:
    return holds.index(True) if any(holds) else len(holds)


def _as_tuple(affinities: Iterable[Affinity] | None) -> tuple[Affinity, ...]:
    return tuple(affinities or ())


def _legacy(affinity: Mapping[str, str]) -> tuple[Affinity, ...]:
    """The older spelling, {label of an instance: "preferred", "required", or either with "_anti"}."""
    from toprope.functions.options import Affinity, AffinityKind, LabelOperator, OperatorType

    listed = []
    for label, strength in affinity.items():
        kind = _LEGACY.get(str(strength).lower())
        if kind is None:
            raise ValueError(f"invalid affinity of label {label}: {strength}, should be one of {', '.join(_LEGACY)}")
        name, _, value = label.partition(":")
        comparison = (
            LabelOperator(OperatorType.LABEL_IN, name, [value])
            if value
            else LabelOperator(OperatorType.LABEL_EXISTS, name)
        )
        listed.append(Affinity(AffinityKind.INSTANCE, kind, [comparison]))
    return tuple(listed)
