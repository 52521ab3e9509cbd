"""Timeline of the slots' contents: recorded while the model runs, drawn as SVG.

For users who look for stalls: `Handle.save_timeline` draws it. `prefetch_buffer.Ring` reports each event of a slot.
Nothing else reads it, so the picture can change freely; tests/tiers/test_tiers_stats.py counts its boxes and reads
their titles.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from toprope.drawing import Drawing
from toprope.tiers.engine.prefetch.prefetch_buffer import Slot, Unit

__all__ = ["Span", "Timeline"]

_STATES = {"load": "load", "use": "use"}
_STYLE = ".load{fill:#9cc9f0}.use{fill:#2a78b8}.ready{fill:$s7}"  # pale and dark in both themes


@dataclass(frozen=True, slots=True)
class Span:
    """One state of a slot over time.

    Attributes:
        slot: its number.
        unit: the unit that was loaded or used.
        what: "load", "ready" (loaded, not used yet or not any more) or "use".
        begin, end: seconds since the timeline began.
    """

    slot: int
    unit: str
    what: str
    begin: float
    end: float


class Timeline:
    """The last events of the slots.

    Args:
        most: number of events that are kept.
    """

    def __init__(self, most: int = 8192) -> None:
        self._events: deque[tuple[float, str, int, str]] = deque(maxlen=most)
        self._since = time.perf_counter()

    def note(self, what: str, slot: Slot, unit: Unit) -> None:
        """Record an event of a slot: a "load" begins, it is "ready", a "use" begins, it is "free" again."""
        self._events.append((time.perf_counter() - self._since, what, slot.number, unit.name))

    def spans(self) -> list[Span]:
        """The states of all slots, by their begin."""
        found: list[Span] = []
        last: dict[int, tuple[float, str, str]] = {}
        for at, what, slot, unit in sorted(self._events):
            known = last.get(slot)
            if known is not None:
                if what == "ready" and (known[2] != unit or known[1] == "use"):
                    continue  # the waiting module was faster than the thread that records the event
                found.append(Span(slot, known[2], known[1], known[0], at))
            last[slot] = (at, _STATES.get(what, "ready"), unit)
        now, latest = time.perf_counter() - self._since, max((at for at, *_ in self._events), default=0.0)
        for slot, (at, state, unit) in last.items():
            found.append(Span(slot, unit, state, at, latest if state == "ready" else now))
        return sorted((each for each in found if each.end > each.begin), key=lambda each: each.begin)

    def svg(self, seconds: float | None = None, note: str = "") -> str:
        """A picture: a row for each slot, pale while it is loaded, dark while it is used, grey while it is kept.

        Args:
            seconds: draw only this many seconds at the end; None for everything recorded.
            note: a line below it.
        """
        spans = self.spans()
        end = max((each.end for each in spans), default=0.0)
        begin = min((each.begin for each in spans), default=0.0)
        if seconds is not None:
            begin = max(begin, end - seconds)
        spans = [each for each in spans if each.end > begin]
        rows = max((each.slot for each in spans), default=0) + 1
        width, row, left = 1000.0, 26, 60
        scale = width / max(end - begin, 1e-9)
        seen = f"{(end - begin) * 1e3:.1f} ms, measured; pale: loaded, dark: used, grey: kept"
        drawing = Drawing("Slots over time", _STYLE)
        drawing.description = f"{seen}; {note}" if note else seen
        drawing.width, drawing.height = left + width + 10, rows * row + 46
        for number in range(rows):
            drawing.text(4, number * row + 17, f"slot {number}")
        for each in spans:
            x = left + (max(each.begin, begin) - begin) * scale
            wide = max((each.end - max(each.begin, begin)) * scale, 0.4)
            tooltip = f"{each.unit}: {each.what}, {(each.end - each.begin) * 1e3:.1f} ms"
            drawing.rect(x, each.slot * row + 3, wide, row - 6, each.what, tooltip=tooltip)
        drawing.text(left, rows * row + 16, drawing.description)
        return drawing.svg()
