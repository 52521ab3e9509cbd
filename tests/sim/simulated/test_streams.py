"""Streams and events: order, the current stream, waits between streams, elapsed time.

Holds sim/npu/streams.py and csrc/core/stream.h against order and waits as torch documents them.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import contextlib
import threading
import time

import pytest
import torch

from children import run
from queued import SECONDS, Gate, queue, settle, write_later


@pytest.fixture(autouse=True)
def nothing_queued():
    torch.npu.empty_cache()
    yield
    settle()


def test_order_within_a_stream():
    for stream in (torch.npu.current_stream(), torch.npu.Stream(), torch.npu.Stream(2)):
        order: list[int] = []
        for number in range(100):
            queue(lambda number=number, order=order: order.append(number), stream)
        stream.synchronize()
        assert order == list(range(100))


def test_queueing_from_several_threads_loses_nothing():
    stream = torch.npu.Stream()
    seen: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for turn in range(50):
            queue(lambda turn=turn: seen.append((number, turn)), stream)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert len(seen) == 200
    for number in range(4):
        assert [turn for who, turn in seen if who == number] == list(range(50))


def test_streams_of_a_card_run_side_by_side():
    together = threading.Barrier(3)
    streams = [torch.npu.current_stream(), torch.npu.Stream(), torch.npu.Stream()]
    for stream in streams:
        queue(lambda: together.wait(20), stream)
    torch.npu.synchronize()
    assert not together.broken


def test_forty_streams():
    streams = [torch.npu.Stream() for _ in range(40)]
    # Like torch's other devices, a card has 32 streams of a priority and hands them out in turn.
    assert len(set(streams)) == 32
    assert streams[32] == streams[0]
    counts = [0] * 40
    tensors = []
    for number, stream in enumerate(streams):
        with torch.npu.stream(stream):
            tensor = torch.full((100,), float(number), device="npu")
            queue(lambda number=number: counts.__setitem__(number, counts[number] + 1))
            tensors.append(tensor * 2)
    torch.npu.synchronize()
    assert counts == [1] * 40
    assert [tensor[0].item() for tensor in tensors] == [2.0 * number for number in range(40)]


def test_priorities():
    high, low = torch.npu.Stream(priority=-1), torch.npu.Stream(priority=0)
    assert high != low
    assert high.stream_id not in [torch.npu.Stream().stream_id for _ in range(40)]


def test_what_a_stream_is():
    default, side = torch.npu.default_stream(), torch.npu.Stream()
    assert torch.npu.current_stream() == default
    assert default.stream_id == 0
    assert side.stream_id != 0
    assert side != default
    assert side == torch.npu.Stream(
        stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type
    )
    assert {side: 1}[side] == 1
    assert side.device == torch.device("npu", 0)
    assert side.npu_stream != default.npu_stream != 0
    assert "device=npu:0" in repr(side)
    assert f"{side.npu_stream:#x}" in repr(side)
    assert isinstance(side, torch.Stream)
    assert torch.npu.Stream("npu:2").device_index == torch.npu.Stream(2).device_index == 2
    with torch.npu.device(3):
        assert torch.npu.Stream().device_index == 3
        assert torch.npu.default_stream().device_index == 3
    assert torch.npu.default_stream(1).device_index == torch.npu.current_stream("npu:1").device_index == 1


def test_the_current_stream():
    first, second, elsewhere = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Stream(1)
    with torch.npu.stream(first):
        assert torch.npu.current_stream() == first == torch.accelerator.current_stream()
        with torch.npu.stream(second):
            assert torch.npu.current_stream() == second
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == first
        with torch.npu.stream(elsewhere):
            assert torch.npu.current_stream(1) == elsewhere
            assert torch.npu.current_stream(0) == first
        assert torch.npu.current_stream(1) == torch.npu.default_stream(1)
        assert torch.npu.current_stream() == first
    assert torch.npu.current_stream() == torch.npu.default_stream()
    with pytest.raises(ZeroDivisionError), torch.npu.stream(first):
        1 / 0  # noqa: B018
    assert torch.npu.current_stream() == torch.npu.default_stream()
    with first:
        assert torch.accelerator.current_stream() == first
    torch.npu.set_stream(second)
    torch.npu.set_stream(None)
    assert torch.npu.current_stream() == second
    torch.npu.set_stream(torch.npu.default_stream())

    seen = []
    with torch.npu.stream(first):
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.npu.default_stream()]


def test_wait_stream():
    tensor = torch.zeros(4, device="npu")
    side = torch.npu.Stream()
    go = threading.Event()
    done = write_later(tensor, 7, side, go=go)
    torch.npu.current_stream().wait_stream(side)
    assert not done.is_set()
    go.set()
    assert (tensor + 1)[0].item() == 8


def test_a_missing_wait_shows():
    # Without wait_stream, the current stream does not wait for another one: a race shows as it would on a card.
    tensor = torch.zeros(4, device="npu")
    side = torch.npu.Stream()
    host = torch.ops.toprope_sim.host_view(tensor).numpy()
    gate = Gate(side)
    queue(lambda: host.fill(7), side)
    assert tensor[0].item() == 0
    gate.open()
    torch.npu.current_stream().wait_stream(side)
    assert tensor[0].item() == 7


def test_wait_event_waits_for_what_was_recorded():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    order: list[str] = []
    event = torch.npu.Event()
    gate = Gate(first)
    queue(lambda: order.append("first"), first)
    event.record(first)
    second.wait_event(event)
    queue(lambda: order.append("second"), second)
    later = Gate(first)  # comes after the event: the second stream does not care
    gate.open()
    second.synchronize()
    assert order == ["first", "second"]
    later.open()


def test_an_event_that_is_recorded_again():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    event = torch.npu.Event()
    event.record(first)
    second.wait_event(event)  # that record
    gate = Gate(first)
    event.record(first)  # another one
    queue(lambda: None, second)
    second.synchronize()
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


def test_events_between_cards():
    order: list[int] = []
    streams = [torch.npu.Stream(card) for card in range(4)]
    gate = Gate(streams[0])
    for card, stream in enumerate(streams):
        if card:
            stream.wait_event(event)  # noqa: F821
        queue(lambda card=card: order.append(card), stream)
        with torch.npu.device(card):
            event = torch.npu.Event()
            event.record(stream)
    time.sleep(SECONDS)
    assert order == []
    gate.open()
    event.synchronize()
    assert order == [0, 1, 2, 3]


def test_what_an_event_is():
    event = torch.npu.Event()
    assert event.query()  # before it is recorded
    event.synchronize()
    event.wait()
    event.record()
    assert event.query()
    assert isinstance(event, torch.Event)
    assert torch.npu.current_stream().record_event().query()
    given = torch.npu.Event()
    assert torch.npu.current_stream().record_event(given) is given
    for _ in range(1000):
        event.record()


def test_elapsed_time():
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with pytest.raises(RuntimeError):
        begin.elapsed_time(end)
    stream = torch.npu.Stream()
    begin.record(stream)
    with Gate(stream):
        queue(lambda: time.sleep(0.1), stream)
        end.record(stream)
    assert 99 < begin.elapsed_time(end) < 50_000
    assert begin.elapsed_time(begin) == 0
    assert end.elapsed_time(begin) == -begin.elapsed_time(end)
    theirs = [torch.Event("npu", enable_timing=True) for _ in range(2)]
    for event in theirs:
        event.record()
    assert theirs[0].elapsed_time(theirs[1]) >= 0


def test_event_has_the_device_it_was_recorded_on():
    """No time is between events of two cards, as on the vendor's."""
    event, other = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    assert event.device is None
    event.record()
    other.record(torch.npu.Stream(device=1))
    assert [event.device, other.device] == [torch.device("npu:0"), torch.device("npu:1")]
    with pytest.raises(RuntimeError, match="aclrtEventElapsedTime"):
        event.elapsed_time(other)


def test_streams_that_are_not_there():
    for make in (
        lambda: torch.npu.Stream(99),
        lambda: torch.npu.Stream("npu:99"),
        lambda: torch.npu.current_stream(99),
        lambda: torch.npu.default_stream(99),
        lambda: torch.npu.synchronize(99),
        lambda: torch.accelerator.current_stream("npu:99"),
        lambda: torch.accelerator.synchronize(99),
        lambda: torch.Stream("npu:99"),
    ):
        with pytest.raises(RuntimeError, match="107001"):
            make()


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_stream_number_that_cannot_be(number: int):
    # The host's memory is limited, in case a card tries to have all streams up to that number.
    code = f"""
        import resource, torch
        torch.ones(1, device="npu")
        kind = torch.npu.Stream().device_type
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * 4096 + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            torch.npu.Stream(stream_id={number}, device_index=0, device_type=kind).synchronize()
        except (RuntimeError, ValueError, MemoryError):
            pass
        print(torch.ones(2, device="npu").sum().item())
    """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


def test_a_stream_number_that_nobody_made():
    # A number from nowhere may be refused or be a stream like any other, but must not end the process.
    for number in (63, 64, 1000):
        with contextlib.suppress(RuntimeError, ValueError, OverflowError):
            stream = torch.npu.Stream(stream_id=number, device_index=0, device_type=torch.npu.Stream().device_type)
            stream.synchronize()
            with torch.npu.stream(stream):
                assert torch.ones(2, device="npu").sum().item() == 2
