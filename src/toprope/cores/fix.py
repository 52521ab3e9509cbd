"""Fix for a deadlock: the largest limit of one operator that makes the program safe; pure.

`check` calls it with its own tests as the judge of a limit, and a deadline; what is not proven in time is no fix. Which
operators are tried first is a free choice. Limits for whole streams are `cores.planning`. Tests:
tests/cores/test_cores_check.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from toprope.cores.model import Cores, Op, Program
from toprope.cores.state import State

__all__ = ["Fix", "Fixes", "find_fixes", "with_limit"]


@dataclass(frozen=True, slots=True)
class Fix:
    """A limit that makes a program safe.

    Attributes:
        op: name of the operators to limit, all of them.
        cards: names of the cards that run them.
        cube, vector: the limit: the largest with which the sums of S1 prove the program safe, or, where no sum does,
            the largest that the exact test allows; of a kind of core that they do not use, or that need not be
            limited, what they use anyway.
        exact_cube, exact_vector: the largest limit that the exact test still allows; None where it is no larger, or
            was not found in time.
        by_sums: whether S1 proves it, so that it holds under every discipline.
    """

    op: str
    cards: tuple[str, ...]
    cube: int
    vector: int
    exact_cube: int | None = None
    exact_vector: int | None = None
    by_sums: bool = True


@dataclass(frozen=True)
class Fixes:
    """Result of the search for a fix.

    Attributes:
        best: the limit that costs least; None where none was found.
        undecided: names of operators for which the exact test did not decide in time whether a limit helps.
        no_effect: operators that were not tried, since the card ignores a limit for them, each with the reason.
    """

    best: Fix | None = None
    undecided: tuple[str, ...] = ()
    no_effect: dict[str, str] = field(default_factory=dict)


IsSafe = Callable[[Program], bool | None]


def find_fixes(program: Program, witness: State, is_safe: IsSafe, *, monotone: bool = True) -> Fixes:
    """Find the limit of one operator that makes a program safe and costs least.

    Only operators that are active in the witness and need all of their blocks at once are tried: with a limit on any
    other the witness is still a deadlock. Limits that sums prove are preferred; where there is none, every one of these
    operators is tried by the exact test, from one block upwards.

    Args:
        program: what deadlocks.
        witness: a moment in which it has.
        is_safe: the exact test; None where it did not decide in time.
        monotone: whether a smaller limit is always at least as safe, as it is under D0, D1 and D2. Else every number
            of blocks is tried.

    Returns:
        The limit that takes the smallest share of the cores from its operator; local operators go before collectives,
        whose limit all ranks must share.
    """
    ops = [op for op in (program.op(id) for id in witness.active) if op.all_at_once and op.blocks > 1]
    names = list(dict.fromkeys(op.name for op in ops))
    no_effect = {
        name: op.ignores_limit
        for name in names
        if all(op.ignores_limit for op in ops if op.name == name)
        for op in [next(op for op in ops if op.name == name)]
    }
    tried = [_Limits(program, name) for name in names if name not in no_effect]
    found = [(limits, blocks) for limits in tried if (blocks := _largest(limits.blocks, limits.sums_fit))]
    by_sums, undecided = bool(found), []
    for limits in tried if not found else ():
        one = is_safe(limits.program_with(1))
        if one is None:
            undecided.append(limits.name)
        elif one or not monotone:
            blocks = _largest(limits.blocks, partial(_is_safe_with, limits, is_safe), monotone)
            found += [(limits, blocks)] if blocks else []
    if not found:
        return Fixes(None, tuple(undecided), no_effect)
    limits, blocks = min(found, key=lambda each: (each[0].largest.collective is not None, -each[1] / each[0].blocks))
    more = blocks
    if by_sums:
        more = _largest(limits.blocks, lambda each: each <= blocks or _is_safe_with(limits, is_safe, each), monotone)
    exact: tuple[int | None, int | None] = limits.of(more) if more > blocks else (None, None)
    cards = tuple(card.name for card in program.cards if card.name in limits.cards)
    return Fixes(Fix(limits.name, cards, *limits.of(blocks), *exact, by_sums), tuple(undecided), no_effect)


def _is_safe_with(limits: _Limits, is_safe: IsSafe, blocks: int) -> bool:
    return is_safe(limits.program_with(blocks)) is True


def with_limit(program: Program, name: str, limit: Cores) -> Program:
    """The program with all operators of a name launched within a limit; on one block at least."""
    streams = (
        replace(stream, ops=tuple(op.within(limit) if op.name == name else op for op in stream.ops))
        for stream in program.streams
    )
    return replace(program, streams=tuple(streams))


def _largest(most: int, good: Callable[[int], bool], monotone: bool = True) -> int:
    """The largest number below `most` that is good; 0 without one. Monotone: each below a good one is good too."""
    if not monotone:
        return next((each for each in range(most - 1, 0, -1) if good(each)), 0)
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low if low and good(low) else 0


class _Limits:
    """Limits for the operators of one name, and whether S1 proves the program safe with them."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name
        self.variants: list[dict[tuple[Cores, bool, str], Op]] = []
        """Of each stream: its operators of the name, those alike once."""
        self.others: list[list[int]] = []
        """Of each stream and kind of core: what the largest of all others needs."""
        for stream in program.streams:
            alike = {(op.cores, op.all_at_once, op.ignores_limit): op for op in stream.ops if op.name == name}
            self.variants.append(alike)
            rest = [op.need for op in {(op.cores, op.all_at_once): op for op in stream.ops if op.name != name}.values()]
            self.others.append([max((need[kind] for need in rest), default=0) for kind in (0, 1)])
        named = [op for ops in self.variants for op in ops.values()]
        self.cards = {stream.card for stream, ops in zip(program.streams, self.variants, strict=True) if ops}
        self.most = [max(op.cores[kind] for op in named) for kind in (0, 1)]
        self.largest = max(named, key=lambda op: (op.all_at_once, not op.ignores_limit, op.blocks))
        self.blocks = self.largest.blocks
        self.units = [self.largest.block[kind] or max(op.block[kind] for op in named) for kind in (0, 1)]

    def of(self, blocks: int) -> Cores:
        """The limit that leaves the largest operator this number of blocks, and no other operator more."""
        cube, vector = (min(blocks * unit, most) for unit, most in zip(self.units, self.most, strict=True))
        return cube, vector

    def program_with(self, blocks: int) -> Program:
        """The program with this limit."""
        return with_limit(self.program, self.name, self.of(blocks))

    def sums_fit(self, blocks: int) -> bool:
        """Return True if S1 proves the program safe with this limit."""
        limit = self.of(blocks)
        totals = {card.name: [0, 0] for card in self.program.cards}
        for stream, ops, others in zip(self.program.streams, self.variants, self.others, strict=True):
            needs = [op.within(limit).need for op in ops.values()]
            for kind in (0, 1):
                totals[stream.card][kind] += max([others[kind], *(need[kind] for need in needs)])
        return all(totals[card.name][kind] <= card.cores[kind] for card in self.program.cards for kind in (0, 1))
