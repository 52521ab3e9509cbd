"""What makes a program safe: the largest limit of one operator; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from toprope.cores.model import Cores, Op, Program
from toprope.cores.state import State

__all__ = ["Mend", "mend", "with_limit"]


@dataclass(frozen=True, slots=True)
class Mend:
    """A limit that makes a program safe.

    Attributes:
        op: name of the operators to limit, all of them.
        cards: names of the cards that run them.
        cube, vector: the largest limit with which the sums of S1 prove the program safe; of a kind of core that they do
            not use, or that need not be limited, what they use anyhow.
        exact_cube, exact_vector: the largest limit that the exact test still allows; None where it is no larger, or
            was not found in time.
    """

    op: str
    cards: tuple[str, ...]
    cube: int
    vector: int
    exact_cube: int | None = None
    exact_vector: int | None = None


def mend(program: Program, witness: State, is_safe: Callable[[Program], bool]) -> Mend | None:
    """The limit of one operator that makes a program safe and costs least.

    Args:
        program: what deadlocks.
        witness: a moment in which it has.
        is_safe: the exact test; that it could not decide counts as no.

    Returns:
        Of the operators in the witness whose blocks all need their cores at once, the one that loses the smallest
        share of its cores; local ones before collectives, whose limit is a matter of all ranks. None where S1 proves
        no limit of a single operator safe.
    """
    ops = (program.op(id) for id in witness.active)
    names = dict.fromkeys(op.name for op in ops if op.all_at_once and op.blocks > 1)
    found: list[tuple[bool, float, _Limits, int]] = []
    for name in names:
        limits = _Limits(program, name)
        blocks = _largest(limits.blocks, limits.sums_fit)
        if blocks:
            found.append((limits.largest.collective is not None, 1 - blocks / limits.blocks, limits, blocks))
    if not found:
        return None
    *_, limits, blocks = min(found, key=lambda each: each[:2])
    more = _largest(
        limits.blocks, lambda each: each <= blocks or is_safe(with_limit(program, limits.name, limits.of(each)))
    )
    exact: tuple[int | None, int | None] = limits.of(more) if more > blocks else (None, None)
    cards = tuple(card.name for card in program.cards if card.name in limits.cards)
    return Mend(limits.name, cards, *limits.of(blocks), *exact)


def with_limit(program: Program, name: str, limit: Cores) -> Program:
    """The program with all operators of a name launched within a limit; on one block at least."""
    streams = (
        replace(stream, ops=tuple(_limited(op, limit) if op.name == name else op for op in stream.ops))
        for stream in program.streams
    )
    return replace(program, streams=tuple(streams))


def _limited(op: Op, limit: Cores) -> Op:
    blocks = _blocks(op, limit)
    return replace(op, cube=blocks * op.block[0], vector=blocks * op.block[1])


def _blocks(op: Op, limit: Cores) -> int:
    fits = [limit[kind] // op.block[kind] for kind in (0, 1) if op.block[kind]]
    return max(min([op.blocks, *fits]), min(op.blocks, 1))


def _largest(most: int, good: Callable[[int], bool]) -> int:
    """The largest number below `most` that is good, where each below a good one is; 0 without one."""
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low if low and good(low) else 0


class _Limits:
    """Limits for the operators of one name, and what S1 says of them."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name
        self.variants: list[dict[tuple[Cores, bool], Op]] = []
        """Of each stream: its operators of the name, those alike once."""
        self.others: list[list[int]] = []
        """Of each stream and kind of core: what the largest of all others needs."""
        for stream in program.streams:
            self.variants.append({(op.cores, op.all_at_once): op for op in stream.ops if op.name == name})
            rest = [op.need for op in {(op.cores, op.all_at_once): op for op in stream.ops if op.name != name}.values()]
            self.others.append([max((need[kind] for need in rest), default=0) for kind in (0, 1)])
        named = [op for ops in self.variants for op in ops.values()]
        self.cards = {stream.card for stream, ops in zip(program.streams, self.variants, strict=True) if ops}
        self.most = [max(op.cores[kind] for op in named) for kind in (0, 1)]
        self.largest = max(named, key=lambda op: (op.all_at_once, op.blocks))
        self.blocks = self.largest.blocks

    def of(self, blocks: int) -> Cores:
        """The limit that leaves the largest operator so many blocks."""
        cube, vector = self.largest.block
        return blocks * cube or self.most[0], blocks * vector or self.most[1]

    def sums_fit(self, blocks: int) -> bool:
        """Whether S1 proves the program safe with this limit."""
        limit = self.of(blocks)
        totals = {card.name: [0, 0] for card in self.program.cards}
        for stream, ops, others in zip(self.program.streams, self.variants, self.others, strict=True):
            needs = [_limited(op, limit).need for op in ops.values()]
            for kind in (0, 1):
                totals[stream.card][kind] += max([others[kind], *(need[kind] for need in needs)])
        return all(totals[card.name][kind] <= card.cores[kind] for card in self.program.cards for kind in (0, 1))
