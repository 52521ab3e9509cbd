"""A plan as a table, as plain data for JSON, and as a picture. Pure; nothing but output.

Called by `toprope tiers plan`. docs/tiers.md describes the output; other programs read the JSON, so keep its keys;
words and picture are free. Tests: tests/cli/test_cli_tiers.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from toprope import terminal
from toprope.drawing import Drawing
from toprope.sizes import decimal
from toprope.tiers.plan.clock import COMPUTE, DISK, IN, OUT
from toprope.tiers.plan.model import Link, Plan, Tier, slots_text

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["as_dict", "seconds_text", "svg", "table"]

_TIERS: tuple[Tier, ...] = ("device", "host", "disk")
_WORDS = ("estimate", "profile", "measured")


def seconds_text(seconds: float) -> str:
    """Format a time with three digits: "1.85 s", "12.3 ms", "450 us"."""
    factor, unit = next(each for each in _UNITS if seconds >= each[0] or each[0] == 1e-6)
    number = seconds / factor
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def table(plan: Plan, compute: Literal["given", "measured", "estimate"] = "given", said: str = "") -> Group:
    """Format the plan as a table for the terminal.

    Args:
        plan: the plan.
        compute: source of the computing time.
        said: note about how groups and order were found; empty if a step was traced.
    """
    from rich.console import Group

    word = "step" if plan.training else "pass"
    size = sum({each.key: each.bytes for group in plan.groups for each in group.members}.values())
    how = {"given": "", "measured": " (measured)", "estimate": " (estimate; --compute SECONDS to give it)"}[compute]
    return Group(
        f"{decimal(size)} of weights in {_count(len(plan.groups), 'group')}",
        terminal.table(_rows(plan), ("tier", "holds", "link", f"per {word}"), indent=2, gap=3, wrapped=(1,)),
        f"compute {seconds_text(plan.compute_seconds)} a {word}{how}   "
        f"limit {seconds_text(plan.limit_seconds)} a {word}, set by {plan.limited_by}   "
        f"expected {seconds_text(plan.predicted_seconds)} ({_weakest(plan, compute)}, {plan.ratio:.2f} x the limit)",
        *(f"  {each}" for each in plan.reasons),
        *([said] if said else []),
    )


def _rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    links, moved = plan.links, plan.traffic
    sizes = {tier: plan.resident_bytes if tier == "device" else plan.bytes_in(tier) for tier in _TIERS}
    names = {"device": plan.resident, "host": plan.host, "disk": plan.disk}
    shown = [tier for tier in _TIERS if sizes[tier] or tier == "device"]
    wide = max(len(decimal(sizes[tier])) for tier in shown)
    digits = max(len(str(len(names[tier]))) for tier in shown)

    def held(tier: Tier) -> str:
        count = len(names[tier])
        what = "group" if count == 1 else "groups"
        return f"{decimal(sizes[tier]):>{wide}} ({count:>{digits}} {what}{', fixed' if tier == 'device' else ''})"

    ring = f" + {slots_text(plan.slots, plan.slot_bytes)}" if plan.slots else ""
    word = "buffer" if plan.staging == 1 else "buffers"
    buffers = f" + {plan.staging} {word} of {decimal(plan.slot_bytes)}" if plan.staging else ""
    rows = [("device", held("device") + ring, "", "")]
    if plan.bytes_in("host"):
        seconds = links.host_to_device.seconds(moved.host_to_device)
        rows.append(("host", held("host") + buffers, _link(links.host_to_device), seconds_text(seconds)))
    if plan.bytes_in("disk"):
        read, write = links.disk_read, links.disk_write
        assert read is not None
        seconds = read.seconds(moved.disk_read) + (write.seconds(moved.disk_write) if write is not None else 0.0)
        rows.append(("disk", held("disk"), _link(read), seconds_text(seconds)))
    return rows


def _link(link: Link) -> str:
    return f"{decimal(link.bytes_per_second)}/s ({link.word})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _weakest(plan: Plan, compute: str) -> str:
    """Kind of source of the least certain figure in the plan."""
    links, moved = plan.links, plan.traffic
    used = [(links.host_to_device, moved.host_to_device), (links.device_to_host, moved.device_to_host)]
    used += [(links.disk_read, moved.disk_read), (links.disk_write, moved.disk_write)]  # type: ignore[list-item]
    words = [link.word for link, size in used if size and link is not None]
    words += ["estimate"] if compute == "estimate" else []
    return min(words, key=_WORDS.index, default="from the seconds given" if compute == "given" else "measured")


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for JSON: sizes in bytes, times in seconds; without the clock's spans."""
    return {
        "weights_bytes": sum({each.key: each.bytes for group in plan.groups for each in group.members}.values()),
        "training": plan.training,
        "groups": [
            {"name": each.name, "bytes": each.bytes, "compute_seconds": each.compute_seconds} for each in plan.groups
        ],
        "order": [{"group": each.group, "backward": each.backward} for each in plan.order],
        "budgets": asdict(plan.budgets),
        "links": asdict(plan.links),
        "fixed": {"tensors": list(plan.fixed), "bytes": plan.fixed_bytes},
        "device": {"groups": list(plan.resident), "bytes": plan.resident_bytes},
        "host": {"groups": list(plan.host), "bytes": plan.bytes_in("host"), "buffers": plan.staging},
        "disk": {"groups": list(plan.disk), "bytes": plan.bytes_in("disk")},
        "slots": {"count": plan.slots, "bytes": plan.slot_bytes},
        "homes": [asdict(each) for each in plan.homes],
        "loads": [asdict(each) for each in plan.loads],
        "carried": list(plan.carried),
        "split": [asdict(each) for each in plan.split],
        "traffic_bytes": asdict(plan.traffic),
        "compute_seconds": plan.compute_seconds,
        "predicted_seconds": plan.predicted_seconds,
        "limit_seconds": plan.limit_seconds,
        "limited_by": plan.limited_by,
        "ratio": plan.ratio,
        "reasons": list(plan.reasons),
    }


_LEFT, _WIDTH, _LANE, _GAP = 130, 800, 30, 10
_LANES = ((COMPUTE, "compute"), (IN, "host -> device"), (OUT, "device -> host"), (DISK, "disk"))


_STYLE = ".band{fill:$band}.cell,.job{stroke:$page;stroke-width:.5}.device{fill:$s2}.host{fill:$s0}.disk{fill:$s1}"


def svg(plan: Plan, title: str = "") -> str:
    """Draw the plan as SVG.

    Args:
        plan: the plan.
        title: the headline.
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
    ring = f" + {slots_text(plan.slots, plan.slot_bytes)}" if plan.slots else ""
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


def _strip(drawing: Drawing, plan: Plan, tiers: dict[str, Tier], y: float) -> None:
    """Draw the groups in the order of their first use, with widths proportional to their bytes."""
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


def _lane(drawing: Drawing, plan: Plan, tiers: dict[str, Tier], resource: int, name: str, y: float) -> None:
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
