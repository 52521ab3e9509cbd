"""Draws the wait-for cycle of a timeline: arrows to the right of the blocks, each with what is waited for; pure.

Each arrow leaves a block to the right, goes up or down in a lane, and comes back to another block. Arrows that pass
each other have lanes of their own, the longer ones further out, so that few cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from toprope.cores.model import OpId
from toprope.cores.timeline import Arrow

__all__ = ["Port", "arrows", "gutter_width"]

_FIRST, _LANE, _CURVE = 58.0, 100.0, 8.0


@dataclass(frozen=True, slots=True)
class Port:
    """Where arrows touch an operator: the top of its block at the deadlock, and its height, in pixels."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        """The middle of the block."""
        return self.top + self.height / 2


def gutter_width(drawn: Sequence[Arrow], ports: Mapping[OpId, Port]) -> float:
    """How much room the arrows need, in pixels."""
    return _FIRST + (max(_lanes(_known(drawn, ports), ports), default=0) + 0.5) * _LANE


def arrows(drawn: Sequence[Arrow], ports: Mapping[OpId, Port], x: float) -> list[str]:
    """The SVG of the arrows.

    Args:
        drawn: the steps of the cycle, in its order.
        ports: where the operators are.
        x: the right end of their blocks.
    """
    known = _known(drawn, ports)
    ends = _ends(known, ports)
    lanes = _lanes(known, ports)
    paths, chips = [], []
    for number, arrow in enumerate(known):
        lane = x + _FIRST + lanes[number] * _LANE
        begin, end = ends[number, True], ends[number, False]
        down = 1 if end > begin else -1
        curve = min(_CURVE, abs(end - begin) / 2)
        step = drawn.index(arrow) + 1
        paths.append(
            f'<path class="arrow" data-from="{arrow.source[0]}:{arrow.source[1]}" '
            f'data-to="{arrow.target[0]}:{arrow.target[1]}" d="M{x:.1f},{begin:.1f} H{lane - curve:.1f} '
            f"Q{lane:.1f},{begin:.1f} {lane:.1f},{begin + down * curve:.1f} V{end - down * curve:.1f} "
            f'Q{lane:.1f},{end:.1f} {lane - curve:.1f},{end:.1f} H{x + 8:.1f}">'
            f"<title>step {step} of the cycle</title></path>"
            f'<path class="head" d="M{x + 1:.1f},{end:.1f} l11,-5 v10 z"/>'
        )
        width = len(arrow.text) * 6.6 + 32
        left, middle = lane - width / 2, (begin + end) / 2
        chips.append(
            f'<rect class="chip" x="{left:.1f}" y="{middle - 9:.1f}" width="{width:.1f}" height="18" rx="9"/>'
            f'<circle class="step" cx="{left + 9:.1f}" cy="{middle:.1f}" r="9"/>'
            f'<text class="number" x="{left + 9:.1f}" y="{middle + 4:.1f}" text-anchor="middle">{step}</text>'
            f'<text x="{left + 23:.1f}" y="{middle + 4:.1f}">{escape(arrow.text)}</text>'
        )
    return paths + chips


def _known(drawn: Sequence[Arrow], ports: Mapping[OpId, Port]) -> list[Arrow]:
    return [arrow for arrow in drawn if arrow.source in ports and arrow.target in ports]


def _lanes(drawn: Sequence[Arrow], ports: Mapping[OpId, Port]) -> list[int]:
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


def _ends(drawn: Sequence[Arrow], ports: Mapping[OpId, Port]) -> dict[tuple[int, bool], float]:
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
