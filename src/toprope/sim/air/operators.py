"""torchair's operators in a traced graph: `air::scope_enter`, `air::scope_exit` and `air::wait_tensor`.

The context managers of contexts.py call them; toprope.sim.graph finds them in a graph. The marks of scopes compute
nothing. They are registered as operators with effects, so that passes over the graph keep them, and in their order.
Tests: tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph
from torch.fx.node import Node, has_side_effect

from toprope.imports import after_import
from toprope.sim.air.scopes import STREAM_DEVICE, STREAM_ID, STREAM_KIND, Enter, Exit

__all__ = ["enter_on", "is_wait", "mark", "name_streams"]

_library = torch.library.Library("air", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("scope_enter(str[] keys, str[] values) -> ()")  # type: ignore[no-untyped-call]
_library.define("scope_exit() -> ()")  # type: ignore[no-untyped-call]
_library.define("wait_tensor(Tensor self, Tensor dependency) -> Tensor")  # type: ignore[no-untyped-call]


def _enter(keys: Sequence[str], values: Sequence[str]) -> None:
    """Nothing: outside of a graph a scope has no effect."""


def _exit() -> None:
    """Nothing, likewise."""


_library.impl("scope_enter", _enter, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_library.impl("scope_exit", _exit, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


def _same(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself: in a traced graph, what uses it later then uses the result of the wait."""
    return self


def _no_wait(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Refuse, as torchair does, and with the first words of its error, which its own tests look for."""
    raise NotImplementedError(
        "torch.ops.air.wait_tensor kernel_impl is not implemented! torchair.scope.npu_wait_tensor orders streams only"
        ' in a graph that torch.compile builds in mode "max-autotune" (the backend "npu").'
    )


def _with_gradient(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Wait, and return the tensor with its own history, so that gradients pass."""
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.air.wait_tensor(self, dependency)
    return self


_library.impl("wait_tensor", _with_gradient, "Autograd")  # type: ignore[no-untyped-call]
_library.impl("wait_tensor", _same, "Meta")  # type: ignore[no-untyped-call]
for _key in ("CPU", "PrivateUse1"):
    _library.impl("wait_tensor", _no_wait, _key)  # type: ignore[no-untyped-call]

WAIT = torch.ops.air.wait_tensor.default
ENTER = torch.ops.air.scope_enter.default
EXIT = torch.ops.air.scope_exit.default


def enter_on(stream: Any, keys: list[str], values: list[str]) -> None:
    """Enter a scope that is about a stream. In a traced graph this call stays as it is until `name_streams`."""
    torch.ops.air.scope_enter(keys, values)


def _keep_whole() -> None:
    import torch._dynamo

    torch._dynamo.allow_in_graph(enter_on)  # type: ignore[no-untyped-call]


after_import("torch._dynamo", _keep_whole)

for _operator in (enter_on, ENTER, EXIT, torch.ops.air.scope_enter, torch.ops.air.scope_exit):
    has_side_effect(_operator)


def mark(node: Node) -> Enter | Exit | None:
    """The mark that a node of a graph is; None for every other node."""
    if node.op != "call_function":
        return None
    if node.target in (ENTER, torch.ops.air.scope_enter):
        keys, values = _argument(node, 0, "keys"), _argument(node, 1, "values")
        return Enter.of(keys, values)
    return Exit() if node.target in (EXIT, torch.ops.air.scope_exit) else None


def is_wait(node: Node) -> bool:
    """Return whether a node is a `torchair.scope.npu_wait_tensor`; its first argument is the tensor that it gives."""
    return node.op == "call_function" and node.target in (WAIT, torch.ops.air.wait_tensor)


def name_streams(graph: Graph) -> None:
    """Write into the scopes that are about a stream which one it is; to be done before operators are decomposed.

    The stream is the one of the call that was traced, as with torch_npu.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is enter_on:
            source, keys, values = node.args
            stream = source.meta["example_value"]
            places = {
                STREAM_ID: stream.stream_id,
                STREAM_DEVICE: stream.device_index,
                STREAM_KIND: stream.device_type,
            }
            node.target = torch.ops.air.scope_enter
            node.args = ([*keys, *places], [*values, *map(str, places.values())])


def _argument(node: Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs[name]
