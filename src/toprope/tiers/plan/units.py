"""Units of a model, the smallest parts that are placed, and the time that a step saves by keeping each. Pure.

A unit is one kind of a group's data: its weights, gradients, optimizer states or activations. `planner` makes them
from the groups of `plan.model`; `search` and `placement` work on units alone. Bytes of a kind follow what
`tiers.training` keeps of it. Tests: tests/tiers/test_tiers_placement.py, tests/tiers/test_tiers_plan.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from toprope.tiers.plan.model import Budgets, Group, Link, Links, Member, Part, Tier, Use, What, aligned

__all__ = ["Problem", "Unit", "divide", "finest", "problem_of"]

_OTHERS: tuple[What, ...] = ("gradients", "states", "activations")


@dataclass(frozen=True, slots=True)
class Unit:
    """One kind of a group's data, which is in one tier as a whole.

    Attributes:
        what: the kind, or "tied" for weights of several groups.
        name: the group; for tied weights their storage.
        group: the group; for tied weights the first one that has them.
        bytes: its size, aligned.
        members: for weights, the names of the tensors.
        rank: index of its group's first use.
        saved: seconds of the links between host and device that a step saves if it stays on the device.
        disk_saved: seconds of the disk that a step saves if it is not on the disk.
    """

    what: What | Literal["tied"]
    name: str
    group: str
    bytes: int
    members: tuple[str, ...]
    rank: int
    saved: float
    disk_saved: float
    asked: Tier | None = None
    """The tier that the user asks for; None for the planner's choice."""
    coded: int | None = None
    """Bytes on the host, on the disk and on the links, if it is encoded there; None for `bytes`."""

    @property
    def away(self) -> int:
        """Its bytes outside the device."""
        return self.bytes if self.coded is None else self.coded


@dataclass(frozen=True)
class Problem:
    """Input of the search: units, order, budgets and links.

    Attributes:
        groups: groups by name; the parts of a divided group instead of the group.
        order: the uses of a step.
        budgets, links, training, stored, small, states: as for `plan`.
        fixed: names of tensors that always stay on the device.
        fixed_bytes: their bytes, aligned.
        own: for each group that has weights of its own, these without tied ones.
        tied: for each group, the tied weights that it needs.
        others: in training, gradients, states and activations.
        parts: the parts of divided groups.
        held: slots in use at the same time, as a module may need several parts of its group.
    """

    groups: Mapping[str, Group]
    order: tuple[Use, ...]
    budgets: Budgets
    links: Links
    training: bool
    stored: bool
    small: int
    fixed: tuple[str, ...]
    fixed_bytes: int
    own: Mapping[str, Unit]
    tied: Mapping[str, tuple[Unit, ...]]
    others: tuple[Unit, ...]
    parts: tuple[Part, ...]
    states: Tier | None = None
    held: int = 1

    @property
    def available(self) -> int:
        """Bytes of the device's budget for the ring and for units that stay; without reserve and fixed tensors."""
        return self.budgets.device - self.budgets.reserve - self.fixed_bytes

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units, in the order of their first use."""
        found = {id(each): each for each in (*self.own.values(), *self.others)}
        found |= {(each.what, each.name): each for some in self.tied.values() for each in some}  # type: ignore[misc]
        return tuple(sorted(found.values(), key=lambda each: each.rank))

    def needed(self, group: str) -> tuple[Unit, ...]:
        """The weights that a use of a group needs, without fixed tensors."""
        own = self.own.get(group)
        return ((own,) if own is not None else ()) + self.tied.get(group, ())


def problem_of(
    groups: Sequence[Group],
    order: tuple[Use, ...],
    budgets: Budgets,
    links: Links,
    *,
    training: bool,
    stored: bool,
    small: int,
    parts: tuple[Part, ...] = (),
    states: Tier | None = None,
    held: int = 1,
) -> Problem:
    """Make the units of a model; tensors of less than `small` bytes always stay."""
    users: dict[str, dict[str, None]] = {}
    staying: dict[str, Member] = {}
    for group in groups:
        for member in group.members:
            users.setdefault(member.key, {})[group.name] = None
            if member.kind != "weight" or member.bytes < max(small, 1):
                staying[member.key] = member
    fixed = {member.name: member for group in groups for member in group.members if member.key in staying}
    rank: dict[str, int] = {}
    for place, use in enumerate(order):
        rank.setdefault(use.group, place)
    counts = Counter(use.group for use in order)
    value = _Value(links, training)
    own: dict[str, Unit] = {}
    tied: dict[str, tuple[Unit, ...]] = {}
    made: dict[str, Unit] = {}
    others: list[Unit] = []
    for group in sorted(groups, key=lambda each: rank.get(each.name, len(order))):
        place = rank.get(group.name, len(order))
        moving = {each.key: each for each in reversed(group.members) if each.key not in staying}
        mine = [each for each in reversed(moving.values()) if len(users[each.key]) == 1]
        if mine:
            size, away = (
                sum(map(aligned, each)) for each in zip(*((one.bytes, one.away) for one in mine), strict=True)
            )
            names = tuple(each.name for each in group.members if each.key in {one.key for one in mine})
            saved = value.weights(away, counts[group.name])
            own[group.name] = Unit("weights", group.name, group.name, size, names, place, *saved, coded=away)
        shared = []
        for member in reversed(moving.values()):
            if len(users[member.key]) > 1:
                if member.key not in made:
                    names = tuple(each.name for some in groups for each in some.members if each.key == member.key)
                    times = sum(counts[name] for name in users[member.key])
                    size, away = aligned(member.bytes), aligned(member.away)
                    saved = value.weights(away, times)
                    made[member.key] = Unit("tied", member.key, group.name, size, names, place, *saved, coded=away)
                shared.append(made[member.key])
        if shared:
            tied[group.name] = tuple(shared)
        if training:
            sizes = (group.gradient_bytes, group.state_bytes, group.activation_bytes)
            for what, size in zip(_OTHERS, map(aligned, sizes), strict=True):
                if size:
                    asked = states if what == "states" else None
                    others.append(Unit(what, group.name, group.name, size, (), place, *value.other(size), asked))
    return Problem(
        {each.name: each for each in groups},
        order,
        budgets,
        links,
        training,
        stored,
        small,
        tuple(fixed),
        sum(aligned(each.bytes) for each in {each.key: each for each in fixed.values()}.values()),
        own,
        tied,
        tuple(others),
        parts,
        states,
        held,
    )


@dataclass(frozen=True)
class _Value:
    """Computes the seconds that a step saves, on the links by a unit on the device, on the disk by a unit elsewhere."""

    links: Links
    training: bool

    def weights(self, size: int, uses: int) -> tuple[float, float]:
        changed = 1 if self.training else 0  # the optimizer reads weights and writes them
        reads = uses + changed
        link = self.links.host_to_device.seconds(size * reads) + self.links.device_to_host.seconds(size * changed)
        return link, _seconds(self.links.disk_read, size * reads) + _seconds(self.links.disk_write, size * changed)

    def other(self, size: int) -> tuple[float, float]:
        link = self.links.host_to_device.seconds(size) + self.links.device_to_host.seconds(size)
        return link, _seconds(self.links.disk_read, size) + _seconds(self.links.disk_write, size)


def _seconds(link: Link | None, size: int) -> float:
    return 0.0 if link is None else link.seconds(size)


def divide(groups: Sequence[Group], order: tuple[Use, ...], problem: Problem, most: int) -> Problem:
    """Divide groups of more than `most` bytes into parts of at most that size, or of one tensor."""
    pieces: dict[str, list[Group]] = {}
    parts: list[Part] = []
    fixed = set(problem.fixed)
    for group in groups:
        if sum(each.bytes for each in problem.needed(group.name)) <= most:
            pieces[group.name] = [group]
            continue
        pieces[group.name] = _pieces(group, fixed, most)
        if len(pieces[group.name]) > 1:
            parts += [
                Part(each.name, group.name, tuple(one.name for one in each.members)) for each in pieces[group.name]
            ]
    uses: list[Use] = []
    for use in order:
        some = pieces[use.group]
        total = sum(each.bytes for each in some) or 1
        uses += [
            replace(
                use,
                group=each.name,
                seconds=None if use.seconds is None else use.seconds * each.bytes / total,
            )
            for each in (reversed(some) if use.backward else some)
        ]
    flat = [each for group in groups for each in pieces[group.name]]
    return problem_of(
        flat,
        tuple(uses),
        problem.budgets,
        problem.links,
        training=problem.training,
        stored=problem.stored,
        small=problem.small,
        parts=tuple(parts),
        states=problem.states,
        held=max((_parts_at_once(group, pieces[group.name], fixed) for group in groups), default=1),
    )


def _parts_at_once(group: Group, pieces: Sequence[Group], fixed: set[str]) -> int:
    """Largest number of a group's parts that one module needs at the same time; two if it is not known."""
    if len(pieces) == 1:
        return 1
    if group.together is None:
        return 2
    moving = ((place, each) for place, piece in enumerate(pieces) for each in piece.members if each.name not in fixed)
    piece_of = {each.key: place for place, each in moving}
    return max((len({piece_of[key] for key in keys if key in piece_of}) for keys in group.together), default=1) or 1


def finest(groups: Sequence[Group], order: tuple[Use, ...], problem: Problem) -> Problem:
    """Divide the groups into single tensors."""
    return divide(groups, order, problem, 0)


def _pieces(group: Group, fixed: set[str], most: int) -> list[Group]:
    """Cut a group between tensors, in their order; fixed tensors go with the first part."""
    runs: list[list[Member]] = [[]]
    room = most
    for member in group.members:
        if member.name in fixed:
            runs[0].append(member)
            continue
        if any(each.name not in fixed for each in runs[-1]) and aligned(member.bytes) > room:
            runs.append([])
            room = most
        runs[-1].append(member)
        room -= aligned(member.bytes)
    if len(runs) == 1:
        return [group]
    total = sum(each.bytes for run in runs for each in run) or 1
    shares = [sum(each.bytes for each in run) / total for run in runs]

    def cut(size: int) -> list[int]:
        sizes = [int(size * share) for share in shares]
        sizes[0] += size - sum(sizes)
        return sizes

    gradients, states, saved = cut(group.gradient_bytes), cut(group.state_bytes), cut(group.activation_bytes)
    return [
        Group(
            f"{group.name} ({place + 1} of {len(runs)})",
            tuple(run),
            group.compute_seconds * shares[place],
            gradients[place],
            states[place],
            saved[place],
            group.optimizer_seconds * shares[place],
        )
        for place, run in enumerate(runs)
    ]
