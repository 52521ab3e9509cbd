"""One placement: its bytes over each link in a step, the lower limit of its time, and the predicted time. Pure.

`search` compares placements by it, `planner` explains the best one. The loads must be those that `engine.runtime`
makes, or predictions are wrong (`clock`); the lower limit must never be above the predicted time. Tests:
tests/tiers/test_tiers_placement.py has small placements with bytes and seconds worked out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from toprope.tiers.plan.clock import COMPUTE, DISK, IN, OUT, Clock, Entry, Span, schedule
from toprope.tiers.plan.model import LinkBytes, Tier
from toprope.tiers.plan.units import Problem, Unit

__all__ = ["STEPS", "Placement"]

STEPS = 3
"""Steps on the virtual clock; the first one fills the ring and is not counted."""

BUFFERS = 2
"""Buffers for gradients, activations and the optimizer's tiles: one is filled while another is moved."""

_CHUNKS = 4  # of a group that goes from the disk to the device through a small buffer, in as many jobs


@dataclass(frozen=True)
class Placement:
    """A candidate for the plan: the tier of each unit, with the number and size of the slots.

    Attributes:
        problem: the model and budgets that are planned.
        tiers: the tier of each unit, by its kind and name.
        slots, slot_bytes, staging: as in `Plan`.
    """

    problem: Problem
    tiers: Mapping[tuple[str, str], Tier]
    slots: int
    slot_bytes: int
    staging: int

    def tier(self, unit: Unit) -> Tier:
        """The tier of a unit."""
        return self.tiers[unit.what, unit.name]

    @cached_property
    def loaded(self) -> dict[str, dict[Tier, int]]:
        """For each group that is loaded for its uses, the bytes from each tier."""
        found: dict[str, dict[Tier, int]] = {}
        for group in self.problem.groups:
            for unit in self.problem.needed(group):
                tier = self.tier(unit)
                if tier != "device":
                    sizes = found.setdefault(group, {})
                    sizes[tier] = sizes.get(tier, 0) + unit.away
        return found

    @cached_property
    def schedule(self) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
        """The loads of a step, and the groups that are in the ring when it begins."""
        order = [use.group for use in self.problem.order]
        return schedule(order, self.loaded, self.slots, emptied=self.problem.training)

    def seconds(self, place: int) -> float:
        """Computing time of the use at an index of the order."""
        use = self.problem.order[place]
        if use.seconds is not None:
            return use.seconds
        return self.problem.groups[use.group].compute_seconds * (2 if use.backward else 1)

    @cached_property
    def compute(self) -> float:
        """Seconds of a step without any waiting."""
        seconds = sum(self.seconds(place) for place in range(len(self.problem.order)))
        if self.problem.training:
            seconds += sum(each.optimizer_seconds for each in self.problem.groups.values())
        return seconds

    @cached_property
    def traffic(self) -> LinkBytes:
        """Bytes over each link in a step; reads from the disk straight into a slot are not counted as copies."""
        into = out = read = write = 0
        direct = self.problem.links.unified and not self.staging
        for entry in self.schedule[0]:
            sizes = self.loaded[entry.group]
            disk = sizes.get("disk", 0)
            read += disk
            into += sizes.get("host", 0) + (0 if direct else disk)
        if self.problem.training:
            for unit in self.problem.units:
                tier = self.tier(unit)
                if tier == "device":
                    continue
                # weights: the optimizer's tiles; all else: made and moved out, or states read and written
                into += 0 if self.problem.links.unified and tier == "disk" else unit.away
                out += unit.away
                if tier == "disk":
                    read += unit.away
                    write += unit.away
        return LinkBytes(into, out, read, write)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Lower limits of a step's time, by the resource that sets them."""
        links, moved = self.problem.links, self.traffic
        found = {
            "compute": self.compute,
            "the link host -> device": links.host_to_device.seconds(moved.host_to_device),
            "the link device -> host": links.device_to_host.seconds(moved.device_to_host),
            "the disk": 0.0,
        }
        if links.disk_read is not None:
            found["the disk"] += links.disk_read.seconds(moved.disk_read)
        if links.disk_write is not None:
            found["the disk"] += links.disk_write.seconds(moved.disk_write)
        if links.unified:
            # A copy reads and writes each byte; bytes from the disk are written once; forward reads all weights once.
            weights = sum(each.bytes for name in self.problem.groups for each in self.problem.needed(name))
            touched = 2 * (moved.host_to_device + moved.device_to_host) + moved.disk_read + moved.disk_write + weights
            found["the memory"] = links.memory.seconds(touched / 2)
        return found

    @cached_property
    def limit(self) -> float:
        """The largest of the limits."""
        return max(self.limits.values())

    @cached_property
    def predicted(self) -> float:
        """Seconds of a step, once the ring is full; never less than the limit."""
        ends = self.ends(self.run())
        return max(self.limit, (ends[-1] - ends[0]) / (STEPS - 1))

    def last_step(self) -> tuple[Span, ...]:
        """The jobs of the last step on the clock, from its begin, cut at both ends of the step."""
        spans = self.run()
        start, end = self.ends(spans)[-2:]
        return tuple(
            replace(each, begin=max(0.0, each.begin - start), end=min(each.end, end) - start)
            for each in spans
            if each.end > start and each.begin < end
        )

    def ends(self, spans: list[Span]) -> list[float]:
        """End of each step's last computation."""
        computed = [span.end for span in spans if span.resource == COMPUTE]
        each = len(computed) // STEPS
        return [computed[each * (step + 1) - 1] for step in range(STEPS)]

    def run(self) -> list[Span]:
        """Some steps on the virtual clock."""
        steps = _Steps(self)
        for step in range(STEPS):
            steps.add(step)
        return steps.clock.run()


class _Steps:
    """Adds the jobs of consecutive steps to a clock."""

    def __init__(self, placement: Placement) -> None:
        self.of = placement
        self.problem = placement.problem
        self.links = placement.problem.links
        self.clock = Clock()
        self.count = len(self.problem.order)
        self.entries = {entry.use: entry for entry in placement.schedule[0]}
        self.computed: list[int] = []  # the job of each use
        self.previous: list[int] = []  # the last computation
        self.staged: list[int] = []  # jobs that empty a buffer of the host
        self.written: dict[str, int] = {}  # by group, the job that writes its weights back
        self.made: list[int] = []  # jobs that empty a buffer of gradients or activations
        self.brought: list[int] = []  # jobs that use a buffer of fetched activations
        self.saved: dict[str, int] = {}  # by group, the job that moves its activations out
        kinds = {(unit.what, unit.name): unit for unit in self.problem.others}
        self.away = {key: unit for key, unit in kinds.items() if placement.tier(unit) != "device"}
        self.last = {use.group: place for place, use in enumerate(self.problem.order) if use.backward}
        self.first = {
            use.group: place for place, use in reversed(list(enumerate(self.problem.order))) if not use.backward
        }
        self.back = {use.group: place for place, use in reversed(list(enumerate(self.problem.order))) if use.backward}

    def add(self, step: int) -> None:
        """Add the jobs of one step."""
        for place, use in enumerate(self.problem.order):
            at = step * self.count + place
            after = list(self.previous)
            entry = self.entries.get(place)
            if entry is not None:
                after += self._load(entry, step, at)
            group = use.group
            activations = self.away.get(("activations", group))
            returns = activations is not None and self.back.get(group) == place
            if activations is not None and returns:
                after.append(self._load_buffered(activations, at))
            made = [] if activations is None or self.first.get(group) != place else [activations]
            gradient = self.away.get(("gradients", group))
            made += [] if gradient is None or self.last.get(group) != place else [gradient]
            after += _before(self.made, BUFFERS) if made else []
            job = self.clock.add(COMPUTE, self.of.seconds(place), at, after, group)
            self.computed.append(job)
            self.previous = [job]
            if returns:
                self.brought.append(job)
            for unit in made:
                home = self._store_unit(unit, at, [job])
                self.made.append(home)
                if unit.what == "activations":
                    self.saved[group] = home
        if self.problem.training:
            self._optimizer(step)

    def _load(self, entry: Entry, step: int, at: int) -> list[int]:
        sizes = self.of.loaded[entry.group]
        free = step * self.count + entry.after
        after = [self.computed[free]] if free >= 0 else []
        home = [self.written[each] for each in {entry.group, *self._tied_groups(entry.group)} if each in self.written]
        jobs = []
        if sizes.get("host"):
            jobs.append(self._copy(IN, sizes["host"], at, after + home, entry.group))
        if sizes.get("disk"):
            jobs.append(self._from_disk(sizes["disk"], at, after, home, entry.group))
        return jobs

    def _tied_groups(self, group: str) -> list[str]:
        return [each.group for each in self.problem.tied.get(group, ())]

    def _copy(self, resource: int, size: int, at: int, after: list[int], label: str) -> int:
        link = self.links.host_to_device if resource == IN else self.links.device_to_host
        return self.clock.add(resource, link.seconds(size), at, after, label)

    def _from_disk(self, size: int, at: int, slot: list[int], home: list[int], label: str) -> int:
        read = self.links.disk_read
        assert read is not None
        if self.of.staging:
            buffer = _before(self.staged, self.of.staging)
            job = self.clock.add(DISK, read.seconds(size), at, home + buffer, label)
            job = self._copy(IN, size, at, [job, *slot], label)
            self.staged.append(job)
            return job
        if self.links.unified:
            return self.clock.add(DISK, read.seconds(size), at, slot + home, label)
        reads, copy = slot + home, -1
        for chunk in range(_CHUNKS):
            part = size * (chunk + 1) // _CHUNKS - size * chunk // _CHUNKS
            reads = [self.clock.add(DISK, read.seconds(part), at, reads, label)]
            copy = self._copy(IN, part, at, reads + ([copy] if chunk else []), label)
        return copy

    def _load_buffered(self, unit: Unit, at: int) -> int:
        after = _before(self.brought, BUFFERS)
        if unit.group in self.saved:
            after = [*after, self.saved[unit.group]]
        return self._load_unit(unit, at, after)

    def _load_unit(self, unit: Unit, at: int, after: list[int]) -> int:
        if self.of.tier(unit) == "disk":
            assert self.links.disk_read is not None
            job = self.clock.add(DISK, self.links.disk_read.seconds(unit.away), at, after, unit.group)
            if self.links.unified:
                return job
            after = [job]
        return self._copy(IN, unit.away, at, after, unit.group)

    def _store_unit(self, unit: Unit, at: int, after: list[int]) -> int:
        job = self._copy(OUT, unit.away, at, after, unit.group)
        if self.of.tier(unit) == "disk":
            assert self.links.disk_write is not None
            job = self.clock.add(DISK, self.links.disk_write.seconds(unit.away), at, [job], unit.group)
        return job

    def _optimizer(self, step: int) -> None:
        """Tile by tile, after backward: gradients, states and weights in, then states and weights out."""
        at = (step + 1) * self.count
        start = list(self.previous)
        emptied: list[int] = []
        weights = [unit for unit in self.problem.units if unit.what in ("weights", "tied")]
        for name, group in self.problem.groups.items():
            moved = [unit for unit in weights if unit.group == name and self.of.tier(unit) != "device"]
            states = self.away.get(("states", name))
            moved += [] if states is None else [states]
            gradient = self.away.get(("gradients", name))
            buffer = _before(emptied, BUFFERS)
            read = [*moved, *([] if gradient is None else [gradient])]
            after = [self._load_unit(unit, at, start + buffer) for unit in read]
            job = self.clock.add(COMPUTE, group.optimizer_seconds, at, [*self.previous, *after], name)
            self.previous = [job]
            outs = [self._store_unit(unit, at, [job]) for unit in moved]
            if outs:
                emptied.append(outs[-1])
                self.written[name] = outs[-1]


def _before(jobs: list[int], buffers: int) -> list[int]:
    """The job that must end before one of the buffers is empty; no job while a buffer was never used."""
    return [jobs[-buffers]] if len(jobs) >= buffers else []
