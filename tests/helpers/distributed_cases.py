"""Asynchronous work, order, streams, groups and errors of torch.distributed on cards."""

import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from distributed_values import BOTH, OTHER, RANK, blank, here, late, made, reduced, same
from queued import queue


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
    dist.barrier()  # they have ended, however late the other process came
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
    began = time.monotonic()
    if RANK == 0:
        dist.recv(torch.zeros(1).npu(), 1)  # the other one has begun
        time.sleep(0.3)
    else:
        dist.send(torch.zeros(1).npu(), 0)
    dist.barrier()
    assert time.monotonic() - began >= 0.3
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[torch.npu.current_device()])


def case_a_process_that_does_not_come() -> None:
    from datetime import timedelta

    group = dist.new_group(timeout=timedelta(seconds=3))  # within which both have to come here
    if RANK == 0:
        folder = tempfile.mkdtemp()
        dumps = {"TORCH_HCCL_DUMP_ON_TIMEOUT": "1", "TORCH_HCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/trace_"}
        with (
            mock.patch.dict(os.environ, {"TORCH_HCCL_TRACE_BUFFER_SIZE": "1", **dumps}),
            pytest.raises(RuntimeError, match=r"(?is)timed out.*EI0002.*ERR02200 DIST call hccl api failed"),
        ):
            dist.all_reduce(here(), group=group)
        with open(f"{folder}/trace_0", "rb") as file:
            (entry,) = pickle.load(file)["entries"]
        assert (entry["state"], entry["time_discovered_completed_ns"]) == ("scheduled", None)
        work = dist.broadcast(here(), 1, group=group, async_op=True)
        with pytest.raises(RuntimeError):
            work.wait()
        assert work.is_completed()
    dist.barrier()
    dist.destroy_process_group(group)


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


def case_one_options_object_serves_several_groups() -> None:
    options = type(dist.group.WORLD._get_backend(torch.device("npu"))).Options()
    options.hccl_config = {"hccl_buffer_size": 300}
    groups = [dist.new_group(pg_options=options)]
    options.hccl_config = {"hccl_buffer_size": 200}
    groups.append(dist.new_group(pg_options=options))
    options.hccl_config["hccl_buffer_size"] = 7  # of a copy, as with torch_npu
    kept = [group._get_backend(torch.device("npu")).options for group in groups]
    assert [each.hccl_config["hccl_buffer_size"] for each in kept] == [300, 200]
    assert kept[0].group_id != kept[1].group_id
    assert options.hccl_config == {"hccl_buffer_size": 200}
    assert options.group_id == ""
    for group in groups:
        dist.destroy_process_group(group)


def case_a_group_destroyed_by_one_member_while_another_still_connected_broke_there() -> None:
    for _ in range(50):
        dist.destroy_process_group(dist.new_group())


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


def case_streams_of_hccl_and_operations_that_start_together() -> None:
    group = dist.new_group()
    backend = group._get_backend(torch.device("npu"))
    card = torch.device("npu", torch.npu.current_device())
    assert backend._get_stream_id() == backend.get_p2p_stream_id(card, OTHER, 0) == -1
    number = backend.get_coll_stream_id(card)
    assert number == backend.get_coll_stream_id(card) == backend._get_stream_id() != -1
    stream = torch.npu.Stream(stream_id=number, device_index=card.index, device_type=20)
    assert stream.device == card
    assert stream.npu_stream is not None
    backend._group_start()
    tensor, received = here(), blank()
    works = [dist.isend(tensor, OTHER, group), dist.irecv(received, OTHER, group)]
    backend._group_end()
    for work in works:
        work.wait()
        assert work.is_completed()
    same(received, made(OTHER))
    assert backend.get_p2p_stream_id(card, OTHER, 0) == backend._get_stream_id(True, OTHER) not in (-1, number)
    assert backend.get_p2p_stream_id(card, OTHER, 1) == number
    with pytest.raises(RuntimeError, match="hcclGroupEnd without hcclGroupStart"):
        backend._group_end()
    with pytest.raises(RuntimeError, match="expected value >= 0"):
        backend._get_stream_id(True)
    dist.destroy_process_group(group)


def case_a_work_of_several_tensors_is_waited_for_once_for_each_of_them() -> None:
    dist.distributed_c10d._register_process_group("again", dist.group.WORLD)
    operators = torch.ops._c10d_functional
    results = operators.all_reduce_coalesced([here(salt=salt) for salt in range(3)], "sum", "again")
    for salt, result in enumerate(results):
        same(operators.wait_tensor(result), reduced(ReduceOp.SUM, torch.float32, salt=salt))


def case_the_log_says_how_a_communicator_was_made() -> None:
    import contextlib
    import io

    from toprope.sim.npu._logs import set_levels

    dist.all_reduce(here())  # makes the communicator of all
    written = io.StringIO()
    set_levels({"torch.distributed": 20})
    try:
        for variables in ({"ROOTINFO_SUBCOMM_ENABLE": "1"}, {}):
            group = dist.new_group()
            with contextlib.redirect_stderr(written), mock.patch.dict(os.environ, variables):
                dist.all_reduce(here(), group=group)
                dist.all_reduce(here(), group=group)  # once for each group
            dist.destroy_process_group(group)
    finally:
        set_levels({})
    first, second = written.getvalue().splitlines()
    assert "Create sub hccl comm by hcclCreateSubCommConfig success, group id is " in first
    assert "Create hccl comm by hcclCommInitRootInfoConfig success, group id is " in second


def case_the_flight_recorder_keeps_the_last_operations() -> None:
    from toprope.compat.torch_npu._C._distributed_c10d import _dump_hccl_trace, _dump_hccl_trace_json

    dist.all_reduce(here())  # not recorded
    group = dist.new_group()
    with mock.patch.dict(os.environ, {"TORCH_HCCL_TRACE_BUFFER_SIZE": "3", "HCCL_EXEC_TIMEOUT": "100"}):
        dist.all_reduce(here(), group=group)
        dist.all_gather([blank(), blank()], here(), group=group)
        (dist.send if RANK else dist.recv)(here(torch.float16), OTHER, group)
        work = dist.all_reduce(here(), group=group, async_op=True)
        with late(0):
            work.wait()
    found = pickle.loads(_dump_hccl_trace())
    gathered, message, last = found["entries"]  # three of them
    assert (gathered["input_sizes"], gathered["output_sizes"]) == ([[2, 3]], [[2, 3]] * 2)
    assert [each["op_id"] for each in found["entries"]] == [2, 3, 4]
    assert (message["collective_seq_id"], message["p2p_seq_id"], message["is_p2p"]) == (2, 1, True)
    assert message["profiling_name"] == ("hccl:send 1->0" if RANK else "hccl:recv 0<-1")
    assert (message["input_dtypes"], last["timeout_ms"]) == (["Half"], 1_900_000)
    assert {each["state"] for each in found["entries"]} == {"completed"}
    assert "case_the_flight_recorder" in str(message["frames"])
    (status,) = found["pg_status"].values()
    assert status == {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 3}
    (group_kept,) = found["pg_config"].values()
    assert group_kept["ranks"] == "[0, 1]"
    as_json = json.loads(_dump_hccl_trace_json())
    assert "frames" not in as_json["entries"][0]
    assert as_json["version"] == "2.4"
    assert next(iter(as_json["pg_status"].values()))["last_completed_collective"] == "3"
    assert json.loads(_dump_hccl_trace_json(onlyActive=True))["entries"] == []
    assert "entries" not in pickle.loads(_dump_hccl_trace(includeCollectives=False))
    dist.destroy_process_group(group)


def case_a_scattered_row_need_not_have_a_tensor_for_each_process() -> None:
    """As torch_npu's test_reduce_scatter.py wants it: what is too much is ignored, what is missing is zero."""
    for inputs in ([8], [4], [4, 4, 4], [6, 6]):
        ones, output = [torch.ones(size).npu() for size in inputs], torch.zeros(4).npu()
        dist.reduce_scatter(output, ones)
        same(output, torch.full((4,), 2.0) if RANK == 0 or sum(inputs) >= 8 else torch.zeros(4))


def case_a_mean_of_negative_whole_numbers_goes_towards_zero() -> None:
    for asynchronous in (False, True):
        tensor = torch.tensor([3 + RANK, -3 - RANK], dtype=torch.int32).npu()
        work = dist.all_reduce(tensor, ReduceOp.AVG, async_op=asynchronous)
        if asynchronous:
            work.wait()
        same(tensor, torch.tensor([3, -3], dtype=torch.int32))


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
    with pytest.raises(RuntimeError, match="expected length 2, got 1"):
        dist.all_gather([blank()], here())
    with pytest.raises(RuntimeError, match=r"Incorrect input list size 3\. Input list size should be 2"):
        dist.reduce_scatter(blank(), [here(), here(), here(shape=(1, 3))])
    with pytest.raises(RuntimeError, match="output tensor size must be equal to world_size times input tensor size"):
        dist.all_gather_single(blank(), here())
    with pytest.raises(RuntimeError, match="input tensor must be the same size as output size times world size"):
        dist.reduce_scatter_single(blank(), here())
    tensor = here()
    dist.all_reduce(tensor)
    same(tensor, reduced(ReduceOp.SUM, torch.float32))
