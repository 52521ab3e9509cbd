"""Tensors that two processes begin with and end with, for the cases of tests/sim/test_distributed.py.

In the modules distributed_*.py a function `case_...` is one test: both processes run it, each on its own card, with the
default group made, in the order of the file.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

RANK = int(os.environ.get("RANK", 0))
OTHER = 1 - RANK
BOTH = (0, 1)


def _half(total: Tensor) -> Tensor:
    """The mean of two ranks as torch_npu's test_allreduce.py wants it: towards zero for whole numbers."""
    return total / 2 if total.is_floating_point() or total.is_complex() else total.div(2, rounding_mode="trunc")


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (*FLOATS, *WHOLE, *FLOAT8, *COMPLEX, torch.bool)
OPERATIONS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add, ReduceOp.PRODUCT: torch.mul, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum,
    ReduceOp.AVG: lambda one, other: _half(one + other),
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
        return tuple(OPERATIONS)
    return tuple(operation for operation in OPERATIONS if operation not in BITWISE)


def reduced(operation: Any, dtype: torch.dtype, *arguments: Any, **keywords: Any) -> Tensor:
    one, other = (made(rank, dtype, *arguments, **keywords) for rank in BOTH)
    if dtype is torch.bool:
        operation = {ReduceOp.SUM: ReduceOp.BOR, ReduceOp.MAX: ReduceOp.BOR}.get(operation, operation)
        operation = {ReduceOp.PRODUCT: ReduceOp.BAND, ReduceOp.MIN: ReduceOp.BAND}.get(operation, operation)
    return OPERATIONS[operation](one, other)


def gapped(tensor: Tensor) -> Tensor:
    """The same numbers, every other one of a larger tensor's."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype).npu()
    part = wide[..., 0]
    part.copy_(tensor)
    assert not part.is_contiguous()
    return part
