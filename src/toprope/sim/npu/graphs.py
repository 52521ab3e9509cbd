"""Part of `torch.npu`: graphs (`NPUGraph`), captured once and replayed with new data at the same addresses.

graph_capture.py records the operators, pools.py has the memory; csrc/torch/graph.cpp calls `_call` for
torch.accelerator.Graph, by the names of the methods. Tests: tests/sim/simulated/test_graphs.py; users' page:
docs/npugraph.md.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar
from warnings import warn  # C++ warns on a card, past what a program puts in the place of warnings.warn

import torch
from torch.utils._pytree import arg_tree_leaves, tree_flatten, tree_leaves, tree_unflatten

from toprope.sim.composites import replayed
from toprope.sim.native import native
from toprope.sim.npu import _npugraph_utils
from toprope.sim.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS
from toprope.sim.npu._state import NOT_SUPPORTED, PARAMETER, device_index, lazy_init, message, vendor_error
from toprope.sim.npu.devices import synchronize
from toprope.sim.npu.events import ExternalEvent, waiting_replays
from toprope.sim.npu.graph_capture import Branch, Capture, DispatchRecord, Node, captured, current, update_of
from toprope.sim.npu.host_tensors import ADDRESS as _NPUGRAPH_TENSOR_PTR_SPEC_MARKER  # noqa: F401
from toprope.sim.npu.host_tensors import BUFFER as _NPUGRAPH_TENSOR_BUFFER_SPEC_MARKER  # noqa: F401
from toprope.sim.npu.host_tensors import by_address as _make_npugraph_tensor_ptr_spec  # noqa: F401
from toprope.sim.npu.host_tensors import restored as _materialize_npugraph_tensor_arg  # noqa: F401
from toprope.sim.npu.memory import empty_cache
from toprope.sim.npu.pools import PoolId, graph_pool_handle, new_pool, pool_number
from toprope.sim.npu.random import default_generators
from toprope.sim.npu.streams import Stream, StreamContext, current_stream, default_stream
from toprope.sim.npu.super_kernel import check_options, check_scope

__all__ = [
    "NPUGraph",
    "accelerator_graphs",
    "graph",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
]

_log = logging.getLogger("toprope")
_MODES = ("global", "thread_local", "relaxed")
_EXPANDABLE = re.compile(r"\bpin_memory_expandable_segments\s*:\s*True\b")


class _Dispatch:
    """Calls of a graph that `update` can change (`NPUGraph.graph_dispatch_mode`)."""

    update_stream: ClassVar[Stream | None] = None

    def __init__(self) -> None:
        self.graph_dispatch_records: list[DispatchRecord] = []
        if _Dispatch.update_stream is None:
            _Dispatch.update_stream = Stream()

    def update_capture_record(self, cpu_update_input: Sequence[dict[str, Any]]) -> None:
        """Change arguments on the host: one dictionary for all calls, or one for each."""
        records = self.graph_dispatch_records
        inputs = [*cpu_update_input] * len(records) if len(cpu_update_input) == 1 else cpu_update_input
        if len(inputs) != len(records):
            raise RuntimeError(
                f"Currently, there are {len(records)} operators that need to be updated by capture, and there are only"
                f" {len(inputs)} elements in the incoming cpu_update_input list",
                message("", PARAMETER),
            )
        for record, values in zip(records, inputs, strict=True):
            record.kwargs.update({name: value for name, value in values.items() if name in record.kwargs})
            _NPU_GRAPH_OP_HANDLERS[record.op_cache_entry.__name__].update_args(record, dict(values))
        for record in records:
            record.event.record(self.update_stream)


class NPUGraph:
    """Work of a card that was captured, to be replayed as a whole.

    A capture computes nothing. What it allocates lies in a private pool, whose memory stays reserved as long as the
    graph. Tensors from outside the pool that the graph reads stay alive with it (on a card the program must keep them).

    Attributes:
        auto_dispatch_capture: whether `update` may change arguments on the host.
        graph_dispatch_mode: the calls that it changes, with their `update_stream`.
    """

    def __init__(self) -> None:
        lazy_init()
        self.graph_dispatch_mode = _Dispatch()
        self.auto_dispatch_capture = False
        self._pool: PoolId = (0, 0)
        self._stream: Stream | None = None
        self._device = -1
        self._capture: Capture | None = None
        self._context: AbstractContextManager[None] | None = None
        self._nodes: list[Node] | None = None
        self._drawn: dict[torch.Generator, int] = {}

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Accepted: every generator that the capture draws from is found by itself."""

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Begin to capture what is queued on the current stream, which must not be the default one.

        Args:
            pool: of another graph or of `graph_pool_handle`, whose memory is shared; None for a new one.
            capture_error_mode: "global", "thread_local" or "relaxed"; here all are "global".

        Raises:
            RuntimeError: the stream is the default one, the graph was captured before, another capture is under way, or
                pinned memory has expandable segments, which graphs cannot have.
        """
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        if _EXPANDABLE.search(os.environ.get("PYTORCH_NPU_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", "")):
            raise RuntimeError(
                "ACLGraph capture is not supported when pin_memory_expandable_segments=True. Please unset"
                " pin_memory_expandable_segments in PYTORCH_NPU_ALLOC_CONF.",
                message("", NOT_SUPPORTED),
            )
        if self._nodes is not None:
            raise RuntimeError(
                "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        stream = current_stream()
        if stream == default_stream():
            raise RuntimeError(
                "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them"
                " on the default stream.)"
            )
        if current() is not None:
            detail = "Another graph of this process is being captured."
            raise vendor_error("capture_begin", "AclmdlRICaptureBegin(stream, mode)", 107027, detail)
        self._pool = (pool[0], pool[1]) if pool and any(pool) else new_pool(of_graph=True)
        self._stream, self._device = stream, device_index()
        default_generators()  # whose making seeds them
        number = pool_number(self._pool)
        native().open_pool(self._device, number, 1)
        self._capture = Capture(number, self.auto_dispatch_capture)
        self._context = captured(self._capture)
        self._context.__enter__()
        native().set_capturing(1)
        _capturing.append(self)

    @staticmethod
    def get_currently_capturing_graph() -> NPUGraph:
        """Return the graph that is being captured.

        Raises:
            RuntimeError: no graph is being captured, or it is one of torch.accelerator.Graph.
        """
        if current() is None:
            raise RuntimeError("The current NPU stream is not currently capturing.", message("", PARAMETER))
        found = _capturing[-1]
        if found in _of_accelerator.values():
            raise RuntimeError(
                "torch.npu.NPUGraph.get_currently_capturing_graph() is not supported during torch.accelerator.Graph"
                " capture.",
                message("", NOT_SUPPORTED),
            )
        return found

    def begin_capture_to_if_node(self, scalar_npu_pred_tensor: torch.Tensor) -> None:
        """Capture what follows as a part of the graph that a replay leaves out where the tensor is false.

        Args:
            scalar_npu_pred_tensor: one bool on the graph's card, read at that place of each replay.

        Raises:
            RuntimeError: the graph is not being captured, or the tensor is another one.
        """
        condition, reason = scalar_npu_pred_tensor, ""
        if condition.device.type != "npu":
            reason = "Conditions must be on an npu device to use conditional nodes in npu graphs."
        elif condition.numel() != 1:
            reason = "Conditions must be scalar tensors to use conditional nodes in npu graphs."
        elif condition.dtype is not torch.bool:
            reason = "Conditions must be bool tensors to use conditional nodes in npu graphs."
        elif self._capture is None:
            reason = "capture_begin() must be called before begin_capture_to_if_node()."
        elif condition.device.index != self._device:
            reason = "Conditions must be on the same npu device as the graph capture."
        if reason or self._capture is None:
            raise RuntimeError(reason, message("", PARAMETER))
        self._capture.begin_branch(condition)

    def end_capture_to_conditional_node(self) -> None:
        """End the part of the graph that `begin_capture_to_if_node` began.

        Raises:
            RuntimeError: none was begun.
        """
        if self._capture is None:
            raise RuntimeError("capture_end() called before capture_begin().")
        self._capture.end_branch()

    def capture_end(self) -> None:
        """End the capture. The graph can be replayed from here on.

        Raises:
            RuntimeError: no capture is under way, or the current stream is another one.
        """
        self._end()
        if self._nodes is not None and not self._nodes:
            warn(
                "The NPU Graph is empty. This usually means that the graph was attempted to be captured on wrong device"
                " or stream.",
                stacklevel=2,
            )

    def _end(self) -> None:
        if self._capture is None or self._context is None:
            raise RuntimeError("capture_end() called before capture_begin().")
        capture, context = self._capture, self._context
        _capturing.remove(self)
        self._capture = self._context = None
        native().set_capturing(0)
        context.__exit__(None, None, None)
        native().close_pool(self._device, pool_number(self._pool))
        for generator, begun in capture.generators.items():
            self._drawn[generator] = generator.get_offset() - begun
            generator.set_offset(begun)
        if current_stream() != self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if others := capture.unjoined(self._stream.stream_id):
            detail = f"The capture's stream does not wait for the operators on stream {others[0]}."
            raise vendor_error("capture_end", "AclmdlRICaptureEnd(stream, &model)", 107025, detail)
        self._nodes = capture.nodes
        self.graph_dispatch_mode.graph_dispatch_records = capture.records

    def abandon(self) -> None:
        """End a capture in which an error came up, and forget it."""
        if self._capture is not None:
            self._end()
        self.reset()

    def instantiate(self) -> None:
        """Nothing to do: a captured graph can be replayed."""

    def replay(self) -> None:
        """Compute what was captured, with what its inputs hold now.

        Where the graph waits for an `ExternalEvent` that was not recorded, the rest follows at its recording.

        Raises:
            RuntimeError: nothing was captured, or an operator fails.
        """
        if self._nodes is None:
            raise RuntimeError("Called NPUGraph::replay without a preceding successful capture.")
        begun = {generator: generator.get_offset() for generator in self._drawn}
        self._go_on(iter(self._nodes), begun)
        for generator, drawn in self._drawn.items():
            generator.set_offset(begun[generator] + drawn)

    def _go_on(self, rest: Any, begun: dict[torch.Generator, int]) -> None:
        with replayed(), torch.no_grad(), torch.npu.device(self._device):  # type: ignore[attr-defined]
            while (node := next(rest, None)) is not None:
                if isinstance(node, Branch):
                    rest = itertools.chain(node.body, rest) if node.taken() else rest
                    continue
                if node.ready is not None and not node.ready():
                    self._hold(node.ready, itertools.chain([node], rest), begun)
                    return
                node.run(begun)

    def _hold(self, ready: Callable[[], bool], rest: Any, begun: dict[torch.Generator, int]) -> None:
        """Keep the rest of a replay until an event is recorded; the stream waits for its end."""
        over, elsewhere = ExternalEvent(), Stream()
        over.wait()

        def resume() -> None:
            with StreamContext(elsewhere):
                self._go_on(rest, begun)
            over.record(elsewhere)

        waiting_replays.append((ready, resume))

    def reset(self) -> None:
        """Forget what was captured, and release its memory."""
        if self._nodes is not None or self._capture is not None:
            self._nodes = self._capture = None
            self.graph_dispatch_mode.graph_dispatch_records = []
            self._drawn = {}
            native().release_pool(self._device, pool_number(self._pool))

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None or getattr(self, "_nodes", None) is not None:
            self.abandon()

    def pool(self) -> PoolId:
        """Name of the pool that the capture's memory lies in."""
        return self._pool

    def update(self, cpu_update_input: Sequence[dict[str, Any]]) -> None:
        """Change arguments on the host of captured operators, such as lengths of sequences.

        Args:
            cpu_update_input: new values by name: one dictionary for all operators that have a handler, or one for each.

        Raises:
            RuntimeError: the graph was captured without auto_dispatch_capture, or the numbers differ.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "The current graph configuration does not support update,Try to capture by setting"
                " auto_dispatch_capture=True during capture",
                message("", PARAMETER),
            )
        self.graph_dispatch_mode.update_capture_record(cpu_update_input)

    def enable_debug_mode(self) -> None:
        """Accepted: `debug_dump` needs no preparation."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the captured operators as events for a viewer of Chrome traces, in their order.

        A second file, with `.aligned` before the suffix, has them one after the other from time 0. The times of both
        say nothing: each operator takes one microsecond.
        """
        if self._nodes is None:
            warn("Called NPUGraph::debug_dump without a preceding successful capture.", stacklevel=2)
            return
        events = [
            {
                "name": str(node.function),
                "ph": "X",
                "pid": "NPUGraph",
                "tid": "stream0",
                "ts": float(place),
                "dur": 1.0,
                "args": {
                    "Stream Id": 0,
                    "Inputs": [_described(leaf) for leaf in tree_leaves((node.arguments, node.keywords))],
                },
            }
            for place, node in enumerate(self._nodes)
        ]
        Path(debug_path).write_text(json.dumps(events, indent=1), encoding="utf-8")
        try:
            _npugraph_utils.align_trace_json(debug_path, None)
        except Exception:  # the dump itself is there
            _log.warning("Failed to generate aligned trace for %s", debug_path, exc_info=True)

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        """Check the options; kernels are not fused here.

        Raises:
            RuntimeError: an option that there is not, or of another type.
        """
        check_options("optimize_options", optimize_options)
        check_options("debug_options", debug_options)


def _described(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)


class graph:  # noqa: N801
    """Context in which what is queued is captured into a graph.

    Args:
        npu_graph: the graph.
        pool: pool to share, see `NPUGraph.capture_begin`.
        stream: stream to capture on; None for one that all captures share.
        auto_dispatch_capture: whether `NPUGraph.update` may be used.
        capture_error_mode: see `NPUGraph.capture_begin`.
    """

    default_capture_stream: ClassVar[Stream | None] = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolId | None = None,
        stream: Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.pool = pool
        self.capture_stream = stream if stream is not None else graph.default_capture_stream
        self.stream_ctx = StreamContext(self.capture_stream)
        self.npu_graph = npu_graph
        self.capture_error_mode = capture_error_mode
        npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException as error:
            self.stream_ctx.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.npu_graph.capture_end()
            else:
                self.npu_graph.abandon()
        finally:
            self.stream_ctx.__exit__(kind, error, trace)


def is_current_stream_capturing() -> bool:
    """Return True while a graph is being captured."""
    return current() is not None


class _Group:
    """Operators of a graph that can be replaced: what `graph_task_group_end` returns."""

    def __init__(self, nodes: list[Node], pool: int) -> None:
        self.nodes = nodes
        self.pool = pool


_groups: dict[int, int] = {}
"""First node of the group that is open on a stream."""

_updates: dict[int, AbstractContextManager[None]] = {}
"""Update that is open on a stream."""


def graph_task_group_begin(stream: Stream) -> None:
    """Let a group of operators begin, which can be updated after the capture.

    Raises:
        RuntimeError: 107029, no graph is being captured; 107033, a group is open on the stream.
    """
    call = "AclmdlRICaptureTaskGrpBegin(stream)"
    capture = current()
    if capture is None:
        raise vendor_error("graph_task_group_begin", call, 107029, "")
    if stream.stream_id in _groups:
        raise vendor_error("graph_task_group_begin", call, 107033, "A group is open on this stream.")
    _groups[stream.stream_id] = len(capture.nodes)


def graph_task_group_end(stream: Stream) -> _Group:
    """End a group of operators.

    Returns:
        A handle for `graph_task_update_begin`.

    Raises:
        RuntimeError: 107029, no graph is being captured; 107033, no group is open on the stream.
    """
    call = "AclmdlRICaptureTaskGrpEnd(stream, &group)"
    capture = current()
    if capture is None:
        raise vendor_error("graph_task_group_end", call, 107029, "")
    first = _groups.pop(stream.stream_id, None)
    if first is None:
        raise vendor_error("graph_task_group_end", call, 107033, "No group is open on this stream.")
    return _Group(capture.nodes[first:], capture.pool)


def graph_task_update_begin(stream: Stream, handle: _Group) -> None:
    """Let the operators that follow take the place of those of a group.

    Args:
        stream: a stream; the operators on it are not computed.
        handle: of `graph_task_group_end`.

    Raises:
        RuntimeError: 107033, an update is open on the stream.
    """
    if stream.stream_id in _updates:
        call = "AclmdlRICaptureTaskUpdateBegin(stream, group)"
        raise vendor_error("graph_task_update_begin", call, 107033, "An update is open on this stream.")
    update = update_of(handle.nodes, handle.pool)
    update.__enter__()
    _updates[stream.stream_id] = update


def graph_task_update_end(stream: Stream) -> None:
    """End an update.

    Raises:
        RuntimeError: 107033, no update is open on the stream; 107040, the operators are others than those of the group.
    """
    update = _updates.pop(stream.stream_id, None)
    if update is None:
        call = "AclmdlRICaptureTaskUpdateEnd(stream)"
        raise vendor_error("graph_task_update_end", call, 107033, "No update is open on this stream.")
    update.__exit__(None, None, None)


def super_kernel_scope_begin(scope_name: str | None = None) -> None:
    """Accepted, without effect: kernels are not fused here."""
    check_scope(scope_name)


def super_kernel_scope_end(scope_name: str | None = None) -> None:
    """Accepted, without effect: kernels are not fused here."""
    check_scope(scope_name)


# ---- callables


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Make versions of functions or modules whose forward and backward passes are graphs.

    Args:
        callables: a function or module, or a tuple of them in the order in which they will run.
        sample_args: arguments of each: tensors of the shapes, dtypes and requires_grad that the calls will have.
        num_warmup_iters: runs before the capture.
        allow_unused_input: whether inputs may have no effect on the outputs.
        pool: pool to share.

    Returns:
        As many callables. A module gets a new `forward`, used while its mode of training is the one of the capture.

    Raises:
        RuntimeError: autocast caches, a module has hooks or trainable buffers, or an argument is no tensor.
    """
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    mempool = graph_pool_handle() if pool is None else pool
    graphed = [_Graphed(function, args, allow_unused_input) for function, args in zip(functions, samples, strict=True)]
    synchronize()
    with StreamContext(Stream()):
        for each in graphed:
            each.warm_up(num_warmup_iters)
    synchronize()
    for each in graphed:
        each.capture_forward(mempool)
    for each in reversed(graphed):
        each.capture_backward(mempool)
    made = [each.callable() for each in graphed]
    return made[0] if single else tuple(made)


class _Graphed:
    """A callable with the graphs of its passes, and the tensors that they read and write."""

    def __init__(self, function: Any, args: Any, allow_unused: bool) -> None:
        self.function, self.args, self.allow_unused = function, args, allow_unused
        self.user_inputs = tuple(arg_tree_leaves(*args))
        parameters: tuple[torch.Tensor, ...] = ()
        if isinstance(function, torch.nn.Module):
            if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
                raise RuntimeError(
                    "Modules must not have hooks registered at the time they are passed. However, registering hooks on"
                    " modules after passing them through make_graphed_callables is allowed."
                )
            if any(buffer.requires_grad for buffer in function.buffers()):
                raise RuntimeError(
                    "In any :class:`~torch.nn.Module` passed to :func:`~make_graphed_callables`, only parameters may be"
                    " trainable. All buffers must have ``requires_grad=False``."
                )
            parameters = tuple(function.parameters())
        if not all(isinstance(each, torch.Tensor) for each in self.user_inputs):
            raise RuntimeError(
                "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed."
            )
        self.parameters = parameters
        self.inputs = self.user_inputs + parameters
        self.forward_graph, self.backward_graph = NPUGraph(), NPUGraph()
        self.outputs: tuple[Any, ...] = ()
        self.output_spec: Any = None
        self.grad_outputs: tuple[torch.Tensor | None, ...] = ()
        self.grad_inputs: tuple[torch.Tensor | None, ...] = ()

    def _gradients(self, outputs: tuple[Any, ...], grad_outputs: tuple[torch.Tensor | None, ...]) -> Any:
        return torch.autograd.grad(
            outputs=tuple(each for each in outputs if each.requires_grad),
            inputs=tuple(each for each in self.inputs if each.requires_grad),
            grad_outputs=tuple(each for each in grad_outputs if each is not None),
            only_inputs=True,
            allow_unused=self.allow_unused,
        )

    def warm_up(self, times: int) -> None:
        for _ in range(times):
            outputs = tuple(tree_leaves(self.function(*self.args)))
            if any(each.requires_grad for each in outputs):
                self._gradients(outputs, _empty_like(outputs))

    def capture_forward(self, pool: PoolId) -> None:
        with graph(self.forward_graph, pool=pool):
            outputs = self.function(*self.args)
        leaves, self.output_spec = tree_flatten(outputs)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: PoolId) -> None:
        self.grad_outputs = _empty_like(self.outputs)
        found: Any = ()
        if any(each is not None for each in self.grad_outputs):
            with graph(self.backward_graph, pool=pool):
                found = self._gradients(self.outputs, self.grad_outputs)
        gradients = iter(found)
        self.grad_inputs = tuple(next(gradients) if found and each.requires_grad else None for each in self.inputs)

    def callable(self) -> Any:
        function = self._autograd_function()

        def run(*args: Any) -> Any:
            return tree_unflatten(list(function.apply(*arg_tree_leaves(*args), *self.parameters)), self.output_spec)

        module = self.function
        if not isinstance(module, torch.nn.Module):
            return run
        training, forward = module.training, module.forward

        def choose(*args: Any) -> Any:
            return run(*args) if module.training == training else forward(*args)

        module.forward = choose
        return module

    def _autograd_function(self) -> Any:
        graphed = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
                for kept, given in zip(graphed.user_inputs, inputs, strict=False):
                    if kept.data_ptr() != given.data_ptr():
                        kept.copy_(given)
                graphed.forward_graph.replay()
                return tuple(each.detach() for each in graphed.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:
                for kept, given in zip(graphed.grad_outputs, grads, strict=True):
                    if kept is not None and kept.data_ptr() != given.data_ptr():
                        kept.copy_(given)
                graphed.backward_graph.replay()
                return tuple(None if each is None else each.detach() for each in graphed.grad_inputs)

        return Graphed


def _empty_like(outputs: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(torch.empty_like(each) if each.requires_grad else None for each in outputs)


# ---- torch.accelerator.Graph

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
)  # fmt: skip
_of_accelerator: dict[int, NPUGraph] = {}
_capturing: list[NPUGraph] = []
"""The graph that is being captured, if there is one."""


def _call(number: int, method: bytes, first: int, second: int, text: bytes, out: Any) -> int:
    try:
        if method == b"drop":
            _of_accelerator.pop(number, None)
            return 0
        made = _of_accelerator.setdefault(number, NPUGraph())
        if method == b"capture_begin":
            made.capture_begin((first, second), text.decode())
        elif method == b"pool":
            out[0], out[1] = made.pool()
        elif method == b"debug_dump":
            made.debug_dump(text.decode())
        else:
            getattr(made, method.decode())()
    except Exception as error:
        native().graph_error(str(error).encode())
        return 1
    return 0


_kept_call = _CALL(_call)


def accelerator_graphs(on: bool) -> None:
    """Let torch.accelerator.Graph use these graphs, or stop it from calling Python."""
    native().set_graph_calls(ctypes.cast(_kept_call, ctypes.c_void_p) if on else None)
