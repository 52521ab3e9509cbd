"""Attributes that each node of a graph has from the scopes around it; pure.

toprope.sim.graph calls `attributed` for every graph it compiles. A scope is a pair of marks in a flat list of nodes,
one where it is entered and one where it is left. Every node in between has the scope's attributes; in nested scopes a
node has those of all of them, and for the same key the innermost counts. Tests: tests/sim/test_graph_scopes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from toprope.errors import SimulatorError

__all__ = [
    "AICORE",
    "CORE_LIMIT",
    "DATA_DUMP",
    "NEVER_TIMEOUT",
    "PARALLEL",
    "STREAM_DEVICE",
    "STREAM_ID",
    "STREAM_KIND",
    "STREAM_LABEL",
    "STREAM_PRIORITY",
    "SUPER_KERNEL",
    "SUPER_KERNEL_OPTIONS",
    "VECTORCORE",
    "Enter",
    "Exit",
    "attributed",
    "merged",
]

# The keys are torchair's (torch_npu 2.13.0, torch_npu/dynamo/torchair/scope/__init__.py); torch_npu's own scope adds
# those of a stream (torch_npu/dynamo/npugraph_ex).
AICORE = "_op_aicore_num"
VECTORCORE = "_op_vectorcore_num"
STREAM_LABEL = "_user_stream_label"
STREAM_PRIORITY = "_user_stream_priority"
PARALLEL = "_enable_inner_parallel"
SUPER_KERNEL = "_super_kernel_scope"
SUPER_KERNEL_OPTIONS = "_super_kernel_options"
NEVER_TIMEOUT = "_op_exec_never_timeout"
DATA_DUMP = "torchair_enable_data_dump"
STREAM_ID = "_op_stream_stream_id"
STREAM_DEVICE = "_op_stream_device_index"
STREAM_KIND = "_op_stream_device_type"

CORE_LIMIT = frozenset({AICORE, VECTORCORE})
"""The keys that make a scope one that limits cores."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Enter:
    """The mark where a scope begins.

    Attributes:
        attributes: what the nodes inside carry; all values are text.
    """

    attributes: Mapping[str, str]

    @classmethod
    def of(cls, keys: Sequence[str], values: Sequence[str]) -> Enter:
        """The mark with these keys and values; a repeated key has its last value.

        Raises:
            SimulatorError: there are not as many values as keys.
        """
        if len(keys) != len(values):
            raise SimulatorError(
                f"a scope has {len(keys)} keys and {len(values)} values.",
                looked_at=f"{list(keys)}, {list(values)}",
                do="give torch.ops.air.scope_enter one value for each key",
            )
        return cls(dict(zip(keys, values, strict=True)))


@dataclass(frozen=True)
class Exit:
    """The mark where the scope entered last ends."""


@dataclass(frozen=True)
class Attributed(Generic[_T]):
    """A node and what it carries."""

    node: _T
    attributes: Mapping[str, str]


def merged(scopes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Attributes of a node inside these scopes, outermost first.

    A super kernel of no name takes nodes out of the super kernel around it.
    """
    found: dict[str, str] = {}
    for scope in scopes:
        if scope.get(SUPER_KERNEL) == "":
            found.pop(SUPER_KERNEL, None)
            found.pop(SUPER_KERNEL_OPTIONS, None)
            scope = {key: value for key, value in scope.items() if key not in (SUPER_KERNEL, SUPER_KERNEL_OPTIONS)}
        found |= scope
    return found


def attributed(nodes: Iterable[_T | Enter | Exit]) -> Iterator[Attributed[_T]]:
    """The nodes without the marks, in their order, each with what it carries.

    Raises:
        SimulatorError: a scope is left that was not entered, or not left at all.

    Example:
        >>> [(each.node, dict(each.attributes)) for each in attributed(["a", Enter({"k": "1"}), "b", Exit(), "c"])]
        [('a', {}), ('b', {'k': '1'}), ('c', {})]
    """
    stack: list[Mapping[str, str]] = []
    for node in nodes:
        if isinstance(node, Enter):
            stack.append(node.attributes)
        elif isinstance(node, Exit):
            if not stack:
                raise SimulatorError(
                    "a scope is left that was never entered.",
                    do="pair every torch.ops.air.scope_exit with a scope_enter before it, in the same graph; a graph"
                    " break inside a scope parts them",
                )
            stack.pop()
        else:
            yield Attributed(node, merged(stack))
    if stack:
        raise SimulatorError(
            "a scope is entered and never left.",
            looked_at=", ".join(str(dict(scope)) for scope in stack),
            do="pair every torch.ops.air.scope_enter with a scope_exit, in the same graph; a graph break inside a"
            " scope parts them",
        )
