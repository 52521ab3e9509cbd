"""Collectives that reduce numbers, every operation and dtype against the expected value."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from distributed_values import BOTH, COMPLEX, FLOATS, RANK, WHOLE, blank, collectives_of, here, made, reduced, same


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


def case_sum_of_products() -> None:
    """A gradient divide factor of one's own in fully_shard asks for it; it was refused for want of the factor."""
    for factor in (0.25, torch.tensor([0.25])):
        operation = torch._C._distributed_c10d._make_nccl_premul_sum(factor)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            tensor = here(dtype)
            dist.all_reduce(tensor, operation)
            same(tensor, (made(0, dtype) * 0.25 + made(1, dtype) * 0.25).to(dtype))
            output, source = blank(dtype), torch.cat([here(dtype, salt=rank) for rank in BOTH])
            dist.reduce_scatter_tensor(output, source, operation)
            same(output, (made(0, dtype, salt=RANK) * 0.25 + made(1, dtype, salt=RANK) * 0.25).to(dtype))
            parts = [here(dtype, salt=rank) for rank in BOTH]
            dist.reduce_scatter(blank(dtype), parts, operation)
            same(parts[RANK], made(RANK, dtype, salt=RANK))
    with pytest.raises(RuntimeError, match="PreMulSum Data type must be half, float, bfloat16 or double"):
        dist.all_reduce(here(torch.int32), operation)
