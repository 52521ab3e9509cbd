"""How a tensor is cut so that an elementwise update of the pieces gives the bits of an update of the whole. Pure.

On the CPU (torch 2.13, ATen's TensorIterator) an elementwise operation on n elements is parted over the threads, from
32768 elements on, in equal runs; each run is done in vectors, and what is left at its end one by one. One by one may
round differently: in bfloat16 most operations do, and the fused optimizers in every dtype. So a piece must leave the
same elements over as the whole does:

- whole runs are cut at multiples of `UNIT` from their start, and a piece is a multiple of `UNIT` for each thread;
- the end of a run goes into pieces of fewer than 32768 elements, which are not parted.

The fused optimizers part the whole at multiples of a cache line instead; only its very end is left over.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GRAIN", "UNIT", "Tile", "tiles"]

GRAIN = 32768
"""Elements from which on an operation on the CPU is parted over threads."""

UNIT = 256
"""Elements of any dtype that are a whole number of unrolled vectors, and of cache lines."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a tensor that is moved at once.

    Attributes:
        start, stop: its elements in the order of memory.
        pieces: what is computed at once, from `start` to `stop`.
    """

    start: int
    stop: int
    pieces: tuple[tuple[int, int], ...]


def tiles(elements: int, most: int, threads: int, *, fused: bool = False) -> list[Tile]:
    """The tiles of a tensor, each of at most `most` elements, or of `UNIT` where that is more.

    Args:
        elements: of the tensor; one that is no larger than a tile is one tile of one piece.
        most: how many elements a tile should have at most.
        threads: that an operation is parted over.
        fused: the operation is one of the fused optimizers.
    """
    most = most // (UNIT * threads) * (UNIT * threads) or max(most // UNIT, 1) * UNIT
    if elements <= most:
        return [Tile(0, elements, ((0, elements),))]
    found: list[Tile] = []
    for start, stop in [(0, elements)] if fused else _runs(elements, threads):
        for first in range(start, stop, most):
            last = min(first + most, stop)
            found.append(Tile(first, last, tuple(_pieces(first, last, threads, fused))))
    return found


def _runs(elements: int, threads: int) -> list[tuple[int, int]]:
    """What each thread does of the whole."""
    length = -(-elements // min(threads, -(-elements // GRAIN)))
    return [(start, min(start + length, elements)) for start in range(0, elements, length)]


def _pieces(start: int, stop: int, threads: int, fused: bool) -> list[tuple[int, int]]:
    """A tile's pieces: one that every thread has an equal part of, and small ones that no other thread helps with."""
    if fused or threads == 1:
        return [(start, stop)]
    found = []
    even = (stop - start) // (UNIT * threads) * (UNIT * threads)
    if even > GRAIN * (threads - 1):
        found.append((start, start + even))
        start += even
    small = GRAIN - UNIT
    while stop - start >= GRAIN:
        found.append((start, start + small))
        start += small
    if start < stop:
        found.append((start, stop))
    return found
