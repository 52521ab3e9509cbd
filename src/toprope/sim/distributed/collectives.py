"""The collectives of `hccl`: each prepares host tensors, has gloo do the work, and returns torch's Work.

Called by process_group.py, whose methods they are, and by kernels.py. Every function takes the backend first, so that
it also serves the wrapper that torch puts around a backend under TORCH_DISTRIBUTED_DEBUG=DETAIL. Arguments are those of
torch's backends. A new one is also registered in kernels.py, is a method in process_group.py, and has HCCL's name in
tracing/records.py. Tests: tests/sim/test_distributed.py, with cases of tests/helpers/distributed_moves.py and
distributed_reductions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from toprope.sim.distributed import flight_recorder, members, refusals
from toprope.sim.distributed.staging import Staging, divisor_of, factor_of, reduce_operation
from toprope.sim.distributed.work import HcclWork, done, hccl_errors, timed
from toprope.sim.npu._state import message

__all__ = [
    "allgather",
    "allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "unwrapped",
]


_PARAMETER = "ERR02001 DIST invalid parameter"
_TYPE = "ERR02002 DIST invalid type"

_c10d: Any = torch._C._distributed_c10d  # torch's stubs name a part of it
_gloo = _c10d.Backend  # its methods, called past those of a Python subclass


def unwrapped(backend: Any) -> Any:
    """The backend inside those that torch puts around it to check collectives."""
    while isinstance(backend, _c10d._ProcessGroupWrapper):
        backend = backend.wrapped_pg
    return backend


def _run(
    name: str,
    backend: Any,
    results: Any,
    start: Callable[[Staging], Sequence[Work]],
    options: Any = None,
    message_between: tuple[int, int] | None = None,
    inputs: Any = None,
) -> Work:
    """Have gloo do one collective, or one message. Every collective and message goes through here.

    Args:
        name: the collective, as torch's backends name it.
        backend: the backend, or the wrapper around it.
        results: the device tensors that the work's future holds.
        start: prepares the host tensors and gives gloo's works.
        options: torch's options, of which `asyncOp` says whether the caller will wait later; None for a message,
            whose work is gloo's own.
        message_between: the ranks that send and receive a message, where both are known.
        inputs: the device tensors that it reads; None for `results`.
    """
    refusals.check(name, results, options)
    hccl = unwrapped(backend)
    hccl.connect()
    peer = None if message_between is None else sum(message_between) - hccl.rank()
    hccl.streams.note(torch.npu.current_device(), peer)  # type: ignore[attr-defined]
    staging = Staging(hccl.wait_for_all, factor_of(options), divisor_of(options, backend.size()))
    if options is not None and members.on_vector_cores():
        _compare_cores(backend, hccl, members.check_cores(name, hccl, results))
    traced = members.begin(name, hccl, results, message_between, is_message=options is None)
    recorded = flight_recorder.begin(
        hccl.status, results if inputs is None else inputs, results, message_between,
        is_message=options is None, rank=hccl.rank(),
    )  # fmt: skip
    works = start(staging)
    if options is None:
        # gloo's own work of a message from anybody knows the sender, so it is handed out, and not recorded
        ends = [end for end in (None if traced is None else traced.end, recorded) if end is not None]

        def end_message() -> None:
            for end in ends:
                end()

        return works[0] if not ends or message_between is None else timed(works[0], end_message)
    if traced is not None or recorded is not None:

        def ended(futures: Any) -> None:
            if traced is not None:
                traced.end()
            if recorded is not None and not any(_has_failed(future) for future in futures.value()):
                recorded()

        # In gloo's thread, as soon as the work is done: also where nobody waits for it yet.
        torch.futures.collect_all([work.get_future() for work in works]).then(ended)
    if not options.asyncOp:
        with hccl_errors():
            for work in works:
                work.wait()
        staging.finish()()
        if recorded is not None:
            recorded()  # gloo's thread may not have come to it yet
        if traced is not None:
            traced.waited()
        return done(results)
    work = HcclWork(works, staging.finish(), results, None if traced is None else traced.waited)
    hccl.under_way = work.ended
    return work


def _has_failed(future: Any) -> bool:
    try:
        future.value()
    except Exception:
        return True
    return False


def _compare_cores(backend: Any, hccl: Any, cores: int) -> None:
    """Tell the other ranks this limit, as HCCL does, and compare once all of them have arrived."""
    mine = torch.tensor([cores], dtype=torch.int64)
    all_ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(hccl.members.size)]
    work = _gloo.allgather(backend, [all_ranks], [mine], _c10d.AllgatherOptions())
    work.get_future().then(lambda _: members.warn_of_other_limits(hccl, [int(each) for each in all_ranks]))


def _like(kind: Callable[[], Any], opts: Any, dtype: torch.dtype | None = None) -> Any:
    """Options of another kind with the same values; with a dtype, for a reduction of tensors of that type."""
    made = kind()
    made.timeout, made.asyncOp = opts.timeout, opts.asyncOp
    if dtype is not None:
        made.reduceOp = reduce_operation(opts.reduceOp.op, dtype)
    return made


def broadcast(backend: Any, tensors: list[Tensor], opts: Any = None) -> Work:
    """Give all processes the tensor of one."""
    opts = opts or _c10d.BroadcastOptions()

    def start(staging: Staging) -> list[Work]:
        return [_gloo.broadcast(backend, [staging.moved(tensor) for tensor in tensors], opts)]

    return _run("broadcast", backend, tensors, start, opts)


def allreduce(backend: Any, tensors: list[Tensor], opts: Any = None) -> Work:
    """Reduce the tensors of all processes, and give all of them the result."""
    opts = opts or _c10d.AllreduceOptions()

    def start(staging: Staging) -> list[Work]:
        staged = [staging.reduced(tensor) for tensor in tensors]
        return [_gloo.allreduce(backend, staged, _like(_c10d.AllreduceOptions, opts, tensors[0].dtype))]

    return _run("allreduce", backend, tensors, start, opts)


def allreduce_coalesced(backend: Any, tensors: list[Tensor], opts: Any = None) -> Work:
    """Reduce several tensors, which need not be of one type."""
    opts = opts or _c10d.AllreduceCoalescedOptions()

    def start(staging: Staging) -> list[Work]:
        return [
            _gloo.allreduce(backend, [staging.reduced(tensor)], _like(_c10d.AllreduceOptions, opts, tensor.dtype))
            for tensor in tensors
        ]

    return _run("allreduce_coalesced", backend, tensors, start, opts)


def reduce(backend: Any, tensors: list[Tensor], opts: Any = None) -> Work:
    """Reduce the tensors of all processes, and give one of them the result; those of the others stay as they are."""
    opts = opts or _c10d.ReduceOptions()
    stage = Staging.reduced if opts.rootRank == backend.rank() else Staging.kept
    options = _like(_c10d.ReduceOptions, opts, tensors[0].dtype)
    options.rootRank, options.rootTensor = opts.rootRank, opts.rootTensor

    def start(staging: Staging) -> list[Work]:
        return [_gloo.reduce(backend, [stage(staging, tensor) for tensor in tensors], options)]

    return _run("reduce", backend, tensors, start, opts)


def allgather(backend: Any, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
    """Give all processes the tensors of all, which may differ in size."""
    opts = opts or _c10d.AllgatherOptions()

    def start(staging: Staging) -> list[Work]:
        source = [staging.moved(tensor) for tensor in inputs]
        if len({tensor.shape for tensor in outputs[0]}) < 2:
            staged = [[staging.written(tensor) for tensor in one] for one in outputs]
            return [_gloo.allgather(backend, staged, source, opts)]
        row, sizes = staging.parted(outputs[0])
        given = source[0].reshape(-1).repeat(len(sizes))
        given_sizes = [source[0].numel()] * len(sizes)
        return [_gloo.alltoall_base(backend, row, given, sizes, given_sizes, _like(_c10d.AllToAllOptions, opts))]

    return _run("allgather", backend, outputs, start, opts, inputs=inputs)


def allgather_base(backend: Any, output: Tensor, source: Tensor, opts: Any = None) -> Work:
    """Give all processes the tensors of all as one."""
    opts = opts or _c10d.AllgatherOptions()

    def start(staging: Staging) -> list[Work]:
        return [_allgather_base(backend, staging, output, source, opts)]

    return _run("_allgather_base", backend, output, start, opts, inputs=source)


def _allgather_base(backend: Any, staging: Staging, output: Tensor, source: Tensor, opts: Any) -> Work:
    if output.dtype != source.dtype:
        raise RuntimeError(message("output tensor must have the same type as input tensor", _PARAMETER))
    if output.numel() != source.numel() * backend.size():
        text = "output tensor size must be equal to world_size times input tensor size"
        raise RuntimeError(message(text, _PARAMETER))
    # as rows of numbers: HCCL asks for no shape, gloo does
    work: Work = _gloo._allgather_base(backend, staging.moved(output).view(-1), staging.moved(source).view(-1), opts)
    return work


def allgather_into_tensor_coalesced(
    backend: Any, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
) -> Work:
    """Several of `allgather_base`."""
    opts = opts or _c10d.AllgatherOptions()

    def start(staging: Staging) -> list[Work]:
        return [
            _allgather_base(backend, staging, output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]

    return _run("allgather_into_tensor_coalesced", backend, outputs, start, opts, inputs=inputs)


def allgather_coalesced(
    backend: Any, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None
) -> Work:
    """Give all processes the lists of tensors of all."""
    opts = opts or _c10d.AllgatherOptions()

    def start(staging: Staging) -> list[Work]:
        return [
            _gloo.allgather(
                backend, [[staging.written(one[place]) for one in output_lists]], [staging.moved(source)], opts
            )
            for place, source in enumerate(input_list)
        ]

    return _run("allgather_coalesced", backend, output_lists, start, opts)


def gather(backend: Any, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
    """Give one process the tensors of all."""
    opts = opts or _c10d.GatherOptions()

    def start(staging: Staging) -> list[Work]:
        staged = [[staging.written(tensor) for tensor in one] for one in outputs]
        return [_gloo.gather(backend, staged, [staging.moved(tensor) for tensor in inputs], opts)]

    return _run("gather", backend, outputs, start, opts, inputs=inputs)


def scatter(backend: Any, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
    """Give each process one of the tensors of one process."""
    opts = opts or _c10d.ScatterOptions()

    def start(staging: Staging) -> list[Work]:
        staged = [[staging.read(tensor) for tensor in one] for one in inputs]
        return [_gloo.scatter(backend, [staging.moved(tensor) for tensor in outputs], staged, opts)]

    return _run("scatter", backend, outputs, start, opts, inputs=inputs)


def reduce_scatter(backend: Any, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
    """Reduce lists of tensors, which may differ in size, and give each process one of the results.

    Tensors of one size are one row of numbers, as torch_npu hands them to HCCL: it need not have as many tensors as
    there are processes. What is behind the last process's part is ignored, and zeros fill a row that is too short.
    """
    opts = opts or _c10d.ReduceScatterOptions()
    is_row = len({tensor.shape for tensor in inputs[0]}) == 1
    if not is_row and len(inputs[0]) != backend.size():
        text = f"Incorrect input list size {len(inputs[0])}. Input list size should be {backend.size()}"
        raise RuntimeError(message(f"{text}, same as size of the process group.", _PARAMETER))

    def start(staging: Staging) -> list[Work]:
        part = outputs[0].numel()
        row, sizes = staging.joined_to_reduce(inputs[0], part * backend.size() if is_row else None)
        if is_row:
            sizes = [part] * backend.size()
        return [_reduced_part(backend, staging, row, sizes, outputs[0], opts)]

    return _run("reduce_scatter", backend, outputs, start, opts, inputs=inputs)


def _reduced_part(backend: Any, staging: Staging, row: Tensor, sizes: list[int], output: Tensor, opts: Any) -> Work:
    """Reduce a row of numbers that is ours to change, and keep this process's part; gloo does it no other way."""
    mine = row.split_with_sizes(sizes)[backend.rank()]
    if mine.numel() != output.numel():
        raise RuntimeError(message("output tensor must have the same numel as input tensor", _PARAMETER))
    staging.take(output, mine)
    work: Work = _gloo.allreduce(backend, [row], _like(_c10d.AllreduceOptions, opts, output.dtype))
    return work


def reduce_scatter_base(backend: Any, output: Tensor, source: Tensor, opts: Any = None) -> Work:
    """Reduce tensors, and give each process one part of the result."""
    opts = opts or _c10d.ReduceScatterOptions()

    def start(staging: Staging) -> list[Work]:
        return [_reduce_scatter_base(backend, staging, output, source, opts)]

    return _run("_reduce_scatter_base", backend, output, start, opts, inputs=source)


def _reduce_scatter_base(backend: Any, staging: Staging, output: Tensor, source: Tensor, opts: Any) -> Work:
    if output.dtype != source.dtype:
        raise RuntimeError(message("input tensor must be the same type as the output tensor.", _TYPE))
    if source.numel() != output.numel() * backend.size():
        raise RuntimeError(message("input tensor must be the same size as output size times world size", _PARAMETER))
    row = staging.kept(source).view(-1)
    return _reduced_part(backend, staging, row, [output.numel()] * backend.size(), output, opts)


def reduce_scatter_tensor_coalesced(
    backend: Any, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
) -> Work:
    """Several of `reduce_scatter_base`."""
    opts = opts or _c10d.ReduceScatterOptions()

    def start(staging: Staging) -> list[Work]:
        return [
            _reduce_scatter_base(backend, staging, output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]

    return _run("reduce_scatter_tensor_coalesced", backend, outputs, start, opts, inputs=inputs)


def alltoall(backend: Any, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
    """Have each process give every other one a tensor; they may differ in size."""
    opts = opts or _c10d.AllToAllOptions()

    def start(staging: Staging) -> list[Work]:
        given, given_sizes = staging.joined(inputs)
        row, sizes = staging.parted(outputs)
        return [_gloo.alltoall_base(backend, row, given, sizes, given_sizes, opts)]

    return _run("alltoall", backend, outputs, start, opts, inputs=inputs)


def alltoall_base(
    backend: Any,
    output: Tensor,
    source: Tensor,
    output_split_sizes: list[int],
    input_split_sizes: list[int],
    opts: Any = None,
) -> Work:
    """Have each process give every other one a part of its tensor, cut along the first dimension."""
    opts = opts or _c10d.AllToAllOptions()

    def start(staging: Staging) -> list[Work]:
        staged = staging.moved(output), staging.moved(source)
        return [_gloo.alltoall_base(backend, *staged, output_split_sizes, input_split_sizes, opts)]

    return _run("alltoall_base", backend, output, start, opts, inputs=source)


def barrier(backend: Any, opts: Any = None) -> Work:
    """Wait until all processes of the group are here."""
    opts = opts or _c10d.BarrierOptions()
    return _run("barrier", backend, [], lambda _: [_gloo.barrier(backend, opts)], opts)


def send(backend: Any, tensors: list[Tensor], dst: int, tag: int) -> Work:
    """Send a tensor to one process."""
    return _run(
        "send", backend, tensors,
        lambda staging: [_gloo.send(backend, [staging.moved(tensor) for tensor in tensors], dst, tag)],
        message_between=(backend.rank(), dst),
    )  # fmt: skip


def recv(backend: Any, tensors: list[Tensor], src: int, tag: int) -> Work:
    """Receive a tensor from one process."""
    return _run(
        "recv", backend, tensors,
        lambda staging: [_gloo.recv(backend, [staging.moved(tensor) for tensor in tensors], src, tag)],
        message_between=(src, backend.rank()),
    )  # fmt: skip


def recv_anysource(backend: Any, tensors: list[Tensor], tag: int) -> Work:
    """Receive a tensor from whichever process sends one; the work knows from which it came."""
    return _run(
        "recv_anysource", backend, tensors,
        lambda staging: [_gloo.recv_anysource(backend, [staging.moved(tensor) for tensor in tensors], tag)],
    )  # fmt: skip
