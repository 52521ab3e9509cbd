"""Memory that a stream still uses is not handed out again, and failures of queued work are reported.

Holds csrc/core/memory.h and stream.h against values that a reuse would overwrite. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import ctypes
import time

import numpy
import pytest
import torch

import toprope.compat.torch_npu as torch_npu
from card_memory import empty
from core_library import MIB, soak
from queued import SECONDS, SYNCHRONISATIONS, Gate, queue, settle, wait_until


@pytest.fixture(autouse=True)
def nothing_queued():
    torch.npu.empty_cache()
    yield
    settle()


def test_a_recorded_block_is_not_used_again_until_the_stream_is_done():
    size = 20 * MIB - 32  # a piece of its own
    side = torch.npu.Stream()
    tensor = empty(size)
    address = tensor.data_ptr()
    gate = Gate(side)
    tensor.record_stream(side)
    del tensor
    assert empty(size).data_ptr() != address
    gate.open()
    side.synchronize()
    taken = [empty(size), empty(size)]
    assert address in [tensor.data_ptr() for tensor in taken]


def test_erase_stream_takes_back_what_record_stream_noted():
    """torch_npu.erase_stream was not there."""
    size = 20 * MIB - 32
    side, third = torch.npu.Stream(), torch.npu.Stream()
    tensor = empty(size)
    address = tensor.data_ptr()
    with Gate(side), Gate(third):
        tensor.record_stream(side)
        torch_npu.erase_stream(tensor, side)
        del tensor
        tensor = empty(size)
        assert tensor.data_ptr() == address
        for stream in (side, third):
            tensor.record_stream(stream)
        torch_npu.erase_stream(tensor, side)  # the third one still uses it
        del tensor
        assert empty(size).data_ptr() != address


def test_erase_stream_on_another_stream_than_the_tensors_own_changes_nothing():
    size = 20 * MIB - 32
    side = torch.npu.Stream()
    tensor = empty(size)
    address = tensor.data_ptr()
    with Gate(side):
        tensor.record_stream(side)
        with torch.npu.stream(torch.npu.Stream()):
            torch_npu.erase_stream(tensor, side)
        del tensor
        assert empty(size).data_ptr() != address


def test_erase_stream_of_something_else():
    with pytest.raises(TypeError, match=r"tensor should be torch.Tensor, could not be <class 'int'>"):
        torch_npu.erase_stream(1, torch.npu.current_stream())
    with pytest.raises(TypeError, match=r"stream should be torch_npu.npu.Stream, could not be <class 'int'>"):
        torch_npu.erase_stream(empty(512), 0)


def test_a_block_recorded_before_the_work_is_queued():
    # What counts is the stream's work at the time the tensor is freed.
    size = 20 * MIB - 32
    side = torch.npu.Stream()
    tensor = empty(size)
    address = tensor.data_ptr()
    tensor.record_stream(side)
    gate = Gate(side)
    del tensor
    assert empty(size).data_ptr() != address
    gate.open()


def test_a_block_that_was_not_recorded_is_used_again_at_once():
    size = 20 * MIB - 32
    side = torch.npu.Stream()
    tensor = empty(size)
    address = tensor.data_ptr()
    with Gate(side):
        del tensor
        with torch.npu.stream(side):
            assert empty(size).data_ptr() != address  # belongs to the default stream
        assert empty(size).data_ptr() == address


def at(address: int, length: int) -> numpy.ndarray:
    """The numbers at an address: all that a kernel has of a tensor."""
    return numpy.ctypeslib.as_array((ctypes.c_int32 * length).from_address(address))


def test_many_blocks_on_many_streams():
    streams = [torch.npu.Stream() for _ in range(4)]
    wrong: list[object] = []

    def check(host: numpy.ndarray, value: int) -> None:
        if not (host == value).all():
            wrong.append(value)

    for turn in range(20_000 if soak() else 200):
        tensor = torch.full((3000 * (1 + turn % 5),), turn, dtype=torch.int32, device="npu")
        stream = streams[turn % 4]
        stream.wait_stream(torch.npu.current_stream())
        host = torch.ops.toprope_sim.host_view(tensor).numpy()
        # The view keeps the storage: let it go, as a kernel would hold nothing but the address.
        address, length = host.ctypes.data, host.size
        del host
        queue(lambda address=address, length=length, turn=turn: check(at(address, length), turn), stream)
        tensor.record_stream(stream)
        del tensor
    torch.npu.synchronize()
    assert wrong == []


FAILED = "error code is 107003"
TEXT = (
    "The stream is not in the current context.\n        Check whether the context where the stream is located is the"
    " same as the current context."
)


@pytest.mark.parametrize("name", SYNCHRONISATIONS)
def test_a_failure_is_told_at_the_next_synchronisation(name: str):
    stream = torch.npu.current_stream()
    queue(lambda: None, status=107003)
    queue(lambda: None, status=107000)
    assert wait_until(stream.query)
    with pytest.raises(RuntimeError, match=FAILED) as caught:
        SYNCHRONISATIONS[name](stream)
    assert f"[Error]: {TEXT}" in str(caught.value)
    assert "NPU function error: aclrtSynchronize" in str(caught.value)
    assert "ERR00100 PTA call acl api failed" in str(caught.value)
    SYNCHRONISATIONS[name](stream)  # told once
    assert torch.ones(3, device="npu").sum().item() == 3


def test_a_failure_is_told_by_an_operator_that_waits_for_it():
    tensor = torch.ones(3, device="npu")
    queue(lambda: time.sleep(SECONDS), status=107003)
    with pytest.raises(RuntimeError, match=FAILED):
        tensor + 1
    assert (tensor + 1).sum().item() == 6


def test_a_failure_belongs_to_its_stream():
    side, other = torch.npu.Stream(), torch.npu.Stream()
    queue(lambda: None, side, status=107003)
    other.synchronize()
    torch.npu.current_stream().synchronize()
    torch.npu.synchronize(1)
    with pytest.raises(RuntimeError, match=FAILED):
        torch.npu.synchronize()


def test_work_after_a_failure_still_runs():
    ran = []
    queue(lambda: ran.append(1), status=107003)
    queue(lambda: ran.append(2))
    with pytest.raises(RuntimeError, match=FAILED):
        torch.npu.synchronize()
    assert ran == [1, 2]
