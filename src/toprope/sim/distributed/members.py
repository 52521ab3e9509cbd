"""Names of a process group and its collectives in traces: the same in all processes, which lets traces be merged.

Used by collectives.py and process_group.py; csrc/core/trace.cpp puts them together, toprope.sim.tracing.records takes
them apart. Also a warning where the processes of a group run a collective on different numbers of cores. Tests:
tests/sim/test_distributed.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from toprope.collectives import hccl_minimum
from toprope.sim.native import native
from toprope.sim.state import installed

__all__ = ["Members", "Traced", "begin", "check_cores", "on_vector_cores", "warn_of_other_limits"]

_log = logging.getLogger("toprope")

_LONGEST_NAME = 24
"""A communicator's name shares 47 bytes of a trace with the word "hcom", a rank and the number of ranks."""

_BUFFER = 200
"""MB of a buffer of a communicator where nothing else is set."""


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
        self.differs: set[int] = set()
        """Ranks that were said to have another limit of vector cores than this process."""
        self.with_buffers: set[frozenset[int] | None] = set()
        """Communicators whose buffers were counted: None for that with all members, else the two ranks of messages."""
        self._collectives = count()
        self._messages: defaultdict[tuple[int, int], count[int]] = defaultdict(count)

    def next(self, between: tuple[int, int] | None, is_message: bool) -> tuple[str, int, int, int]:
        """Communicator, rank, ranks and number of the next collective; a negative rank for a message from any process.

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


@dataclass(frozen=True)
class Traced:
    """A collective that is traced.

    Attributes:
        end: records it, when it has ended.
        waited: records that the current stream waits for it.
    """

    end: Callable[[], None]
    waited: Callable[[], None]


def begin(name: str, hccl: Any, results: Any, between: tuple[int, int] | None, *, is_message: bool) -> Traced | None:
    """Count a collective of a group; the result records it while a trace is written, else None.

    Args:
        name: the collective, as torch's backends name it.
        hccl: the backend.
        results: its device tensors, of which the first says on which card it is.
        between: sender and receiver of a message, where both are known.
        is_message: whether it is a message.
    """
    communicator, rank, ranks, sequence = hccl.members.next(between, is_message)
    tensors = _on_cards(results)
    card = _card(tensors)
    _count_buffers(hccl, card, between if is_message else None)
    library = native()
    if not library.is_tracing():
        return None
    size = sum(tensor.nbytes for tensor in tensors)
    stream, began, vector = library.current_stream(card), library.now_ns(), _vector_cores(card)
    member = communicator.encode(), rank, ranks, sequence
    return Traced(
        lambda: library.note_collective(f"hccl::{name}".encode(), card, stream, began, size, 0, vector, *member),
        lambda: library.note_collective_wait(card, *member),
    )


def _count_buffers(hccl: Any, card: int, between: tuple[int, int] | None) -> None:
    """Count the buffers of a communicator at its first collective, when HCCL makes it: one to send and one to receive.

    Messages between two ranks have a communicator of their own. HCCL_BUFFSIZE, and `hccl_buffer_size` of a group, are
    in MB (CANN's list of environment variables; 200 by default).
    """
    key = None if between is None else frozenset(between)
    if key in hccl.members.with_buffers:
        return
    hccl.members.with_buffers.add(key)
    text = str(hccl.options.hccl_config.get("hccl_buffer_size") or os.environ.get("HCCL_BUFFSIZE", ""))
    size = int(text) if text.isdigit() and int(text) > 0 else _BUFFER
    native().note_runtime_memory(card, 2 * size * 2**20)


def check_cores(name: str, hccl: Any, results: Any) -> int:
    """Vector cores that a collective which runs on them may take.

    Raises:
        RuntimeError: they are fewer than HCCL's documented minimum.
    """
    cores = _vector_cores(_card(_on_cards(results)))
    spec = installed()
    assert spec is not None  # there is a card, or nobody could call a collective on it
    minimum = hccl_minimum(name, spec.chip, hccl.members.size)
    if minimum is not None and cores < minimum.cores:
        raise RuntimeError(
            f"HCCL function error: {name}, HCCL_E_PARA: {cores} vector cores are fewer than the {minimum.cores} "
            f"that it needs at least on {hccl.members.size} ranks of a {spec.chip} "
            "(HCCL_OP_EXPANSION_MODE=AIV). Raise the limit of the stream that it is called on."
        )
    return cores


def warn_of_other_limits(hccl: Any, cores: Sequence[int]) -> None:
    """Warn of each rank whose limit of vector cores is another than this one's, once.

    Args:
        hccl: the backend.
        cores: vector cores of every rank.
    """
    members = hccl.members
    for rank, number in enumerate(cores):
        if number != cores[members.rank] and rank not in members.differs:
            members.differs.add(rank)
            _log.warning(
                "op information aivCoreLimit check fail: rank %d may use %d vector cores and rank %d %d; all ranks of "
                "a collective should have the same limit", members.rank, cores[members.rank], rank, number,
            )  # fmt: skip


def on_vector_cores() -> bool:
    """Return True if collectives run on vector cores, which HCCL_OP_EXPANSION_MODE=AIV asks for."""
    return os.environ.get("HCCL_OP_EXPANSION_MODE", "").upper() == "AIV"


def _on_cards(results: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.device.type == "npu"]


def _card(tensors: list[Tensor]) -> int:
    return int(tensors[0].device.index if tensors else native().current_device())


def _vector_cores(card: int) -> int:
    """Vector cores that HCCL may take: the caller's limit where they do the work (AIV), else none."""
    if not on_vector_cores():
        return 0
    limits = (ctypes.c_int * 2)()
    native().limits_here(card, limits)
    return limits[1]
