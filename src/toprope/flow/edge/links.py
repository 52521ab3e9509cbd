"""The two ends of an edge between two processes: a ring buffer on one machine, a socket between machines.

The runner and the processes of stages make them by `out_link` and `in_link`, and take messages from an `InQueue`. The
sender may have as many messages in flight as the edge is deep. On one machine it reads in the ring buffer how many were
taken, without a system call; from another machine the receiver sends these figures. The sender keeps each message until
the receiver is done with it: if the receiver's process dies, its successor is sent the messages that the first had not
begun with, and a failure in place of the others. Between machines a receiver may have taken more than its sender knows:
then messages are marked as sent again, and a stage that has had their results drops them.

The names of ring buffers are read by `observability.metrics`. What users rely on: no message is lost or comes twice.
Tests: tests/flow/test_flow_edge.py, tests/flow/test_flow_far.py, tests/flow/test_flow_run.py,
tests/flow/test_flow_faults.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprope.flow.edge.codec import Codec, Sealed
from toprope.flow.edge.connections import Connections, Kind, Peer
from toprope.flow.edge.ring_buffer import (
    BETWEEN,
    BYTES,
    DONE,
    LOST,
    SENT,
    SHARED,
    TAKEN,
    TO_HOST,
    WAITED,
    WAITS,
    RingBuffer,
    fence,
)
from toprope.flow.stage.plan import Route, Target
from toprope.flow.stage.spec import FAILURE, MORE, TENSOR, TORCH, Failure, Head, Message
from toprope.functions.transport.wire import Closed

__all__ = ["InLink", "InQueue", "OutLink", "in_link", "out_link"]

_AT_ONCE = 16
"""Slots for messages of threads that saw room just before another thread took it, or before the receiver died."""

_CREDIT = (TAKEN, DONE, BETWEEN, LOST)
"""Counters that a receiver on another machine sends."""


@dataclass(slots=True)
class _Sent:
    number: int
    sealed: Sealed
    place: int


class OutLink:
    """The sender's end of an edge to one process.

    Args:
        connections: of this process.
        key: edge, instance of the source, instance of the target.
        target: name of the process at the other end.
        depth: largest number of messages in flight.
        overwrites: whether the receiver drops the oldest message in place of keeping the sender waiting.
        codec: makes messages of values.
        on_host: whether tensors have to leave their card for this receiver.
        name: of the receiver, for messages.
    """

    def __init__(
        self,
        connections: Connections,
        key: tuple[int, int, int],
        target: str,
        depth: int,
        overwrites: bool,
        codec: Codec,
        on_host: bool,
        name: str,
    ) -> None:
        self._connections = connections
        self.key = key
        self.target = target
        self.depth = depth
        self.overwrites = overwrites
        self.on_host = on_host
        self.name = name
        self._codec = codec
        self._lock = threading.RLock()
        self._window: deque[_Sent] = deque()
        self._sent = 0
        self._peer: Peer | None = None
        self._generation = 0
        self.ring = self._new_ring(depth)

    def connect(self) -> None:
        """Connect to the receiver; one that is gone will be replaced by another, see `move`."""
        with self._lock:
            try:
                peer = self._peer = self._connections.connect(self.target)
                self._announce(peer)
            except (OSError, Closed):
                self._peer = None

    def _announce(self, peer: Peer) -> None:
        self._connections.send(peer, Kind.LINK, 0, (*self.key, self.ring.name))

    def is_free(self) -> bool:
        """True if a message can be sent now."""
        peer = self._peer
        if peer is None or peer.gone:
            return False
        if self.overwrites:
            return not peer.full
        return self._sent - self.ring.cells[TAKEN] < self.depth and not peer.full

    def wait(self, until: float | None) -> bool:
        """Wait until a message can be sent; whether it can."""
        if self.is_free():
            return True
        cells = self.ring.cells
        began = self._connections.clock()
        cells[WAITS] = 1
        free = self._connections.wait(self.is_free, until)
        self.ring.cells[WAITS] = 0
        self.ring.cells[WAITED] += self._connections.clock() - began
        return free

    def send(self, sealed: Sealed, place: int) -> None:
        """Send a message for which there is room.

        Args:
            sealed: the message.
            place: which of its receivers this one is.
        """
        with self._lock:
            self._sent += 1
            self._window.append(_Sent(self._sent, sealed, place))
            self._put(sealed, place)
            self._trim()  # while the receiver is at work
        self._codec.collect()

    def wake_early(self) -> None:
        """Wake the receiver while a message for it is still being made."""
        peer = self._peer
        if peer is not None and not peer.gone and self.is_free():
            self._connections.wake_early(peer)

    def _put(self, sealed: Sealed, place: int) -> None:
        cells, peer = self.ring.cells, self._peer
        cells[BYTES] += sealed.size
        if sealed.to_host or sealed.shared:
            cells[TO_HOST] += sealed.to_host
            cells[SHARED] += sealed.shared
        fits = self.ring.put(self._sent, (place, sealed.meta, sealed.parts))
        if peer is None or peer.gone:
            return  # what is in the window is sent to the next one
        try:
            if fits:
                self._connections.wake_peer(peer)
            else:
                self._connections.send(peer, Kind.DATA, 0, (self.key, place, sealed.meta), sealed.parts)
        except Closed:
            pass

    def _trim(self) -> None:
        """Release the messages that the receiver has finished."""
        done, window = self.ring.cells[DONE], self._window
        while window and window[0].number <= done:
            self._codec.done(window.popleft().sealed)

    @property
    def unfinished(self) -> int:
        """Number of messages that the receiver has not finished."""
        return self._sent - int(self.ring.cells[DONE])

    def move(self, target: str, failure: Failure) -> None:
        """Send to the successor of a receiver that has died.

        It gets all messages that the receiver had not finished; those that it had begun with are replaced by a failure,
        as they may be what killed it.
        """
        with self._lock:
            taken = self.ring.cells[TAKEN]
            self._trim()
            left, self._window, self._sent = self._window, deque(), 0
            self.target = target
            self._generation += 1
            self.ring = self._new_ring(max(self.depth, len(left)))
            self.connect()
            for each in left:
                sealed, place = each.sealed, each.place
                if each.number <= taken:
                    instead = Message(FAILURE, failure, sealed.head, failure.code, replayed=True)
                    self._codec.give_back(sealed, place)
                    sealed, place = self._codec.seal(instead, 1, on_host=True), 0
                self._sent += 1
                self._window.append(_Sent(self._sent, sealed, place))
                self._put(sealed, place)

    def _new_ring(self, slots: int) -> RingBuffer:
        name = "link-{}-{}-{}-{}-{}".format(*self.key, self._connections.name, self._generation)
        return RingBuffer(self._connections.folder / name, slots=self._slots(slots))

    def _slots(self, depth: int) -> int:
        # An edge that overwrites has no limit for messages in flight, so there are no slots: all go by the socket.
        return 0 if self.overwrites else depth + _AT_ONCE


class _RemoteOutLink(OutLink):
    """The sender's end of an edge to another machine. Tensors have to leave their card: `on_host` is true."""

    _is_resending = False

    def _announce(self, peer: Peer) -> None:
        peer.links[_credit_key(self.key)] = self
        self._connections.send(peer, Kind.LINK, 0, (*self.key, ""))

    def credit(self, peer: Peer, figures: Sequence[int]) -> None:
        """Take over the counters that the receiver has sent."""
        if peer is self._peer:
            for cell, figure in zip(_CREDIT, figures, strict=True):
                self.ring.cells[cell] = figure

    def move(self, target: str, failure: Failure) -> None:
        """Send to the successor of a receiver that has died."""
        with self._lock:
            self._is_resending = True
            try:
                super().move(target, failure)
            finally:
                self._is_resending = False

    def _put(self, sealed: Sealed, place: int) -> None:
        cells, peer = self.ring.cells, self._peer
        cells[SENT] = self._sent
        cells[BYTES] += sealed.size
        cells[TO_HOST] += sealed.to_host
        if peer is None or peer.gone:
            return  # what is in the window is sent to the next one
        meta, parts = self._codec.flat(sealed)
        if self._is_resending:
            meta = (*meta[:9], True, meta[10])
        try:
            self._connections.send(peer, Kind.DATA, 0, (self.key, 0, meta), parts)
        except Closed:
            pass

    def _trim(self) -> None:
        done, window = self.ring.cells[DONE], self._window
        while window and window[0].number <= done:
            each = window.popleft()
            self._codec.give_back(each.sealed, each.place)

    def _slots(self, depth: int) -> int:
        return 0


def _credit_key(key: tuple[int, int, int]) -> tuple[int, int, int]:
    """Key of the credit for an edge: two processes may have edges in both directions between them."""
    return ~key[0], key[1], key[2]


class InLink:
    """The receiver's end of an edge from one process.

    Args:
        ring: the ring buffer.
        peer: the sender.
        queue: where messages go.
    """

    def __init__(self, ring: RingBuffer, peer: Peer, queue: InQueue) -> None:
        self.ring = ring
        self.peer = peer
        self.queue = queue
        self.taken = 0
        self._drained = 0
        self._from_socket: deque[tuple[Any, ...]] = deque()  # messages that had no room in a slot, in their order
        self._begun: deque[int] = deque()  # transaction ids that were taken and are not done, by age

    def drain(self) -> bool:
        """Move messages that have come into the queue; whether there were any. For the thread that reads."""
        ring = self.ring
        sent, drained = ring.cells[SENT], self._drained
        if sent == drained:
            return False
        fence()
        while drained < sent:
            record = ring.get(drained + 1)
            if record is None:
                if not self._from_socket:
                    break  # the message itself is still on its way by the socket
                record = self._from_socket.popleft()
            drained += 1
            self.queue.add(self, *record)
        found = drained != self._drained
        self._drained = drained
        return found

    def add_from_socket(self, place: int, meta: tuple[Any, ...], parts: list[bytes]) -> None:
        """Keep a message that has come by the socket."""
        self._from_socket.append((place, meta, parts))

    def take(self, connections: Connections, transaction: int) -> None:
        """Count a message as taken, for its sender; one that waits is woken once half of its room is free."""
        self.taken += 1
        self._begun.append(transaction)
        cells = self.ring.cells
        cells[TAKEN] = self.taken
        if cells[WAITS] and cells[SENT] - self.taken <= self.queue.depth // 2:
            cells[WAITS] = 0
            try:
                connections.send(self.peer, Kind.WAKE, 0)
            except Closed:
                pass

    def finish(self) -> None:
        """Mark all taken messages as finished."""
        self._begun.clear()
        self.ring.cells[DONE] = self.taken

    def finish_until(self, transaction: int) -> None:
        """Mark the taken messages up to this transaction as finished."""
        while self._begun and self._begun[0] <= transaction:
            self._begun.popleft()
        self.ring.cells[DONE] = self.taken - len(self._begun)


class _RemoteInLink(InLink):
    """The receiver's end of an edge from another machine: it sends its counters.

    Args:
        connections: of this process.
        key: edge, instance of the source, instance of the target.
        peer: the sender.
        queue: where messages go.
    """

    def __init__(self, connections: Connections, key: tuple[int, int, int], peer: Peer, queue: InQueue) -> None:
        super().__init__(RingBuffer(None), peer, queue)
        self._connections = connections
        self._name = _credit_key(key)
        self._step = max(1, queue.depth // 8)
        self._reported = 0
        self._come = 0

    def drain(self) -> bool:
        """Move messages that have come into the queue; whether there were any."""
        apart = self._from_socket
        if not apart:
            return False
        while apart:
            self._come += 1
            self.queue.add(self, *apart.popleft())
        return True

    def take(self, connections: Connections, transaction: int) -> None:
        """Count a message as taken, at once: one that kills this process must not be sent to the next one too."""
        self.taken += 1
        self._begun.append(transaction)
        self.ring.cells[TAKEN] = self.taken
        self._report()

    def finish(self) -> None:
        """Mark all taken messages as finished."""
        super().finish()
        self._finished()

    def finish_until(self, transaction: int) -> None:
        """Mark the taken messages up to this transaction as finished."""
        super().finish_until(transaction)
        self._finished()

    def _finished(self) -> None:
        done = self.ring.cells[DONE]
        # messages that are still to be taken report it too; a queue may keep what was taken
        if done != self._reported and (done - self._reported >= self._step or self.taken == self._come):
            self._report()

    def _report(self) -> None:
        self._reported = self.ring.cells[DONE]
        try:
            figures = tuple(self.ring.cells[cell] for cell in _CREDIT)
            self._connections.send(self.peer, Kind.CREDIT, 0, (self._name, figures))
        except Closed:
            pass


@dataclass(slots=True)
class _Arrived:
    link: InLink | None
    message: Message | None  # None while it is sealed
    sealed: Sealed | None


def _part_number(head: Head) -> int:
    """One number for a transaction, or for a part of one that was split."""
    return head.transaction_id + (head.data_label << 64)


class InQueue:
    """The messages of one input, of all processes that send to it.

    Args:
        connections: of this process.
        codec: makes values of messages.
        depth: messages that wait at most.
        overwrites: whether the oldest is dropped where there are more.
    """

    def __init__(self, connections: Connections, codec: Codec, depth: int, overwrites: bool = False) -> None:
        self._connections = connections
        self._codec = codec
        self.depth = depth
        self._overwrites = overwrites
        self._items: deque[_Arrived] = deque()
        self._order: deque[int] = deque()
        self._seen: dict[int, int] = {}
        self._open_streams: set[int] = set()
        """Parts with several results whose end has not come."""
        self.ring: RingBuffer | None = None
        """Counters of an edge inside this process."""
        self.links: list[InLink] = []
        self.on_room: Callable[[], None] | None = None
        """Called when there is room again, where senders are in this process."""
        self.on_host = False
        """True if tensors from this process have to leave their card."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, link: InLink, place: int, meta: tuple[Any, ...], parts: list[bytes]) -> None:
        """Add a message of another process."""
        sealed = self._codec.arrived(place, meta, parts)
        part = _part_number(sealed.head)
        if sealed.replayed and part in self._seen and part not in self._open_streams:
            link.take(self._connections, sealed.head.transaction_id)  # the stage had sent it before it died
            return
        if sealed.head.flags & MORE and not sealed.replayed:
            self._open_streams.add(part)
        elif self._open_streams:
            self._open_streams.discard(part)
        self._append(_Arrived(link, None, sealed), part)
        if self._overwrites and len(self._items) > self.depth:
            lost = self._items.popleft()
            self._open(lost)
            link.ring.cells[LOST] += 1

    def put(self, message: Message) -> None:
        """Add a message of this process."""
        payload, ring = message.payload, self.ring
        is_on_card = message.kind == TORCH and payload.device.type != "cpu"
        if self.on_host and is_on_card:
            message = replace(message, payload=payload.cpu())
        self._append(_Arrived(None, message, None), _part_number(message.head))
        is_lost = self._overwrites and len(self._items) > self.depth
        if is_lost:
            self._items.popleft()
        if ring is not None:
            cells = ring.cells
            cells[SENT] += 1
            cells[BYTES] += payload.nbytes if message.kind in (TORCH, TENSOR) else 0
            cells[TO_HOST] += self.on_host and is_on_card
            cells[SHARED] += is_on_card and not self.on_host
            cells[LOST] += is_lost
            self._count_taken(ring)

    def _count_taken(self, ring: RingBuffer) -> None:
        """Count messages that have left this queue: inside a process those that are taken are done with."""
        ring.cells[TAKEN] = ring.cells[DONE] = ring.cells[SENT] - len(self._items)

    @property
    def is_full(self) -> bool:
        """True if as many messages wait as the edge is deep."""
        return len(self._items) >= self.depth and not self._overwrites

    def _append(self, item: _Arrived, part: int) -> None:
        seen, order = self._seen, self._order
        order.append(part)
        seen[part] = seen.get(part, 0) + 1
        if len(order) > 4 * self.depth + 64:
            oldest = order.popleft()
            count = seen[oldest] - 1
            if count:
                seen[oldest] = count
            else:
                del seen[oldest]
        self._items.append(item)

    def head(self) -> Any:
        """The head of the next message, and whether it is a replayed one."""
        first = self._items[0]
        known = first.sealed if first.message is None else first.message
        assert known is not None
        return known.head, known.replayed

    def take(self) -> Message:
        """The next message."""
        item = self._items.popleft()
        message = self._open(item)
        if self.ring is not None:
            self._count_taken(self.ring)
        if self.on_room is not None:
            self.on_room()
        return message

    def absorb(self) -> None:
        """Take all messages, and keep them here: senders have room again."""
        for item in list(self._items):
            if item.message is None:
                item.message = self._open(item)

    def _open(self, item: _Arrived) -> Message:
        if item.message is not None:
            return item.message
        assert item.sealed is not None
        assert item.link is not None
        message, between = self._codec.open(item.sealed)
        if between:
            item.link.ring.cells[BETWEEN] += between
        item.link.take(self._connections, message.head.transaction_id)
        return message


def out_link(
    connections: Connections, key: tuple[int, int, int], target: Target, route: Route, codec: Codec
) -> OutLink:
    """The sender's end of an edge to a process, on this machine or on another one."""
    is_remote = connections.is_remote(target.host)
    kind = _RemoteOutLink if is_remote else OutLink
    return kind(
        connections, key, target.host, route.depth, route.overwrites, codec, target.on_host or is_remote, route.name
    )


def in_link(connections: Connections, key: tuple[int, int, int], name: str, peer: Peer, queue: InQueue) -> InLink:
    """The receiver's end of an edge, whose ring buffer has this name; "" for one from another machine."""
    if name:
        link = InLink(RingBuffer(connections.folder / name, new=False), peer, queue)
    else:
        link = _RemoteInLink(connections, key, peer, queue)
    queue.links = [*(each for each in queue.links if not each.peer.gone), link]
    connections.add_link(peer, key, link)
    return link
