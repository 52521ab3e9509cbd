"""Messages over a socket (`transport.wire`), and delayed actions (`functions.timers`)."""

import marshal
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.timers import Clock, Timers
from toprope.functions.transport import wire
from toprope.functions.transport.wire import Channel, Closed, Message

CHANNELS: list[Channel] = []


def pair(**options):
    ours, theirs = socket.socketpair()
    CHANNELS.extend((Channel(ours, **options), Channel(theirs)))
    return CHANNELS[-2], CHANNELS[-1]


@pytest.fixture(autouse=True)
def _closed():
    yield
    _close()


@pytest.fixture
def small_sockets(monkeypatch):
    monkeypatch.setattr(wire, "BUFFER", 4096)


def receive(channel: Channel, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += channel.receive(10)
    return messages


PLAIN = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=9), st.booleans()),
    lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5,
)  # fmt: skip
MESSAGES = st.lists(st.tuples(
    st.integers(1, 30), st.integers(0, 2**63), PLAIN, st.lists(st.binary(max_size=300_000), max_size=3),
), min_size=1, max_size=5)  # fmt: skip


@pytest.mark.slow
@given(MESSAGES)
def test_messages_arrive_as_they_were_in_their_order(sent):
    ours, theirs = pair()

    def send():
        for kind, number, meta, parts in sent:
            assert ours.send(kind, number, meta, parts) >= sum(map(len, parts))

    thread = threading.Thread(target=send)
    thread.start()
    messages = receive(theirs, len(sent))
    thread.join()
    assert [tuple(message) for message in messages] == [
        (kind, number, meta, parts) for kind, number, meta, parts in sent
    ]
    assert all(type(part) is bytes for message in messages for part in message.parts)
    _close()


def _close():
    while CHANNELS:
        CHANNELS.pop().close()


@given(st.lists(st.binary(max_size=50), max_size=3), st.integers(1, 7))
def test_a_message_that_arrives_in_pieces_is_one(parts, step):
    ours, theirs = pair()
    collector, _ = pair()
    ours.send(3, 4, ("meta", 1), parts)
    frame = theirs.socket.recv(65536)
    got = []
    for place in range(0, len(frame), step):
        got += collector._parse(memoryview(frame[place : place + step]))
    assert [tuple(each) for each in got] == [(3, 4, ("meta", 1), parts)]
    _close()


def test_a_message_has_as_many_parts_as_it_needs():
    """A list of 70,000 small arrays could not be sent once: the header counted to 65,535."""
    ours, theirs = pair()
    parts = [bytes([number % 256]) for number in range(70_000)]
    thread = threading.Thread(target=lambda: ours.send(3, 4, None, parts))
    thread.start()
    assert receive(theirs, 1)[0].parts == parts
    thread.join()


def test_a_large_message_in_many_pieces_is_looked_at_once():
    """With every piece that came, all that had come was copied and looked at again once: 100 MB took half a minute."""
    ours, theirs = pair()
    size = 60 * 2**20
    message = marshal.dumps((3, 4, None, []))
    head = wire._HEADER.pack(len(message), 1) + message + size.to_bytes(8, "little")

    def send():
        ours.socket.sendall(head)
        for _ in range(size // 65536):
            ours.socket.sendall(bytes(65536))

    begin = time.process_time()
    thread = threading.Thread(target=send)
    thread.start()
    (got,) = receive(theirs, 1)
    thread.join()
    assert [len(part) for part in got.parts] == [size]
    assert time.process_time() - begin < 5


@pytest.mark.usefixtures("small_sockets")
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("size", [wire._LARGE - 1, wire._LARGE, 5 * wire._LARGE + 3])
def test_large_messages_and_small_ones_between_them_arrive_in_their_order(size, keeps):
    full = threading.Event()
    ours, theirs = pair(**({"on_full": full.set} if keeps else {}))
    large = [os.urandom(size), memoryview(os.urandom(size)), b"short"]
    sent = [(1, 1, "before", []), (2, 2, "large", large), (3, 3, "between", [b"x"]), (4, 4, None, large[:1])]

    def send():
        for each in sent:
            ours.send(*each)
        while keeps and not ours.flush():
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    assert not keeps or full.wait(10)  # nobody reads yet
    got = receive(theirs, len(sent))
    thread.join()
    assert [tuple(each) for each in got] == [(*each[:3], [bytes(part) for part in each[3]]) for each in sent]
    assert all(type(part) is bytes for each in got for part in each.parts)


def test_a_large_message_that_is_cut_off_is_the_end():
    ours, theirs = pair()
    frames = wire._frames(1, 1, None, [bytes(3 * wire._LARGE)])
    ours.socket.sendall(frames[0] + bytes(frames[1][:1000]))
    ours.close()
    with pytest.raises(Closed):
        theirs.receive(10)


def test_no_room_is_made_for_a_message_of_a_size_that_cannot_be():
    ours, theirs = pair()
    head = marshal.dumps((1, 1, None, []))
    ours.socket.sendall(wire._HEADER.pack(len(head), 1) + head + (2**62).to_bytes(8, "little"))
    assert theirs.receive(0.1) == []
    ours.close()
    with pytest.raises(Closed):
        theirs.receive(10)


def test_the_end_is_told_after_everything_that_was_sent_before():
    ours, theirs = pair()
    ours.send(1, 1, None)
    ours.send(1, 2, None)
    ours.close()
    assert [message.number for message in receive(theirs, 2)] == [1, 2]
    with pytest.raises(Closed):
        theirs.receive(10)
    with pytest.raises(Closed):
        theirs.send(1, 1, None)


def test_a_wait_has_a_limit():
    ours, theirs = pair()
    begin = time.monotonic()
    assert theirs.receive(0) == []
    assert theirs.receive(0.05) == []
    assert 0.05 <= time.monotonic() - begin < 5
    ours.close()


@pytest.mark.usefixtures("small_sockets")
def test_who_must_not_wait_keeps_what_does_not_fit():
    full = []
    ours, theirs = pair(on_full=lambda: full.append(1))
    parts = [bytes([number]) * 50_000 for number in range(8)]
    begin = time.monotonic()
    for number, part in enumerate(parts):
        ours.send(1, number, None, [part])
    assert time.monotonic() - begin < 30
    assert full
    assert not ours.flush()
    messages: list[Message] = []
    while len(messages) < len(parts):
        messages += theirs.receive(0)
        ours.flush()
    assert [message.parts for message in messages] == [[part] for part in parts]
    assert ours.flush()
    ours.send(1, 9, None)
    assert [message.number for message in receive(theirs, 1)] == [9]


@pytest.mark.usefixtures("small_sockets")
def test_what_did_not_fit_is_dropped_with_the_reader():
    ours, theirs = pair(on_full=lambda: None)
    for number in range(9):
        ours.send(1, number, None, [bytes(100_000)])
    theirs.close()
    assert ours.flush()
    with pytest.raises(Closed):
        ours.send(1, 1, None)


def test_several_threads_send_whole_messages():
    ours, theirs = pair()

    def send(name):
        for number in range(50):
            ours.send(1, number, name, [bytes([name]) * 10_000])

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    messages = receive(theirs, 200)
    for thread in threads:
        thread.join()
    for name in range(4):
        mine = [message for message in messages if message.meta == name]
        assert [message.number for message in mine] == list(range(50))
        assert all(message.parts == [bytes([name]) * 10_000] for message in mine)


def test_no_other_process_gets_a_descriptor_by_accident():
    ours, theirs = pair()
    assert not os.get_inheritable(ours.fileno())
    assert not os.get_inheritable(theirs.fileno())


def test_a_reader_that_waits_is_woken_by_the_end():
    """A thread that waited for a worker whose socket was closed under it waited for ever once."""
    ours, theirs = pair()
    told = []

    def read():
        try:
            ours.receive(60)
        except Closed:
            told.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    ours.end()
    thread.join(60)
    assert told == [1]
    theirs.close()


def test_a_message_that_is_cut_off_is_the_last_one():
    """An error of a signal's handler in the middle of a message made the next one its rest once."""
    ours, theirs = pair()

    def handler(number, frame):
        raise SystemExit

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # the socket has long been full then
        with pytest.raises(SystemExit):
            ours.send(3, 4, None, [bytes(20_000_000)])
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(Closed):
        ours.send(3, 5, None)
    with pytest.raises(Closed):
        theirs.receive(10)


# Timers


def test_what_is_due_happens_in_its_order_and_once(monkeypatch):
    now, woken, done = [100.0], [], []
    monkeypatch.setattr("toprope.functions.timers.time", SimpleNamespace(monotonic=lambda: now[0]))
    timers = Timers(lambda: woken.append(1))
    timers.after(0.02, lambda: done.append("later"))
    timers.after(0, lambda: done.append("now"))
    timers.after(60, lambda: done.append("never"))
    assert len(woken) == 2  # the third comes after the first
    timers.run()
    assert done == ["now"]
    assert timers.due == pytest.approx(0.02)
    now[0] += 0.03
    timers.run()
    timers.run()
    assert done == ["now", "later"]
    assert timers.due == 1.0


def test_what_is_called_off_does_not_happen_and_holds_nothing():
    done = []
    timers = Timers(lambda: None)
    for number in range(1000):
        timers.after(0 if number % 2 else 300, lambda: done.append(1)).cancel()
        assert len(timers) < 200
    last = timers.after(0, lambda: done.append(2))
    timers.run()
    last.cancel()
    last.cancel()
    assert done == [2]
    assert last.action is None


def test_a_clock_has_a_thread_of_its_own_and_goes_on_after_an_action_that_raises():
    done, first, last = [], threading.Event(), threading.Event()
    clock = Clock()
    clock.after(0, lambda: 1 / 0)
    clock.after(0.001, lambda: (done.append(threading.current_thread().name), first.set()))
    assert first.wait(10)
    clock.after(0.001, lambda: done.append("cancelled")).cancel()
    clock.after(0.02, last.set)
    assert last.wait(10)
    assert done == ["toprope clock"]
    clock.close()
    clock.after(0, lambda: done.append("late"))
    assert not [each for each in threading.enumerate() if each.name == "toprope clock"]
    assert done == ["toprope clock"]
