"""Cut a tensor so that an elementwise update of the pieces gives the same bits as an update of the whole. Pure.

`training.optimizer` cuts parameters by it. Fixed by torch (2.13, ATen's TensorIterator): on the CPU an elementwise
operation on 32768 or more elements is divided among the threads in equal runs; each run is done in vectors, and the
rest at its end element by element. The two may round differently: in bfloat16 for most operations, in the fused
optimizers for every dtype. So the pieces must have the same elements in such a rest as the whole:

- runs are cut at multiples of `UNIT` from their start, and a piece is a multiple of `UNIT` for each thread;
- the end of a run goes into pieces of fewer than 32768 elements, which are not divided.

The fused optimizers divide the whole at multiples of a cache line instead; only its very end is such a rest. A torch
that divides in another way shows in the tests. Tests: tests/tiers/test_tiers_tiles.py.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GRAIN", "UNIT", "Tile", "tiles"]

GRAIN = 32768
"""Number of elements from which an operation on the CPU is divided among threads."""

UNIT = 256
"""Number of elements that, in any dtype, is a whole number of unrolled vectors and of cache lines."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a tensor that is moved in one piece.

    Attributes:
        start, stop: range of its elements in the order of memory.
        pieces: ranges that are computed separately, from `start` to `stop`.
    """

    start: int
    stop: int
    pieces: tuple[tuple[int, int], ...]


def tiles(elements: int, most: int, threads: int, *, fused: bool = False) -> list[Tile]:
    """Cut a tensor into tiles of at most `most` elements, or of `UNIT` if that is more.

    Args:
        elements: number of elements; a tensor no larger than a tile is one tile of one piece.
        most: largest number of elements of a tile.
        threads: number of threads among which an operation is divided.
        fused: True for the operations of fused optimizers.
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
    """The run of elements of each thread."""
    length = -(-elements // min(threads, -(-elements // GRAIN)))
    return [(start, min(start + length, elements)) for start in range(0, elements, length)]


def _pieces(start: int, stop: int, threads: int, fused: bool) -> list[tuple[int, int]]:
    """Cut a tile into pieces: a large one with equal parts for all threads, and small ones for a single thread."""
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
