"""The error raised at the end of a scope in which the graph broke into several: it says why.

backend.py calls `lone_mark` for each graph. TorchDynamo cannot break a graph inside a `with` block of a scope. It then
runs the whole function as plain Python, and compiles the `__enter__` and the `__exit__` of the scope as graphs of their
own, each with only one mark in it. An exception that the function itself raises in the block is left as it is: most
often it is the reason. Tests: tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.fx import Graph

from toprope.errors import SimulatorError
from toprope.sim.air.operators import mark
from toprope.sim.air.scopes import Enter, Exit

__all__ = ["lone_mark"]

_local = threading.local()


def lone_mark(graph: Graph) -> Callable[..., tuple[()]] | None:
    """Return what runs in place of a graph that is the mark of one scope's begin or end; None for every other graph."""
    marks = [mark(node) for node in graph.nodes if node.op == "call_function"]
    if len(marks) != 1:
        return None
    if isinstance(marks[0], Enter):
        return _enter
    return _leave if isinstance(marks[0], Exit) else None


def _enter(*_: Any) -> tuple[()]:
    _stack().append((sys.exception(), _why()))
    return ()


def _leave(*_: Any) -> tuple[()]:
    """Raise the error, unless an exception that was not there at the begin leaves the scope.

    Raises:
        SimulatorError: the graph broke inside the scope.
    """
    handled, why = _stack().pop() if _stack() else (None, _why())
    error = sys.exception()
    if error is handled:
        raise SimulatorError(
            "the graph broke inside a scope, and the function ran without its scopes.",
            looked_at=why,
            do="remove what breaks the graph from the `with` block; torch.compile(..., fullgraph=True) shows its place",
        )
    # where the exception itself broke the graph, the reason would repeat it
    if error is not None and not why.startswith("Observed exception") and not hasattr(error, "__notes__"):
        error.add_note(f"before this, the graph broke inside a scope: {why}")
    return ()


def _stack() -> list[tuple[BaseException | None, str]]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    stack: list[tuple[BaseException | None, str]] = _local.stack
    return stack


def _why() -> str:
    """Return TorchDynamo's last reason for not tracing something: its headline and its explanation."""
    from torch._dynamo.utils import counters

    lines = [line.strip() for line in [*counters["unimplemented"], "TorchDynamo gave no reason"][-2:][0].splitlines()]
    explained = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return f"{lines[0]}: {explained}" if explained else lines[0]
