"""Draws a timeline as SVG or HTML: a band for each kind of core of each card, as high as it has cores; pure.

For `toprope cores`, with the content that `simulation.timeline` has chosen. The elements carry `data-` attributes (op,
card, kind, cores, begin, end, state), by which the test reads a picture: these stay, colours and sizes are free. To the
right of the blocks is the wait-for cycle: each arrow leaves a block to the right, goes up or down in a lane, and comes
back to another block. Arrows that pass each other have lanes of their own, the longer ones further out, so that few
cross. Tests: tests/cores/test_cores_timeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toprope import drawing
from toprope.cores.model import Card, OpId
from toprope.cores.simulation.timeline import PARTIAL, RUNS, WAITS, Arrow, Block, Idle, Timeline
from toprope.drawing import Attributes, Drawing, escaped, fit, series, text_width

__all__ = ["page", "svg"]

_LEFT = 92  # of the first band
_LANE = 24
_KINDS = ("cube", "vector")
_MEANING = {
    RUNS: "runs",
    WAITS: "has its cores, waits for peers",
    PARTIAL: "has a part of its cores, waits for the rest",
}
_FIRST_ARROW, _ARROW_LANE, _CURVE = 58.0, 100.0, 8.0
_STYLE = (
    ".small{font-size:12px}.card{font-size:14px;font-weight:600}.on{pointer-events:none}"
    ".number{fill:$page;font-weight:600;font-size:11px}.band,.key{fill:$band;stroke:$faint}.grid{stroke:$page}"
    ".block,.without{stroke:$ink;stroke-width:.8}.runs{stroke-width:1.6}.waits{fill-opacity:.6}"
    ".partial{stroke-dasharray:5 3}.none{fill:none;stroke:$ink;stroke-dasharray:3 3}"
    ".moment{stroke:$alarm;stroke-width:2.5}.arrow{stroke:$alarm;fill:none;stroke-width:2}"
    ".head,.step{fill:$alarm}.chip{stroke:$alarm}"
)


def svg(timeline: Timeline, title: str = "", *, subtitle: str = "") -> str:
    """The picture as SVG.

    Args:
        timeline: what it shows.
        title: its headline; one is made where it is empty.
        subtitle: a line below.
    """
    return _Figure(timeline, title, subtitle).drawing.svg()


def page(title: str, text: str = "", timelines: Iterable[tuple[str, Timeline]] = (), subtitle: str = "") -> str:
    """Pictures with their story as one HTML file that needs nothing else.

    Args:
        title: its headline, such as the name of the schedule.
        text: the report, as on a terminal.
        timelines: pictures with their headlines.
        subtitle: what the pictures say below their headlines.
    """
    figures = [_Figure(timeline, headline, subtitle).drawing for headline, timeline in timelines]
    return drawing.page(title, *figures, f"<pre>{escaped(text)}</pre>" if text else "")


def _title(timeline: Timeline) -> str:
    cards = len(timeline.program.cards)
    what = "Deadlock" if timeline.deadlock else "Cores over time"
    return f"{what} on {cards} card{'' if cards == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class _Port:
    """The point at which arrows touch an operator: the top of its block at the deadlock, and its height, in pixels."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


class _Figure:
    def __init__(self, timeline: Timeline, title: str, subtitle: str) -> None:
        self.timeline = timeline
        self.drawing = Drawing(title or _title(timeline), _STYLE)
        self.ports: dict[OpId, _Port] = {}
        self.y = 0.0
        self.span = timeline.end - timeline.begin
        cards = len(timeline.program.cards)
        self.core = 4.0 if cards <= 2 else 3.0 if cards <= 4 else 2.0  # pixels
        self.time_width = 0.0 if not self.span else 230.0 if timeline.deadlock else 720.0
        self.right = _LEFT + self.time_width + (345.0 if timeline.deadlock else 0.0)
        names = dict.fromkeys(each.name for each in timeline.program.streams)
        self.streams = {name: place for place, name in enumerate(names)}
        self.kinds = [any(op.cores[kind] for _, op in timeline.program.ops()) for kind in (0, 1)]
        self._head(subtitle)
        for card in timeline.program.cards:
            self._card(card)
        self._axis(self.y)
        arrows = [each for each in timeline.arrows if each.source in self.ports and each.target in self.ports]
        width = self.right + 12
        if timeline.arrows:
            lanes = _lanes(arrows, self.ports)
            self._arrows(arrows, lanes)
            width = self.right + _FIRST_ARROW + (max(lanes, default=0) + 0.5) * _ARROW_LANE
        self._foot()
        width = max(width, 640, *(24 + text_width(each) for each in (*timeline.notes, *timeline.cycle)))
        self.drawing.width, self.drawing.height = round(width), round(self.y + 10)
        self.drawing.description = " ".join((*(f"{each}." for each in timeline.cycle), *timeline.notes))

    def _head(self, subtitle: str) -> None:
        self.drawing.text(12, 26, self.drawing.title, "title")
        self.y = 34.0
        if subtitle:
            self.drawing.text(12, 45, subtitle, "small")
            self.y = 53.0
        streams = [(series(place), name) for name, place in self.streams.items()]
        if len(streams) > 16:
            streams[16:] = [("", f"and {len(streams) - 16} more streams")]
        self.y = self.drawing.legend(12, self.y + 4, streams)
        seen = {each.state for each in self.timeline.blocks}
        states = [(f"key {_css_class(state)}", _MEANING[state]) for state in (RUNS, WAITS, PARTIAL) if state in seen]
        if any(each.uses_cores for each in self.timeline.idle):
            states.append(("none", "has none, waits"))
        self.y = self.drawing.legend(12, self.y + 2, states, swatch=22) + 2

    def _x(self, time: float | None) -> float:
        """Position of a time; None is the right end of a deadlock."""
        if time is None:
            return self.right if self.timeline.deadlock else _LEFT + self.time_width
        share = (time - self.timeline.begin) / self.span if self.span else 1.0
        return _LEFT + self.time_width * share

    def _card(self, card: Card) -> None:
        program = self.timeline.program
        chip = f", Ascend {card.chip.removeprefix('Ascend')}" if card.chip else ""
        unused = [f"{card.cores[kind]} {_KINDS[kind]}" for kind in (0, 1) if card.cores[kind] and not self.kinds[kind]]
        note = f" ({' and '.join(unused)} cores: none used)" if unused else ""
        self.drawing.text(12, self.y + 16, f"card {card.name}{chip}", "card", note=note)
        self.y += 26
        top = self.y
        for kind in (0, 1):
            if self.kinds[kind] and card.cores[kind]:
                blocks = [
                    each for each in self.timeline.blocks if each.kind == kind and program.card_of(each.op) == card
                ]
                self._band(card, kind, blocks)
        idle = [each for each in self.timeline.idle if program.card_of(each.op) == card]
        self._idle(card, idle)
        if self.timeline.deadlock:
            end = self.timeline.end
            self.drawing.path("moment", "M", self._x(end), top, "V", self.y, data={"moment": end})
        self.y += 12

    def _band(self, card: Card, kind: int, blocks: list[Block]) -> None:
        cores, top = card.cores[kind], self.y
        height = cores * self.core
        data: Attributes = {"band": f"{card.name} {_KINDS[kind]}", "cores": cores}
        self.drawing.rect(_LEFT, top, self.right - _LEFT, height, "band", data=data)
        self.drawing.text(_LEFT - 8, top + height / 2 - 2, str(cores), "small", "end")
        self.drawing.text(_LEFT - 8, top + height / 2 + 13, f"{_KINDS[kind]} cores", "small", "end")
        for quarter in (1, 2, 3):
            self.drawing.path("grid", "M", _LEFT, top + height * quarter / 4, "H", self.right)
        biggest: dict[OpId, Block] = {}
        for block in blocks:
            self._block(block, card, top)
            known = biggest.get(block.op)
            if known is None or self._area(block) > self._area(known):
                biggest[block.op] = block
        for block in biggest.values():
            self._label(block, top)
        self.y = top + height + 6

    def _area(self, block: Block) -> float:
        # what is stuck is shown where it is stuck
        return block.cores * (self._x(block.end) - self._x(block.begin)) + (1e9 if block.end is None else 0)

    def _block(self, block: Block, card: Card, top: float) -> None:
        x, y = self._x(block.begin), top + block.row * self.core
        width, height = self._x(block.end) - x, block.cores * self.core
        program, kind = self.timeline.program, _KINDS[block.kind]
        data: Attributes = {
            "op": f"{block.op[0]}:{block.op[1]}", "card": card.name, "kind": kind, "cores": block.cores,
            "begin": block.begin, "end": "" if block.end is None else block.end, "state": block.state,
        }  # fmt: skip
        tooltip = f"{program.describe(block.op)}, stream {program.streams[block.op[0]].name}: {block.cores} "
        tooltip += f"{kind} cores, {_MEANING[block.state]}"
        look = f"block {_css_class(block.state)} {self._colour(block.op)}"
        self.drawing.rect(x, y, width, height, look, data=data, tooltip=tooltip)
        if block.end is None:
            port = self.ports.get(block.op)
            if port is None or height > port.height:
                self.ports[block.op] = _Port(y, height)

    def _label(self, block: Block, top: float) -> None:
        """The operator's name, on the largest of its blocks."""
        stuck = block.end is None and self.timeline.deadlock
        x = max(self._x(block.begin), self._x(self.timeline.end)) if stuck else self._x(block.begin)
        width, height = self._x(block.end) - x - 10, block.cores * self.core
        y = top + block.row * self.core + height / 2
        name = self.timeline.program.op(block.op).name
        holds, waits = self.timeline.labels.get(block.op, ("", "")) if stuck else ("", "")
        first = f"{name}  {holds}" if holds else name
        if waits and height >= 32:
            first, second = fit(first, width), fit(waits, width)
            self._behind(block, x + 8, y - 16, 34, max(text_width(first) + 4, text_width(second)))
            self.drawing.text(x + 8, y - 3, first, "on strong")
            self.drawing.text(x + 8, y + 13, second, "on")
        elif height >= 13 and width >= 14:
            left, text = x + (8 if stuck else 4), fit(f"{first}, {waits}" if waits else first, width)
            self._behind(block, left, y - 8, 16, text_width(text))
            self.drawing.text(left, y + 4, text, "on")

    def _behind(self, block: Block, x: float, y: float, height: float, width: float) -> None:
        """An even ground for text on hatching."""
        if block.state == PARTIAL:
            self.drawing.rect(x - 4, y, width + 8, height, f"on {self._colour(block.op)}", rx=3)

    def _colour(self, id: OpId) -> str:
        return series(self.streams[self.timeline.program.streams[id[0]].name])

    def _idle(self, card: Card, idle: list[Idle]) -> None:
        """Those that hold nothing, below the bands, in as few rows as they fit in."""
        ends: list[float] = []
        top = self.y
        for each in sorted(idle, key=lambda each: (each.begin, each.op)):
            x, end = self._x(each.begin), self._x(each.end)
            row = next((number for number, taken in enumerate(ends) if taken <= x), len(ends))
            ends[row:] = [end, *ends[row + 1 :]]
            self._idle_box(each, card, x, end, top + row * _LANE)
        if ends:
            text = "hold none" if any(each.uses_cores for each in idle) else "no cores"
            self.drawing.text(_LEFT - 8, top + 15, text, "small", "end")
        self.y = top + len(ends) * _LANE

    def _idle_box(self, each: Idle, card: Card, x: float, end: float, y: float) -> None:
        program, height = self.timeline.program, _LANE - 4
        holds, waits = self.timeline.labels.get(each.op, ("", "")) if each.end is None else ("", "")
        data: Attributes = {
            "idle": f"{each.op[0]}:{each.op[1]}", "card": card.name,
            "begin": each.begin, "end": "" if each.end is None else each.end,
        }  # fmt: skip
        tooltip = f"{program.describe(each.op)}, stream {program.streams[each.op[0]].name}: " + (
            waits or ("waits for cores" if each.uses_cores else "runs without cores")
        )
        look = "none" if each.uses_cores or waits else f"without {self._colour(each.op)}"
        self.drawing.rect(x, y, end - x, height, look, rx=2, data=data, tooltip=tooltip)
        name = program.op(each.op).name
        text = ", ".join(part for part in (f"{name}  {holds}".strip(), waits) if part)
        left = max(x, self._x(self.timeline.end)) + 8 if each.end is None else x + 4
        if end - left >= 14:
            self.drawing.text(left, y + 14, fit(text, end - left - 4), "strong" if waits else "")
        if each.end is None:
            self.ports[each.op] = _Port(y, height)

    def _axis(self, bottom: float) -> None:
        timeline = self.timeline
        if self.span:
            steps = 4 if timeline.deadlock else 5
            labels = [_time(timeline.begin + self.span * step / steps) for step in range(steps + 1)]
            if timeline.deadlock:
                labels[-1] = ""  # next to it is the text on the deadlock
            self.drawing.time_axis(_LEFT, bottom, self.time_width, labels)
        if timeline.deadlock:
            x = self._x(timeline.end)
            when = f"{_time(timeline.end)}: deadlock, nothing goes on" if self.span else "deadlock: nothing goes on"
            self.drawing.text(x + (4 if not self.span else -8), bottom + 18, when, "strong")
        self.y = bottom + 26

    def _arrows(self, arrows: Sequence[Arrow], lanes: Sequence[int]) -> None:
        ends, x = _ends(arrows, self.ports), self.right
        labels = []
        for place, arrow in enumerate(arrows):
            lane = x + _FIRST_ARROW + lanes[place] * _ARROW_LANE
            begin, end = ends[place, True], ends[place, False]
            curve = min(_CURVE, abs(end - begin) / 2)
            down = curve if end > begin else -curve
            step = self.timeline.arrows.index(arrow) + 1
            self.drawing.path(
                "arrow", "M", x, begin, "H", lane - curve, "Q", lane, begin, lane, begin + down,
                "V", end - down, "Q", lane, end, lane - curve, end, "H", x + 8,
                data={"from": f"{arrow.source[0]}:{arrow.source[1]}", "to": f"{arrow.target[0]}:{arrow.target[1]}"},
                tooltip=f"step {step} of the cycle",
            )  # fmt: skip
            self.drawing.path("head", "M", x + 1, end, "l 11 -5 v 10 z")
            labels.append((arrow.text, step, lane, (begin + end) / 2))
        for text, step, lane, y in labels:
            width = text_width(text) + 30
            left = lane - width / 2
            self.drawing.rect(left, y - 9, width, 18, "chip", rx=9)
            self.drawing.add("circle", "step", {"cx": left + 9, "cy": y, "r": 9})
            self.drawing.text(left + 9, y + 4, str(step), "number", "middle")
            self.drawing.text(left + 23, y + 4, text)

    def _foot(self) -> None:
        timeline = self.timeline
        if timeline.cycle:
            self.drawing.text(12, self.y + 16, "Who waits for whom", "card")
            self.y += 22
            for step, text in enumerate(timeline.cycle, 1):
                self.drawing.text(24, self.y + 14, str(step), "small", "end")
                self.drawing.text(32, self.y + 14, text)
                self.y += 18
        elif timeline.deadlock:
            for holds, waits in list(timeline.labels.values())[:8]:
                self.drawing.text(12, self.y + 14, f"{holds} {waits}".strip())
                self.y += 18
        for note in timeline.notes:
            self.drawing.text(12, self.y + 16, note, "small")
            self.y += 18


def _css_class(state: str) -> str:
    return f"{state} hatched" if state == PARTIAL else state


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e4 else f"{microseconds:.3g} µs"


def _lanes(drawn: Sequence[Arrow], ports: Mapping[OpId, _Port]) -> list[int]:
    """The lane of each arrow, from 0."""
    spans = [sorted((ports[arrow.source].middle, ports[arrow.target].middle)) for arrow in drawn]
    lanes = [0] * len(drawn)
    placed: list[int] = []
    for number in sorted(range(len(drawn)), key=lambda each: (spans[each][1] - spans[each][0], each)):
        low, high = spans[number]
        crossed = [lanes[other] for other in placed if spans[other][0] < high and low < spans[other][1]]
        lanes[number] = max(crossed, default=-1) + 1
        placed.append(number)
    return lanes


def _ends(drawn: Sequence[Arrow], ports: Mapping[OpId, _Port]) -> dict[tuple[int, bool], float]:
    """The height at which each arrow leaves its source (True) and reaches its target (False)."""
    at: dict[OpId, list[tuple[float, int, bool]]] = {}
    for number, arrow in enumerate(drawn):
        way = ports[arrow.target].middle - ports[arrow.source].middle
        at.setdefault(arrow.source, []).append((way, number, True))
        at.setdefault(arrow.target, []).append((-way, number, False))
    found: dict[tuple[int, bool], float] = {}
    for id, touching in at.items():
        # those that go up come first, the nearest uppermost; of those that go down the nearest is lowest
        touching.sort(key=lambda each: (each[0] > 0, -each[0], each[1]))
        port = ports[id]
        for place, (_, number, leaves) in enumerate(touching):
            found[number, leaves] = port.top + port.height * (place + 1) / (len(touching) + 1)
    return found
