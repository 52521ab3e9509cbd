"""`toprope.tiers.plan.plan`: make the plan of a step, and explain it. Pure.

Checks the input, divides what is too large (`units`), has `search` find a placement, and turns that into the `Plan`
that `engine.runtime` carries out. It refuses before anything is moved, with the smallest budget that would do. Budgets
are never passed; which of the plans that fit is made is up to `search`. Arguments and `Plan` are public
(docs/tiers.md). Tests: tests/tiers/test_tiers_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from toprope.tiers.plan.model import (
    Budgets,
    Group,
    Home,
    Links,
    Load,
    Plan,
    Tier,
    Use,
    slots_text,
    uses,
)
from toprope.tiers.plan.placement import BUFFERS, Placement
from toprope.tiers.plan.search import LEAST_SLOTS, check, choose, least_device, refuse_device, refuse_stores
from toprope.tiers.plan.units import Problem, divide, finest, problem_of

__all__ = ["SMALL", "plan"]

SMALL = 2**20
"""Tensors with fewer bytes always stay on the device, as loading them would cost more than their room."""


def plan(
    groups: Sequence[Group],
    order: Sequence[Use | str],
    budgets: Budgets,
    links: Links,
    *,
    training: bool = False,
    stored: bool = True,
    slots: int | None = None,
    small: int = SMALL,
    states: Tier | None = None,
) -> Plan:
    """Make the plan for a step that repeats.

    Args:
        groups: the groups of the model.
        order: the uses of one step (for training `training_order(names)`); names alone are forward runs.
        budgets: the budget of each tier.
        links: the links between the tiers.
        training: gradients, optimizer states and saved activations are placed and moved too, and weights change.
        stored: the weights are on the disk already, as safetensors; reading them in place takes no room there.
        slots: number of slots in the ring, at least 2; None for the fastest number, and for a single slot if two have
            no room and nothing trains.
        small: tensors with fewer bytes always stay, unless all of them together have no room.
        states: tier for the optimizer's states ("host": those that have no room there go to the disk); None for the
            fastest choice.

    Raises:
        PlanError: the model does not fit (the error has the budget that would suffice); or the order names an unknown
            group.
    """
    traced = uses(order)
    check(groups, traced, budgets, slots)
    problem = problem_of(groups, traced, budgets, links, training=training, stored=stored, small=small, states=states)
    count = slots or LEAST_SLOTS
    if least_device(problem, count) > _room(problem):
        problem, count = _divided_to_fit(groups, problem, slots)
        slots = count if slots is not None or count < LEAST_SLOTS else None
    placement = choose(problem, slots)
    if placement is None:
        raise refuse_stores(problem, count)
    return _plan_of(problem, placement, traced)


def _room(problem: Problem) -> int:
    """Bytes of the device for weights that stay, and for the ring."""
    return problem.budgets.device - problem.budgets.reserve


def _divided_to_fit(groups: Sequence[Group], problem: Problem, slots: int | None) -> tuple[Problem, int]:
    """Divide the problem until it fits: groups into parts, and small tensors move with their group.

    As a last resort, if nothing trains, there is a single slot, which cannot be loaded while it is computed from.
    Backward may need a second slot, for a block that is computed again while a gradient function has a weight already.

    Args:
        groups: the given groups.
        problem: the undivided problem.
        slots: as for `plan`.

    Returns:
        The divided problem, and the fewest slots that it needs.
    """
    order, tried = problem.order, [problem]
    if problem.small:
        movable = problem_of(
            groups,
            order,
            problem.budgets,
            problem.links,
            training=problem.training,
            stored=problem.stored,
            small=0,
            states=problem.states,
        )
        if movable.fixed_bytes < problem.fixed_bytes:
            tried.append(movable)
    counts = (LEAST_SLOTS, 1) if slots is None and not problem.training else (slots or LEAST_SLOTS,)
    for count in counts:
        for each in tried:
            if _fits(each, count):
                return each, count
            pieces = finest(groups, order, each)
            if _fits(pieces, count):
                # single tensors fit: try parts as large as a slot can be, then smaller ones
                for most in (max(0, each.available // count), *sorted(_tensors(pieces), reverse=True)):
                    divided = divide(groups, order, each, most)
                    if _fits(divided, count):
                        return divided, max(count, divided.held)
    last = finest(groups, order, tried[-1])
    raise refuse_device(last, max(counts[-1], last.held))


def _fits(problem: Problem, slots: int) -> bool:
    """True if some placement fits onto the device with this number of slots."""
    return least_device(problem, max(slots, problem.held)) <= _room(problem)


def _tensors(problem: Problem) -> set[int]:
    """The sizes of the tensors that uses need."""
    return {unit.bytes for name in problem.groups for unit in problem.needed(name)}


def _plan_of(problem: Problem, placement: Placement, traced: tuple[Use, ...]) -> Plan:
    """Write a placement down as the plan that callers get."""
    entries, carried = placement.schedule
    tiers = {name: _tier(problem, placement, name) for name in _by_first_use(problem)}
    homes = [
        Home(
            unit.group,
            "weights" if unit.what == "tied" else unit.what,
            tier,
            unit.bytes if tier == "device" else unit.away,
            unit.members,
        )
        for unit in problem.units
        for tier in (placement.tier(unit),)
    ]
    working = [  # gradients and activations of the groups in use at the same time
        sorted((getattr(each, kind) for each in problem.groups.values()), reverse=True)[:BUFFERS]
        for kind in _WORKING_BYTES
    ]
    limits = placement.limits
    return Plan(
        groups=tuple(problem.groups.values()),
        order=problem.order,
        traced=traced,
        training=problem.training,
        budgets=problem.budgets,
        links=problem.links,
        fixed=problem.fixed,
        fixed_bytes=problem.fixed_bytes,
        resident=tuple(name for name, tier in tiers.items() if tier == "device"),
        host=tuple(name for name, tier in tiers.items() if tier == "host"),
        disk=tuple(name for name, tier in tiers.items() if tier == "disk"),
        resident_bytes=problem.fixed_bytes + sum(each.bytes for each in homes if each.tier == "device"),
        homes=tuple(homes),
        slots=placement.slots,
        slot_bytes=placement.slot_bytes,
        staging=placement.staging,
        working_bytes=sum(map(sum, working)) if problem.training else 0,
        loads=tuple(
            Load(
                each.use,
                each.group,
                sum(placement.loaded[each.group].values()),
                tiers[each.group],
                each.replaces,
                each.after,
            )
            for each in entries
        ),
        carried=carried,
        split=problem.parts,
        traffic=placement.traffic,
        compute_seconds=placement.compute,
        predicted_seconds=placement.predicted,
        limit_seconds=placement.limit,
        limited_by=max(limits, key=lambda each: limits[each]),
        reasons=tuple(_reasons(problem, placement)),
        spans=placement.last_step(),
    )


_WORKING_BYTES = ("gradient_bytes", "activation_bytes")


def _by_first_use(problem: Problem) -> list[str]:
    used = dict.fromkeys(use.group for use in problem.order)
    return [*used, *(name for name in problem.groups if name not in used)]


def _tier(problem: Problem, placement: Placement, group: str) -> Tier:
    """The slowest tier that the weights of a group are in."""
    found = {placement.tier(unit) for unit in problem.needed(group)}
    return "disk" if "disk" in found else "host" if "host" in found else "device"


def _reasons(problem: Problem, placement: Placement) -> list[str]:
    """Reasons for the plan, a sentence each."""
    reasons = []
    if all(tier == "device" for tier in placement.tiers.values()):
        reasons.append("everything fits into the device's budget: nothing moves")
    elif placement.slots:
        reasons.append(
            f"{slots_text(placement.slots, placement.slot_bytes)}: "
            + {
                1: "two have no room, so that nothing is loaded while it is computed from",
                2: "one is computed from while the other is loaded; a third would take the room of what stays",
            }.get(placement.slots, "this number hides loads of uneven length behind computation")
        )
    if placement.staging:
        word = "a buffer on the host lets" if placement.staging == 1 else f"{placement.staging} buffers on the host let"
        reasons.append(f"{word} the disk read ahead of the slots")
    cut = {part.group for part in problem.parts}
    reasons += [f"{group} is loaded in parts: as a whole it is larger than a slot can be" for group in sorted(cut)]
    tied = {unit.name: unit for some in problem.tied.values() for unit in some}
    for unit in tied.values():
        does = "stays" if placement.tier(unit) == "device" else "is loaded with each group that has it"
        reasons.append(f"{' = '.join(unit.members)} is one tensor: it is counted once and {does}")
    return reasons
