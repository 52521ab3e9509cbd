"""Edges between processes (`flow.edge`), batches and matching of inputs (`flow.worker`), tested without processes.

What travels, how it is packed, when memory is used again, and when a sleeping receiver is woken.
"""

import pickle
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprope import flow
from toprope.flow import edge, executor, worker
from toprope.flow.edge.codec import Codec
from toprope.flow.edge.connections import Connections, Kind
from toprope.flow.edge.links import InLink, InQueue, OutLink
from toprope.flow.edge.ring_buffer import DONE, LOST, SENT, TAKEN, RingBuffer, WakeUp
from toprope.flow.exceptions import DATA_ALIGN_FAILED, SHAPE_INVALID, DfException
from toprope.flow.executor import runner
from toprope.flow.observability.metrics import RingCounters
from toprope.flow.observability.trace import chrome
from toprope.flow.stage.spec import (
    EMPTY,
    EOS,
    FAILURE,
    PICKLED,
    RAW,
    SEG,
    TENSOR,
    TORCH,
    CountBatch,
    Failure,
    Head,
    Message,
    TimeBatch,
)
from toprope.flow.worker.batch import batcher, check
from toprope.flow.worker.input_matching import Align, Order, Source
from toprope.functions import interrupts

HEAD = Head(7, 1, 2, EOS, b"abc", 3)


@pytest.fixture
def ends(tmp_path):
    """Two ends of an edge in one process: a sender, and a queue that its messages arrive in."""
    made = []

    def make(depth=4, overwrites=False):
        codecs = Codec(tmp_path, "a"), Codec(tmp_path, "b")

        def handle(peer, message):
            if message.kind == Kind.LINK:
                *key, name = message.meta
                link = InLink(RingBuffer(tmp_path / name, new=False), peer, queue)
                queue.links.append(link)
                receiver.add_link(peer, tuple(key), link)

        receiver = Connections(tmp_path, "b", handle, lambda peer: None)
        sender = Connections(tmp_path, "a", lambda peer, message: None, lambda peer: None)
        queue = InQueue(receiver, codecs[1], depth, overwrites)
        link = OutLink(sender, (0, 0, 0), "b", depth, overwrites, codecs[0], True, "b")
        link.connect()
        made.extend([receiver, sender, *codecs])
        return link, queue, codecs[0], sender, receiver

    yield make
    for each in made:
        each.close()


def test_a_receiver_is_woken_by_its_socket_until_its_wake_up_has_come(ends):
    link, queue, codec, sender, receiver = ends()
    threading.Timer(0.1, lambda: put(link, codec, Message(PICKLED, 1))).start()
    assert receiver.wait(lambda: len(queue) == 1, time.monotonic() + 10)
    peer = sender.peer("b")
    assert peer.wake_up is None
    assert sender.wait(lambda: peer.wake_up is not None, time.monotonic() + 10)
    threading.Timer(0.1, lambda: put(link, codec, Message(PICKLED, 2))).start()
    assert receiver.wait(lambda: len(queue) == 2, time.monotonic() + 10)
    assert [queue.take().payload, queue.take().payload] == [1, 2]


def test_a_wake_up_that_does_not_come_is_none(tmp_path):
    ours, theirs = socket.socketpair()
    theirs.send(b"b")  # as where the receiver has no descriptor left for it
    assert WakeUp.receive(ours, tmp_path, "b") is None
    theirs.close()
    assert WakeUp.receive(ours, tmp_path, "b") is None
    ours.close()


def put(link, codec, message):
    assert link.is_free()
    link.send(codec.seal(message, 1, on_host=True), 0)


def arrive(receiver, queue, count):
    assert receiver.wait(lambda: len(queue) >= count, time.monotonic() + 5)


def test_every_kind_of_message_arrives_as_it_was(ends):
    link, queue, codec, _, receiver = ends(depth=64)
    big, small = torch.randn(64, 1024), torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    sent = [
        Message(EMPTY, None, HEAD), Message(RAW, b"raw", HEAD), Message(1026, bytes(100_000), HEAD),
        Message(TENSOR, np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2], HEAD),
        Message(TENSOR, np.ones((300, 300)), HEAD), Message(TENSOR, np.array([b"ab", b"c"]), HEAD),
        Message(TORCH, big[:, ::2], HEAD), Message(TORCH, small, HEAD), Message(TORCH, torch.empty(0, 3), HEAD),
        Message(TORCH, torch.tensor([1 + 2j]).conj(), HEAD), Message(PICKLED, {"a": [1, big, np.zeros(9000)]}, HEAD),
        Message(PICKLED, "text", HEAD, ret_code=9900001),
        Message(FAILURE, Failure(KeyError("k"), "trace", "stage", 564000), Head(8), 564000, replayed=True),
    ]  # fmt: skip
    for message in sent:
        put(link, codec, message)
    arrive(receiver, queue, len(sent))
    for message in sent:
        got = queue.take()
        assert (got.kind, got.head, got.ret_code, got.replayed) == (
            message.kind, message.head, message.ret_code, message.replayed,
        )  # fmt: skip
        if message.kind == TORCH:
            assert got.payload.dtype == message.payload.dtype
            assert torch.equal(got.payload, message.payload)
        elif message.kind == TENSOR:
            assert got.payload.dtype == message.payload.dtype
            assert np.array_equal(got.payload, message.payload)
        elif message.kind == FAILURE:
            assert repr(got.payload.error) == "KeyError('k')"
            assert got.payload.traceback == "trace"
        elif message.kind == PICKLED and isinstance(message.payload, dict):
            assert torch.equal(got.payload["a"][1], big)
        elif message.kind in (RAW, 1026):
            assert bytes(got.payload) == message.payload
        else:
            assert got.payload == message.payload


def test_a_message_for_which_there_was_room_before_the_receiver_died_overwrites_none(ends):
    link, queue, codec, _, receiver = ends(depth=2)
    for id in (1, 3):
        for each in (id, id + 1):
            put(link, codec, Message(PICKLED, each, Head(each)))
        arrive(receiver, queue, 2)
        assert [queue.take().payload for _ in range(2)] == [id, id + 1]
    assert link.is_free()  # and just then the receiver dies, having begun with four
    queue._seen.clear()  # the next one has seen nothing
    link.move("b", Failure(RuntimeError("dead"), stage="b"))
    link.send(codec.seal(Message(PICKLED, 5, Head(5)), 1, on_host=True), 0)
    arrive(receiver, queue, 5)
    got = [queue.take() for _ in range(5)]
    assert [(each.head.transaction_id, each.failed) for each in got] == [
        (1, True), (2, True), (3, True), (4, True), (5, False),
    ]  # fmt: skip
    assert len(queue) == 0


def test_a_large_tensor_is_copied_once_and_its_memory_used_again(ends):
    link, queue, codec, _, receiver = ends()
    addresses = set()
    for value in range(20):
        put(link, codec, Message(TORCH, torch.full((2**18,), float(value))))
        arrive(receiver, queue, 1)
        got = queue.take().payload
        assert got[0] == value
        assert got[-1] == value
        addresses.add(got.data_ptr())
        queue.links[0].finish()
    assert len(addresses) <= 4
    assert codec._lender.used <= 4 * (2**20 + 8192)


def test_what_a_receiver_keeps_stays_as_it_is(ends):
    link, queue, codec, _, receiver = ends()
    kept = []
    for value in range(10):
        put(link, codec, Message(TORCH, torch.full((2**14,), float(value))))
        arrive(receiver, queue, 1)
        kept.append(queue.take().payload[::2])
        queue.links[0].finish()
    assert [each[5].item() for each in kept] == list(range(10))


def test_what_was_borrowed_is_lent_on_without_a_copy_and_given_back_at_the_end(ends, tmp_path):
    link, queue, codec, _, receiver = ends()
    last = Codec(tmp_path, "l")
    put(link, codec, Message(TORCH, torch.arange(2.0**16)))
    arrive(receiver, queue, 1)
    queue._codec._forwards = True
    got = queue.take()
    sealed = queue._codec.seal(got.with_head(HEAD), 1, on_host=True)
    assert queue._codec._lender.used == 4096  # flags alone
    end, _ = last.open(last.arrived(0, sealed.meta, sealed.parts))
    assert torch.equal(end.payload, torch.arange(2.0**16))
    queue.links[0].finish()
    queue._codec.done(sealed)
    del got, sealed
    for _ in range(2):
        codec._lender.collect(), queue._codec._lender.collect()
        link._trim()
    assert codec._lender.used > 4096  # the last one still looks at it
    del end
    queue._codec._lender.collect(), codec._lender.collect()
    assert (codec._lender.used, queue._codec._lender.used) == (0, 4096)  # the room for flags is kept for the next
    assert len(queue._codec._lender._cells) == 64
    last.close()


def test_a_sender_waits_for_room_and_is_told_of_it(ends):
    link, queue, codec, _, receiver = ends(depth=2)
    put(link, codec, Message(PICKLED, 1))
    put(link, codec, Message(PICKLED, 2))
    assert not link.is_free()
    began = time.monotonic()
    assert not link.wait(time.monotonic() + 0.1)
    assert 0.09 < time.monotonic() - began < 5
    arrive(receiver, queue, 2)
    threading.Timer(0.05, queue.take).start()
    assert link.wait(time.monotonic() + 5)
    assert link.ring.cells[5] > 50e6  # waited, in nanoseconds
    assert (link.ring.cells[SENT], link.ring.cells[TAKEN]) == (2, 1)


def test_overwrite_never_waits_and_the_newest_survive(ends):
    link, queue, codec, _, receiver = ends(depth=3, overwrites=True)
    for value in range(10):
        put(link, codec, Message(PICKLED, value))
        receiver.pump(0)
    arrive(receiver, queue, 3)
    receiver.pump(0.01)
    assert [queue.take().payload for _ in range(len(queue))] == [7, 8, 9]
    assert link.ring.cells[LOST] == 7


def test_the_one_that_stands_in_is_sent_what_is_not_done_and_a_failure_for_what_was_begun(ends, tmp_path):
    link, queue, codec, _, receiver = ends(depth=8)
    for value in range(1, 6):
        put(link, codec, Message(TORCH, torch.full((4096,), float(value)), Head(value)))
    arrive(receiver, queue, 5)
    assert queue.take().payload[0] == 1
    queue.links[0].finish()
    assert queue.take().payload[0] == 2  # at work on it when it dies
    queue._items.clear(), queue._seen.clear()  # as those of the new process are
    link.move("b", Failure(RuntimeError("killed"), code=564000))
    arrive(receiver, queue, 4)
    failed = queue.take()
    assert (failed.kind, failed.head.transaction_id, failed.ret_code, failed.replayed) == (FAILURE, 2, 564000, True)
    assert [queue.take().payload[0].item() for _ in range(3)] == [3, 4, 5]
    queue.links[-1].finish()
    assert link.ring.cells[DONE] == link.ring.cells[SENT] == 4


def test_a_replayed_failure_of_what_has_arrived_already_is_dropped(ends):
    link, queue, codec, _, receiver = ends(depth=8)
    put(link, codec, Message(PICKLED, "data", Head(5)))
    put(link, codec, Message(FAILURE, Failure(RuntimeError("x")), Head(5), 564000, replayed=True))
    put(link, codec, Message(FAILURE, Failure(RuntimeError("x")), Head(6), 564000, replayed=True))
    arrive(receiver, queue, 2)
    receiver.pump(0.01)
    assert [(each.kind, each.head.transaction_id) for each in (queue.take(), queue.take())] == [
        (PICKLED, 5), (FAILURE, 6),
    ]  # fmt: skip
    assert len(queue) == 0


def test_a_name_that_is_too_long_for_a_socket_is_reached_all_the_same(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    got = []
    receiver = Connections(folder, "b", lambda peer, message: got.append(message.meta), lambda peer: None)
    sender = Connections(folder, "a", lambda peer, message: None, lambda peer: None)
    try:
        sender.send(sender.connect("b"), Kind.WAKE, 0, "hello")
        assert receiver.wait(lambda: bool(got), time.monotonic() + 5)
        assert got == ["hello"]
    finally:
        receiver.close()
        sender.close()


# Batches


def batches(attr, *messages):
    made = batcher(attr)
    for each in messages:
        made.add(each, 0.0)
    return made


def scalar(value, *times, flags=0):
    return Message(TENSOR, np.array(value), Head(value if isinstance(value, int) else 0, *times, flags=flags))


def values(made):
    return [each.payload if each.payload is None else each.payload.tolist() for each in made.out]


def test_count_batch():
    ones = [scalar(number) for number in range(1, 5)]
    assert values(batches(CountBatch(3), *ones)) == [[1, 2, 3]]
    assert values(batches(CountBatch(3, slide_stride=1), *ones)) == [[1, 2, 3], [2, 3, 4]]
    padded = batches(CountBatch(3, timeout=50, padding=True), ones[0])
    padded.expire(0.049)
    assert values(padded) == []
    assert padded.due() == pytest.approx(0.05)
    padded.expire(0.05)
    assert values(padded) == [[1, 0, 0]]
    ended = batches(CountBatch(3), ones[0], Message(EMPTY, None, Head(2, flags=EOS)))
    assert values(ended) == [[1], None]
    wrong = batches(CountBatch(2), ones[0], Message(TENSOR, np.zeros(2)))
    assert [(each.kind, each.ret_code) for each in wrong.out] == [(FAILURE, SHAPE_INVALID)]
    alone = batches(CountBatch(2), ones[0], Message(FAILURE, Failure(KeyError()), ret_code=564000), ones[1])
    assert [each.kind for each in alone.out] == [FAILURE, TENSOR]


def test_time_batch():
    window = batches(TimeBatch(5), scalar(1, 0, 2), scalar(2, 2, 5))
    assert values(window) == [[1, 2]]
    assert (window.out[0].head.start_time, window.out[0].head.end_time) == (0, 5)
    assert [each.kind for each in batches(TimeBatch(5), scalar(1, 0, 2), scalar(2, 2, 6)).out] == [FAILURE]
    assert [each.kind for each in batches(TimeBatch(5), scalar(1, 0, 3), scalar(2, 2, 5)).out] == [FAILURE]
    assert values(batches(TimeBatch(-1), scalar(1), scalar(2, flags=SEG), scalar(3))) == [[1, 2]]
    joined = batches(TimeBatch(5, batch_dim=0), *(Message(TORCH, torch.ones(n, 2), Head(1, *t)) for n, t in
                                                  ((1, (0, 2)), (3, (2, 5)))))  # fmt: skip
    assert joined.out[0].payload.shape == (4, 2)
    dropped = batches(TimeBatch(5, drop_remainder=True), scalar(1, 0, 2, flags=EOS))
    assert [(each.kind, each.head.flags) for each in dropped.out] == [(EMPTY, EOS)]


@pytest.mark.parametrize(
    "attrs",
    [
        (CountBatch(2), TimeBatch(5)),
        (CountBatch(0),),
        (CountBatch(2, slide_stride=3),),
        (CountBatch(2, timeout=2**32),),
        (TimeBatch(0),),
        (TimeBatch(-2),),
    ],
)
def test_batches_that_cannot_be(attrs):
    with pytest.raises(DfException):
        check(attrs)


@given(st.integers(1, 5), st.data(), st.integers(0, 20))
def test_count_batches_lose_nothing(size, draw, count):
    stride = draw.draw(st.integers(0, size))
    made = batches(CountBatch(size, slide_stride=stride), *(scalar(number) for number in range(count)))
    step = stride or size
    expected = [list(range(at, at + size)) for at in range(0, count - size + 1, step)]
    assert values(made) == expected


# Gathering


def queues(count):
    return [InQueue(None, None, 1000) for _ in range(count)]


def test_a_time_limit_that_a_message_sets_ends_the_wait_and_no_polling_interval_does(ends, monkeypatch):
    """A batch went out up to 50 ms late: the wait had begun before the batch had a time limit."""
    monkeypatch.setattr("toprope.flow.edge.connections._TURN", 600)
    link, queue, codec, _, receiver = ends()
    batches = Order([Source(queue, batcher(CountBatch(3, timeout=100)))])
    aligned = Align([Source(queue), Source(InQueue(receiver, codec, 4))], 10, 100, drop=False)
    for number, gather in enumerate((batches, aligned), 1):
        message = Message(TENSOR, np.arange(2), Head(number))
        threading.Timer(0.1, put, (link, codec, message)).start()
        assert receiver.wait(gather.is_ready, time.monotonic() + 60, gather.due)
        assert len(gather.take().messages) == number


def test_a_time_limit_that_has_passed_still_reads(ends):
    link, queue, codec, _, receiver = ends()
    put(link, codec, Message(PICKLED, 1))
    assert receiver.wait(lambda: len(queue) == 1, time.monotonic() + 60, lambda: 0.0)


@given(st.permutations(range(1, 12)), st.permutations(range(1, 12)))
def test_alignment_pairs_by_transaction_whatever_the_order(first, second):
    both = queues(2)
    for queue, order in zip(both, (first, second), strict=True):
        for id in order:
            queue.put(Message(PICKLED, id, Head(id)))
    align = Align([Source(each) for each in both], 1000, -1, drop=False)
    found = []
    while align.is_ready():
        group = align.take()
        assert group.is_complete
        assert len({each.head.transaction_id for each in group.messages}) == 1
        found.append(group.messages[0].payload)
    assert sorted(found) == list(range(1, 12))
    assert align.is_clear


def test_a_group_that_stays_incomplete_is_handed_on_or_dropped(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("toprope.flow.worker.input_matching.clock", lambda: now[0])
    for drop in (False, True):
        both = queues(2)
        align = Align([Source(each) for each in both], 2, 10, drop)
        both[0].put(Message(PICKLED, "a", Head(1)))
        assert not align.is_ready()
        now[0] += 0.015
        assert align.is_ready() != drop
        if not drop:
            group = align.take()
            assert not group.is_complete
            assert [each.ret_code for each in group.messages] == [0, DATA_ALIGN_FAILED]
        for id in (2, 3, 4):  # one more than may wait
            both[0].put(Message(PICKLED, "b", Head(id)))
        assert align.is_ready() != drop


def test_order_drops_what_a_killed_stage_had_sent_on_one_side_only():
    both = queues(2)
    both[0].put(Message(PICKLED, "new", Head(8)))
    both[1].put(Message(FAILURE, Failure(RuntimeError()), Head(7), 564000, replayed=True))
    both[1].put(Message(PICKLED, "new", Head(8)))
    order = Order([Source(each) for each in both])
    assert order.is_ready()
    assert [each.payload for each in order.take().messages] == ["new", "new"]


def test_an_interrupt_waits_for_the_work_of_every_module_of_flow():
    """The runner in a package of its own would protect that package alone."""
    folders = [Path(flow.__file__).parent, *(Path(each.__file__).parent for each in (edge, executor, worker))]
    assert runner.__file__.startswith(str(folders[0]))
    for folder in folders:
        assert str(folder / "module.py").startswith(interrupts._packages), folder


def test_metrics_tell_of_a_ring_buffer_that_is_not_whole_yet(tmp_path):
    class One:
        edges, nodes, inputs = (), (), ()

    (tmp_path / "link-0-0-0-driver-0").touch()
    assert RingCounters(tmp_path, One).quiet(["driver"]) == 0


def test_a_chrome_trace_has_a_row_for_each_function():
    trace = chrome({5: [("a", 1000, 3000, 1), ("b", 2000, 2500, 2)]}, {"a": 5})
    acts = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert [(each["name"], each["ts"], each["dur"], each["args"]["input"]) for each in acts] == [
        ("a", 0.0, 2.0, 1), ("b", 1.0, 0.5, 2),
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(trace)) == trace
