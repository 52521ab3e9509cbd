"""Edges between machines (`edge.machines`, remote ends of `edge.links`): who is let in, and what travels.

Both ends run on this machine; a receiver that dies is among the tests.
"""

import os
import socket
import threading
import time

import numpy as np
import pytest
import torch

from toprope.flow.edge.codec import Codec
from toprope.flow.edge.connections import Connections, Kind, Remote
from toprope.flow.edge.links import InQueue, in_link, out_link
from toprope.flow.edge.machines import Mirror, Reporter, begin, reach
from toprope.flow.edge.ring_buffer import BYTES, DONE, LOST, SENT, TAKEN, RingBuffer
from toprope.flow.stage.plan import DRIVER, HostPlan, Reach, Route, Target
from toprope.flow.stage.spec import EMPTY, EOS, FAILURE, PICKLED, RAW, TENSOR, TORCH, Failure, Head, Message
from toprope.flow.stage.status import Status
from toprope.functions.local.folder import join_folder, leave_folder
from toprope.functions.transport import wire

HEAD = Head(7, 1, 2, EOS, b"abc", 3)
SECRET = b"s" * 32


class Side:
    """A process of a graph, on a machine of its own."""

    def __init__(self, base, name, depth=4, overwrites=False):
        self.folder = base / name
        self.folder.mkdir()
        self.codec = Codec(self.folder, name)
        self.seen = []
        self.connections = Connections(self.folder, name, self.handle, lambda peer: None, SECRET, name, "127.0.0.1")
        self.book = self.connections.book = {}
        self.queue = InQueue(self.connections, self.codec, depth, overwrites)

    def handle(self, peer, message):
        self.seen.append(message.kind)
        if message.kind == Kind.LINK:
            *key, name = message.meta
            in_link(self.connections, tuple(key), name, peer, self.queue)

    def arrive(self, count):
        assert self.connections.wait(lambda: len(self.queue) >= count, time.monotonic() + 5)

    def take(self):
        self.arrive(1)
        return self.queue.take()

    def finish(self):
        for link in self.queue.links:
            link.finish()

    def close(self):
        if not self.connections.closed:
            self.connections.close()
        self.codec.close()


@pytest.fixture
def sides(tmp_path):
    made = []

    def make(*names, **options):
        found = [Side(tmp_path, name, **options) for name in names]
        made.extend(found)
        for one in made:
            one.book.update({each.connections.name: each.connections.address for each in made})
        return found

    yield make
    for each in made:
        each.close()


def linked(sender, receiver, depth=4, overwrites=False):
    route = Route(0, 0, (), depth, overwrites, "next")
    target = Target(receiver.connections.name, 0, 0, False)
    link = out_link(sender.connections, (0, 0, 0), target, route, sender.codec)
    link.connect()
    return link


def put(sender, link, message):
    assert link.wait(time.monotonic() + 5)
    link.send(sender.codec.seal(message, 1, on_host=True), 0)


def settled(sender, link, cell, wanted):
    assert sender.connections.wait(lambda: link.ring.cells[cell] == wanted, time.monotonic() + 5), list(
        link.ring.cells[:10]
    )


def test_every_kind_of_message_arrives_as_it_was(sides):
    sender, receiver = sides("a", "b", depth=64)
    link = linked(sender, receiver, 64)
    big, small = torch.randn(64, 1024), torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    sent = [
        Message(EMPTY, None, HEAD), Message(RAW, b"raw", HEAD), Message(1026, bytes(100_000), HEAD),
        Message(TENSOR, np.ones((300, 300)), HEAD), Message(TENSOR, np.array([b"ab", b"c"]), HEAD),
        Message(TORCH, big[:, ::2], HEAD), Message(TORCH, small, HEAD), Message(TORCH, torch.empty(0, 3), HEAD),
        Message(PICKLED, {"a": [1, big, np.arange(9000), "x" * 50_000]}, HEAD),
        Message(PICKLED, "t" * 100_000, HEAD, ret_code=9900001), Message(TORCH, torch.ones(2**21), HEAD),
        Message(FAILURE, Failure(KeyError("k"), "trace", "stage", 564000), Head(8), 564000, replayed=True),
    ]  # fmt: skip

    def feed():  # some are larger than what sockets hold: whoever waits sends on
        for message in sent:
            put(sender, link, message)
        sender.connections.wait(lambda: link.ring.cells[DONE] == len(sent), time.monotonic() + 10)

    feeding = threading.Thread(target=feed)
    feeding.start()
    for message in sent:
        got = receiver.take()
        assert (got.kind, got.head, got.ret_code, got.replayed) == (
            message.kind, message.head, message.ret_code, message.replayed,
        )  # fmt: skip
        if message.kind == TORCH:
            assert got.payload.dtype == message.payload.dtype
            assert torch.equal(got.payload, message.payload)
        elif message.kind == TENSOR:
            assert np.array_equal(got.payload, message.payload)
        elif message.kind == FAILURE:
            assert repr(got.payload.error) == "KeyError('k')"
        elif isinstance(message.payload, dict):
            assert torch.equal(got.payload["a"][1], big)
            assert np.array_equal(got.payload["a"][2], np.arange(9000))
            assert got.payload["a"][3] == "x" * 50_000
        elif message.kind in (RAW, 1026):
            assert bytes(got.payload) == message.payload
        else:
            assert got.payload == message.payload
    receiver.finish()
    feeding.join(60)
    assert not feeding.is_alive()
    assert link.ring.cells[BYTES] > 2**23
    # the sender has all of its memory back
    link._trim()
    sender.codec._lender.collect()
    assert sender.codec._lender.used == 0


def test_a_full_edge_keeps_its_sender_waiting_and_an_overwriting_one_drops(sides):
    sender, receiver = sides("a", "b")
    link = linked(sender, receiver)
    for number in range(4):
        put(sender, link, Message(RAW, b"%d" % number, Head(number + 1)))
    assert not link.wait(time.monotonic() + 0.1)
    assert bytes(receiver.take().payload) == b"0"
    put(sender, link, Message(RAW, b"4", Head(5)))
    assert [bytes(receiver.take().payload) for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    receiver.finish()
    settled(sender, link, DONE, 5)
    dropping, last = sides("c", "d", overwrites=True)
    link = linked(dropping, last, overwrites=True)
    for number in range(10):
        put(dropping, link, Message(RAW, b"%d" % number, Head(number + 1)))
    assert last.connections.wait(
        lambda: last.queue.links and last.queue.links[0].ring.cells[LOST] == 6, time.monotonic() + 5
    )
    assert [bytes(last.take().payload) for _ in range(4)] == [b"6", b"7", b"8", b"9"]
    last.finish()
    settled(dropping, link, LOST, 6)


def test_what_is_taken_and_kept_is_done_with(sides):
    """drain() waited in vain where the last stage was on another machine: the last message was never told as done."""
    sender, receiver = sides("a", "b", depth=64)
    link = linked(sender, receiver, 64)
    for number in range(5):
        put(sender, link, Message(RAW, b"%d" % number, Head(number + 1)))
    receiver.arrive(5)
    receiver.queue.absorb()
    receiver.finish()
    settled(sender, link, DONE, 5)
    assert [bytes(receiver.take().payload) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def remote(secret, taken=None):
    """The TCP side of a process that knows this secret, and the sockets that it lets in."""
    return Remote(secret, "127.0.0.1", "x", (taken if taken is not None else []).append)


def test_a_process_that_does_not_know_the_secret_is_let_in_nowhere(sides):
    (side,) = sides("a")
    address = side.connections.address
    for secret in (b"", b"t" * 32):
        stranger = remote(secret)
        with pytest.raises(OSError, match="no process of this graph"):
            stranger.connect(address)
        stranger.close()
    with socket.create_connection(address[1:]) as sock:  # a message in place of a proof
        sock.sendall(b"\x00" * 64)
        sock.settimeout(60)
        try:
            while sock.recv(1000):
                pass
        except ConnectionResetError:
            pass
    # one that answers without knowing the secret is not talked to
    liar = remote(b"t" * 32)
    knows = remote(SECRET)
    with pytest.raises(OSError, match="no process of this graph"):
        knows.connect(liar.address)
    liar.close()
    with pytest.raises(OSError, match="refused"):
        knows.connect(liar.address)
    knows.close()
    assert side.seen == []
    assert side.connections._peers == {}


def test_a_connection_that_says_nothing_ends_and_keeps_no_other_out(sides, monkeypatch):
    monkeypatch.setattr("toprope.flow.edge.connections._PATIENCE", 1)
    taken = []
    one = remote(SECRET, taken)
    with socket.create_connection(one.address[1:]) as silent:
        other = remote(SECRET)
        other.connect(one.address).close()
        silent.settimeout(60)
        while silent.recv(1000):  # the challenge, and then the end
            pass
    assert len(taken) == 1
    for each in (*taken, one, other):
        each.close()


def test_what_a_dead_receiver_may_have_had_is_sent_again_marked_and_dropped_by_who_had_the_results(sides):
    sender, first = sides("a", "b", depth=16)
    link = linked(sender, first, 16)
    for number in range(6):
        put(sender, link, Message(TORCH, torch.full((4096,), float(number)), Head(number + 1)))
    assert [first.take().head.transaction_id for _ in range(3)] == [1, 2, 3]
    settled(sender, link, TAKEN, 3)
    first.connections.close()
    link.ring.cells[TAKEN] = 2  # as if the last news had been lost with its machine
    (second,) = sides("b-1", depth=16)
    sender.book["b-1"] = second.connections.address
    link.move("b-1", Failure(RuntimeError("dead"), "", "b", 564000))
    got = [second.take() for _ in range(6)]
    assert [(each.head.transaction_id, each.kind, each.replayed) for each in got] == [
        (1, FAILURE, True), (2, FAILURE, True), *((number, TORCH, True) for number in (3, 4, 5, 6)),
    ]  # fmt: skip
    assert got[2].payload[0] == 2
    second.finish()
    settled(sender, link, DONE, 6)
    put(sender, link, Message(RAW, b"new", Head(7)))
    assert not second.take().replayed
    # the next stage has had the results of 1 to 3
    (last,) = sides("c", depth=16)
    onward = linked(second, last, 16)
    for number in (1, 2, 3):
        put(second, onward, Message(RAW, b"", Head(number)))
        assert last.take().head.transaction_id == number
    for each in got:
        put(second, onward, each)
    assert [last.take().head.transaction_id for _ in range(3)] == [4, 5, 6]
    last.finish()
    settled(second, onward, DONE, 9)


def test_figures_of_another_machine_lie_in_the_drivers_folder(sides, tmp_path):
    driver, stage = sides(DRIVER, "stage")
    driver.connections.connect("stage")
    link = linked(stage, driver)
    (tmp_path / "m").mkdir()
    running = Status(tmp_path / "m" / "status-stage").cells(0)
    mirror = Mirror(tmp_path / "m", lambda name: {"stage": [running]}.get(name, []))
    driver.connections._handle = lambda peer, message: mirror.take(message) or driver.handle(peer, message)
    stage.connections.wait(lambda: stage.connections.peer(DRIVER) is not None, time.monotonic() + 5)
    put(stage, link, Message(RAW, b"x", Head(1)))
    began = time.monotonic_ns() - 10**9
    reporter = Reporter(stage.connections, [link], [memoryview(np.array([5, began], "u8"))])
    reported = mirror.reports(["stage"])
    assert not mirror.is_newer(reported)
    assert driver.connections.wait(lambda: mirror.is_newer(reported), time.monotonic() + 5)
    assert running[0] == 5
    assert abs(running[1] - began) < 5 * 10**8
    ring = RingBuffer(tmp_path / "m" / link.ring.name, new=False)
    assert ring.cells[SENT] == 1
    assert driver.queue.links[0].ring.name == ""  # its counters are sent
    reporter.close()


def test_figures_are_newer_after_two_more_reports_as_the_first_may_have_been_on_its_way(tmp_path):
    mirror = Mirror(tmp_path, lambda name: [])
    before = mirror.reports(["stage", "other"])
    for count in range(2):
        assert not mirror.is_newer(before), count
        for name in ("stage", "other"):
            assert mirror.take(wire.Message(Kind.FIGURES, 0, (name, (), ()), []))
    assert mirror.is_newer(before)


def test_a_folder_is_shared_by_a_machines_processes_and_goes_with_the_last(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", str(tmp_path))
    folder, first = join_folder("far")
    again, second = join_folder("far")
    assert folder == again
    assert folder.stat().st_mode & 0o777 == 0o700
    leave_folder(folder, first)
    assert folder.exists()
    leave_folder(folder, second)
    assert not folder.exists()
    plan = HostPlan("s", str(tmp_path / "graph"), (), reach=Reach(SECRET, "elsewhere", "127.0.0.1"))
    place = begin(plan)
    assert place.is_apart
    assert place.folder.exists()
    place.leave()
    assert not place.folder.exists()
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="others may enter"):
        join_folder("far")
    folder.rmdir()
    os.symlink(tmp_path, folder)
    with pytest.raises(OSError, match=r"belongs to another user|exists"):
        join_folder("far")


def test_only_several_machines_need_a_door():
    assert reach(True, lambda: [1, 2]) is None
    assert reach(False, lambda: [1]) is None
    secrets = {reach(False, lambda: [1, 2]).secret for _ in range(3)}
    assert len(secrets) == 3
    assert all(len(each) == 32 and repr(each) not in repr(reach(False, lambda: [1, 2])) for each in secrets)
