"""Search for the placement of units and the number of slots, and the errors if none fits. Pure.

Called by `planner` alone. With uses in a cycle, keeping any fixed set on the device gives the most hits (Belady's
choice); sets differ only in how well loads overlap with computation. A few sets are made, each as large as fits:
spread over the order, from its beginning, from its end, and the largest units first. This is done for some slot sizes
(larger units stay on the device), and for each number of slots up to the one that hides the longest load behind the
shortest computation. The virtual clock then decides which set is best. Sets whose lower limit is above the best time
so far are skipped. For a model with few units every set is a candidate. Which sets are tried is free; budgets and the
smallest budget that an error names are not. Tests: tests/tiers/test_tiers_plan.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from math import ceil, inf

from toprope.errors import PlanError
from toprope.sizes import decimal
from toprope.tiers.plan.model import Budgets, Group, Tier, Use
from toprope.tiers.plan.placement import Placement
from toprope.tiers.plan.units import Problem, Unit

__all__ = [
    "LEAST_SLOTS",
    "MOST_SLOTS",
    "check",
    "choose",
    "enough",
    "least_away",
    "least_device",
    "refuse_device",
    "refuse_stores",
]

MOST_SLOTS = 8
LEAST_SLOTS = 2
TILE = 8 * 2**20
"""Smallest size of slots in bytes if the optimizer moves tiles; less if all its units are smaller."""

_SIZES = 6  # slot sizes that are tried
_WORK = 20_000  # uses on the virtual clock, for the whole search
_SMALL = 8  # models with at most this many units: every set is tried
_SWAPS = 40  # exchanges that are tried on the best placement
_ENOUGH = 1.01  # ratio to the limit at which the search stops


def least_device(problem: Problem, slots: int = LEAST_SLOTS) -> int:
    """Smallest budget of the device, without reserve: units larger than a slot stay, the others use the ring."""
    ring = min(sum(unit.bytes for unit in stay) + slots * size for size, stay in _sizes(problem))
    if any(unit.asked for unit in problem.units):
        return problem.fixed_bytes + ring
    return problem.fixed_bytes + min(ring, sum(unit.bytes for unit in problem.units))


def least_away(problem: Problem, slots: int = LEAST_SLOTS) -> int:
    """Fewest bytes that host and disk must have room for."""
    total = sum(unit.away for unit in problem.units)
    return min(total - sum(unit.away for unit in kept) for kept, _, _ in _sets(problem, slots))


def _sizes(problem: Problem) -> Iterator[tuple[int, list[Unit]]]:
    """Possible slot sizes, the largest first, each with the larger units, which stay; size 0 is no ring."""
    tiles = [min(TILE, unit.bytes) for unit in problem.others if unit.what != "activations"]
    tile = max(tiles, default=0)
    loads = {sum(unit.bytes for unit in problem.needed(name)) for name in problem.groups}
    loads |= {unit.bytes for name in problem.groups for unit in problem.needed(name)}
    for size in sorted(loads | {0}, reverse=True):
        stay: dict[tuple[str, str], Unit] = {}
        for name in problem.groups:
            rest = sorted(problem.needed(name), key=lambda unit: (unit.what != "tied", unit.bytes))
            rest = [unit for unit in rest if (unit.what, unit.name) not in stay]
            while sum(unit.bytes for unit in rest) > size:
                unit = rest.pop()
                stay[unit.what, unit.name] = unit
        yield max(size, tile), list(stay.values())


def _place_off_device(problem: Problem, away: Sequence[Unit], staging: int) -> dict[tuple[str, str], Tier] | None:
    """Place the units outside the device, on the host if that saves the most disk time; None if they do not fit."""
    room = problem.budgets.host - staging
    if room < 0:
        return None
    tiers: dict[tuple[str, str], Tier] = {}
    tiers.update({(unit.what, unit.name): "disk" for unit in away if unit.asked == "disk"})
    free = [_with_size_off_device(unit) for unit in away if unit.asked != "disk"]
    ordered = sorted(free, key=lambda unit: (unit.asked != "host", -_density(unit.disk_saved, unit), unit.rank))
    for _, some in groupby(ordered, key=lambda unit: (unit.asked, _density(unit.disk_saved, unit))):
        units = list(some)
        kept = _spread(units, room)
        room -= sum(unit.bytes for unit in kept)
        chosen = {(unit.what, unit.name) for unit in kept}
        for unit in units:
            tiers[unit.what, unit.name] = "host" if (unit.what, unit.name) in chosen else "disk"
    new = sum(unit.away for unit in away if tiers[unit.what, unit.name] == "disk" and _written(problem, unit))
    on_disk = any(tier == "disk" for tier in tiers.values())
    if on_disk and (problem.links.disk_read is None or problem.links.disk_write is None):
        return None
    if on_disk and (problem.budgets.disk is None or new > problem.budgets.disk):
        return None
    return tiers


def _with_size_off_device(unit: Unit) -> Unit:
    """A unit with its size outside the device."""
    return unit if unit.away == unit.bytes else replace(unit, bytes=unit.away)


def _written(problem: Problem, unit: Unit) -> bool:
    """True if a unit on the disk takes additional room there."""
    return problem.training or not problem.stored or unit.what not in ("weights", "tied")


def _density(saved: float, unit: Unit) -> float:
    return round(saved / unit.bytes, 18)


@dataclass(frozen=True)
class _Candidate:
    placement: Placement
    order: tuple[float, int, int]


def choose(problem: Problem, slots: int | None = None) -> Placement | None:
    """The tried placement with the shortest step; None if none fits."""
    everything = problem.units
    if sum(unit.bytes for unit in everything) <= problem.available and not any(unit.asked for unit in everything):
        return Placement(problem, {(unit.what, unit.name): "device" for unit in everything}, 0, 0, 0)
    candidates = sorted(_candidates(problem, slots), key=lambda each: each.order)
    best: Placement | None = None
    work = _WORK
    for each in candidates:
        if best is not None and (each.placement.limit >= best.predicted * 0.999 or work <= 0):
            break
        work -= len(problem.order)
        if best is None or each.placement.predicted < best.predicted * 0.999:
            best = each.placement
    return None if best is None else _improved(best, work)


def _candidates(problem: Problem, slots: int | None) -> Iterator[_Candidate]:
    for kept, count, size in _sets(problem, slots):
        for placement in _placements(problem, {(unit.what, unit.name) for unit in kept}, count, size):
            if slots is not None or count <= max(_useful(placement), problem.held):
                yield _Candidate(placement, (placement.limit, count, placement.staging))


def _sets(problem: Problem, slots: int | None) -> Iterator[tuple[list[Unit], int, int]]:
    """Sets of units that can stay on the device, each with number and size of the slots."""
    seen = set()
    least = max(LEAST_SLOTS, problem.held) if slots is None else slots
    sizes = [each for each in _sizes(problem) if _room_left(problem, *each, least) >= 0]
    for size, stay in _some_sizes(sizes):
        for count in range(least, max(least, MOST_SLOTS) + 1) if slots is None else (slots,):
            room = _room_left(problem, size, stay, count)
            if room < 0:
                break
            picked = [_kept(problem, stay, room, pick) for pick in (_spread, _first, _last, _largest)]
            for rest in [*picked, *_all_fillings(problem, stay, room)]:
                kept = [*stay, *rest]
                names = frozenset((unit.what, unit.name) for unit in kept)
                if (names, count) not in seen:
                    seen.add((names, count))
                    yield kept, count, size


def _room_left(problem: Problem, size: int, stay: Sequence[Unit], slots: int) -> int:
    return problem.available - slots * size - sum(unit.bytes for unit in stay)


def _some_sizes(sizes: list[tuple[int, list[Unit]]]) -> list[tuple[int, list[Unit]]]:
    """At most `_SIZES` of the sizes, including the largest and the smallest."""
    if len(sizes) <= _SIZES:
        return sizes
    return [sizes[place * (len(sizes) - 1) // (_SIZES - 1)] for place in range(_SIZES)]


def _placements(problem: Problem, kept: Iterable[tuple[str, str]], count: int, least: int) -> Iterator[Placement]:
    """The placements with this set on the device, with and without buffers on the host for reading ahead."""
    chosen = set(kept)
    away = [unit for unit in problem.units if (unit.what, unit.name) not in chosen]
    needs = [
        sum(unit.bytes for unit in problem.needed(name) if (unit.what, unit.name) not in chosen)
        for name in problem.groups
    ]
    tiles = [min(TILE, unit.bytes) for unit in away if unit.what in ("gradients", "states")]
    size = max([*needs, *tiles])
    if size > least:
        return
    on_device: dict[tuple[str, str], Tier] = dict.fromkeys(chosen, "device")
    for staging in (0, 1, 2):
        tiers = _place_off_device(problem, away, staging * size)
        if tiers is None:
            continue
        placement = Placement(problem, on_device | tiers, count if size else 0, size, staging)
        if staging and not any("disk" in sizes for sizes in placement.loaded.values()):
            continue
        yield placement


def _useful(placement: Placement) -> int:
    """Number of slots that hides the longest load behind the shortest computation between loads."""
    links = placement.problem.links
    slowest = 0.0
    for sizes in placement.loaded.values():
        seconds = links.host_to_device.seconds(sizes.get("host", 0))
        if links.disk_read is not None:
            seconds += links.disk_read.seconds(sizes.get("disk", 0))
        slowest = max(slowest, seconds)
    shortest = min(
        (
            placement.seconds(place)
            for place, use in enumerate(placement.problem.order)
            if use.group in placement.loaded
        ),
        default=inf,
    )
    if slowest > MOST_SLOTS * shortest:
        return MOST_SLOTS
    return max(LEAST_SLOTS, min(MOST_SLOTS, ceil(slowest / shortest) + 1)) if shortest else LEAST_SLOTS


Pick = Callable[[list[Unit], int], list[Unit]]


def _free(problem: Problem, stay: Sequence[Unit]) -> list[Unit]:
    """The units that may stay on the device, without those that must."""
    forced = {(unit.what, unit.name) for unit in stay}
    return [unit for unit in problem.units if (unit.what, unit.name) not in forced and unit.asked in (None, "device")]


def _kept(problem: Problem, stay: Sequence[Unit], room: int, pick: Pick) -> list[Unit]:
    """Choose more units to stay, by saved seconds per byte; `pick` decides among equal ones."""
    kept: list[Unit] = []
    ordered = sorted(_free(problem, stay), key=lambda unit: (-_density(unit.saved, unit), unit.rank))
    for _, some in groupby(ordered, key=lambda unit: _density(unit.saved, unit)):
        taken = pick(list(some), room)
        room -= sum(unit.bytes for unit in taken)
        kept += taken
    return kept


def _all_fillings(problem: Problem, stay: Sequence[Unit], room: int) -> Iterator[list[Unit]]:
    """Every set of the other units to which no unit can be added; nothing for models with more than a few units."""
    if len(problem.units) > _SMALL:
        return
    rest = _free(problem, stay)
    for number in range(len(rest)):
        for kept in combinations(rest, number):
            left = room - sum(unit.bytes for unit in kept)
            if left >= 0 and all(unit.bytes > left or unit in kept for unit in rest):
                yield list(kept)


def _filled(units: Iterable[Unit], room: int, chosen: list[Unit]) -> list[Unit]:
    """Add units that still fit to the chosen ones, in their order."""
    room -= sum(unit.bytes for unit in chosen)
    known = {id(unit) for unit in chosen}
    for unit in units:
        if id(unit) not in known and unit.bytes <= room:
            chosen.append(unit)
            room -= unit.bytes
    return chosen


# The ways to choose among equal units: a `Pick` each.


def _first(units: list[Unit], room: int) -> list[Unit]:
    return _filled(units, room, [])


def _last(units: list[Unit], room: int) -> list[Unit]:
    return _filled(reversed(units), room, [])


def _largest(units: list[Unit], room: int) -> list[Unit]:
    return _filled(sorted(units, key=lambda unit: -unit.bytes), room, [])


def _spread(units: list[Unit], room: int) -> list[Unit]:
    """Choose units spread evenly over their order, so that loads of the others alternate with units that stay.

    If a share of 40 % of all bytes can stay, then after every unit about 40 % of the bytes so far are chosen: a unit is
    chosen if that brings the chosen bytes closer to this target.
    """
    total = sum(unit.bytes for unit in units)
    if total <= room:
        return list(units)
    share = sum(unit.bytes for unit in _largest(units, room)) / total  # not room / total: units are chosen as a whole
    chosen: list[Unit] = []
    chosen_bytes = passed = 0
    for unit in units:
        passed += unit.bytes
        target = passed * share
        if chosen_bytes + unit.bytes <= min(room, target + unit.bytes / 2):
            chosen.append(unit)
            chosen_bytes += unit.bytes
    return _filled(sorted(units, key=lambda unit: -unit.bytes), room, chosen)


def _improved(best: Placement, work: int) -> Placement:
    """Improve a placement by exchanging one unit that stays for others, as long as that makes the step shorter."""
    tries = min(_SWAPS, work // max(1, len(best.problem.order)))
    going = True
    while going and tries > 0 and best.predicted > best.limit * _ENOUGH:
        going = False
        for changed in _exchanges(best):
            tries -= 1
            for placement in changed:
                if placement.limit >= best.predicted:
                    continue
                if placement.predicted < best.predicted * 0.999:
                    best, going = placement, True
                    break
            if going or tries <= 0:
                break
    return best


def _exchanges(best: Placement) -> Iterator[Iterator[Placement]]:
    problem = best.problem
    stays = [unit for unit in problem.units if best.tier(unit) == "device"]
    away = [unit for unit in problem.units if best.tier(unit) != "device" and not unit.asked]
    kept = {(unit.what, unit.name) for unit in stays}
    room = problem.available - best.slots * best.slot_bytes - sum(unit.bytes for unit in stays)
    for new in away:
        for old in (*(each for each in stays if each.what == new.what), None):
            if new.bytes <= room + (0 if old is None else old.bytes):
                gone = set() if old is None else {(old.what, old.name)}
                yield _placements(problem, (kept - gone) | {(new.what, new.name)}, best.slots, best.slot_bytes)


def enough(size: int) -> str:
    """Format a size like `decimal`, but rounded up, so that it suffices when a user types it."""
    unit, name = next(((factor, name) for factor, name in _UNITS if size >= factor), (1, "B"))
    tenths = -(-size * 10 // unit)
    return f"{size} B" if unit == 1 else f"{tenths // 10}.{tenths % 10} {name}"


_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def check(groups: Sequence[Group], order: tuple[Use, ...], budgets: Budgets, slots: int | None) -> None:
    """Refuse duplicate or unknown names, negative sizes and too few slots."""
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
            "the order names an unknown group.",
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
    """Error for a device budget that is too small even if every tensor is loaded separately.

    Args:
        pieces: the problem divided into single tensors.
        slots: number of slots that the ring must have.
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
        f"the device's budget has no room for {slots} slot{'' if slots == 1 else 's'}.",
        looked_at=f"the largest tensor has {decimal(size)}, and {decimal(pieces.fixed_bytes)} always stay; "
        f"the budget is {decimal(budgets.device)}{reserve}",
        do=suffices,
    )


def refuse_stores(problem: Problem, slots: int) -> PlanError:
    """Error for budgets of host and disk without room for the data that does not fit on the device."""
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
