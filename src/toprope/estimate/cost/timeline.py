"""Timeline of a program: the host launches, streams compute in order, and both wait for each other; pure.

Used for runs (toprope.sim.tracing.timing) and for models on paper (model/estimate.py). The card fixes the meaning of
streams and events: a stream is a queue, and an event orders it after another. Three clocks run side by side, for the
lower end of the range, the likely value and the upper end. Tests: tests/estimate/test_timeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from toprope.estimate.cost.span import NOTHING, Span, total_of

__all__ = ["Act", "Clock", "Timeline", "bound_by"]

What = Literal["launch", "record", "wait", "synchronise", "host", "mark"]


@dataclass(frozen=True, slots=True)
class Act:
    """One act of the host.

    Attributes:
        what: "launch" of work on a stream; "record" of an event there; "wait" of the stream for an event; "synchronise"
            of the host with a stream, or with all (stream -1); "host" for time of the host alone; "mark" of a step.
        device: number of the card.
        stream: number of the stream.
        host: how long the host is busy with it.
        card: how long the stream is busy with it.
        kind: kind of operator, for sums; of a mark, its name.
        event: of "record" and "wait".
    """

    what: What
    device: int = 0
    stream: int = 0
    host: Span = NOTHING
    card: Span = NOTHING
    kind: str = ""
    event: int = 0


def bound_by(launches: Span, copies: Span, card: Span) -> str:
    """Return the longest of the host's launches, its copies and waits, and the card's work."""
    return max((card.likely, "card"), (launches.likely, "launches"), (copies.likely, "copies"), key=lambda one: one[0])[
        1
    ]


class Clock:
    """The clock of one end of the range."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._streams: dict[tuple[int, int], float] = {}
        self._events: dict[int, float] = {}
        self.host = 0.0
        self.waited = 0.0

    def act(self, act: Act) -> tuple[float, float]:
        """Let the act happen; begin and end of it on the card, or on the host."""
        begin = self.host
        self.host += act.host[self._end]
        place = act.device, act.stream
        if act.what == "launch":
            start = max(self._streams.get(place, 0.0), self.host)
            self._streams[place] = start + act.card[self._end]
            return start, self._streams[place]
        if act.what == "record":
            self._events[act.event] = max(self._streams.get(place, 0.0), self.host)
        elif act.what == "wait":
            self._streams[place] = max(self._streams.get(place, 0.0), self._events.get(act.event, 0.0))
        elif act.what == "synchronise":
            ready = [end for (device, stream), end in self._streams.items()
                     if device == act.device and act.stream in (-1, stream)]  # fmt: skip
            until = max(ready, default=0.0)
            if until > begin:
                self.waited += until - begin
                self.host = until + act.host[self._end]
        return begin, self.host

    @property
    def now(self) -> float:
        """Moment at which all that was launched has ended."""
        return max(self.host, *self._streams.values(), 0.0)


@dataclass
class Timeline:
    """Times of acts.

    Attributes:
        total: until all has ended.
        busy: time of the card by kind of operator.
        host: time that the host took to launch.
        aside: time of the host for copies and for going on after waits.
        waited: likely time that the host waited for a card.
        marks: end of each step by its name: when all that was launched until then has ended.
        spans: of each launch, the likely begin and end on the card; kept where asked for.
    """

    total: Span = NOTHING
    busy: dict[str, Span] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    host: Span = NOTHING
    aside: Span = NOTHING
    waited: float = 0.0
    marks: dict[str, list[Span]] = field(default_factory=dict)
    spans: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, acts: Iterable[Act], *, keep: bool = False) -> Timeline:
        """The timeline of acts in the order in which the host does them.

        Args:
            acts: what happens.
            keep: whether begin and end of each act are kept.
        """
        clocks = [Clock(end) for end in range(3)]
        made = cls()
        sums: dict[str, list[float]] = {}
        host, aside = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for act in acts:
            spans = [clock.act(act) for clock in clocks]
            if keep:
                made.spans.append(spans[1])
            spent = host if act.what in ("launch", "record") else aside
            for end in range(3):
                spent[end] += act.host[end]
            if act.what == "launch":
                total = sums.setdefault(act.kind, [0.0, 0.0, 0.0])
                for end in range(3):
                    total[end] += act.card[end]
                made.calls[act.kind] = made.calls.get(act.kind, 0) + 1
            elif act.what == "mark":
                made.marks.setdefault(act.kind, []).append(Span(*(clock.now for clock in clocks)))
        made.total = Span(*(clock.now for clock in clocks))
        made.busy = {kind: Span(*total) for kind, total in sums.items()}
        made.host, made.aside = Span(*host), Span(*aside)
        made.waited = clocks[1].waited
        return made

    @property
    def bound(self) -> str:
        """Return the longest: "launches" or "copies" of the host, or the "card"."""
        return bound_by(self.host, self.aside, self.card)

    @property
    def card(self) -> Span:
        """Time that streams were busy, all together."""
        return total_of(self.busy.values())

    def steps(self, name: str) -> Iterator[Span]:
        """The time of each step but the first: from one mark of a name to the next."""
        ends = self.marks.get(name, [])
        for before, after in pairwise(ends):
            yield Span(*(max(b - a, 0.0) for a, b in zip(before, after, strict=True)))
