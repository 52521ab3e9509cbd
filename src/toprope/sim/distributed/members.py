"""Which collective of which communicator a call belongs to, so that the traces of several processes can be merged."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from toprope.sim.native import native
from toprope.sim.tracing import is_tracing

__all__ = ["Members", "begin"]

_LONGEST_NAME = 24
"""A communicator's name shares 47 bytes of a trace with the word "hcom", a rank and the number of ranks."""


class Members:
    """The members of one process group as a trace names them, and how many collectives they have begun.

    Args:
        name: of the group, the same in all its processes.
        ranks: the ranks of the group in the default group, empty for that one.
        rank: of this process in the group.
        size: processes in the group.
    """

    def __init__(self, name: str, ranks: Sequence[int], rank: int, size: int) -> None:
        self.name = name or "default"
        if ranks or len(self.name) > _LONGEST_NAME:
            # two groups of disjoint processes may have one name
            told = hashlib.sha1(f"{name} {list(ranks)}".encode(), usedforsecurity=False).hexdigest()[:8]
            self.name = f"{self.name[: _LONGEST_NAME - 9]}-{told}"
        self.rank, self.size = rank, size
        self._collectives = count()
        self._messages: defaultdict[tuple[int, int], count[int]] = defaultdict(count)

    def next(self, between: tuple[int, int] | None, is_message: bool) -> tuple[str, int, int, int]:
        """Communicator, rank, ranks and number of the next collective; a negative rank for a message from anybody.

        A message is a collective of two: the sender is rank 0 of them, and messages each way are counted apart.

        Args:
            between: sender and receiver of a message, where both are known.
            is_message: whether it is a message.
        """
        if not is_message:
            return self.name, self.rank, self.size, next(self._collectives)
        if between is None:
            return "", -1, 0, 0
        return f"{self.name}/{between[0]}>{between[1]}", int(self.rank == between[1]), 2, next(self._messages[between])


def begin(
    name: str, hccl: Any, results: Any, between: tuple[int, int] | None, *, is_message: bool
) -> Callable[[], None] | None:
    """Counts a collective of a group; what records its end where somebody traces, else None.

    Args:
        name: the collective, as torch's backends name it.
        hccl: the backend.
        results: its device tensors, of which the first says on which card it is.
        between: sender and receiver of a message, where both are known.
        is_message: whether it is a message.
    """
    communicator, rank, ranks, sequence = hccl.members.next(between, is_message)
    if not is_tracing():
        return None
    library = native()
    tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.device.type == "npu"]
    card = tensors[0].device.index if tensors else library.current_device()
    size = sum(tensor.nbytes for tensor in tensors)
    stream, began, vector = library.current_stream(card), library.now_ns(), _vector_cores(card)

    def note() -> None:
        library.note_collective(
            f"hccl::{name}".encode(), card, stream, began, size, 0, vector, communicator.encode(), rank, ranks, sequence
        )

    return note


def _vector_cores(card: int) -> int:
    """Vector cores that HCCL may take: the caller's limit where they do the work (AIV), else none."""
    if os.environ.get("HCCL_OP_EXPANSION_MODE", "").upper() != "AIV":
        return 0
    limits = (ctypes.c_int * 2)()
    native().limits_here(card, limits)
    return limits[1]
