"""Graph trees of the card, `torch_npu.npu._graph_tree`: torch's module, run here with the card's names.

Loaded by toprope.sim.inductor and by _graph_tree.py. The classes and functions that are not below are torch's. The code
after the call of `exec` is ours: torch_npu's differences from torch (fewer arguments, other texts), and functions for
which the card needs nothing. Tests: tests/sim/simulated/test_graph_trees.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from toprope.sim.npu import _graph_tree_state as steps
from toprope.sim.npu.graph_trees import allocator
from toprope.sim.npu.graph_trees.renaming import Renaming, renamed

__all__ = [
    "NPUGraphNode",
    "NPUGraphTreeManager",
    "NPUWarmupNode",
    "check_memory_pool",
    "clear_cublass_cache",
    "disable_conv_cache_emptying",
    "npugraphify",
]

# Of torch's, what other modules here call.
get_manager: Any
npugraphify_impl: Any
reset_npugraph_trees: Any


class _Compiled:
    """`torch_npu._C`, where programs replace functions; without the facade the functions themselves."""

    def __getattr__(self, name: str) -> Any:
        facade = sys.modules.get("torch_npu._C")
        return allocator.FUNCTIONS[name] if facade is None else getattr(facade, name)


_RENAMING = Renaming(
    package="torch._inductor",
    compiled=allocator.FUNCTIONS.keys(),
    modules={
        "torch._higher_order_ops.cudagraph_conditional_nodes": "toprope.sim.npu._npugraph_conditional_nodes",
    },
    # torch's module keeps its own trees in the same storage of the thread
    names={name: f"npu_{name}" for name in ("tree_manager_containers", "tree_manager_locks")},
    texts={
        "Unable to hit fast path of CUDAGraphs because outputs from a previous step still require backward. "
        "Ensure backward() is invoked or detach outputs. "
        "You may also call torch.compiler.cudagraph_mark_step_begin() before each model invocation.": (
            "Unable to hit fast path of NPUGraphs because of pending, uninvoked backwards. Consider running with"
            " torch.no_grad() or using torch.compiler.npugraph_mark_step_begin() before each model invocation"
        ),
        " but should be: ": " but should be ",
    },
    fewer={"NPUGraphNode": 2},  # mode and compile_id, for torch's own telemetry
    foreign=("config", "torch._inductor.config", "CheckInvariantStatus", "CallbackTrigger"),
)

torch_npu = SimpleNamespace(_C=_Compiled())
AllocatorState = allocator.PoolState
_set_cached_tensors_enabled = torch._C._set_cached_tensors_enabled


def _source() -> Path:
    spec = importlib.util.find_spec("torch._inductor.cudagraph_trees")
    if spec is None or spec.origin is None:
        raise ImportError("torch has no torch._inductor.cudagraph_trees, which graph trees are made of.")
    return Path(spec.origin)


_doc = __doc__
exec(renamed(_source(), _RENAMING), globals())  # torch's own module
__doc__ = _doc
MarkStepBox, mark_step_begin = steps.MarkStepBox, steps.mark_step_begin

_torchs: Any = SimpleNamespace(**globals())


def clear_cublass_cache() -> None:
    """Nothing to do: products of matrices keep no memory of the card."""


@contextlib.contextmanager
def disable_conv_cache_emptying() -> Any:
    """Context without effect: convolutions are not tried out, so that they empty no cache."""
    yield


def check_memory_pool(device: int, pool_id: tuple[int, int], live_storages_ptrs: list[Any]) -> None:
    """Compare the blocks of a pool that are in use with the results that are alive.

    Args:
        device: number of the card.
        pool_id: name of the pool.
        live_storages_ptrs: storages of the results.

    Raises:
        RuntimeError: they are not the same.
    """
    try:
        _torchs.check_memory_pool(device, pool_id, live_storages_ptrs)
    except RuntimeError as error:
        if "not tracked as outputs" not in str(error):
            raise
        raise RuntimeError(
            "These live storage data ptrs are in the npugraph pool but not accounted for as an output of npugraph"
            f" trees: {error}"
        ) from None


class NPUWarmupNode(_torchs.NPUWarmupNode):  # type: ignore[misc]
    """Run of a function before it is recorded, in the memory of the graphs."""

    def __init__(
        self,
        wrapped_function: Any,
        parent: Any,
        npu_graphs_pool: tuple[int, int],
        existing_npu_graph: Any,
        device_index: int,
        stack_traces: Any,
        stream: Any,
        already_warm: bool,
        graph_id: Any,
    ) -> None:
        super().__init__(
            wrapped_function, parent, npu_graphs_pool, existing_npu_graph, device_index, stack_traces, stream,
            already_warm, graph_id,
        )  # fmt: skip


class NPUGraphNode(_torchs.NPUGraphNode):  # type: ignore[misc]
    """Recording of a function into a graph; a node of the tree."""

    def __init__(
        self,
        wrapped_function: Any,
        graph_id: Any,
        parent: Any,
        inputs: list[Any],
        npu_graphs_pool: tuple[int, int],
        device_index: int,
        stack_traces: Any,
        stream: Any,
    ) -> None:
        super().__init__(
            wrapped_function, graph_id, parent, inputs, npu_graphs_pool, device_index, stack_traces, stream, None, None
        )


class _Modes(dict[Any, Any]):
    def __missing__(self, function_id: Any) -> Any:
        return _torchs.CompilationMode.INFERENCE


class NPUGraphTreeManager(_torchs.NPUGraphTreeManager):  # type: ignore[misc]
    """Trees of recordings of one card, and the node that ran last."""

    def __init__(self, device_index: int) -> None:
        super().__init__(device_index)
        self.id_to_mode: dict[Any, Any] = _Modes()
        self.id_to_compile_id: dict[Any, Any] = defaultdict(lambda: None)
        self.compile_id: Any = None

    def add_function(
        self,
        model: Callable[..., Any],
        inputs: list[Any],
        static_input_idxs: Sequence[int],
        stack_traces: Any,
        mode: Any,
        constants: tuple[torch.Tensor, ...],
        placeholders: tuple[Any, ...],
        mutated_input_idxs: tuple[int, ...],
        compile_id: Any = None,
    ) -> Any:
        """Add a function, and run it for the first time.

        Returns:
            The function, to be called with a list of inputs, and its first result.
        """
        return super().add_function(
            model,
            inputs,
            static_input_idxs,
            stack_traces,
            mode,
            constants,
            placeholders,
            mutated_input_idxs,
            compile_id,
        )


def npugraphify(
    model: Callable[..., Any],
    inputs: list[Any],
    static_input_idxs: Sequence[int] = (),
    *,
    device_index: int,
    is_backward: bool,
    is_inference: bool,
    stack_traces: Any = None,
    constants: tuple[torch.Tensor, ...] = (),
    placeholders: tuple[Any, ...] = (),
    mutated_input_idxs: tuple[int, ...] = (),
    compile_id: Any = None,
) -> Any:
    """Add a function to the trees of a card, and run it for the first time.

    Args:
        model: takes a list of inputs, which it empties.
        inputs: of the first run.
        static_input_idxs: places of the inputs whose addresses stay the same.
        device_index: number of the card.
        is_backward: whether it is the backward pass of another.
        is_inference: whether none follows.
        stack_traces: of the outputs, for messages.
        constants: tensors of the card that it refers to.
        placeholders: of the inputs, for messages.
        mutated_input_idxs: places of the inputs that it writes.
        compile_id: of torch.compile, for messages.

    Returns:
        The function, to be called with a list of inputs, and its first result.

    Raises:
        RuntimeError: it would be for inference and a backward pass.
    """
    if is_backward and is_inference:
        raise RuntimeError("check not (is_backward and is_inference) fail")
    mode = "BACKWARD" if is_backward else "INFERENCE" if is_inference else "FORWARD"
    more = () if compile_id is None else (compile_id,)
    manager = globals()["get_container"](device_index).get_tree_manager()  # programs replace it
    return manager.add_function(
        model, inputs, static_input_idxs, stack_traces, _torchs.CompilationMode[mode], constants, placeholders,
        mutated_input_idxs, *more,
    )  # fmt: skip
