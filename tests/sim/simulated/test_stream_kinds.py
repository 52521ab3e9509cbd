"""torch.npu's kinds of streams and events: those of others, and those that are waited for before they are recorded.

Holds sim/npu/streams.py and events.py against torch_npu's behaviour. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import ctypes
import pickle
import threading
import time

import pytest
import torch

from queued import Gate, queue

npu = torch.npu


def free(stream=None):
    """A stream with nothing on it."""
    stream = stream or npu.Stream()
    stream.synchronize()
    return stream


# ---- streams


def test_streams_make_torch_npus_events() -> None:
    stream = free()
    event = stream.record_event()
    assert type(event) is npu.Event
    mine = npu.Event()
    assert stream.record_event(mine) is mine
    stream.wait_event(event)
    stream.wait_stream(npu.current_stream())
    assert stream.query() is True
    assert stream._as_parameter_.value == stream.npu_stream
    assert repr(stream) == f"<torch_npu.npu.Stream device=npu:0 npu_stream={stream.npu_stream:#x}>"


def test_a_stream_waits_for_another() -> None:
    first, second = free(), free()
    order = []
    with Gate(first):
        queue(lambda: order.append(1), first)
        second.wait_stream(first)
        queue(lambda: order.append(2), second)
        assert not second.query()
    npu.synchronize()
    assert order == [1, 2]


def test_a_stream_for_launches_without_a_queue() -> None:
    stream = npu.SyncLaunchStream(device=1, priority=-1)
    assert not isinstance(stream, npu.Stream)
    assert isinstance(stream, torch.Stream)
    assert repr(stream).startswith("<torch_npu.npu.SyncLaunchStream device=npu:1 npu_stream=0x")
    stream.set_data_preprocess_stream(True)
    with npu.stream(stream):
        assert npu.current_stream() == stream
        assert (torch.ones(2, device="npu") + 1).tolist() == [2.0, 2.0]
    event = stream.record_event()
    stream.wait_event(event)
    stream.synchronize()
    assert stream.query()
    assert event.query()
    same = npu.SyncLaunchStream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert same == stream


@pytest.mark.parametrize("device", [0, "npu:1"])
def test_a_stream_by_its_number(device) -> None:
    stream = npu.Stream(device)
    found = npu.ExternalStream(stream.npu_stream, device)
    assert isinstance(found, npu.Stream)
    assert (found.npu_stream, found.device, found.stream_id) == (stream.npu_stream, stream.device, stream.stream_id)
    assert repr(found).startswith("<torch_npu.npu.ExternalStream device=npu:")
    with npu.stream(found):
        assert npu.current_stream() == stream
        assert torch.ones(2, device="npu").sum().item() == 2
    npu.set_stream_limit(found, 2, 3)
    assert npu.get_stream_limit(stream) == {"cube_core_num": 2, "vector_core_num": 3}
    npu.reset_stream_limit(stream)


def test_the_default_stream_by_its_number() -> None:
    assert npu.ExternalStream(npu.default_stream(1).npu_stream, 1) == npu.default_stream(1)


def test_every_stream_of_a_card_is_found_by_its_number() -> None:
    for priority in (0, -1):
        streams = [npu.Stream(3, priority=priority) for _ in range(40)]
        assert len({*streams}) == 32
        assert [npu.ExternalStream(stream.npu_stream, 3) for stream in streams] == streams


def test_numbers_that_are_no_stream_of_the_card() -> None:
    for call in (lambda: npu.ExternalStream(4096), lambda: npu.ExternalStream(npu.default_stream(1).npu_stream, 0)):
        with pytest.raises(RuntimeError, match=r"error code is 107003(.|\n)*The stream is not in the current context"):
            call()
    with pytest.raises(RuntimeError, match="External NPU stream does not support nullptr"):
        npu.ExternalStream(0)
    number = npu.Stream().npu_stream
    with pytest.raises(RuntimeError, match=r"^Priority was explicitly set for an external stream"):
        npu.ExternalStream(number, priority=-1)
    with pytest.raises(RuntimeError, match=r"^is_sync_launch was explicitly set for an external stream"):
        npu.ExternalStream(number, is_sync_launch=1)
    assert npu.ExternalStream(number, priority=0).npu_stream == number


def test_torch_npu_does_not_wait_for_streams_of_others() -> None:
    stream = free()
    other = npu.ExternalStream(stream.npu_stream)
    event = stream.record_event()
    managed = "This path requires a torch_npu-managed stream."
    for call, text in (
        (other.query, "Cannot query external NPU stream status."),
        (other.synchronize, "The caller is responsible for synchronization of external streams."),
        (other.record_event, managed),
        (lambda: other.wait_event(event), managed),
        (lambda: other.wait_stream(stream), managed),
        (lambda: stream.wait_stream(other), managed),
        (lambda: event.record(other), managed),
        (lambda: event.wait(other), managed),
        (lambda: npu.ExternalEvent().record(other), managed),
        (lambda: npu.ExternalEvent().wait(other), managed),
        (lambda: npu.ExternalEvent().reset(other), managed),
    ):
        with pytest.raises(RuntimeError, match=rf"{text}.*\n.*ERR00007 PTA feature not supported$"):
            call()


# ---- events


def test_an_event_on_the_current_stream() -> None:
    stream = free()
    event = npu.Event(enable_timing=True)
    assert (event.npu_event, event.query(), repr(event)) == (0, True, "<torch_npu.npu.Event uninitialized>")
    with npu.stream(stream), Gate(stream):
        event.record()
        assert not event.query()
        free().wait_event(event)
        event.wait(npu.default_stream())
        assert not npu.default_stream().query()
    event.synchronize()
    npu.synchronize()
    assert event.query()
    assert event._as_parameter_.value == event.npu_event != 0
    assert isinstance(event._as_parameter_, ctypes.c_void_p)


def test_when_an_event_passed() -> None:
    event = npu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match=r"^Event must be recorded before getting recorded timestamp"):
        event.recorded_time()
    before = time.monotonic_ns() // 1000
    event.record()
    between = time.monotonic_ns() // 1000
    assert before - 2000 < event.recorded_time() < between + 2000
    assert event.recorded_time() == event.recorded_time()
    second = npu.Event(enable_timing=True)
    time.sleep(0.01)
    second.record()
    assert second.recorded_time() - event.recorded_time() == pytest.approx(event.elapsed_time(second) * 1000, abs=2)
    stream = free()
    with Gate(stream) as gate:
        second.record(stream)
        gate.open_in(0.05)
        assert second.recorded_time() >= between + 40_000


def test_events_are_not_shared_by_processes() -> None:
    for call in (
        lambda: npu.Event(interprocess=True),
        lambda: npu.Event.from_ipc_handle(torch.device("npu:0"), b"1" * 64),
        npu.Event().ipc_handle,
    ):
        with pytest.raises(NotImplementedError, match="cannot be shared by processes"):
            call()
    with pytest.raises(TypeError):
        pickle.dumps(npu.Event())


def test_an_external_event_is_waited_for_before_it_is_recorded() -> None:
    first, second, third = free(), free(), free()
    event, order = npu.ExternalEvent(), []
    assert repr(event) == "<torch_npu.npu.ExternalEvent uninitialized>"
    assert not event.query()
    for stream, mark in ((first, 1), (second, 2)):
        event.wait(stream)
        queue(lambda mark=mark: order.append(mark), stream)
    with Gate(third):
        queue(lambda: order.append(0), third)
        event.record(third)
        assert not first.query()
        assert not second.query()
        assert not event.query()
    npu.synchronize()
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2]
    assert event.query()
    event.wait(first)  # it stays passed
    first.synchronize()
    assert repr(event) == f"<torch_npu.npu.ExternalEvent {event.npu_event:#x}>"
    assert event._as_parameter_.value == event.npu_event


def test_an_external_event_again() -> None:
    stream, other = free(), free()
    event = npu.ExternalEvent()
    with npu.stream(stream):
        event.record()
        event.wait()
    stream.synchronize()
    event.reset()
    assert not event.query()
    event.wait(stream)
    assert not stream.query()
    event.record(other)
    stream.synchronize()
    assert event.query()


def test_the_host_waits_for_an_external_event() -> None:
    event, woken = npu.ExternalEvent(), threading.Event()

    def wait():
        event.synchronize()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0.05)
    event.record(free())
    assert woken.wait(20)
    thread.join()
    event.synchronize()
    assert isinstance(event, torch.Event)
    with pytest.raises(NotImplementedError, match="carry no time"):
        event.elapsed_time(npu.Event())


def test_work_of_an_external_event_outlives_it() -> None:
    stream = free()
    for _ in range(100):
        event = npu.ExternalEvent()
        with Gate(stream):
            event.record(stream)
            event.wait(stream)
            del event
        stream.synchronize()


# ---- how busy a card is


def test_the_utilization() -> None:
    npu.synchronize()
    npu.synchronize(1)
    assert npu.utilization() == npu.utilization(1) == 0
    with Gate(npu.Stream(1)):
        assert (npu.utilization(), npu.utilization("npu:1")) == (0, 100)
    npu.synchronize(1)
    assert npu.utilization(1) == 0
    with pytest.raises(AssertionError, match=r"^Invalid device id"):
        npu.utilization(4)


# ---- numbers of streams, as torch_npu has them


def test_a_streams_number_says_its_kind() -> None:
    kinds = [
        stream.stream_id >> 5
        for stream in (npu.default_stream(), npu.Stream(is_sync_launch=True), npu.Stream(), npu.Stream(priority=-1))
    ]
    assert kinds == [0, 2, 3, 4]
    assert len({npu.SyncLaunchStream().stream_id for _ in range(8)}) == 4


@pytest.mark.parametrize(("number", "card"), [(99999, 0), (1, 0), (68, 0), (0, 99), (-1, 0), (0, -1)])
def test_numbers_that_no_stream_has_are_refused(number: int, card: int) -> None:
    with pytest.raises(RuntimeError):
        npu.Stream(stream_id=number, device_index=card, device_type=20)


def test_a_stream_of_npurt_is_an_external_one() -> None:
    runtime, handle = npu.npurt(), ctypes.c_void_p()
    assert runtime.npuStreamCreate(ctypes.addressof(handle)) == 0
    stream = npu.ExternalStream(handle.value)
    with npu.stream(stream):
        assert npu.current_stream().npu_stream == stream.npu_stream == handle.value
        ones = torch.ones(3, device="npu") + 1
    npu.synchronize()
    assert ones.tolist() == [2, 2, 2]
    assert runtime.npuStreamDestroy(handle.value) == 0
    assert runtime.npuStreamDestroy(handle.value) == runtime.npuStreamCreate(0) == 107000


def test_priority_range_is_refused():
    with pytest.raises(RuntimeError, match=r"does not support Stream.priority_range\(\) currently"):
        npu.Stream.priority_range()
