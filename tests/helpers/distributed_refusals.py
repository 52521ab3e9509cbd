"""What the cards' HCCL refuses, in a run with refusals on; both processes run every case."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from distributed_values import BOTH, OTHER, RANK, here, reduced, same


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{words}\n\[ERROR\] .*ERR02007 DIST feature not supported$"):
        call()


def case_types_that_are_not_reduced() -> None:
    double = torch.ones(2, dtype=torch.float64).npu()
    refused(lambda: dist.all_reduce(double), "HCCL allreduce: Unsupported data type at::kDouble")
    refused(lambda: dist.reduce(double, 0), "HCCL reduce: Unsupported data type at::kDouble")
    refused(
        lambda: dist.reduce_scatter_single(double[:1], double),
        "HCCL _reduce_scatter_base: Unsupported data type at::kDouble",
    )
    refused(
        lambda: dist.reduce_scatter(double[:1], [double[:1], double[:1]]),
        "HCCL reduce_scatter: Unsupported data type at::kDouble",
    )
    small = torch.ones(2, dtype=torch.uint8).npu()
    refused(
        lambda: dist.reduce_scatter_single(small[:1], small),
        "HCCL _reduce_scatter_base: Unsupported data type at::kByte/at::kBool",
    )
    dist.all_reduce(small)  # torch_npu casts it
    assert small.tolist() == [2, 2]


def case_types_that_are_not_carried() -> None:
    strange = torch.ones(2).to(torch.uint16).npu()
    for call in (
        lambda: dist.broadcast(strange, 0),
        lambda: dist.send(strange, OTHER),
        lambda: dist.all_gather([torch.zeros_like(strange) for _ in BOTH], strange),
    ):
        refused(call, "Unsupported data type for HCCL process group")
    double = torch.full((2,), float(RANK), dtype=torch.float64).npu()
    dist.broadcast(double, 1)
    assert double.tolist() == [1.0, 1.0]


def case_operations_that_are_not_there() -> None:
    for name in ("BAND", "BOR", "BXOR"):
        refused(
            lambda name=name: dist.all_reduce(here(torch.int32), getattr(ReduceOp, name)),
            rf"Cannot use ReduceOp\.{name} with HCCL",
        )
    if RANK == 0:
        refused(lambda: dist.recv(torch.zeros(2).npu()), "ProcessGroupHCCL does not support recv")


def case_the_rest_runs() -> None:
    for dtype in (torch.int16, torch.float16, torch.bool):
        tensor = here(dtype)
        dist.all_reduce(tensor)
        same(tensor, reduced(ReduceOp.SUM, dtype))
