"""A plan as a table, and as plain data for JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from toprope import terminal
from toprope.sizes import decimal
from toprope.tiers.plan_model import Link, Plan, Tier

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["as_dict", "seconds_text", "table"]

_TIERS: tuple[Tier, ...] = ("device", "host", "disk")
_WORDS = ("estimate", "profile", "measured")


def seconds_text(seconds: float) -> str:
    """A time with three digits: "1.85 s", "12.3 ms", "450 us"."""
    factor, unit = next(each for each in _UNITS if seconds >= each[0] or each[0] == 1e-6)
    number = seconds / factor
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def table(plan: Plan, compute: Literal["given", "measured", "estimate"] = "given", said: str = "") -> Group:
    """The plan for a person.

    Args:
        plan: the plan.
        compute: where the seconds of computing come from.
        said: how groups and order were found; empty where a step was traced.
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

    ring = f" + {plan.slots} slots of {decimal(plan.slot_bytes)}" if plan.slots else ""
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
    """The word of the least certain figure that the plan rests on."""
    links, moved = plan.links, plan.traffic
    used = [(links.host_to_device, moved.host_to_device), (links.device_to_host, moved.device_to_host)]
    used += [(links.disk_read, moved.disk_read), (links.disk_write, moved.disk_write)]  # type: ignore[list-item]
    words = [link.word for link, size in used if size and link is not None]
    words += ["estimate"] if compute == "estimate" else []
    return min(words, key=_WORDS.index, default="from the seconds given" if compute == "given" else "measured")


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan for a machine: sizes in bytes, times in seconds; without the clock's spans."""
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
