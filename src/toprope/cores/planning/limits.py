"""Limits for the streams of a card under which they cannot deadlock and the slowest is as fast as can be; pure.

`plan`, for users who give demands as tables of times; `planning.program` calls it with those of a program. `Plan` is
the result of every planner, and its JSON a public format: its keys stay. Condition S1 (docs/core_proof.md): the limits
of all streams that can run at the same time add up to no more than the card has, cube and vector cores apart. Then no
operator ever waits for a core, whatever the card does, and the times of the tables hold. How limits are found is free
(`search`). Tests: tests/cores/test_cores_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toprope.cores.model import Card, Cores
from toprope.cores.planning.search import KINDS, Choices, Room, search
from toprope.cores.planning.times import Demand, weakest
from toprope.errors import PlanError

__all__ = ["Limit", "Plan", "cores_for", "plan"]


_NO_SUCH_CORES = 2**30
"""Room for limits of a kind of core that a card lacks: none of its streams uses any, so that no sum is too much."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a stream.

    Attributes:
        stream: its name.
        cards: names of the cards with a stream of this name.
        cube, vector: the limit; None where it needs none, or uses no such cores.
        microseconds: how long its work takes with it.
        timing: where that comes from: "measured", "profile" or "estimate".
        reason: why it is limited, or why it is not.
    """

    stream: str
    cards: tuple[str, ...]
    cube: int | None
    vector: int | None
    microseconds: float
    timing: str
    reason: str = ""

    @property
    def is_limited(self) -> bool:
        """True if it has a limit."""
        return self.cube is not None or self.vector is not None

    @property
    def cores(self) -> Cores:
        """Cube and vector cores that it can hold."""
        return self.cube or 0, self.vector or 0


@dataclass(frozen=True)
class Plan:
    """Limits for streams.

    Attributes:
        limits: one for each stream.
        makespan: microseconds until all is done.
        timing: where the times come from, the weakest of them: "measured", "profile" or "estimate".
        method: what makes it safe: "S1", "S2", or "exact"; "as it is" where no limit is needed.
        proof: that condition with its sums.
        bound: what keeps it from being faster.
        notes: what was assumed.
    """

    limits: tuple[Limit, ...]
    makespan: float
    timing: str
    method: str
    proof: tuple[str, ...]
    bound: str
    notes: tuple[str, ...] = ()

    def limit(self, stream: str) -> Limit:
        """The limit of the stream of this name.

        Raises:
            PlanError: the plan has no such stream.
        """
        for each in self.limits:
            if each.stream == stream:
                return each
        raise PlanError(
            f"the plan has no stream {stream}.", looked_at=f"streams {', '.join(each.stream for each in self.limits)}"
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as values that `json` can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, source: str = "the plan") -> Plan:
        """The plan that `to_json` gave.

        Args:
            data: what `json` has read.
            source: what to call it in an error, such as the name of its file.

        Raises:
            PlanError: it is not one.
        """
        try:
            limits = tuple(Limit(**{**each, "cards": tuple(each["cards"])}) for each in data["limits"])
            plan = cls(**{**data, "limits": limits, "proof": tuple(data["proof"]), "notes": tuple(data["notes"])})
            _check_types(plan)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(
                "this is not a plan.",
                looked_at=f"{source}: {error}",
                do="give the JSON that `Plan.to_json` or `toprope cores plan --json` has written",
            ) from error
        return plan

    def script(self) -> str:
        """Python that sets the limits: a function `set_limits` that takes the streams by name."""
        lines = [
            f"# Limits planned by toprope: {self.makespan:.1f} microseconds ({self.timing}).",
            *(f"# {' '.join(line.split())}" for line in (*self.proof, self.bound, *self.notes)),
            "import torch",
            "import torch_npu  # noqa: F401",
            "",
            "",
            "def set_limits(streams):",
            '    """Limit the streams, given by name: {"main": torch.npu.current_stream(), ...}."""',
        ]
        for each in self.limits:
            numbers = {f"{kind}_num": getattr(each, kind) for kind in KINDS if getattr(each, kind) is not None}
            arguments = "".join(f", {name}={value}" for name, value in numbers.items())
            call = f"torch.npu.set_stream_limit(streams[{each.stream!r}]{arguments})"
            reason = " ".join(each.reason.split()) or "uses no cores that a limit is for"
            lines.append(f"    {call}" if numbers else f"    # {each.stream!r}: {reason}")
        return "\n".join([*lines, "    return streams", ""])


def plan(
    demands: Sequence[Demand],
    cards: Card | Sequence[Card],
    *,
    apart: Iterable[tuple[str, str]] = (),
    notes: Iterable[str] = (),
) -> Plan:
    """Limits under which the slowest stream is as fast as can be; exact for the tables given.

    Streams are taken to run all at the same time. Where a time grows with more cores, the best time up to
    that number is taken, and the plan says so. Cores that are left make the streams faster that they can.

    Args:
        demands: the streams.
        cards: the cards, or the only one.
        apart: pairs of streams that never run at the same time.
        notes: notes to put into the plan.

    Raises:
        PlanError: the fewest cores that the streams can do with do not fit; or a demand contradicts itself.
    """
    known = [cards] if isinstance(cards, Card) else list(cards)
    _check_names(demands, known)
    choices = [Choices(demand, cores_for(demand, known)) for demand in demands]
    never = {frozenset(pair) for pair in apart}
    rooms = rooms_of(demands, known, never)
    limits = search(choices, rooms)
    times = [choice.time(cores) for choice, cores in zip(choices, limits, strict=True)]
    planned = tuple(_limit(*each, known) for each in zip(choices, limits, times, strict=True))
    uneven = [choice.demand.stream for choice in choices if choice.uneven]
    said = [*notes]
    if uneven:
        said.append(
            f"the times of {', '.join(uneven)} grow with more cores in places: the best time up to each number is taken"
        )
    return Plan(
        limits=planned,
        makespan=max(times, default=0.0),
        timing=weakest(each.timing for each in planned),
        method="S2" if never else "S1",
        proof=proof_of(planned, rooms, never),
        bound=_bound(planned),
        notes=tuple(said),
    )


def rooms_of(demands: Sequence[Demand], cards: Sequence[Card], never: set[frozenset[str]]) -> list[Room]:
    """For each card the largest sets of streams that can run at the same time; each set of streams once."""
    rooms: dict[tuple[int, ...], Room] = {}
    for card in cards:
        here = [number for number, each in enumerate(demands) if not each.cards or card.name in each.cards]
        for streams in _together(here, demands, never):
            other = rooms.get(streams)
            have = card.cube or _NO_SUCH_CORES, card.vector or _NO_SUCH_CORES
            cores = have if other is None else (min(have[0], other.cores[0]), min(have[1], other.cores[1]))
            rooms[streams] = Room(card.name if other is None else other.card, cores, streams)
    return list(rooms.values())


def _together(here: list[int], demands: Sequence[Demand], never: set[frozenset[str]]) -> Iterable[tuple[int, ...]]:
    """The maximal sets of which no two streams are apart (the maximal cliques, by Bron and Kerbosch)."""
    near = {
        each: {o for o in here if o != each and frozenset((demands[each].stream, demands[o].stream)) not in never}
        for each in here
    }

    def grow(chosen: tuple[int, ...], possible: set[int], seen: set[int]) -> Iterable[tuple[int, ...]]:
        if not possible and not seen:
            yield tuple(sorted(chosen))
            return
        pivot = max(possible | seen, key=lambda each: len(near[each] & possible))
        for each in sorted(possible - near[pivot]):
            yield from grow((*chosen, each), possible & near[each], seen & near[each])
            possible = possible - {each}
            seen = seen | {each}

    return grow((), set(here), set()) if here else ()


def proof_of(limits: Sequence[Limit], rooms: Sequence[Room], never: set[frozenset[str]]) -> tuple[str, ...]:
    """The sums that prove the limits safe."""
    lines = []
    for room in rooms:
        where = f" of card {room.card}" if len({each.card for each in rooms}) > 1 else ""
        for kind in (0, 1):
            cores = [limits[each].cores[kind] for each in room.streams if limits[each].cores[kind]]
            if cores and room.cores[kind] != _NO_SUCH_CORES:
                total, have = sum(cores), room.cores[kind]
                sums = f"{' + '.join(map(str, cores))} = {total}" if len(cores) > 1 else str(total)
                within = "" if total == have else f", at most {have}"
                lines.append(f"the sum of the streams' {KINDS[kind]} cores{where} {sums}{within}")
    for first, second in sorted(map(sorted, never)):
        lines.append(f"by the order, {first} and {second} never run at the same time")
    return tuple(lines) or ("no stream uses cores",)


def _limit(choice: Choices, cores: Cores, time: float, cards: Sequence[Card]) -> Limit:
    names = choice.demand.cards or tuple(card.name for card in cards)
    cube, vector = (cores[kind] if choice.least[kind] else None for kind in (0, 1))
    return Limit(choice.demand.stream, names, cube, vector, time, choice.timing(cores))


def _bound(limits: Sequence[Limit]) -> str:
    if not limits:
        return "there is nothing to run"
    slowest = max(limits, key=lambda each: each.microseconds)
    cores = " and ".join(f"{slowest.cores[kind]} {KINDS[kind]}" for kind in (0, 1) if slowest.cores[kind])
    return (
        f"{slowest.stream} is the slowest stream: {slowest.microseconds:.1f} microseconds ({slowest.timing}) "
        f"on {cores or 'no'} cores"
    )


def cores_for(demand: Demand, cards: Sequence[Card]) -> Cores:
    """Cores that each of a stream's cards has; where a card lacks a kind, the stream uses none of it there."""
    mine = [card.cores for card in cards if not demand.cards or card.name in demand.cards]
    cube, vector = (min((cores[kind] for cores in mine if cores[kind]), default=0) for kind in (0, 1))
    return cube, vector


def _check_names(demands: Sequence[Demand], cards: Sequence[Card]) -> None:
    names = [demand.stream for demand in demands]
    twice = sorted(name for name in set(names) if names.count(name) > 1)
    if twice:
        raise PlanError("two streams have the same name.", looked_at=", ".join(twice))
    known = {card.name for card in cards}
    for demand in demands:
        unknown = [name for name in demand.cards if name not in known]
        if unknown:
            raise PlanError(
                f"stream {demand.stream} is on cards that are not there.",
                looked_at=f"{', '.join(unknown)}; cards {', '.join(sorted(known))}",
            )


def _check_types(plan: Plan) -> None:
    """Raise ValueError where a value of a plan that was read is of another type, or makes no sense."""
    for limit in plan.limits:
        for value in (limit.cube, limit.vector):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"stream {limit.stream}: {value!r} is no number of cores")
    texts = [plan.timing, plan.method, plan.bound, *plan.proof, *plan.notes]
    texts += [text for each in plan.limits for text in (each.stream, each.timing, each.reason, *each.cards)]
    times = [plan.makespan, *(each.microseconds for each in plan.limits)]
    wrong: list[object] = [text for text in texts if not isinstance(text, str)]
    wrong += [time for time in times if not isinstance(time, int | float) or not time >= 0]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not what belongs there")
