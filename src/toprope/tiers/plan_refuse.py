"""Why something cannot be planned, and how much would suffice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toprope.errors import PlanError
from toprope.sizes import decimal
from toprope.tiers.plan_choose import LEAST_SLOTS, least_away, least_device
from toprope.tiers.plan_model import Budgets, Group, Use
from toprope.tiers.plan_units import Problem

__all__ = ["check", "enough", "refuse_device", "refuse_stores"]


def enough(size: int) -> str:
    """A size as `decimal` writes it, rounded up, so that it suffices when it is given as it stands."""
    unit, name = next(((factor, name) for factor, name in _UNITS if size >= factor), (1, "B"))
    tenths = -(-size * 10 // unit)
    return f"{size} B" if unit == 1 else f"{tenths // 10}.{tenths % 10} {name}"


_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def check(groups: Sequence[Group], order: tuple[Use, ...], budgets: Budgets, slots: int | None) -> None:
    """Refuse what makes no sense, whatever the sizes are."""
    names = Counter(each.name for each in groups)
    twice = [name for name, count in names.items() if count > 1]
    unknown = [use.group for use in order if use.group not in names]
    sizes = [each.bytes for group in groups for each in group.members]
    sizes += [size for each in groups for size in (each.gradient_bytes, each.state_bytes, each.activation_bytes)]
    times = [seconds for each in groups for seconds in (each.compute_seconds, each.optimizer_seconds)]
    times += [use.seconds for use in order if use.seconds is not None]
    if twice:
        raise PlanError("two groups have the same name.", looked_at=", ".join(twice), do="name each group once")
    if unknown:
        raise PlanError(
            "the order names a group that there is not.",
            looked_at=", ".join(dict.fromkeys(unknown)),
            do="give every group that is used",
        )
    if not order:
        raise PlanError("there is no order of groups to plan for.", do="give the uses of one step")
    if any(each < 0 for each in (*sizes, *times, budgets.device, budgets.host, budgets.disk or 0, budgets.reserve)):
        raise PlanError("a size or a time is negative.", do="give bytes and seconds of 0 or more")
    if slots is not None and slots < LEAST_SLOTS:
        raise PlanError(
            f"a ring of {slots} slot{'' if slots == 1 else 's'} cannot load ahead.",
            do=f"give at least {LEAST_SLOTS} slots, or leave the number out",
        )


def refuse_device(pieces: Problem, slots: int) -> PlanError:
    """The device's budget is too small even where every tensor is loaded by itself.

    Args:
        pieces: the problem in its smallest pieces.
        slots: how many slots the ring must have.
    """
    budgets = pieces.budgets
    room = budgets.device - budgets.reserve
    suffices = f"give the device at least {enough(least_device(pieces, slots) + budgets.reserve)}"
    reserve = f", {decimal(budgets.reserve)} of it in reserve" if budgets.reserve else ""
    units = [unit for name in pieces.groups for unit in pieces.needed(name)]
    largest = max(units, key=lambda unit: unit.bytes, default=None)
    if largest is not None and largest.bytes > room:
        return PlanError(
            f"one tensor alone is larger than the device's budget: {largest.members[0]}.",
            looked_at=f"{decimal(largest.bytes)} in it; the budget is {decimal(budgets.device)}{reserve}",
            do=suffices,
        )
    if pieces.fixed_bytes > room:
        return PlanError(
            "norms, biases and buffers alone are larger than the device's budget.",
            looked_at=f"{decimal(pieces.fixed_bytes)} of them; the budget is {decimal(budgets.device)}{reserve}",
            do=suffices,
        )
    size = 0 if largest is None else largest.bytes
    return PlanError(
        f"the device's budget has no room for {slots} slots.",
        looked_at=f"the largest tensor has {decimal(size)}, and {decimal(pieces.fixed_bytes)} always stay; "
        f"the budget is {decimal(budgets.device)}{reserve}",
        do=suffices,
    )


def refuse_stores(problem: Problem, slots: int) -> PlanError:
    """Host and disk have no room for what does not fit on the device."""
    budgets = problem.budgets
    away = enough(least_away(problem, slots))
    if budgets.disk is None or problem.links.disk_read is None or problem.links.disk_write is None:
        return PlanError(
            "the host's budget has no room for what the device cannot hold, and there is no disk.",
            looked_at=f"{away} do not fit on the device; the host's budget is {decimal(budgets.host)}",
            do=f"give the host at least {away}, or name a folder on a disk",
        )
    return PlanError(
        "host and disk have no room for what the device cannot hold.",
        looked_at=f"{away} do not fit on the device; the host's budget is {decimal(budgets.host)}, "
        f"the disk has {decimal(budgets.disk)} free",
        do=f"give the host at least {away}, or a disk with as much free",
    )
