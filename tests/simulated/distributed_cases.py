"""What each of two processes does with torch.distributed on its own card; tests/test_distributed.py says when.

A function `case_...` is one test: both processes run it, in the order of this file, with the default group made.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from queued import queue
from torch import Tensor
from torch.distributed import ReduceOp

RANK = int(os.environ.get("RANK", 0))
OTHER = 1 - RANK
BOTH = (0, 1)

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (*FLOATS, *WHOLE, *FLOAT8, *COMPLEX, torch.bool)
OPERATIONS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add, ReduceOp.PRODUCT: torch.mul, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum,
    ReduceOp.AVG: lambda one, other: (one + other) / 2,
    ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor,
}  # fmt: skip
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def made(rank: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (2, 3), salt: int = 0) -> Tensor:
    """The host tensor that a rank begins with, known to both; small numbers that every dtype holds."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    numbers = torch.randint(0, 8, shape, generator=generator)
    return (numbers > 3) if dtype is torch.bool else numbers.to(dtype)


def here(*arguments: Any, **keywords: Any) -> Tensor:
    """`made` for this rank, on its card."""
    return made(RANK, *arguments, **keywords).npu()


def blank(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32).to(dtype).npu()


def same(got: Tensor, expected: Tensor) -> None:
    assert got.device == torch.device("npu", torch.npu.current_device())
    bits = {torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}.get(expected.dtype)
    host = got.cpu()
    if bits is not None:
        assert host.dtype == expected.dtype
        host, expected = host.view(bits), expected.view(bits)
    torch.testing.assert_close(host, expected, rtol=0, atol=0, equal_nan=True)


@contextmanager
def late(rank: int, seconds: float = 0.2) -> Iterator[None]:
    """One rank comes later to what is done inside, so that the other one's work is under way for a while."""
    if rank == RANK:
        time.sleep(seconds)
    yield


def collectives_of(dtype: torch.dtype) -> tuple[Any, ...]:
    """The operations that a dtype can be reduced with."""
    if dtype is torch.bool:
        return tuple(operation for operation in OPERATIONS if operation != ReduceOp.AVG)
    if dtype in WHOLE:
        return tuple(operation for operation in OPERATIONS if operation != ReduceOp.AVG)
    return tuple(operation for operation in OPERATIONS if operation not in BITWISE)


def reduced(operation: Any, dtype: torch.dtype, *arguments: Any, **keywords: Any) -> Tensor:
    one, other = (made(rank, dtype, *arguments, **keywords) for rank in BOTH)
    if dtype is torch.bool:
        operation = {ReduceOp.SUM: ReduceOp.BOR, ReduceOp.MAX: ReduceOp.BOR}.get(operation, operation)
        operation = {ReduceOp.PRODUCT: ReduceOp.BAND, ReduceOp.MIN: ReduceOp.BAND}.get(operation, operation)
    return OPERATIONS[operation](one, other)


# ---- what moves numbers


def case_broadcast() -> None:
    for source in BOTH:
        for dtype in MOVED:
            tensor = here(dtype)
            assert dist.broadcast(tensor, source) is None
            same(tensor, made(source, dtype))
    scalar = torch.tensor(float(RANK)).npu()
    dist.broadcast(scalar, 1)
    same(scalar, torch.tensor(1.0))


def case_bits_are_kept() -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.int16, torch.float16, torch.bfloat16):
        tensor = (bits if RANK == 0 else torch.zeros_like(bits)).view(dtype).npu()
        dist.broadcast(tensor, 0)
        assert torch.equal(tensor.cpu().view(torch.int16), bits)


def case_all_gather() -> None:
    for dtype in MOVED:
        outputs = [blank(dtype) for _ in BOTH]
        dist.all_gather(outputs, here(dtype))
        for rank in BOTH:
            same(outputs[rank], made(rank, dtype))


def case_all_gather_of_different_sizes() -> None:
    for dtype in MOVED:
        outputs = [blank(dtype, (rank + 1, 2)) for rank in BOTH]
        dist.all_gather(outputs, here(dtype, (RANK + 1, 2)))
        for rank in BOTH:
            same(outputs[rank], made(rank, dtype, (rank + 1, 2)))


def case_all_gather_single() -> None:
    for dtype in MOVED:
        output = blank(dtype, (4, 3))
        dist.all_gather_single(output, here(dtype))
        same(output, torch.cat([made(rank, dtype) for rank in BOTH]))
    stacked = blank(shape=(2, 2, 3))
    dist.all_gather_single(stacked, here())
    same(stacked, torch.stack([made(rank) for rank in BOTH]))


def case_all_gather_coalesced() -> None:
    outputs, sources = [blank(shape=(4, 3)), blank(torch.int16, (2,))], [here(), here(torch.int16, (1,))]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, source in zip(outputs, sources, strict=True):
            dist.all_gather_single(output, source)
    manager.wait()
    same(outputs[0], torch.cat([made(rank) for rank in BOTH]))
    same(outputs[1], torch.cat([made(rank, torch.int16, (1,)) for rank in BOTH]))
    lists = [[blank(), blank(torch.int64, (1,))] for _ in BOTH]
    dist.group.WORLD.allgather_coalesced(lists, [here(), here(torch.int64, (1,))]).wait()
    for rank in BOTH:
        same(lists[rank][0], made(rank))
        same(lists[rank][1], made(rank, torch.int64, (1,)))


def case_gather() -> None:
    for target in BOTH:
        for dtype in MOVED:
            outputs = [blank(dtype) for _ in BOTH] if target == RANK else None
            dist.gather(here(dtype), outputs, target)
            for rank, output in enumerate(outputs or []):
                same(output, made(rank, dtype))


def case_scatter() -> None:
    for source in BOTH:
        for dtype in MOVED:
            output = blank(dtype)
            parts = [made(source, dtype, salt=rank).npu() for rank in BOTH] if source == RANK else None
            dist.scatter(output, parts, source)
            same(output, made(source, dtype, salt=RANK))


def case_all_to_all() -> None:
    for dtype in MOVED:
        outputs = [blank(dtype) for _ in BOTH]
        dist.all_to_all(outputs, [here(dtype, salt=rank) for rank in BOTH])
        for rank in BOTH:
            same(outputs[rank], made(rank, dtype, salt=RANK))


def case_all_to_all_of_different_sizes() -> None:
    for dtype in MOVED:
        outputs = [blank(dtype, (rank + 1, 2 * RANK)) for rank in BOTH]
        dist.all_to_all(outputs, [here(dtype, (RANK + 1, 2 * rank)) for rank in BOTH])
        for rank in BOTH:
            same(outputs[rank], made(rank, dtype, (rank + 1, 2 * RANK)))


def case_all_to_all_single() -> None:
    for dtype in MOVED:
        output = blank(dtype, (4, 3))
        dist.all_to_all_single(output, here(dtype, (4, 3)))
        same(output, torch.cat([made(rank, dtype, (4, 3)).chunk(2)[RANK] for rank in BOTH]))


def case_all_to_all_single_with_splits() -> None:
    rows = [[1, 2], [3, 0]]  # from each rank to each
    for dtype in MOVED:
        given, taken = rows[RANK], [one[RANK] for one in rows]
        output = blank(dtype, (sum(taken), 3))
        dist.all_to_all_single(output, here(dtype, (sum(given), 3)), taken, given)
        expected = [made(rank, dtype, (sum(rows[rank]), 3)).split(rows[rank])[RANK] for rank in BOTH]
        same(output, torch.cat(expected))


def case_send_and_recv() -> None:
    for dtype in MOVED:
        if RANK == 0:
            dist.send(here(dtype), 1)
        else:
            tensor = blank(dtype)
            assert dist.recv(tensor, 0) == 0
            same(tensor, made(0, dtype))


def case_isend_and_irecv() -> None:
    got = [blank(), blank(torch.int32, (3,))]
    works = [dist.irecv(got[0], OTHER, tag=1), dist.irecv(got[1], OTHER, tag=2)]
    works += [dist.isend(here(torch.int32, (3,)), OTHER, tag=2), dist.isend(here(), OTHER, tag=1)]
    for work in works:
        work.wait()
    same(got[0], made(OTHER))
    same(got[1], made(OTHER, torch.int32, (3,)))


def case_recv_from_any_source() -> None:
    if RANK == 0:
        tensor = blank()
        assert dist.recv(tensor) == 1
        same(tensor, made(1))
    else:
        dist.send(here(), 0)


def case_batch_isend_irecv() -> None:
    got = blank()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, here(), OTHER), dist.P2POp(dist.irecv, got, OTHER)])
    for work in works:
        work.wait()
    same(got, made(OTHER))


def case_objects() -> None:
    everything: list[Any] = [None, None]
    dist.all_gather_object(everything, {"rank": RANK, "tensor": torch.tensor([RANK])})
    assert [one["rank"] for one in everything] == [0, 1]
    given = [{"a": 1}, "b"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(given, 0)
    assert given == [{"a": 1}, "b"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["for 0", "for 1"] if RANK == 1 else None, 1)
    assert mine == [f"for {RANK}"]
    gathered: list[Any] | None = [None, None] if RANK == 1 else None
    dist.gather_object(RANK, gathered, 1)
    assert gathered == ([0, 1] if RANK == 1 else None)
    if RANK == 0:
        dist.send_object_list(["sent"], 1)
    else:
        got: list[Any] = [None]
        dist.recv_object_list(got, 0)
        assert got == ["sent"]


def case_nothing_in_it() -> None:
    empty = blank(shape=(0, 3))
    dist.broadcast(empty, 0)
    dist.all_reduce(empty)
    dist.all_gather_single(blank(shape=(0, 3)), empty)
    dist.all_gather([blank(shape=(0, 3)) for _ in BOTH], empty)
    dist.all_to_all_single(blank(shape=(0, 3)), empty)
    dist.reduce_scatter_single(blank(shape=(0, 3)), empty)
    assert empty.shape == (0, 3)


# ---- what reduces numbers


def case_all_reduce() -> None:
    for dtype in (*FLOATS, *WHOLE, torch.bool):
        for operation in collectives_of(dtype):
            tensor = here(dtype)
            dist.all_reduce(tensor, operation)
            same(tensor, reduced(operation, dtype))


def case_all_reduce_wraps_around() -> None:
    for dtype in WHOLE:
        most = torch.iinfo(dtype).max
        tensor = torch.tensor([most, most - RANK, 3], dtype=dtype).npu()
        dist.all_reduce(tensor)
        same(tensor, torch.tensor([most, most, 3], dtype=dtype) + torch.tensor([most, most - 1, 3], dtype=dtype))
        tensor = torch.tensor([most, most - RANK, 3], dtype=dtype).npu()
        dist.all_reduce(tensor, ReduceOp.PRODUCT)
        same(tensor, torch.tensor([most, most, 3], dtype=dtype) * torch.tensor([most, most - 1, 3], dtype=dtype))


def case_all_reduce_of_complex_numbers() -> None:
    for dtype in COMPLEX:
        tensor = here(dtype)
        dist.all_reduce(tensor)
        same(tensor, reduced(ReduceOp.SUM, dtype))
        with pytest.raises(ValueError, match="all_reduce does not support"):
            dist.all_reduce(tensor, ReduceOp.MAX)


def case_all_reduce_of_channels_last() -> None:
    host = made(RANK, shape=(2, 3, 4, 5)).to(memory_format=torch.channels_last)
    tensor = host.npu()
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    dist.all_reduce(tensor)
    same(tensor, reduced(ReduceOp.SUM, torch.float32, (2, 3, 4, 5)))


def case_all_reduce_of_a_part() -> None:
    whole = torch.zeros(4, 6).npu()
    whole[1:3] = here(shape=(2, 6))
    dist.all_reduce(whole[1:3])
    same(whole[1:3], reduced(ReduceOp.SUM, torch.float32, (2, 6)))
    same(whole[0], torch.zeros(6))


def case_all_reduce_coalesced() -> None:
    tensors = [here(), here(torch.int16, (3,)), here(torch.bool, (2,))]
    with dist._coalescing_manager() as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    del manager
    same(tensors[0], reduced(ReduceOp.SUM, torch.float32))
    same(tensors[1], reduced(ReduceOp.SUM, torch.int16, (3,)))
    same(tensors[2], reduced(ReduceOp.SUM, torch.bool, (2,)))


def case_reduce() -> None:
    for target in BOTH:
        for dtype in (*FLOATS, *WHOLE, torch.bool):
            for operation in collectives_of(dtype):
                tensor = here(dtype)
                dist.reduce(tensor, target, operation)
                same(tensor, reduced(operation, dtype) if target == RANK else made(RANK, dtype))


def case_reduce_scatter() -> None:
    for dtype in (*FLOATS, *WHOLE, torch.bool):
        for operation in collectives_of(dtype):
            output, parts = blank(dtype), [here(dtype, salt=rank) for rank in BOTH]
            dist.reduce_scatter(output, parts, operation)
            same(output, reduced(operation, dtype, salt=RANK))
            for rank in BOTH:
                same(parts[rank], made(RANK, dtype, salt=rank))


def case_reduce_scatter_of_different_sizes() -> None:
    for dtype in (*FLOATS, *WHOLE, torch.bool):
        for operation in collectives_of(dtype):
            output, parts = blank(dtype, (RANK + 1, 2)), [here(dtype, (rank + 1, 2)) for rank in BOTH]
            dist.reduce_scatter(output, parts, operation)
            same(output, reduced(operation, dtype, (RANK + 1, 2)))


def case_reduce_scatter_single() -> None:
    for dtype in (*FLOATS, *WHOLE, torch.bool):
        for operation in collectives_of(dtype):
            output, source = blank(dtype), here(dtype, (4, 3))
            dist.reduce_scatter_single(output, source, operation)
            same(output, reduced(operation, dtype, (4, 3)).chunk(2)[RANK])
            same(source, made(RANK, dtype, (4, 3)))


def case_reduce_scatter_coalesced() -> None:
    outputs, sources = [blank(), blank(torch.int16, (1,))], [here(shape=(4, 3)), here(torch.int16, (2,))]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, source in zip(outputs, sources, strict=True):
            dist.reduce_scatter_single(output, source)
    manager.wait()
    same(outputs[0], reduced(ReduceOp.SUM, torch.float32, (4, 3)).chunk(2)[RANK])
    same(outputs[1], reduced(ReduceOp.SUM, torch.int16, (2,)).chunk(2)[RANK])


# ---- members of lists with gaps


def gapped(tensor: Tensor) -> Tensor:
    """The same numbers, every other one of a larger tensor's."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype).npu()
    part = wide[..., 0]
    part.copy_(tensor)
    assert not part.is_contiguous()
    return part


def case_lists_may_have_gaps() -> None:
    outputs = [gapped(torch.zeros(2, 3)) for _ in BOTH]
    dist.all_gather(outputs, here())
    same(outputs[0], made(0))
    same(outputs[1], made(1))
    outputs = [gapped(torch.zeros(2, 3)) for _ in BOTH]
    dist.all_to_all(outputs, [gapped(made(RANK, salt=rank)) for rank in BOTH])
    same(outputs[OTHER], made(OTHER, salt=RANK))
    output = blank()
    dist.reduce_scatter(output, [gapped(made(RANK, salt=rank)) for rank in BOTH])
    same(output, reduced(ReduceOp.SUM, torch.float32, salt=RANK))
    dist.scatter(output, [gapped(made(0, salt=rank)) for rank in BOTH] if RANK == 0 else None, 0)
    same(output, made(0, salt=RANK))
    gathered = [gapped(torch.zeros(2, 3)) for _ in BOTH] if RANK == 0 else None
    dist.gather(here(), gathered, 0)
    for rank, tensor in enumerate(gathered or []):
        same(tensor, made(rank))


# ---- time: asynchronous work, streams, order


def case_asynchronous_work() -> None:
    tensor = here()
    with late(1):
        work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    assert work.wait()
    assert work.is_completed()
    assert future.done()
    (result,) = future.value()
    assert result is tensor or result.data_ptr() == tensor.data_ptr()
    same(result, reduced(ReduceOp.SUM, torch.float32))
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), 4 * reduced(ReduceOp.SUM, torch.float32))


def case_work_with_a_time_limit() -> None:
    from datetime import timedelta

    tensor = here()
    if RANK == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        with pytest.raises(RuntimeError, match="Operation timed out!"):
            work.wait(timedelta(milliseconds=50))
        assert work.exception() is None
        dist.send(torch.zeros(1).npu(), 1)
        work.wait(timedelta(seconds=30))
    else:
        dist.recv(torch.zeros(1).npu(), 0)
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait(timedelta(seconds=30))
    assert work.is_success()
    same(work.result()[0], reduced(ReduceOp.SUM, torch.float32))


def case_works_that_nobody_waits_for_hold_no_memory() -> None:
    before = torch.npu.memory_allocated()
    for _ in range(8):
        dist.all_reduce(torch.ones(2**16).npu(), async_op=True)
    time.sleep(1.1)
    dist.all_reduce(here(), async_op=True).wait()
    assert torch.npu.memory_allocated() - before < 2**18


def case_collectives_come_one_after_the_other() -> None:
    """Each reads what the one before it left, though none is waited for: HCCL has one stream for a group."""

    def after(follow: Callable[[Tensor], Any], dtype: torch.dtype) -> Any:
        tensor = here(dtype)
        with late(1, 0.05):
            first = dist.all_reduce(tensor, async_op=True)
        second, result = follow(tensor)
        second.wait()
        first.wait()
        return result

    for dtype in (torch.float32, torch.int16):
        total = reduced(ReduceOp.SUM, dtype)
        same(after(lambda x: (dist.all_reduce(x, async_op=True), x), dtype), 2 * total)
        same(after(lambda x: (dist.broadcast(x, 0, async_op=True), x), dtype), total)
        same(after(lambda x: (dist.reduce(x, 0, async_op=True), x), dtype), 2 * total if RANK == 0 else total)

        def all_gather(x: Tensor) -> Any:
            outputs = [torch.zeros_like(x) for _ in BOTH]
            return dist.all_gather(outputs, x, async_op=True), outputs[OTHER]

        def reduce_scatter(x: Tensor) -> Any:
            output = torch.zeros_like(x)
            return dist.reduce_scatter(output, [x, x], async_op=True), output

        def reduce_scatter_single(x: Tensor) -> Any:
            output = torch.zeros_like(x[:1])
            return dist.reduce_scatter_single(output, x, async_op=True), output

        def all_to_all(x: Tensor) -> Any:
            outputs = [torch.zeros_like(x) for _ in BOTH]
            return dist.all_to_all(outputs, [x, x], async_op=True), outputs[OTHER]

        def scatter(x: Tensor) -> Any:
            output = torch.zeros_like(x)
            return dist.scatter(output, [x, x] if RANK == 0 else None, async_op=True), output

        def with_gaps(x: Tensor) -> Any:
            outputs = [torch.zeros_like(x[:, 0]) for _ in BOTH]
            return dist.all_to_all(outputs, [x[:, 0], x[:, 0]], async_op=True), outputs[OTHER]

        for follow in (all_gather, all_to_all, scatter):
            same(after(follow, dtype), total)
        same(after(reduce_scatter, dtype), 2 * total)
        same(after(reduce_scatter_single, dtype), 2 * total[RANK : RANK + 1])
        same(after(with_gaps, dtype), total[:, 0])


def case_queued_work_comes_first() -> None:
    tensor = torch.zeros(2).npu()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        view = torch.ops.toprope_sim.host_view(tensor)
        queue(lambda: (time.sleep(0.1), view.fill_(RANK + 1)))
        dist.all_reduce(tensor)
    same(tensor, torch.tensor([3.0, 3.0]))


def case_barrier() -> None:
    ready = time.monotonic() + (0.3 if RANK == 0 else 0.0)
    while time.monotonic() < ready:
        time.sleep(0.01)
    began = time.monotonic()
    dist.barrier()
    if RANK == 1:
        assert time.monotonic() - began > 0.1
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[torch.npu.current_device()])


def case_a_process_that_does_not_come() -> None:
    from datetime import timedelta

    group = dist.new_group(timeout=timedelta(seconds=1))
    if RANK == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            dist.all_reduce(here(), group=group)
        work = dist.broadcast(here(), 1, group=group, async_op=True)
        with pytest.raises(RuntimeError):
            work.wait()
        assert work.is_completed()
    dist.barrier()
    dist.destroy_process_group(group)


# ---- groups


def case_groups() -> None:
    alone = [dist.new_group([rank]) for rank in BOTH][RANK]
    tensor = here()
    dist.all_reduce(tensor, group=alone)
    same(tensor, made(RANK))
    both = dist.new_group([0, 1], backend="hccl")
    assert dist.get_backend(both) == "hccl"
    dist.all_reduce(tensor, group=both)
    same(tensor, reduced(ReduceOp.SUM, torch.float32))
    mine, _ = dist.new_subgroups(1)
    assert (dist.get_world_size(mine), dist.get_rank(mine)) == (1, 0)
    for group in (mine, both, alone):
        dist.destroy_process_group(group)
    dist.all_reduce(tensor)


def case_the_backend_of_a_group() -> None:
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("npu"))
    assert (backend.rank(), backend.size(), backend.name()) == (RANK, 2, "hccl")
    assert backend is group._get_backend(torch.device("npu", 0))
    name = backend.get_hccl_comm_name(RANK)
    names: list[Any] = [None, None]
    dist.all_gather_object(names, name)
    assert names == [name, name]
    tensor = here()
    backend.allreduce([tensor]).wait()
    same(tensor, reduced(ReduceOp.SUM, torch.float32))
    options = type(backend).Options()
    options.hccl_config = {"hccl_comm_name": "mine"}
    other = dist.new_group(pg_options=options)
    assert other._get_backend(torch.device("npu")).get_hccl_comm_name(RANK) == "mine"
    assert other._get_backend(torch.device("npu")).options.global_ranks_in_group == [0, 1]
    dist.destroy_process_group(other)
    assert dist.reinit_process_group() is group
    assert dist.reinit_process_group(rebuild_link=False) is None


def case_gloo_does_not_serve_cards() -> None:
    group = dist.new_group(backend="gloo")
    with pytest.raises(RuntimeError, match="No backend type associated with device type npu"):
        dist.all_reduce(here(), group=group)
    host = made(RANK)
    dist.all_reduce(host, group=group)
    assert torch.equal(host, reduced(ReduceOp.SUM, torch.float32))
    dist.destroy_process_group(group)


def case_hccl_does_not_serve_the_host() -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))


def case_functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(here(), "sum", group)
    same(total + 0, reduced(ReduceOp.SUM, torch.float32))
    gathered = functional.all_gather_single(here(), 0, group)
    same(gathered + 0, torch.cat([made(rank) for rank in BOTH]))
    scattered = functional.reduce_scatter_single(here(shape=(4, 3)), "avg", 0, group)
    same(scattered + 0, reduced(ReduceOp.AVG, torch.float32, (4, 3)).chunk(2)[RANK])
    swapped = functional.all_to_all_single(here(), [1, 1], [1, 1], group)
    same(swapped + 0, torch.stack([made(rank)[RANK] for rank in BOTH]))


# ---- what is refused


def case_errors() -> None:
    square = torch.ones(4, 4).npu()
    for call in (
        lambda: dist.all_reduce(square[:, ::2]),
        lambda: dist.broadcast(square.t()[:2], 0),
        lambda: dist.all_gather_single(blank(shape=(4, 3)), torch.ones(3, 2).npu().t()),
        lambda: dist.send(square[:, 1], OTHER),
    ):
        with pytest.raises(RuntimeError, match=r"Tensors must be contiguous\n.*ERR02002 DIST invalid type"):
            call()
    with pytest.raises(RuntimeError, match="Unsupported data type for HCCL process group"):
        dist.all_reduce(torch.ones(2).to(torch.uint16).npu())
    with pytest.raises(RuntimeError, match=r"Cannot use ReduceOp\.PREMUL_SUM with HCCL"):
        dist.all_reduce(here(), dist._make_nccl_premul_sum(0.5))
    with pytest.raises(RuntimeError, match="expected length 2, got 1"):
        dist.all_gather([blank()], here())
    with pytest.raises(RuntimeError, match=r"Incorrect input list size 1\. Input list size should be 2"):
        dist.reduce_scatter(blank(), [here()])
    with pytest.raises(RuntimeError, match="output tensor size must be equal to world_size times input tensor size"):
        dist.all_gather_single(blank(), here())
    with pytest.raises(RuntimeError, match="input tensor must be the same size as output size times world size"):
        dist.reduce_scatter_single(blank(), here())
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Int"):
        dist.all_reduce(here(torch.int32), ReduceOp.AVG)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Int"):
        dist.all_reduce(here(torch.int32), ReduceOp.AVG, async_op=True).wait()
    tensor = here()
    dist.all_reduce(tensor)
    same(tensor, reduced(ReduceOp.SUM, torch.float32))
