"""The backend `hccl` in a group of one process, and what can be asked of it without another one.

Holds sim/distributed against torch_npu's names, and values computed by hand. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, ReduceOp

import toprope.sim
from toprope.sim.distributed import refusals
from toprope.sim.distributed.staging import reduce_operation
from toprope.sim.distributed.threads import run_elsewhere, wait_for_all


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("hccl", store=HashStore(), rank=0, world_size=1, device_id=torch.device("npu:0"))
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_torch_knows_the_backend() -> None:
    assert dist.is_hccl_available()
    assert dist.Backend.HCCL == "hccl"
    assert dist.Backend.default_device_backend_map["npu"] == "hccl"
    assert dist.get_default_backend_for_device("npu") == "hccl"


def test_a_group_of_one(group: Any) -> None:
    tensor = torch.arange(4.0).npu()
    expected = tensor.cpu()
    for operation in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG):
        dist.all_reduce(tensor, operation)
    dist.broadcast(tensor, 0)
    output = torch.empty(4).npu()
    dist.all_gather_single(output, tensor)
    dist.reduce_scatter_single(tensor, output)
    dist.all_to_all_single(output, tensor)
    assert torch.equal(output.cpu(), expected)
    dist.barrier()


def test_buffers_of_a_communicator_count_once_from_its_first_collective(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.ones(8).npu()
    with toprope.sim.rehearse() as rehearsal:
        assert {one.runtime for one in rehearsal.so_far().memory} == {0}  # other tests of the process used other cards
        for _ in range(3):
            dist.all_reduce(tensor)
        monkeypatch.setenv("HCCL_BUFFSIZE", "50")
        dist.all_reduce(tensor, group=dist.new_group([0]))
    memory, *others = rehearsal.facts.memory
    assert {one.runtime for one in others} <= {0}
    assert memory.runtime == 2 * (200 + 50) * 2**20
    assert memory.need[0] == memory.peak + memory.runtime


def test_a_trace_holds_the_collectives_with_their_bytes(group: Any) -> None:
    tensor = torch.ones(8).npu()
    with toprope.sim.trace() as trace:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.broadcast(tensor, 0)
    found = [(record.name, record.bytes, record.device) for record in trace.records if record.act == "collective"]
    assert found == [("hccl::allreduce", 32, 0), ("hccl::allreduce", 32, 0), ("hccl::broadcast", 32, 0)]


def test_collectives_say_which_of_which_communicator_they_are(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, stream = torch.ones(8).npu(), torch.npu.Stream()
    other = dist.new_group([0])
    dist.all_reduce(tensor)  # counted, though nobody traces
    torch.npu.set_stream_limit(stream, 20, 24)
    with toprope.sim.trace() as trace:
        dist.broadcast(tensor, 0)
        dist.all_reduce(tensor, group=other)
        monkeypatch.setenv("HCCL_OP_EXPANSION_MODE", "AIV")
        with torch.npu.stream(stream):
            dist.all_reduce(tensor)
    torch.npu.reset_stream_limit(stream)
    found = [each for each in trace.records if each.act == "collective"]
    assert [(each.rank, each.ranks, each.sequence) for each in found] == [(0, 1, 1), (0, 1, 0), (0, 1, 2)]
    assert found[0].communicator == found[2].communicator != found[1].communicator
    assert [(each.kind, each.vector_cores, each.stream) for each in found] == [
        ("COMMUNICATION", 0, 0), ("COMMUNICATION", 0, 0), ("AI_VECTOR_CORE", 24, stream.stream_id),
    ]  # fmt: skip


def test_another_group_after_the_first_has_gone() -> None:
    for _ in range(2):
        dist.init_process_group("hccl", store=HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(2).npu())
        dist.destroy_process_group()
    assert not dist.is_initialized()


def test_the_backend_by_itself() -> None:
    from toprope.sim.distributed.process_group import ProcessGroupHCCL

    backend = ProcessGroupHCCL(HashStore(), 0, 1, timedelta(seconds=7))
    assert (backend.name(), backend.rank(), backend.size()) == ("hccl", 0, 1)
    assert backend.options._timeout == timedelta(seconds=7)
    assert backend.options.backend == "hccl"
    tensor = torch.ones(3).npu()
    work = backend.allreduce([tensor])
    assert work.wait()
    assert work.result()[0] is tensor
    backend.broadcast([tensor]).wait()
    backend.barrier().wait()


def test_other_backends_get_device_tensors_as_they_are(group: Any) -> None:
    """Ours serve the process groups of `hccl` alone: gloo refuses cards in its own words."""
    from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo

    other = ProcessGroup(HashStore(), 0, 1)
    gloo = ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=5))
    other._register_backend(torch.device("npu"), ProcessGroup.BackendType.CUSTOM, gloo)
    with pytest.raises(RuntimeError, match="ProcessGroupGloo::allreduce: unsupported device type npu"):
        other.allreduce([torch.ones(2).npu()])


@pytest.mark.parametrize(
    ("name", "dtype", "operation", "words"),
    [
        ("allreduce", "float32", "SUM", ""),
        ("allreduce", "float64", "SUM", "HCCL allreduce: Unsupported data type at::kDouble"),
        ("allreduce", "uint8", "MAX", ""),
        ("reduce_scatter", "bool", "SUM", "HCCL reduce_scatter: Unsupported data type at::kByte/at::kBool"),
        ("allreduce", "int32", "BXOR", "Cannot use ReduceOp.BXOR with HCCL"),
        ("broadcast", "float64", "", ""),
        ("broadcast", "float8_e5m2", "", ""),
        ("broadcast", "uint64", "", ""),
        ("allreduce", "uint64", "SUM", "HCCL allreduce: Unsupported data type at::ScalarType::UInt64"),
        ("broadcast", "complex64", "", "Unsupported data type for HCCL process group"),
        ("allreduce", "float8_e5m2", "SUM", "HCCL allreduce: Unsupported data type at::ScalarType::Float8_e5m2"),
        ("recv_anysource", "float32", "", "ProcessGroupHCCL does not support recv"),
        ("barrier", "", "", ""),
    ],
)
def test_what_hccl_refuses(name: str, dtype: str, operation: str, words: str) -> None:
    assert refusals.reason(name, dtype, operation) == words


def test_bool_is_reduced_as_or_and_as_and() -> None:
    assert reduce_operation(ReduceOp.SUM, torch.bool) == ReduceOp.MAX
    assert reduce_operation(ReduceOp.PRODUCT, torch.bool) == ReduceOp.MIN
    assert reduce_operation(ReduceOp.BXOR, torch.bool) == ReduceOp.BXOR
    assert reduce_operation(ReduceOp.SUM, torch.uint8) == ReduceOp.SUM


def test_functions_elsewhere_may_wait_for_each_other() -> None:
    import threading

    first, second = threading.Event(), threading.Event()
    run_elsewhere(lambda: (first.wait(20), second.set()))
    run_elsewhere(first.set)
    assert second.wait(20)
    wait_for_all(20)
    assert threading.active_count() < 20


def test_torch_npus_names() -> None:
    import toprope.compat

    toprope.compat.install()
    import torch_npu
    from torch_npu.distributed import is_hccl_available

    assert is_hccl_available()
    assert torch_npu.distributed.is_available()
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options.hccl_config = {"hccl_buffer_size": 200}
    with pytest.raises(AttributeError, match=r"does not have torch_npu\._C\._distributed_c10d\.nothing"):
        _ = torch_npu._C._distributed_c10d.nothing
    with pytest.raises(AttributeError, match=r"does not have torch_npu\._C\._npu_getCheckedDevice"):
        _ = torch_npu._C._npu_getCheckedDevice
    with pytest.raises(AttributeError, match=r"does not have torch_npu\._C\._distributed_c10d\.ParallelStore"):
        _ = torch_npu._C._distributed_c10d.ParallelStore


def test_uneven_collectives_of_torch_npu(group: Any) -> None:
    import toprope.compat

    toprope.compat.install()
    from torch_npu import distributed

    x = torch.arange(6.0).reshape(3, 2).npu()
    for sizes in (None, [3]):
        output = torch.zeros(3, 2).npu()
        assert distributed.reduce_scatter_tensor_uneven(output, x, sizes) is None
        assert torch.equal(output, x)
        assert distributed.all_gather_into_tensor_uneven(output.zero_(), x, sizes, async_op=True).wait()
        assert torch.equal(output, x)
    distributed.all_to_all_vc(output.zero_(), x, [[6]])
    assert torch.equal(output, x)
    for wrong, words in (([1, 2], "Number of tensor splits"), ([2], "Split sizes dosen't match")):
        with pytest.raises(RuntimeError, match=words):
            distributed.all_gather_into_tensor_uneven(output, x, wrong)
    with pytest.raises(ValueError, match="must have 1 rows"):
        distributed.all_to_all_vc(output, x, [])
    with pytest.raises(ValueError, match="must be a square"):
        distributed.all_to_all_vc(output, x, [[1, 2]])
    with pytest.warns(UserWarning, match="limited to those of type npu"):
        assert distributed.all_to_all_vc(output.cpu(), x.cpu(), [[6]]) is None
