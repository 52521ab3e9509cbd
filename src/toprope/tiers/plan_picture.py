"""Draws a plan as SVG: where each group lies, and what the device, the links and the disk do in a step. Pure.

The elements carry `data-` attributes (group, tier, lane, begin, end), which the tests read.
"""

from __future__ import annotations

from toprope.drawing import Drawing
from toprope.sizes import decimal
from toprope.tiers.plan_model import Plan
from toprope.tiers.plan_pipeline import COMPUTE, DISK, IN, OUT
from toprope.tiers.plan_table import seconds_text

__all__ = ["svg"]

_LEFT, _WIDTH, _LANE, _GAP = 130, 800, 30, 10
_LANES = ((COMPUTE, "compute"), (IN, "host -> device"), (OUT, "device -> host"), (DISK, "disk"))
_TIERS = ("device", "host", "disk")


_STYLE = ".band{fill:$band}.cell,.job{stroke:$page;stroke-width:.5}.device{fill:$s2}.host{fill:$s0}.disk{fill:$s1}"


def svg(plan: Plan, title: str = "") -> str:
    """The picture.

    Args:
        plan: the plan.
        title: its headline.
    """
    word = "step" if plan.training else "pass"
    tiers = {name: tier for tier in _TIERS for name in getattr(plan, "resident" if tier == "device" else tier)}
    expected = (
        f"expected {seconds_text(plan.predicted_seconds)} a {word}, limit {seconds_text(plan.limit_seconds)} "
        f"set by {plan.limited_by}"
    )
    drawing = Drawing(title or f"A {word} of {len(plan.groups)} groups", _STYLE)
    drawing.description = "; ".join((expected, *plan.reasons))
    drawing.text(12, 26, drawing.title, "title")
    drawing.text(12, 45, expected, "small")
    ring = f" + {plan.slots} slots of {decimal(plan.slot_bytes)}" if plan.slots else ""
    keys = [
        ("device", f"device, {decimal(plan.resident_bytes)}{ring}"),
        ("host", f"host, {decimal(plan.bytes_in('host'))}"),
        ("disk", f"disk, {decimal(plan.bytes_in('disk'))}"),
    ]
    y = drawing.legend(12, 58, keys) + 10
    _strip(drawing, plan, tiers, y)
    y += _LANE + _GAP + 14
    used = {span.resource for span in plan.spans if span.end > span.begin} | {COMPUTE}
    for resource, name in _LANES:
        if resource in used:
            _lane(drawing, plan, tiers, resource, name, y)
            y += _LANE + _GAP
    labels = ["0", *(seconds_text(plan.predicted_seconds * step / 5) for step in range(1, 6))]
    drawing.time_axis(_LEFT, y, _WIDTH, labels)
    drawing.width, drawing.height = _LEFT + _WIDTH + 20, y + 34
    return drawing.svg()


def _strip(drawing: Drawing, plan: Plan, tiers: dict[str, str], y: float) -> None:
    """The groups in the order of their first use, as wide as they have bytes."""
    names = [*plan.resident, *plan.host, *plan.disk]
    first = {use.group: place for place, use in reversed(list(enumerate(plan.order)))}
    names.sort(key=lambda name: first.get(name, len(first)))
    sizes = {group.name: group.bytes for group in plan.groups}
    total = sum(sizes.values()) or 1
    x = float(_LEFT)
    _name(drawing, "weights", y)
    for name in names:
        tier, width = tiers[name], _WIDTH * sizes[name] / total
        tooltip = f"{name}: {decimal(sizes[name])}, {tier}"
        drawing.rect(x, y, width, _LANE, f"cell {tier}", data={"group": name, "tier": tier}, tooltip=tooltip)
        x += width


def _lane(drawing: Drawing, plan: Plan, tiers: dict[str, str], resource: int, name: str, y: float) -> None:
    end = plan.predicted_seconds or 1.0
    _name(drawing, name, y)
    drawing.rect(_LEFT, y, _WIDTH, _LANE, "band")
    for span in plan.spans:
        if span.resource != resource or span.end <= span.begin:
            continue
        x, width = _LEFT + _WIDTH * span.begin / end, _WIDTH * (span.end - span.begin) / end
        drawing.rect(
            x, y, min(width, _LEFT + _WIDTH - x), _LANE, f"job {tiers.get(span.label, 'device')}",
            data={"lane": name, "group": span.label, "begin": f"{span.begin:.9g}", "end": f"{span.end:.9g}"},
            tooltip=f"{span.label}: {seconds_text(span.end - span.begin)}",
        )  # fmt: skip


def _name(drawing: Drawing, text: str, y: float) -> None:
    drawing.text(_LEFT - 10, y + _LANE / 2 + 4, text, "small", "end")
