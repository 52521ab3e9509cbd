"""Matching of inputs: one message of each input for an activation, by order or by transaction.

`worker.loop` takes its inputs by it, and the driver's fetcher its results. When a group is complete, given up or
dropped, and the code of an incomplete one, are those of CANN's dataflow API (`set_inputs_align_attrs`); dropping what a
killed stage had sent already is toprope's own. Tests: tests/flow/test_flow_edge.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from toprope.flow.edge.links import InQueue
from toprope.flow.exceptions import DATA_ALIGN_FAILED
from toprope.flow.stage.spec import EMPTY, Head, Message
from toprope.flow.worker.batch import Batcher

__all__ = ["Align", "Gather", "Order", "Source"]

clock = time.monotonic


class Source:
    """An input: its queue, and the batches that are made of it, where it has any.

    Args:
        queue: the queue.
        batcher: gathers batches; None for none.
    """

    def __init__(self, queue: InQueue, batcher: Batcher | None = None) -> None:
        self.queue = queue
        self._batcher = batcher
        self.is_plain = batcher is None
        """True if its messages are those of the queue."""

    def is_ready(self) -> bool:
        """True if there is a message."""
        batcher = self._batcher
        if batcher is None:
            return len(self.queue) > 0
        while len(self.queue):
            batcher.add(self.queue.take(), clock())
        batcher.expire(clock())
        return len(batcher.out) > 0

    def head(self) -> tuple[Head, bool]:
        """The head of the next message, and whether it is a replayed one."""
        if self._batcher is not None:
            first = self._batcher.out[0]
            return first.head, first.replayed
        found: tuple[Head, bool] = self.queue.head()
        return found

    def take(self) -> Message:
        """The next message."""
        return self.queue.take() if self._batcher is None else self._batcher.out.popleft()

    def due(self) -> float | None:
        """Time at which it may have a message without another one coming."""
        return None if self._batcher is None else self._batcher.due()

    @property
    def is_clear(self) -> bool:
        """True if it holds no messages."""
        return self._batcher is None or self._batcher.is_clear


@dataclass(slots=True)
class Group:
    """Messages that belong together.

    Attributes:
        messages: one for each input; an empty one with code 364000 where one is missing.
        is_complete: whether none is missing.
    """

    messages: list[Message]
    is_complete: bool = True


class Gather(ABC):
    """Takes one message of each input.

    Args:
        sources: the inputs.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._are_plain = all(each.is_plain for each in sources)

    @abstractmethod
    def is_ready(self) -> bool:
        """True if there is a group."""

    @abstractmethod
    def take(self) -> Group:
        """The next group, which must be there."""

    def due(self) -> float | None:
        """Time at which there may be a group without another message coming; None for never."""
        if self._are_plain:
            return None
        found = [due for due in (each.due() for each in self.sources) if due is not None]
        return min(found, default=None)

    @property
    def is_clear(self) -> bool:
        """True if it holds no messages."""
        return self._are_plain or all(each.is_clear for each in self.sources)

    def forget(self, transaction: int) -> None:  # noqa: B027 - most keep nothing
        """Drop the waiting messages of a transaction."""


class Order(Gather):
    """The first message of each input, whatever they belong to.

    If a stage was killed, the queue may hold an input again whose outputs have been sent: it is dropped.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources)
        self._only = sources[0] if len(sources) == 1 else None

    def is_ready(self) -> bool:
        """True if each input has a message."""
        if self._only is not None:
            return self._only.is_ready()
        while all(each.is_ready() for each in self.sources):
            heads = [each.head() for each in self.sources]
            if not any(replayed for _, replayed in heads):
                return True
            ids = [head.transaction_id for head, _ in heads]
            oldest = min(ids)
            if oldest == max(ids):
                return True
            late = [place for place, id in enumerate(ids) if id == oldest and heads[place][1]]
            if not late:
                return True
            for place in late:
                self.sources[place].take()
        return False

    def take(self) -> Group:
        """The first message of each input."""
        if self._only is not None:
            return Group([self._only.take()])
        return Group([each.take() for each in self.sources])


class Align(Gather):
    """Messages of the same transaction, and of the same part of it where it was split.

    Args:
        sources: the inputs.
        limit: most groups that wait.
        timeout_ms: how long a group waits; -1 for ever.
        drop: whether a group that stays incomplete is dropped; else it is handed on as it is.
    """

    def __init__(self, sources: Sequence[Source], limit: int, timeout_ms: int, drop: bool) -> None:
        super().__init__(sources)
        self._limit = limit
        self._timeout = None if timeout_ms < 0 else timeout_ms / 1000
        self._drop = drop
        self._groups: OrderedDict[tuple[int, int, int], tuple[float, dict[int, Message]]] = OrderedDict()
        self._out: list[Group] = []

    def is_ready(self) -> bool:
        """True if a group is complete, or has waited long enough."""
        for place, source in enumerate(self.sources):
            while not self._out and source.is_ready():
                self._add(place, source.take())
        while self._groups and not self._out:
            key, (since, _) = next(iter(self._groups.items()))
            if self._timeout is None or clock() - since < self._timeout:
                break
            self._give_up(key)
        return bool(self._out)

    def _add(self, place: int, message: Message) -> None:
        number = 0
        while True:
            key = message.head.transaction_id, message.head.data_label, number
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = (clock(), {})
            if place not in group[1]:
                break
            number += 1
        group[1][place] = message
        if len(group[1]) == len(self.sources):
            del self._groups[key]
            self._out.append(Group([group[1][each] for each in range(len(self.sources))]))
        elif len(self._groups) > self._limit:
            self._give_up(next(iter(self._groups)))

    def _give_up(self, key: tuple[int, int, int]) -> None:
        _, found = self._groups.pop(key)
        if self._drop:
            return
        head = next(iter(found.values())).head
        missing = Message(EMPTY, None, head, DATA_ALIGN_FAILED)
        self._out.append(Group([found.get(each, missing) for each in range(len(self.sources))], is_complete=False))

    def take(self) -> Group:
        """The next group."""
        return self._out.pop(0)

    def due(self) -> float | None:
        """Time at which a group, or a batch of an input, has waited long enough."""
        found = super().due()
        if self._timeout is not None and self._groups:
            mine = next(iter(self._groups.values()))[0] + self._timeout
            return mine if found is None else min(found, mine)
        return found

    @property
    def is_clear(self) -> bool:
        """True if it holds no messages."""
        return not self._groups and not self._out and super().is_clear

    def forget(self, transaction: int) -> None:
        """Drop the groups of a transaction."""
        for key in [key for key in self._groups if key[0] == transaction]:
            del self._groups[key]
