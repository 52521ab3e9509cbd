"""Memory over time: blocks with a birth, a death and a kind, the peak and its holders; pure.

recorder.py fills it, model/workloads.py reads it. Sizes are rounded as torch's caching allocator does, to 512 bytes.
Tests: tests/estimate/test_paper.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Block", "Ledger", "rounded"]

_GRAIN = 512


def rounded(size: int) -> int:
    """Bytes that torch's caching allocators give for a request: the next multiple of 512."""
    return -(-size // _GRAIN) * _GRAIN


@dataclass(slots=True)
class Block:
    """Memory of one storage.

    Attributes:
        size: bytes, as the allocator rounds them.
        kind: "weights", "gradients", "activations" and the like.
        label: operator, dtype and shape that it was made with.
        born, died: positions in the sequence of allocations and releases; died is -1 while it is alive.
    """

    size: int
    kind: str
    label: str
    born: int
    died: int = -1


class Ledger:
    """Allocations and releases in their order.

    Attributes:
        now: bytes in use.
        peak: the most that was in use at once.
    """

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._blocks: list[Block] = []
        self._moment = 0
        self._peak_moment = 0

    def allocate(self, size: int, kind: str, label: str = "") -> Block:
        """Add a block of at least `size` bytes."""
        self._moment += 1
        block = Block(rounded(size), kind, label, self._moment)
        self._blocks.append(block)
        self.now += block.size
        if self.now > self.peak:
            self.peak, self._peak_moment = self.now, self._moment
        return block

    def release(self, block: Block) -> None:
        """End a block's life; a second time is ignored."""
        if block.died < 0:
            self._moment += 1
            block.died = self._moment
            self.now -= block.size

    def alive(self, kinds: Iterable[str] = ()) -> int:
        """Bytes of the blocks of these kinds that are alive; of all kinds without any."""
        wanted = set(kinds)
        return sum(each.size for each in self._blocks if each.died < 0 and (not wanted or each.kind in wanted))

    def at_peak(self) -> list[Block]:
        """The blocks that were alive at the peak."""
        moment = self._peak_moment
        return [each for each in self._blocks if each.born <= moment and (each.died < 0 or each.died > moment)]

    def peak_by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind, the most first."""
        return _sums((each.kind, each.size) for each in self.at_peak())

    def peak_by_label(self, kind: str) -> dict[str, int]:
        """Bytes at the peak of one kind by label, the most first."""
        return _sums((each.label, each.size) for each in self.at_peak() if each.kind == kind)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, size in pairs:
        sums[name] += size
    return dict(sums.most_common())
