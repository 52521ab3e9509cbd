"""Draws a plan as SVG: where each group lies, and what the device, the links and the disk do in a step. Pure.

It needs no script and nothing from elsewhere, and follows the reader's choice of light or dark. The elements carry
`data-` attributes (group, tier, lane, begin, end), which the tests read.
"""

from __future__ import annotations

from html import escape

from toprope.sizes import decimal
from toprope.tiers.plan_model import Plan
from toprope.tiers.plan_pipeline import COMPUTE, DISK, IN, OUT
from toprope.tiers.plan_table import seconds_text

__all__ = ["svg"]

_LEFT, _WIDTH, _LANE, _GAP = 130, 800, 30, 10
_LANES = ((COMPUTE, "compute"), (IN, "host -> device"), (OUT, "device -> host"), (DISK, "disk"))
_TIERS = ("device", "host", "disk")


def _theme(page: str, ink: str, faint: str, band: str, tiers: tuple[str, str, str]) -> str:
    fills = "".join(f".{name}{{fill:{colour}}}" for name, colour in zip(_TIERS, tiers, strict=True))
    return (
        f".page{{fill:{page}}}text{{fill:{ink}}}.small{{fill:{faint}}}.band{{fill:{band}}}.tick{{stroke:{faint}}}"
        f".cell,.job{{stroke:{page}}}{fills}"
    )


_STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".title{font-size:17px;font-weight:600}.small{font-size:11px}.cell,.job{stroke-width:.5}"
    + _theme("#ffffff", "#16181d", "#50555f", "#eef0f3", ("#a9d9a4", "#9cc9f0", "#f6c08a"))
    + "@media (prefers-color-scheme:dark){"
    + _theme("#14161a", "#f2f3f5", "#b4bac4", "#22262d", ("#2e6b34", "#1f5b8f", "#8f5516"))
    + "}"
)


def svg(plan: Plan, title: str = "") -> str:
    """The picture.

    Args:
        plan: the plan.
        title: its headline.
    """
    word = "step" if plan.training else "pass"
    tiers = {name: tier for tier in _TIERS for name in getattr(plan, "resident" if tier == "device" else tier)}
    head = title or f"A {word} of {len(plan.groups)} groups"
    told = (
        f"expected {seconds_text(plan.predicted_seconds)} a {word}, limit {seconds_text(plan.limit_seconds)} "
        f"set by {plan.limited_by}"
    )
    parts = [
        f'<text class="title" x="12" y="26">{escape(head)}</text>',
        f'<text class="small" x="12" y="45">{escape(told)}</text>',
    ]
    y = 58
    parts += _legend(plan, y)
    y += 30
    parts += _strip(plan, tiers, y)
    y += _LANE + _GAP + 14
    used = {span.resource for span in plan.spans if span.end > span.begin} | {COMPUTE}
    for resource, name in _LANES:
        if resource in used:
            parts += _lane(plan, tiers, resource, name, y)
            y += _LANE + _GAP
    parts += _axis(plan, y)
    width, height = _LEFT + _WIDTH + 20, y + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title description"><title id="title">{escape(head)}</title>'
        f'<desc id="description">{escape("; ".join((told, *plan.reasons)))}</desc><style>{_STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend(plan: Plan, y: int) -> list[str]:
    ring = f" + {plan.slots} slots of {decimal(plan.slot_bytes)}" if plan.slots else ""
    texts = {
        "device": f"device, {decimal(plan.resident_bytes)}{ring}",
        "host": f"host, {decimal(plan.bytes_in('host'))}",
        "disk": f"disk, {decimal(plan.bytes_in('disk'))}",
    }
    parts, x = [], 12.0
    for tier in _TIERS:
        parts.append(f'<rect class="{tier}" x="{x:.0f}" y="{y}" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="small" x="{x + 17:.0f}" y="{y + 10}">{escape(texts[tier])}</text>')
        x += 17 + 6.6 * len(texts[tier]) + 20
    return parts


def _strip(plan: Plan, tiers: dict[str, str], y: int) -> list[str]:
    """The groups in the order of their first use, as wide as they have bytes."""
    names = [*plan.resident, *plan.host, *plan.disk]
    first = {use.group: place for place, use in reversed(list(enumerate(plan.order)))}
    names.sort(key=lambda name: first.get(name, len(first)))
    sizes = {group.name: group.bytes for group in plan.groups}
    total = sum(sizes.values()) or 1
    parts, x = [_name("weights", y)], float(_LEFT)
    for name in names:
        width = _WIDTH * sizes[name] / total
        parts.append(
            f'<rect class="cell {tiers[name]}" data-group="{escape(name)}" data-tier="{tiers[name]}" x="{x:.2f}" '
            f'y="{y}" width="{width:.2f}" height="{_LANE}"><title>{escape(name)}: {decimal(sizes[name])}, '
            f"{tiers[name]}</title></rect>"
        )
        x += width
    return parts


def _lane(plan: Plan, tiers: dict[str, str], resource: int, name: str, y: int) -> list[str]:
    end = plan.predicted_seconds or 1.0
    parts = [_name(name, y), f'<rect class="band" x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_LANE}"/>']
    for span in plan.spans:
        if span.resource != resource or span.end <= span.begin:
            continue
        x, width = _LEFT + _WIDTH * span.begin / end, _WIDTH * (span.end - span.begin) / end
        width = min(width, _LEFT + _WIDTH - x)
        parts.append(
            f'<rect class="job {tiers.get(span.label, "device")}" data-lane="{name}" data-group="{escape(span.label)}" '
            f'data-begin="{span.begin:.9g}" data-end="{span.end:.9g}" x="{x:.2f}" y="{y}" width="{width:.2f}" '
            f'height="{_LANE}"><title>{escape(span.label)}: {seconds_text(span.end - span.begin)}</title></rect>'
        )
    return parts


def _name(text: str, y: int) -> str:
    return f'<text class="small" x="{_LEFT - 10}" y="{y + _LANE / 2 + 4:.0f}" text-anchor="end">{escape(text)}</text>'


def _axis(plan: Plan, y: int) -> list[str]:
    parts = []
    for number in range(6):
        x = _LEFT + _WIDTH * number / 5
        anchor = "end" if number == 5 else "middle"
        parts.append(f'<path class="tick" d="M{x:.0f},{y} v5"/>')
        parts.append(
            f'<text class="small" x="{x:.0f}" y="{y + 18}" text-anchor="{anchor}">'
            f"{seconds_text(plan.predicted_seconds * number / 5) if number else '0'}</text>"
        )
    return parts
