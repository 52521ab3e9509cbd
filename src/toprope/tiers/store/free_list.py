"""Free list: allocates ranges of a file or of memory. Pure: offsets and lengths.

`store.spill` and, through it, stacks allocate their files by it. Ranges never overlap and begin at multiples of the
alignment; which free range is taken is free. It has no lock: the caller's guards it. Tests:
tests/tiers/test_tiers_stores.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Extents"]


class Extents:
    """Allocator of ranges in a space that grows; best fit, and neighbouring free ranges are merged.

    Args:
        alignment: offsets and lengths are multiples of it.
    """

    def __init__(self, alignment: int = 4096) -> None:
        self.alignment = alignment
        self.end = 0
        """End of the space that was ever allocated."""
        self.used = 0
        """Allocated bytes, rounded up."""
        self._by_size: list[tuple[int, int]] = []  # (length, offset)
        self._at: dict[int, int] = {}  # offset -> length of free ranges
        self._until: dict[int, int] = {}  # end -> offset

    def rounded(self, length: int) -> int:
        """Bytes that a range of this length takes; an empty one takes one unit, so that its offset is unique."""
        return max(1, -(-length // self.alignment)) * self.alignment

    def fits(self, length: int) -> bool:
        """True if a free range of this length exists without growing."""
        return bisect_left(self._by_size, (self.rounded(length), -1)) < len(self._by_size)

    def together(self, limit: int) -> int:
        """The length of the longest range that can be allocated below `limit`."""
        last = self._until.get(self.end, self.end)
        return max(self._by_size[-1][0] if self._by_size else 0, limit // self.alignment * self.alignment - last)

    def take(self, length: int) -> int:
        """Allocate a range, and return its offset."""
        size = self.rounded(length)
        self.used += size
        place = bisect_left(self._by_size, (size, -1))
        if place < len(self._by_size):
            found, offset = self._by_size[place]
            self._remove(offset, found)
            if found > size:
                self._add(offset + size, found - size)
            return offset
        last = self._until.get(self.end)
        offset = self.end
        if last is not None:  # the free range at the end grows
            offset = last
            self._remove(last, self._at[last])
        self.end = offset + size
        return offset

    def give_back(self, offset: int, length: int) -> None:
        """Free an allocated range."""
        size = self.rounded(length)
        self.used -= size
        before = self._until.get(offset)
        if before is not None:
            self._remove(before, self._at[before])
            offset, size = before, size + offset - before
        after = self._at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._at[offset], self._until[offset + size] = size, offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._at[offset], self._until[offset + size]
