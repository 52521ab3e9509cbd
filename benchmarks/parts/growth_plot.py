"""Lines over sizes as one SVG: panels side by side, both axes by powers of ten.

Used by benchmarks/growth.py and benchmarks/cores.py; the drawing looks like those of `toprope.drawing`, but does not
import it. Three colours, so at most three lines. Tests: tests/project/test_benchmarks.py,
tests/cores/test_cores_benchmark.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Line", "Panel", "draw"]

Line = Sequence[tuple[float, float]]
"""Sizes, rising, with the seconds of each."""

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _COLUMNS = 380, 280, 64, 16, 34, 46, 2
_COLOURS = ("#0072b2", "#d55e00", "#009e73")


@dataclass(frozen=True)
class Panel:
    """One drawing of the figure.

    Attributes:
        title: what takes the time.
        unit: of the sizes.
        lines: by name; at most three.
    """

    title: str
    unit: str
    lines: Mapping[str, Line]


def draw(panels: Sequence[Panel]) -> str:
    """The panels in rows of two; one alone takes the whole width."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * _WIDTH} {rows * _HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{columns * _WIDTH}" height="{rows * _HEIGHT}" fill="white"/>',
    ]
    for place, panel in enumerate(panels):
        across, down = place % columns * _WIDTH, place // columns * _HEIGHT
        parts += [f'<g transform="translate({across} {down})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    """The SVG elements of one panel: axes by powers of ten, lines, labels."""
    sizes = [size for line in panel.lines.values() for size, _ in line]
    times = [seconds for line in panel.lines.values() for _, seconds in line]
    decades = _decades(min(times), max(times))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(size: float) -> float:
        return _LEFT + (right - _LEFT) * _share(size, min(sizes), max(sizes))

    def up(seconds: float) -> float:
        return bottom - (bottom - _TOP) * _share(seconds, decades[0], decades[-1])

    parts = [f'<text x="{_LEFT}" y="16" font-weight="bold">{panel.title}</text>']
    for seconds in decades:
        y = up(seconds)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_seconds(seconds)}</text>')
    ticks = sorted(set(sizes))
    for size in ticks[:: -(-len(ticks) // 6)]:
        parts.append(f'<text x="{across(size):.1f}" y="{bottom + 16}" text-anchor="middle">{_count(size)}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{panel.unit}</text>')
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number]
        points = " ".join(f"{across(size):.1f},{up(seconds):.1f}" for size, seconds in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(size):.1f}" cy="{up(seconds):.1f}" r="3" fill="{colour}"/>' for size, seconds in line
        ]
        parts.append(f'<text x="{_LEFT + 8}" y="{_TOP + 12 + 14 * number}" fill="{colour}">{name}</text>')
    return parts


def _decades(least: float, most: float) -> list[float]:
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if low == high else math.log(value / low) / math.log(high / low)


def _seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 0.999:
            return f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _count(size: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.3g}"
