"""An edge between two processes: a page of shared figures and slots for what is passed, a socket for the rest.

The sender may have as many messages on their way as the edge is deep. It sees how many were taken in the page, which
costs neither side a call of the system; only who sleeps is woken, by a message. It keeps what it has sent until
the receiver is done with it: should the receiver's process die, the next one is sent what the first had not begun with,
and a failure in place of what it was working on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from toprope.flow.edge_codec import Codec, Sealed
from toprope.flow.edge_hub import Hub, Kind, Peer
from toprope.flow.edge_page import (
    BETWEEN,
    BYTES,
    CELLS,
    DONE,
    LOST,
    SENT,
    SHARED,
    TAKEN,
    TO_HOST,
    WAITED,
    WAITS,
    Page,
    fence,
)
from toprope.flow.stage_spec import FAILURE, MORE, TENSOR, TORCH, Failure, Head, Message
from toprope.functions.wire import Closed

__all__ = ["BYTES", "CELLS", "DONE", "LOST", "SENT", "TAKEN", "WAITED", "InLink", "InQueue", "OutLink", "Page"]


_AT_ONCE = 16
"""Slots for messages of threads that saw room just before another thread took it, or before the receiver died."""


@dataclass(slots=True)
class _Sent:
    number: int
    sealed: Sealed
    place: int


class OutLink:
    """The sender's end of an edge to one process.

    Args:
        hub: the connections of this process.
        key: edge, instance of the source, instance of the target.
        target: name of the process at the other end.
        depth: messages that may be on their way.
        overwrites: whether the receiver drops the oldest message in place of keeping the sender waiting.
        codec: makes messages of values.
        on_host: whether tensors have to leave their card for this receiver.
        name: of the receiver, for messages.
    """

    def __init__(
        self, hub: Hub, key: tuple[int, int, int], target: str, depth: int, overwrites: bool, codec: Codec,
        on_host: bool, name: str,
    ) -> None:  # fmt: skip
        self._hub = hub
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
        self.page = self._new_page(depth)

    def connect(self) -> None:
        """Connect to the receiver; one that is gone will be replaced by another, see `move`."""
        with self._lock:
            try:
                self._peer = self._hub.connect(self.target)
                self._hub.send(self._peer, Kind.LINK, 0, (*self.key, self.page.name))
            except (OSError, Closed):
                self._peer = None

    def is_free(self) -> bool:
        """Whether a message can be sent now."""
        peer = self._peer
        if peer is None or peer.gone:
            return False
        if self.overwrites:
            return not peer.full
        return self._sent - self.page.cells[TAKEN] < self.depth and not peer.full

    def wait(self, until: float | None) -> bool:
        """Wait until a message can be sent; whether it can."""
        if self.is_free():
            return True
        cells = self.page.cells
        began = self._hub.clock()
        cells[WAITS] = 1
        free = self._hub.wait(self.is_free, until)
        self.page.cells[WAITS] = 0
        self.page.cells[WAITED] += self._hub.clock() - began
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

    def forewarn(self) -> None:
        """A message is being made: its receiver may wake up meanwhile."""
        peer = self._peer
        if peer is not None and not peer.gone and self.is_free():
            self._hub.forewarn(peer)

    def _put(self, sealed: Sealed, place: int) -> None:
        cells, peer = self.page.cells, self._peer
        cells[BYTES] += sealed.size
        if sealed.to_host or sealed.shared:
            cells[TO_HOST] += sealed.to_host
            cells[SHARED] += sealed.shared
        fits = self.page.put(self._sent, (place, sealed.meta, sealed.parts))
        if peer is None or peer.gone:
            return  # what is in the window is sent to the next one
        try:
            if fits:
                self._hub.rouse(peer)
            else:
                self._hub.send(peer, Kind.DATA, 0, (self.key, place, sealed.meta), sealed.parts)
        except Closed:
            pass

    def _trim(self) -> None:
        """Let go of what the receiver is done with."""
        done, window = self.page.cells[DONE], self._window
        while window and window[0].number <= done:
            self._codec.done(window.popleft().sealed)

    @property
    def unfinished(self) -> int:
        """Messages that the receiver is not done with."""
        return self._sent - int(self.page.cells[DONE])

    def move(self, target: str, failure: Failure) -> None:
        """The receiver has died, and this process stands in for it."""
        with self._lock:
            taken = self.page.cells[TAKEN]
            self._trim()
            left, self._window, self._sent = self._window, deque(), 0
            self.target = target
            self._generation += 1
            self.page = self._new_page(max(self.depth, len(left)))
            self.connect()
            for each in left:
                sealed, place = each.sealed, each.place
                if each.number <= taken:
                    stands = Message(FAILURE, failure, sealed.head, failure.code, replayed=True)
                    self._codec.give_back(sealed, place)
                    sealed, place = self._codec.seal(stands, 1, on_host=True), 0
                self._sent += 1
                self._window.append(_Sent(self._sent, sealed, place))
                self._put(sealed, place)

    def _new_page(self, slots: int) -> Page:
        name = "link-{}-{}-{}-{}-{}".format(*self.key, self._hub.name, self._generation)
        # where nothing limits the messages that are under way, they go by the socket
        return Page(self._hub.folder / name, new=True, slots=0 if self.overwrites else slots + _AT_ONCE)


class InLink:
    """The receiver's end of an edge from one process.

    Args:
        page: what both ends share.
        peer: the sender.
        queue: where messages go.
    """

    def __init__(self, page: Page, peer: Peer, queue: InQueue) -> None:
        self.page = page
        self.peer = peer
        self.queue = queue
        self.taken = 0
        self._drained = 0
        self._apart: deque[tuple[Any, ...]] = deque()  # messages that no slot had room for
        self._begun: deque[int] = deque()  # transaction ids that were taken and are not done, by age

    def drain(self) -> bool:
        """Move what has come into the queue; whether there was anything. For the thread that reads."""
        page = self.page
        sent, drained = page.cells[SENT], self._drained
        if sent == drained:
            return False
        fence()
        while drained < sent:
            record = page.get(drained + 1)
            if record is None:
                if not self._apart:
                    break  # its socket is slower
                record = self._apart.popleft()
            drained += 1
            self.queue.add(self, *record)
        is_news = drained != self._drained
        self._drained = drained
        return is_news

    def add_apart(self, place: int, meta: tuple[Any, ...], parts: list[bytes]) -> None:
        """A message has come by the socket."""
        self._apart.append((place, meta, parts))

    def take(self, hub: Hub, transaction: int) -> None:
        """A message was taken: the sender may send another. One that waits is woken for several at a time."""
        self.taken += 1
        self._begun.append(transaction)
        cells = self.page.cells
        cells[TAKEN] = self.taken
        if cells[WAITS] and cells[SENT] - self.taken <= self.queue.depth // 2:
            cells[WAITS] = 0
            try:
                hub.send(self.peer, Kind.WAKE, 0)
            except Closed:
                pass

    def finish(self) -> None:
        """All that was taken is done with."""
        self._begun.clear()
        self.page.cells[DONE] = self.taken

    def finish_until(self, transaction: int) -> None:
        """What belongs to this transaction and those before it is done with."""
        while self._begun and self._begun[0] <= transaction:
            self._begun.popleft()
        self.page.cells[DONE] = self.taken - len(self._begun)


@dataclass(slots=True)
class _Arrived:
    link: InLink | None
    message: Message | None  # None while it is sealed
    sealed: Sealed | None


def _part(head: Head) -> int:
    """One number for a transaction, or for a part of one that was split."""
    return head.transaction_id + (head.data_label << 64)


class InQueue:
    """The messages of one input, of all processes that send to it.

    Args:
        hub: the connections of this process.
        codec: makes values of messages.
        depth: messages that wait at most.
        overwrites: whether the oldest is dropped where there are more.
    """

    def __init__(self, hub: Hub, codec: Codec, depth: int, overwrites: bool = False) -> None:
        self._hub = hub
        self._codec = codec
        self.depth = depth
        self._overwrites = overwrites
        self._items: deque[_Arrived] = deque()
        self._order: deque[int] = deque()
        self._seen: dict[int, int] = {}
        self._open_streams: set[int] = set()
        """Parts with several results whose end has not come."""
        self.page: Page | None = None
        """Figures of an edge inside this process."""
        self.links: list[InLink] = []
        self.on_room: Callable[[], None] | None = None
        """Told when there is room again, where senders are in this process."""
        self.on_host = False
        """Whether tensors from this process have to leave their card."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, link: InLink, place: int, meta: tuple[Any, ...], parts: list[bytes]) -> None:
        """A message has come from another process."""
        sealed = self._codec.arrived(place, meta, parts)
        part = _part(sealed.head)
        if sealed.replayed and part in self._seen and part not in self._open_streams:
            link.take(self._hub, sealed.head.transaction_id)  # the stage had sent it before it died
            return
        if sealed.head.flags & MORE and not sealed.replayed:
            self._open_streams.add(part)
        elif self._open_streams:
            self._open_streams.discard(part)
        self._append(_Arrived(link, None, sealed), part)
        if self._overwrites and len(self._items) > self.depth:
            lost = self._items.popleft()
            self._open(lost)
            link.page.cells[LOST] += 1

    def put(self, message: Message) -> None:
        """A message of this process."""
        payload, page = message.payload, self.page
        is_on_card = message.kind == TORCH and payload.device.type != "cpu"
        if self.on_host and is_on_card:
            message = replace(message, payload=payload.cpu())
        self._append(_Arrived(None, message, None), _part(message.head))
        is_lost = self._overwrites and len(self._items) > self.depth
        if is_lost:
            self._items.popleft()
        if page is not None:
            cells = page.cells
            cells[SENT] += 1
            cells[BYTES] += payload.nbytes if message.kind in (TORCH, TENSOR) else 0
            cells[TO_HOST] += self.on_host and is_on_card
            cells[SHARED] += is_on_card and not self.on_host
            cells[LOST] += is_lost
            self._settle(page)

    def _settle(self, page: Page) -> None:
        """Count what has left this queue; messages inside a process are done with once they are taken."""
        page.cells[TAKEN] = page.cells[DONE] = page.cells[SENT] - len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether as many messages wait as the edge is deep."""
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
        if self.page is not None:
            self._settle(self.page)
        if self.on_room is not None:
            self.on_room()
        return message

    def absorb(self) -> None:
        """Take all that has come, and keep it here: those that send have room again."""
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
            item.link.page.cells[BETWEEN] += between
        item.link.take(self._hub, message.head.transaction_id)
        return message
