"""An edge between processes on two machines: as `toprope.flow.edge`, but all of it goes over the socket.

The sender's page is its own, and the receiver tells what it would write there. Payloads travel in the message. Should
the receiver die, it may have taken more than the sender has been told: what is sent again is marked, and whoever has
had the results already drops them.
"""

from __future__ import annotations

from collections.abc import Sequence

from toprope.flow.edge import InLink, InQueue, OutLink
from toprope.flow.edge_codec import Codec, Sealed
from toprope.flow.edge_hub import Hub, Kind, Peer
from toprope.flow.edge_page import BETWEEN, BYTES, DONE, LOST, SENT, TAKEN, TO_HOST, Page
from toprope.flow.stage_plan import Route, Target
from toprope.flow.stage_spec import Failure
from toprope.functions.wire import Closed

__all__ = ["CREDIT", "TOLD", "FarInLink", "FarOutLink", "in_link", "out_link"]

CREDIT = 40
"""Kind of message: how far a receiver is."""

TOLD = (TAKEN, DONE, BETWEEN, LOST)
"""Cells that a receiver tells."""


class FarOutLink(OutLink):
    """The sender's end, see `OutLink`. Tensors have to leave their card: `on_host` is true."""

    _again = False

    def connect(self) -> None:
        """Connect to the receiver; one that is gone will be replaced by another, see `move`."""
        with self._lock:
            try:
                peer = self._peer = self._hub.connect(self.target)
                peer.links[~self.key[0], self.key[1], self.key[2]] = self
                self._hub.send(peer, Kind.LINK, 0, (*self.key, ""))
            except (OSError, Closed):
                self._peer = None

    def is_free(self) -> bool:
        """Whether a message can be sent now."""
        peer = self._peer
        if peer is None or peer.gone or peer.full:
            return False
        return self.overwrites or self._sent - self.page.cells[TAKEN] < self.depth

    def told(self, peer: Peer, figures: Sequence[int]) -> None:
        """How far the receiver is."""
        if peer is self._peer:
            for cell, figure in zip(TOLD, figures, strict=True):
                self.page.cells[cell] = figure

    def move(self, target: str, failure: Failure) -> None:
        """The receiver has died, and this process stands in for it."""
        with self._lock:
            self._again = True
            try:
                super().move(target, failure)
            finally:
                self._again = False

    def _put(self, sealed: Sealed, place: int) -> None:
        cells, peer = self.page.cells, self._peer
        cells[SENT] = self._sent
        cells[BYTES] += sealed.size
        cells[TO_HOST] += sealed.to_host
        if peer is None or peer.gone:
            return  # what is in the window is sent to the next one
        meta, parts = self._codec.flat(sealed)
        if self._again:
            meta = (*meta[:9], True, meta[10])
        try:
            self._hub.send(peer, Kind.DATA, 0, (self.key, 0, meta), parts)
        except Closed:
            pass

    def _trim(self) -> None:
        done, window = self.page.cells[DONE], self._window
        while window and window[0].number <= done:
            each = window.popleft()
            self._codec.give_back(each.sealed, each.place)

    def _new_page(self, slots: int) -> Page:
        return super()._new_page(1)


class _Figures(Page):
    """Figures that this process alone sees."""

    def __init__(self) -> None:
        self.cells = memoryview(bytearray(128)).cast("Q")
        self.slots = 1
        self.name = ""


class FarInLink(InLink):
    """The receiver's end.

    Args:
        hub: the connections of this process.
        key: edge, instance of the source, instance of the target.
        peer: the sender.
        queue: where messages go.
    """

    def __init__(self, hub: Hub, key: tuple[int, int, int], peer: Peer, queue: InQueue) -> None:
        super().__init__(_Figures(), peer, queue)
        self._hub = hub
        self._name = (~key[0], key[1], key[2])
        self._step = max(1, queue.depth // 8)
        self._told = 0
        self._come = 0

    def drain(self) -> bool:
        """Move what has come into the queue; whether there was anything."""
        apart = self._apart
        if not apart:
            return False
        while apart:
            self._come += 1
            self.queue.add(self, *apart.popleft())
        return True

    def take(self, hub: Hub, transaction: int) -> None:
        """A message was taken; told at once, or what kills this process would be sent to the next one too."""
        self.taken += 1
        self._begun.append(transaction)
        self.page.cells[TAKEN] = self.taken
        self._tell()

    def finish(self) -> None:
        """All that was taken is done with."""
        super().finish()
        self._finished()

    def finish_until(self, transaction: int) -> None:
        """What belongs to this transaction and those before it is done with."""
        super().finish_until(transaction)
        self._finished()

    def _finished(self) -> None:
        done = self.page.cells[DONE]
        # what is still to be taken tells it too; a queue may keep what was taken
        if done != self._told and (done - self._told >= self._step or self.taken == self._come):
            self._tell()

    def _tell(self) -> None:
        figures = tuple(self.page.cells[cell] for cell in TOLD)
        self._told = self.page.cells[DONE]
        try:
            self._hub.send(self.peer, CREDIT, 0, (self._name, figures))
        except Closed:
            pass


def out_link(
    hub: Hub, key: tuple[int, int, int], target: Target, route: Route, codec: Codec, *, is_far: bool
) -> OutLink:
    """The sender's end of a link to a process, on another machine or not."""
    kind = FarOutLink if is_far else OutLink
    return kind(hub, key, target.host, route.depth, route.overwrites, codec, target.on_host or is_far, route.name)


def in_link(hub: Hub, key: tuple[int, int, int], name: str, peer: Peer, queue: InQueue) -> InLink:
    """The receiver's end of a link, whose page has this name; "" for one from another machine."""
    link = InLink(Page(hub.folder / name, new=False), peer, queue) if name else FarInLink(hub, key, peer, queue)
    queue.links = [*(each for each in queue.links if not each.peer.gone), link]
    hub.add_link(peer, key, link)
    return link
