"""Part of `torch.npu`: `torch.cond` in a graph. Both branches are captured; each replay runs one of them.

A tensor of the card decides which. graphs.py captures and replays; tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toprope.sim.npu.graphs import NPUGraph, graph, is_current_stream_capturing
from toprope.sim.npu.streams import Stream

__all__ = ["ControlFlowOpWarmupDispatchMode", "NPUGraphCaptureControlFlowOpDispatchMode", "if_else_node"]


class NPUGraphCaptureControlFlowOpDispatchMode(TorchDispatchMode):
    """Context in which `torch.cond` becomes part of the graph that is being captured."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.cond`, which compiles itself, see the mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.higher_order.cond:
            return func(*args, **(kwargs or {}))
        with self:
            return if_else_node(*args)


class ControlFlowOpWarmupDispatchMode(NPUGraphCaptureControlFlowOpDispatchMode):  # type: ignore[no-untyped-call]
    """Context for runs before a capture: `torch.cond` is captured into a graph that is thrown away, and computed."""

    def __init__(self) -> None:
        super().__init__()
        self.capture_stream = Stream()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.higher_order.cond and not is_current_stream_capturing():
            with graph(NPUGraph(), stream=self.capture_stream, capture_error_mode="relaxed"), self:
                if_else_node(*args)
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def _branch(condition: torch.Tensor) -> Iterator[None]:
    capturing = NPUGraph.get_currently_capturing_graph()
    capturing.begin_capture_to_if_node(condition)
    try:
        yield
    finally:
        capturing.end_capture_to_conditional_node()


def if_else_node(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """Capture both branches of a condition into the graph that is being captured.

    Args:
        pred: one bool on the card.
        true_fn: computes the results where it is true.
        false_fn: computes them where it is false.
        operands: of both.

    Returns:
        What `true_fn` returned. The second branch writes its results there.

    Raises:
        ValueError: the condition is not on a card.
    """
    if pred.device.type != "npu":
        raise ValueError("Conditions must be on an npu device to use conditional nodes in npu graphs")
    with _branch(pred):
        results = true_fn(*operands)
    with _branch(torch.logical_not(pred)):
        for result, other in zip(tree_leaves(results), tree_leaves(false_fn(*operands)), strict=True):
            result.copy_(other)
    return results
