"""Collectives that move numbers, every dtype against the expected value."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from distributed_values import BOTH, MOVED, OTHER, RANK, blank, gapped, here, made, reduced, same


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
