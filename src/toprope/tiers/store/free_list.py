"""Which stretches of a file, or of memory, are free. Pure: offsets and lengths."""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Extents"]


class Extents:
    """Gives out stretches of a space that grows, the smallest free one that fits first; neighbours grow together.

    Args:
        alignment: offsets and lengths are multiples of it.
    """

    def __init__(self, alignment: int = 4096) -> None:
        self.alignment = alignment
        self.end = 0
        """The space that was ever given out ends here."""
        self.used = 0
        """Bytes that are given out now, rounded up."""
        self._by_size: list[tuple[int, int]] = []  # (length, offset)
        self._at: dict[int, int] = {}  # offset -> length, of free stretches
        self._until: dict[int, int] = {}  # end -> offset

    def rounded(self, length: int) -> int:
        """What a stretch of so many bytes takes; an empty one takes one unit, so that its offset is its own."""
        return max(1, -(-length // self.alignment)) * self.alignment

    def fits(self, length: int) -> bool:
        """Whether there is a free stretch for it without growing."""
        return bisect_left(self._by_size, (self.rounded(length), -1)) < len(self._by_size)

    def together(self, limit: int) -> int:
        """The length of the longest stretch that could be taken if the space ended at `limit`."""
        last = self._until.get(self.end, self.end)
        return max(self._by_size[-1][0] if self._by_size else 0, limit // self.alignment * self.alignment - last)

    def take(self, length: int) -> int:
        """The offset of a stretch of so many bytes."""
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
        if last is not None:  # the free stretch at the end grows
            offset = last
            self._remove(last, self._at[last])
        self.end = offset + size
        return offset

    def give_back(self, offset: int, length: int) -> None:
        """A stretch that was taken is free again."""
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
