"""Streams on which torch_npu's HCCL runs a group's collectives and messages, for programs that ask for them.

Used by process_group.py. Here gloo runs collectives in threads of the host: the streams exist, and nothing is queued on
them. Tests: tests/sim/simulated/test_hccl_alone.py.
"""

from __future__ import annotations

from typing import Any

__all__ = ["HcclStreams"]

NONE = -1
"""torch_npu's number for a stream that is not there yet."""


class HcclStreams:
    """One stream of a card for collectives, and one for messages with each peer; made where a program asks for it.

    Args:
        is_high_priority: whether they have high priority.
    """

    def __init__(self, is_high_priority: bool) -> None:
        self._priority = -1 if is_high_priority else 0
        self._used: set[tuple[int, int | None]] = set()
        self._made: dict[tuple[int, int | None], Any] = {}

    def note(self, card: int, peer: int | None = None) -> None:
        """Note a collective on a card, or a message to or from a peer, which may be one of a batch."""
        self._used.add((card, None))
        self._used.add((card, peer))

    def number(self, card: int, peer: int | None = None, *, is_used: bool = False) -> int:
        """Return the number of a stream; -1 for one on which nothing has been done.

        Args:
            card: its index.
            peer: rank of the other process, None for collectives.
            is_used: whether the stream is made all the same.
        """
        key = (card, peer)
        if key not in self._used and not is_used:
            return NONE
        self._used.add(key)
        if key not in self._made:
            from toprope.sim.npu.streams import Stream  # this module is imported before torch.npu is there

            self._made[key] = Stream(card, priority=self._priority)
        number: int = self._made[key].stream_id
        return number
