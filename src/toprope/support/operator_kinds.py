"""Cores that operators run on, and the blocks that a core limit leaves them; pure, from operator_kinds.toml.

For traces (sim/tracing/records.py), launches, core checks and reports. The kinds and their names are the profiler's;
the rule from a limit to blocks (`OperatorKind.blocks`) is the one that docs/limits.md documents for users. A new
operator is a row of the table. Tests: tests/support/test_operator_kinds.py.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Blocks", "OperatorKind", "assumed", "kind_of"]

Cores = tuple[int, int]
"""Cube cores and vector cores, in this order."""

_PROFILER = {
    "cube": "AI_CORE",
    "mix": "MIX_AIC",
    "vector": "AI_VECTOR_CORE",
    "mix_aiv": "MIX_AIV",
    "aicpu": "AI_CPU",
}
_WITH_BOTH_KINDS = "310P"
"""The chip whose AI Cores and vector cores share the work of one operator."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of an operator under a core limit, and the cores that they take.

    Attributes:
        blocks: its blocks.
        cube, vector: cores that they take together.
        exceeds: whether these are more than the limits leave: one block is the least that an operator runs on.
    """

    blocks: int
    cube: int
    vector: int
    exceeds: bool = False


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """Kind of an operator: the cores that it runs on.

    Attributes:
        engine: "cube", "mix", "vector", "mix_aiv" or "aicpu", as operator_kinds.toml explains them.
        ratio: cube and vector cores of one block; (0, 0) on the chip's CPU.
        assumed: whether no source says it: it is then taken for an operator of the vector cores.
    """

    engine: str
    ratio: Cores
    assumed: bool = False

    @property
    def profiler(self) -> str:
        """The profiler's word for it, such as "AI_VECTOR_CORE"."""
        return _PROFILER[self.engine]

    @property
    def sync_all(self) -> bool:
        """True if its blocks wait for each other, and so have to run at the same time."""
        return self.engine == "mix_aiv"

    def blocks(self, limits: Cores, chip: str = "", wanted: int | None = None) -> Blocks:
        """The blocks that limits leave to an operator of this kind.

        An operator of one kind of core gets the limit of that kind, a mixed one as many blocks as both limits allow.
        Where they allow none it gets one. Chips without vector cores run everything on their AI Cores.

        Args:
            limits: cube and vector cores that it may use.
            chip: name of the chip, empty where it is not known.
            wanted: the blocks that it would take at most; None for as many as it may.
        """
        if self.engine == "aicpu":
            return Blocks(0, 0, 0)
        if self.engine == "mix_aiv" and chip.startswith(_WITH_BOTH_KINDS):
            allowed = sum(limits)
            given = max(allowed if wanted is None else min(allowed, wanted), 1)
            cube = min(given, max(limits[0], 1))
            return Blocks(given, cube, given - cube, allowed < 1)
        ratio = (1, 0) if self.ratio[1] and not _has_vector_cores(chip) else self.ratio
        allowed = min(limit // need for limit, need in zip(limits, ratio, strict=True) if need)
        given = max(allowed if wanted is None else min(allowed, wanted), 1)
        return Blocks(given, given * ratio[0], given * ratio[1], allowed < 1)


_RATIOS: dict[str, Cores] = {"cube": (1, 0), "vector": (0, 1), "mix_aiv": (0, 1), "aicpu": (0, 0)}
_ASSUMED = OperatorKind("vector", (0, 1), assumed=True)


@cache
def _has_vector_cores(chip: str) -> bool:
    from toprope import chips

    return not chip or chips.get(chip).vector_cores != 0


@cache
def _table() -> tuple[dict[str, OperatorKind], dict[str, OperatorKind]]:
    """Kinds by an operator's name, and by the beginning of one."""
    data = tomllib.loads(resources.files("toprope.support").joinpath("operator_kinds.toml").read_text(encoding="utf-8"))
    names: dict[str, OperatorKind] = {}
    beginnings: dict[str, OperatorKind] = {}
    for row in data["row"]:
        kind = row["kind"]
        cube, _, vector = row.get("ratio", "").partition(":")
        found = OperatorKind(kind, (int(cube), int(vector)) if vector else _RATIOS[kind])
        for operator in row["operators"].split():
            if operator.endswith("*"):
                beginnings[operator[:-1]] = found
            else:
                names[operator] = found
    return names, beginnings


@cache
def kind_of(operator: str) -> OperatorKind:
    """Return the kind of an operator; the vector cores are assumed if no source says it.

    Args:
        operator: its name without overload, such as "aten::mm"; "aten::add_" is "aten::add".
    """
    names, beginnings = _table()
    found = names.get(operator) or names.get(operator.removesuffix("_"))
    if found is not None:
        return found
    fitting = [beginning for beginning in beginnings if operator.startswith(beginning)]
    return beginnings[max(fitting, key=len)] if fitting else _ASSUMED


def assumed(operator: str) -> bool:
    """Return True if the cores of an operator are assumed, because no source names them."""
    return kind_of(operator).assumed
