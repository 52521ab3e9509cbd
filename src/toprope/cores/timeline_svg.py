"""Draws a timeline as SVG: a band for each kind of core of each card, as high as it has cores; pure.

It needs no script and nothing from elsewhere, follows the reader's choice of light or dark, and says in words what it
shows. The elements carry `data-` attributes (op, card, kind, cores, begin, end, state), which the tests read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from toprope.cores.model import Card, OpId
from toprope.cores.timeline import PARTIAL, RUNS, WAITS, Block, Idle, Timeline
from toprope.cores.timeline_arrows import Port, arrows, gutter_width
from toprope.cores.timeline_style import COLOURS, STYLE, fit

__all__ = ["svg"]

_LEFT = 92  # of the first band
_PER_CHARACTER = 6.7  # at 12 pixels
_LANE = 24
_KINDS = ("cube", "vector")
_MEANING = {
    RUNS: "runs",
    WAITS: "has its cores, waits for peers",
    PARTIAL: "has a part of its cores, waits for the rest",
}


def svg(timeline: Timeline, title: str = "", *, subtitle: str = "") -> str:
    """The picture.

    Args:
        timeline: what it shows.
        title: its headline; one is made where it is empty.
        subtitle: a line below.
    """
    return _Drawing(timeline, title or _title(timeline), subtitle).text()


def _title(timeline: Timeline) -> str:
    cards = len(timeline.program.cards)
    what = "Deadlock" if timeline.deadlock else "Cores over time"
    return f"{what} on {cards} card{'' if cards == 1 else 's'}"


@dataclass
class _Drawing:
    timeline: Timeline
    title: str
    subtitle: str
    parts: list[str] = field(default_factory=list)
    ports: dict[OpId, Port] = field(default_factory=dict)
    y: float = 0.0

    def __post_init__(self) -> None:
        shown = self.timeline
        self.span = shown.end - shown.begin
        cards = len(shown.program.cards)
        self.core = 4.0 if cards <= 2 else 3.0 if cards <= 4 else 2.0  # pixels
        self.time_width = 0.0 if not self.span else 230.0 if shown.deadlock else 720.0
        self.stuck_width = 345.0 if shown.deadlock else 0.0
        self.right = _LEFT + self.time_width + self.stuck_width
        self.streams = {
            name: number for number, name in enumerate(dict.fromkeys(each.name for each in shown.program.streams))
        }
        self.kinds = [any(op.cores[kind] for _, op in shown.program.ops()) for kind in (0, 1)]

    def text(self) -> str:
        """The whole of it."""
        timeline = self.timeline
        self._head()
        for card in timeline.program.cards:
            self._card(card)
        self._axis(self.y)
        width = self.right + 12
        if timeline.arrows:
            self.parts += arrows(timeline.arrows, self.ports, self.right)
            width = self.right + gutter_width(timeline.arrows, self.ports)
        self._foot()
        width = max(width, 640, *(24 + 7 * len(each) for each in (*timeline.notes, *timeline.cycle)))
        width, height = round(width), round(self.y + 10)
        description = " ".join((*(f"{each}." for each in timeline.cycle), *timeline.notes)) or self.title
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(self.title)}</title>\n<desc id="description">{escape(description)}</desc>\n'
            f"<style>{STYLE}</style>\n"
            '<defs><pattern id="part" width="7" height="7" patternUnits="userSpaceOnUse">'
            '<path class="hatch" d="M-1,1 l2,-2 M0,7 l7,-7 M6,8 l2,-2"/></pattern></defs>\n'
            f'<rect class="page" width="{width}" height="{height}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )

    def _add(self, part: str) -> None:
        self.parts.append(part)

    def _say(self, x: float, y: float, text: str, kind: str = "", anchor: str = "") -> None:
        style = f' class="{kind}"' if kind else ""
        place = f' text-anchor="{anchor}"' if anchor else ""
        self._add(f'<text x="{_n(x)}" y="{_n(y)}"{style}{place}>{escape(text)}</text>')

    def _head(self) -> None:
        self._say(12, 26, self.title, "title")
        self.y = 34.0
        if self.subtitle:
            self._say(12, 45, self.subtitle, "small")
            self.y = 53.0
        x = 12.0
        for name, number in self.streams.items():
            if number == 16:
                self._say(x, self.y + 14, f"and {len(self.streams) - 16} more streams", "small")
                break
            step = 16 + len(name) * _PER_CHARACTER + 20
            if x + step > 720 and x > 12:
                x, self.y = 12.0, self.y + 20
            self._add(
                f'<rect class="{_colour(number)}" x="{_n(x)}" y="{_n(self.y + 4)}" width="12" height="12" rx="2"/>'
            )
            self._say(x + 17, self.y + 14, name, "small")
            x += step
        self.y += 22
        self._states()

    def _states(self) -> None:
        """What the looks of blocks mean, of those that there are."""
        seen = {each.state for each in self.timeline.blocks}
        keys = [(f"key {state}", state, _MEANING[state]) for state in (RUNS, WAITS, PARTIAL) if state in seen]
        if any(each.uses_cores for each in self.timeline.idle):
            keys.append(("none", "", "has none, waits"))
        x = 12.0
        for kind, state, text in keys:
            step = 27 + len(text) * _PER_CHARACTER + 16
            if x + step > 720 and x > 12:
                x, self.y = 12.0, self.y + 20
            place = f'x="{_n(x)}" y="{_n(self.y + 4)}" width="22" height="12"'
            self._add(f'<rect class="{kind}" {place} rx="2"/>')
            if state == PARTIAL:
                self._add(f'<rect fill="url(#part)" {place}/>')
            self._say(x + 27, self.y + 14, text, "small")
            x += step
        self.y += 26

    def _x(self, time: float | None) -> float:
        """Where a time is; None is the right end of a deadlock."""
        if time is None:
            return self.right if self.timeline.deadlock else _LEFT + self.time_width
        share = (time - self.timeline.begin) / self.span if self.span else 1.0
        return _LEFT + self.time_width * share

    def _card(self, card: Card) -> None:
        program = self.timeline.program
        chip = f", Ascend {card.chip.removeprefix('Ascend')}" if card.chip else ""
        unused = [f"{card.cores[kind]} {_KINDS[kind]}" for kind in (0, 1) if card.cores[kind] and not self.kinds[kind]]
        note = f" ({' and '.join(unused)} cores: none used)" if unused else ""
        self._add(
            f'<text x="12" y="{_n(self.y + 16)}" class="card">{escape(f"card {card.name}{chip}")}'
            f'<tspan class="small">{escape(note)}</tspan></text>'
        )
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
            x = _n(self._x(self.timeline.end))
            self._add(f'<path class="moment" data-moment="{_n(self.timeline.end)}" d="M{x},{_n(top)} V{_n(self.y)}"/>')
        self.y += 12

    def _band(self, card: Card, kind: int, blocks: list[Block]) -> None:
        cores, top = card.cores[kind], self.y
        height = cores * self.core
        self._add(
            f'<rect class="band" data-band="{escape(card.name)} {_KINDS[kind]}" data-cores="{cores}" x="{_LEFT}" '
            f'y="{_n(top)}" width="{_n(self.right - _LEFT)}" height="{_n(height)}"/>'
        )
        self._say(_LEFT - 8, top + height / 2 - 2, str(cores), "small", "end")
        self._say(_LEFT - 8, top + height / 2 + 13, f"{_KINDS[kind]} cores", "small", "end")
        for quarter in (1, 2, 3):
            y = _n(top + height * quarter / 4)
            self._add(f'<path class="grid" d="M{_LEFT},{y} H{_n(self.right)}"/>')
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
        program = self.timeline.program
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        end = "" if block.end is None else _n(block.end)
        told = f"{program.describe(block.op)}, stream {program.streams[block.op[0]].name}: {block.cores} "
        told += f"{_KINDS[block.kind]} cores, {_MEANING[block.state]}"
        self._add(
            f'<rect class="block {block.state} {_colour(self._stream(block.op))}" data-op="{block.op[0]}:{block.op[1]}"'
            f' data-card="{escape(card.name)}" data-kind="{_KINDS[block.kind]}" data-cores="{block.cores}" '
            f'data-begin="{_n(block.begin)}" data-end="{end}" data-state="{block.state}" {place}>'
            f"<title>{escape(told)}</title></rect>"
        )
        if block.state == PARTIAL:
            self._add(f'<rect fill="url(#part)" pointer-events="none" {place}/>')
        if block.end is None:
            port = self.ports.get(block.op)
            if port is None or height > port.height:
                self.ports[block.op] = Port(y, height)

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
            self._behind(block, x + 8, y - 16, 34, max(len(first) * 7.4, len(second) * _PER_CHARACTER))
            self._say(x + 8, y - 3, first, "on strong")
            self._say(x + 8, y + 13, second, "on")
        elif height >= 13 and width >= 14:
            left, text = x + (8 if stuck else 4), fit(f"{first}, {waits}" if waits else first, width)
            self._behind(block, left, y - 8, 16, len(text) * _PER_CHARACTER)
            self._say(left, y + 4, text, "on")

    def _behind(self, block: Block, x: float, y: float, height: float, width: float) -> None:
        """An even ground for text on hatching."""
        if block.state == PARTIAL:
            self._add(
                f'<rect class="{_colour(self._stream(block.op))}" pointer-events="none" x="{_n(x - 4)}" y="{_n(y)}" '
                f'width="{_n(width + 8)}" height="{_n(height)}" rx="3"/>'
            )

    def _stream(self, id: OpId) -> int:
        return self.streams[self.timeline.program.streams[id[0]].name]

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
            self._say(
                _LEFT - 8,
                top + 15,
                "hold none" if any(each.uses_cores for each in idle) else "no cores",
                "small",
                "end",
            )
        self.y = top + len(ends) * _LANE

    def _idle_box(self, each: Idle, card: Card, x: float, end: float, y: float) -> None:
        program, height = self.timeline.program, _LANE - 4
        data_end = "" if each.end is None else _n(each.end)
        holds, waits = self.timeline.labels.get(each.op, ("", "")) if each.end is None else ("", "")
        kind = "none" if each.uses_cores or waits else f"without {_colour(self._stream(each.op))}"
        told = f"{program.describe(each.op)}, stream {program.streams[each.op[0]].name}: " + (
            waits or ("waits for cores" if each.uses_cores else "runs without cores")
        )
        self._add(
            f'<rect class="{kind}" data-idle="{each.op[0]}:{each.op[1]}" data-card="{escape(card.name)}" '
            f'data-begin="{_n(each.begin)}" data-end="{data_end}" x="{_n(x)}" y="{_n(y)}" width="{_n(end - x)}" '
            f'height="{height}" rx="2"><title>{escape(told)}</title></rect>'
        )
        name = program.op(each.op).name
        text = ", ".join(part for part in (f"{name}  {holds}".strip(), waits) if part)
        left = max(x, self._x(self.timeline.end)) + 8 if each.end is None else x + 4
        if end - left >= 14:
            self._say(left, y + 14, fit(text, end - left - 4), "strong" if waits else "")
        if each.end is None:
            self.ports[each.op] = Port(y, height)

    def _axis(self, bottom: float) -> None:
        timeline = self.timeline
        if self.span:
            for number in range(4 if timeline.deadlock else 6):
                share = number / (4 if timeline.deadlock else 5)
                x = _LEFT + self.time_width * share
                self._add(f'<path class="tick" d="M{_n(x)},{_n(bottom)} v5"/>')
                self._say(
                    x,
                    bottom + 18,
                    _time(timeline.begin + self.span * share),
                    "small",
                    "end" if share == 1 else "middle",
                )
        if timeline.deadlock:
            x = self._x(timeline.end)
            when = f"{_time(timeline.end)}: deadlock, nothing goes on" if self.span else "deadlock: nothing goes on"
            self._say(x + (4 if not self.span else -8), bottom + 18, when, "strong")
        self.y = bottom + 26

    def _foot(self) -> None:
        timeline = self.timeline
        if timeline.cycle:
            self._say(12, self.y + 16, "Who waits for whom", "card")
            self.y += 22
            for number, text in enumerate(timeline.cycle, 1):
                self._say(24, self.y + 14, f"{number}", "small", "end")
                self._say(32, self.y + 14, text, "")
                self.y += 18
        elif timeline.deadlock:
            for holds, waits in list(timeline.labels.values())[:8]:
                self._say(12, self.y + 14, f"{holds} {waits}".strip())
                self.y += 18
        for note in timeline.notes:
            self._say(12, self.y + 16, note, "small")
            self.y += 18


def _colour(number: int) -> str:
    return f"s{number % COLOURS}"


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e4 else f"{microseconds:.3g} µs"


def _n(number: float) -> str:
    """A number without needless digits."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
