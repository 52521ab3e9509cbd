"""Faults of a program other than a lack of cores, such as collectives that two cards run in different order; pure.

`check` adds them to its result; the commands print them. What is a fault is fixed by the vendor's rules for collectives
and core limits, which docs/cores.md lists; a rule's name is an interface for programs. A new check is a function and a
row of `RULES`, a case in tests/cores/test_cores_findings.py and a line in docs/cores.md. Tests:
tests/cores/test_cores_findings.py, tests/cores/test_cores_record.py (cores that a record does not say).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, product

from toprope.collectives import collective_kind, hccl_minimum
from toprope.cores.model import Collective, Cores, OpId, Program
from toprope.cores.order import Graph, cycle
from toprope.cores.overlap import Overlap

__all__ = ["RULES", "Finding", "Level", "assuming_cores", "barriers_over_limit", "findings", "unknown_cores"]


class Level(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The program hangs, or the card refuses it."""

    WARNING = "warning"
    """The vendor advises against it, or the record does not say all."""


_ON_CORES = ("AI_CORE", "AIC", "AI_VECTOR_CORE", "AIV", "MIX_AIC", "MIX_AIV")
"""The profiler's words for operators that run on cube or vector cores."""

RULES = {
    "missing-rank": Level.ERROR,
    "one-card-communicator": Level.ERROR,
    "desync": Level.ERROR,
    "cyclic-wait": Level.ERROR,
    "sync-all-over-limit": Level.ERROR,
    "two-aiv-communicators": Level.WARNING,
    "unequal-limits": Level.WARNING,
    "below-hccl-minimum": Level.WARNING,
    "unknown-cores": Level.WARNING,
}
"""The level of every rule."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or may be.

    Attributes:
        level: how bad it is.
        rule: which check found it, one of `RULES`.
        text: one sentence for a reader.
        ops: the operators that it is about; where there are many alike, the first of them.
    """

    level: Level
    rule: str
    text: str
    ops: tuple[OpId, ...]


def findings(program: Program) -> tuple[Finding, ...]:
    """All findings of a program, errors first. What is alike is one finding that says how many there are."""
    graph = Graph.of(program)
    found = [
        *_missing_ranks(program),
        *_on_one_card(program),
        *_different_collectives(program),
        *_different_order(program),
        *_cyclic_wait(program, graph),
        *_over_limit(program),
        *_two_aiv_communicators(program, graph),
        *_unequal_limits(program),
        *_below_minimum(program),
        *_unknown(program),
    ]
    return tuple(sorted(found, key=lambda each: each.level is not Level.ERROR))


def unknown_cores(program: Program) -> tuple[OpId, ...]:
    """Operators that use cores, but the record does not say how many.

    A collective of a communicator whose engine is known, and is not "aiv", is none of them: it uses no cores.
    """
    engines = {each.name: each.engine for each in program.communicators}

    def is_known(id: OpId) -> bool:
        op = program.op(id)
        engine = engines[op.collective.communicator] if op.collective is not None else ""
        if any(op.cores) or engine not in ("", "aiv"):
            return True
        return engine != "aiv" and bool(op.kind) and op.kind.upper() not in _ON_CORES

    return tuple(id for id, _ in program.ops() if not is_known(id))


def assuming_cores(program: Program, *, all_blocks: bool = True) -> Program:
    """The program in which operators of unknown cores need all cores of their card at once, or one block.

    Args:
        program: the program.
        all_blocks: False: one vector core, or on a card without any one cube core.
    """
    unknown = set(unknown_cores(program))
    if not unknown:
        return program
    streams = list(program.streams)
    for number in {stream for stream, _ in unknown}:
        card = program.card_of((number, 0))
        cores = card.cores if all_blocks else (int(not card.vector), min(card.vector, 1))
        ops = (
            replace(op, cube=cores[0], vector=cores[1], sync_all=all_blocks, assumed=True)
            if (number, at) in unknown
            else op
            for at, op in enumerate(streams[number].ops)
        )
        streams[number] = replace(streams[number], ops=tuple(ops))
    return replace(program, streams=tuple(streams))


def _finding(rule: str, text: str, ops: Iterable[OpId]) -> Finding:
    return Finding(RULES[rule], rule, text, tuple(ops))


def _merge_alike(
    rule: str, found: Iterable[tuple[object, tuple[OpId, ...]]], text: Callable[[tuple[OpId, ...]], str]
) -> Iterator[Finding]:
    """One finding for each group that is alike, with the text of its first."""
    groups: dict[object, list[tuple[OpId, ...]]] = {}
    for key, ops in found:
        groups.setdefault(key, []).append(ops)
    for ops, *others in groups.values():
        more = f" {len(others)} more like it." if others else ""
        yield _finding(rule, text(ops) + more, ops)


def _missing_ranks(program: Program) -> Iterator[Finding]:
    def found() -> Iterator[tuple[object, tuple[OpId, ...]]]:
        for collective, ops in program.members.items():
            if collective in program.incomplete:
                yield (collective.communicator, program.missing(collective)), ops

    def text(ops: tuple[OpId, ...]) -> str:
        collective = program.op(ops[0]).collective
        assert collective is not None
        cards = ", ".join(program.missing(collective))
        return f"{program.describe(ops[0])} is {collective}, which has no member on card {cards}: it never finishes."

    yield from _merge_alike("missing-rank", found(), text)


def _on_one_card(program: Program) -> Iterator[Finding]:
    """Communicators whose other ranks were not given: what they would wait for is not known."""
    for group in program.communicators:
        if not group.as_seen or len(group.cards) > 1:
            continue
        ops = [id for each, ids in program.members.items() if each.communicator == group.name for id in ids]
        if ops:
            yield _finding(
                "one-card-communicator",
                f"communicator {group.name} is seen on card {group.cards[0]} only ({len(ops)} collectives): its other "
                "ranks are not in the files, so what it waits for is unknown. Give the files of all ranks.",
                ops[:1],
            )


def _different_collectives(program: Program) -> Iterator[Finding]:
    """Two cards run different collectives as number N of the same communicator."""

    def found() -> Iterator[tuple[object, tuple[OpId, ...]]]:
        for collective, ops in program.members.items():
            kinds = {kind for id in ops if (kind := collective_kind(program.op(id).name))}
            if len(kinds) > 1:
                yield collective.communicator, ops

    def text(ops: tuple[OpId, ...]) -> str:
        collective = program.op(ops[0]).collective
        return f"{collective} is not the same collective on all cards: {', '.join(map(program.describe, ops))}."

    yield from _merge_alike("desync", found(), text)


def _different_order(program: Program) -> Iterator[Finding]:
    """Two collectives of a communicator that two cards run in different order, each within a stream."""
    places: dict[tuple[str, str], dict[Collective, OpId]] = {}
    for id, op in program.ops():
        if op.collective is not None:
            places.setdefault((op.collective.communicator, program.streams[id[0]].card), {})[op.collective] = id
    for group in program.communicators:
        cards = [places[group.name, card] for card in group.cards if (group.name, card) in places]
        swapped = (pair for other in cards[1:] for pair in _swapped(cards[0], other))
        pair = next(swapped, None)
        if pair is not None:
            first, second, ops = pair
            names = [program.streams[ops[at][0]].card for at in (0, 2)]
            yield _finding(
                "desync",
                f"card {names[0]} runs {first} before {second}, card {names[1]} the other way round.",
                ops,
            )


def _swapped(
    one: dict[Collective, OpId], other: dict[Collective, OpId]
) -> Iterator[tuple[Collective, Collective, tuple[OpId, ...]]]:
    latest: dict[tuple[int, int], Collective] = {}
    for collective in sorted((each for each in one if each in other), key=one.__getitem__):
        key = one[collective][0], other[collective][0]
        before = latest.get(key)
        if before is not None and other[before] > other[collective]:
            yield before, collective, (one[before], one[collective], other[collective], other[before])
        latest[key] = collective


def _cyclic_wait(program: Program, graph: Graph) -> Iterator[Finding]:
    found = cycle(graph)
    if found:
        path = " -> ".join(program.describe(id) for id in (*found, found[0]))
        yield _finding(
            "cyclic-wait", f"streams, events and collectives wait for each other in a circle: {path}.", found
        )


def barriers_over_limit(program: Program) -> Iterator[OpId]:
    """Operators with a barrier over more blocks than their limit lets run at the same time: it never opens."""
    for id, op in program.ops():
        limit = op.limit or op.cores
        if op.sync_all and op.blocks > 1 and (op.cube > limit[0] or op.vector > limit[1]):
            yield id


def _over_limit(program: Program) -> Iterator[Finding]:
    def found() -> Iterator[tuple[object, tuple[OpId, ...]]]:
        for id in barriers_over_limit(program):
            op = program.op(id)
            yield (op.name, op.cores, op.limit), (id,)

    def text(ops: tuple[OpId, ...]) -> str:
        op = program.op(ops[0])
        assert op.limit is not None
        return (
            f"{program.describe(ops[0])} has a barrier over {_text_of(op.cores)} and a limit of {_text_of(op.limit)}: "
            "its blocks never are there at the same time."
        )

    yield from _merge_alike("sync-all-over-limit", found(), text)


def _two_aiv_communicators(program: Program, graph: Graph) -> Iterator[Finding]:
    engines = {each.name: each.engine for each in program.communicators}
    queues: dict[str, dict[int, dict[str, list[int]]]] = {}  # card, stream, communicator: places
    for id, op in program.ops():
        if op.collective is not None and engines[op.collective.communicator] == "aiv":
            stream = queues.setdefault(program.streams[id[0]].card, {}).setdefault(id[0], {})
            stream.setdefault(op.collective.communicator, []).append(id[1])
    pairs = [
        (one, other, streams)
        for streams in queues.values()
        for one, other in combinations(streams, 2)
        if len({*streams[one], *streams[other]}) > 1
    ]
    if not pairs:
        return
    overlap = Overlap(graph, sorted({stream for one, other, _ in pairs for stream in (one, other)}))
    seen: set[tuple[str, str]] = set()
    for one, other, streams in pairs:
        for first, second in product(streams[one], streams[other]):
            names = min(first, second), max(first, second)
            if first == second or names in seen:
                continue
            ops = _together(overlap, one, streams[one][first], other, streams[other][second])
            if ops:
                seen.add(names)
                what = " and ".join(map(program.describe, ops))
                yield _finding(
                    "two-aiv-communicators",
                    f"{what} of communicators {first} and {second} can be active together, both on vector cores; HCCL "
                    "allows that engine for one communicator at a time.",
                    ops,
                )


def _together(overlap: Overlap, one: int, places: list[int], other: int, others: list[int]) -> tuple[OpId, ...]:
    """An operator of each stream that can be active together; none where they always follow each other."""
    for at in places:
        among = overlap.together((one, at), other)
        found = bisect_left(others, among.start)
        if found < len(others) and others[found] in among:
            return (one, at), (other, others[found])
    return ()


def _unequal_limits(program: Program) -> Iterator[Finding]:
    def found() -> Iterator[tuple[object, tuple[OpId, ...]]]:
        for collective, ops in program.members.items():
            limits = {op.limit for op in map(program.op, ops) if op.limit is not None}
            unlimited = {op.cores for op in map(program.op, ops) if op.limit is None}
            if len(limits) > 1 or len(unlimited) > 1:
                yield (collective.communicator, program.op(ops[0]).name), ops

    def text(ops: tuple[OpId, ...]) -> str:
        each = (
            f"{program.describe(id)} {'may use' if op.limit is not None else 'uses'} {_text_of(op.limit or op.cores)}"
            for id, op in ((id, program.op(id)) for id in ops)
        )
        return f"the ranks of a collective differ in their cores: {', '.join(each)}."

    yield from _merge_alike("unequal-limits", found(), text)


def _below_minimum(program: Program) -> Iterator[Finding]:
    groups = {each.name: each for each in program.communicators}

    def found() -> Iterator[tuple[object, tuple[OpId, ...]]]:
        for collective, ops in program.members.items():
            group = groups[collective.communicator]
            for id in ops if group.engine == "aiv" else ():
                op = program.op(id)
                minimum = hccl_minimum(op.name, program.card_of(id).chip, len(group.cards))
                allowed = op.vector if op.limit is None else op.limit[1]
                if minimum is not None and allowed < minimum.cores:
                    yield (group.name, op.name, allowed), (id,)

    def text(ops: tuple[OpId, ...]) -> str:
        op, card = program.op(ops[0]), program.card_of(ops[0])
        assert op.collective is not None
        minimum = hccl_minimum(op.name, card.chip, len(groups[op.collective.communicator].cards))
        assert minimum is not None
        allowed = op.vector if op.limit is None else op.limit[1]
        return (
            f"{program.describe(ops[0])} may use {allowed} vector cores; HCCL recommends at least {minimum.cores} on a "
            f"{card.chip}."
        )

    yield from _merge_alike("below-hccl-minimum", found(), text)


def _unknown(program: Program) -> Iterator[Finding]:
    ops = unknown_cores(program)
    if ops:
        yield _finding(
            "unknown-cores",
            f"how many cores {program.describe(ops[0])} uses is not known, nor of {len(ops)} operators in all; they "
            "count as needing all cores of their card at once.",
            ops[:1],
        )


def _text_of(cores: Cores) -> str:
    parts = [f"{number} {kind}" for number, kind in zip(cores, ("cube", "vector"), strict=True) if number]
    return f"{' and '.join(parts) or 'no'} cores"
