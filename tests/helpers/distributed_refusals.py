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


def case_the_gradient_norm_of_zero_3() -> None:
    """DeepSpeed asks for float64 and sums over the processes; a card gives float32 (torch_npu's ToKernelNpu.cpp)."""
    gradients = [torch.full((4,), 1.0 + RANK, dtype=torch.bfloat16).npu(), torch.zeros(2, dtype=torch.bfloat16).npu()]
    norms = [each.to("npu", non_blocking=True).to(torch.double).norm(2.0) for each in gradients]
    total = torch.sum(torch.pow(torch.stack(norms), 2.0))
    dist.all_reduce(total)
    assert total.dtype is torch.float32
    assert (total**0.5).item() == pytest.approx((4 * (1.0 + 4.0)) ** 0.5)


def case_types_that_are_moved_and_not_reduced() -> None:
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float64):
        mine = torch.tensor([RANK, 7]).to(dtype).npu()
        parts = [torch.zeros(2).to(dtype).npu() for _ in BOTH]  # not on the card: uint32 is refused there
        dist.all_gather(parts, mine)
        assert [part.tolist() for part in parts] == [[0, 7], [1, 7]]
        dist.broadcast(mine, 1)
        assert mine.tolist() == [1, 7]
        refused(lambda mine=mine: dist.all_reduce(mine), r"HCCL allreduce: Unsupported data type at::[\w:]+")


def case_types_that_are_not_carried() -> None:
    strange = torch.ones(2).to(torch.float8_e5m2fnuz).npu()
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


def case_the_first_collective_refuses_settings_of_a_wrong_type() -> None:
    options = type(dist.group.WORLD._get_backend(torch.device("npu"))).Options()
    for name, value, text in (
        ("qos_service_level", "123", "Value type of qos_service_level should be int"),
        ("hccl_buffer_size", -1, "Value type of hccl_buffer_size should be int"),
        ("hccl_job_id", 5, "Value type of hccl_job_id should be int"),  # C++ takes it for a uint32
        ("group_name", 123, "Value type of group_name should be string"),
        ("hccl_exec_timeout", 2**31, r"exceeds INT32_MAX\(2147483647\)"),
    ):
        options.hccl_config = {name: value}
        group = dist.new_group(pg_options=options)
        with pytest.raises(RuntimeError, match=text):
            dist.all_reduce(here(), group=group)
        dist.destroy_process_group(group)
    options.hccl_config = {"hccl_exec_timeout": -1, "hccl_job_id": 2**40, "another": 1}
    group = dist.new_group(pg_options=options)
    dist.all_reduce(here(), group=group)
    dist.destroy_process_group(group)
    with pytest.raises(TypeError, match="'hccl_algo' is float"):
        options.hccl_config = {"hccl_algo": 1.5}
