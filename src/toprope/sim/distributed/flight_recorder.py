"""torch_npu's flight recorder: the last operations of this process's groups, for `_dump_hccl_trace`.

collectives.py and work.py write into it; `torch_npu._C._distributed_c10d` dumps it. It keeps as many operations as
TORCH_HCCL_TRACE_BUFFER_SIZE says, none without it. With TORCH_HCCL_DUMP_ON_TIMEOUT=1 a process writes them into a file
when another process does not arrive. Source of the format, version 2.4: torch_npu/csrc/distributed/TraceUtils.h of
Ascend/pytorch. Tests: tests/sim/test_distributed.py, with cases of tests/helpers/distributed_cases.py.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from toprope.sim.dtypes import scalar_name

__all__ = ["GroupStatus", "begin", "dump", "write_file"]

_log = logging.getLogger("toprope")

_VERSION = "2.4"
_EXECUTION_SECONDS = 1836
"""HCCL_EXEC_TIMEOUT where it is not set; torch_npu's watchdog gives 30 minutes more."""

_FILE = "/tmp/hccl_trace_rank_"
"""Beginning of the file's name; the rank follows."""

_numbers = itertools.count()
_records = itertools.count()
_lock = threading.Lock()
_entries: deque[_Entry] = deque()


@dataclass
class GroupStatus:
    """Counts of one group's operations."""

    name: str
    ranks: list[int]
    number: int = field(default_factory=lambda: next(_numbers))
    collectives: int = 0
    messages: int = 0
    operations: int = 0
    completed: int = -1


@dataclass
class _Entry:
    group: GroupStatus
    fields: dict[str, Any]
    frames: list[dict[str, Any]]
    is_complete: bool = False


def begin(
    group: GroupStatus,
    inputs: Any,
    outputs: Any,
    message_between: tuple[int, int] | None,
    *,
    is_message: bool,
    rank: int,
) -> Callable[[], None] | None:
    """Record an operation that is about to start.

    Args:
        group: its group.
        inputs: tensors that it reads, or lists of them.
        outputs: tensors that it writes, or lists of them.
        message_between: the ranks that send and receive a message, where both are known.
        is_message: whether it is a message.
        rank: of this process in the group.

    Returns:
        What is called when it has ended; None where nothing is recorded.
    """
    room = int(os.environ.get("TORCH_HCCL_TRACE_BUFFER_SIZE") or 0)
    if room <= 0:
        return None
    with _lock:
        group.operations += 1
        group.messages += is_message
        group.collectives += not is_message
        sequence = group.collectives
        title = ""
        if message_between is not None:
            sender, receiver = message_between
            title = f"hccl:send {sender}->{receiver}" if sender == rank else f"hccl:recv {receiver}<-{sender}"
        entry = _Entry(
            group,
            {
                "record_id": next(_records),
                "pg_id": group.number,
                "process_group": (group.name, ""),
                "collective_seq_id": sequence,
                "p2p_seq_id": group.messages,
                "op_id": group.operations,
                "profiling_name": title,
                "time_created_ns": time.time_ns(),
                **_described("input", inputs),
                **_described("output", outputs),
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "timeout_ms": 1000 * (int(os.environ.get("HCCL_EXEC_TIMEOUT") or _EXECUTION_SECONDS) + 1800),
                "is_p2p": is_message,
            },
            list(_frames()),
        )
        _entries.append(entry)
        while len(_entries) > room:
            _entries.popleft()

    def end() -> None:
        with _lock:
            entry.is_complete = True
            entry.fields["time_discovered_completed_ns"] = time.time_ns()
            if not is_message:
                group.completed = max(group.completed, sequence)

    return end


def _described(kind: str, tensors: Any) -> dict[str, Any]:
    flat = list(_flat(tensors))
    names = [scalar_name(each.dtype) for each in flat]
    return {f"{kind}_sizes": [list(each.shape) for each in flat], f"{kind}_dtypes": names}


def _flat(tensors: Any) -> Iterator[Tensor]:
    if isinstance(tensors, Tensor):
        yield tensors
    else:
        for each in tensors:
            yield from _flat(each)


def _frames() -> Iterator[dict[str, Any]]:
    frame: Any = sys._getframe(3)
    while frame is not None:
        yield {"name": frame.f_code.co_name, "filename": frame.f_code.co_filename, "line": frame.f_lineno}
        frame = frame.f_back


def dump(*, entries: bool, frames: bool, only_active: bool) -> dict[str, Any]:
    """Return what is recorded.

    Args:
        entries: whether the operations are among it, next to the groups.
        frames: whether an operation has the Python code that asked for it.
        only_active: whether operations that have ended are left out.
    """
    with _lock:
        kept = list(_entries)
        groups = {entry.group.number: entry.group for entry in kept}
        made: dict[str, Any] = {
            "version": _VERSION,
            "hccl_comm_state": {},
            "pg_config": {
                each.name: {"name": each.name, "desc": "", "ranks": str(each.ranks)} for each in groups.values()
            },
            "pg_status": {
                str(each.number): {
                    "last_enqueued_collective": each.collectives,
                    "last_started_collective": -1,
                    "last_completed_collective": each.completed,
                }
                for each in groups.values()
            },
        }
        if entries:
            made["entries"] = [
                {
                    **({"frames": entry.frames} if frames else {}),
                    **entry.fields,
                    "state": "completed" if entry.is_complete else "scheduled",
                    "retired": entry.is_complete,
                }
                for entry in kept
                if not (only_active and entry.is_complete)
            ]
        return made


def write_file() -> None:
    """Write what is recorded into the file of this process, if TORCH_HCCL_DUMP_ON_TIMEOUT asks for it."""
    if os.environ.get("TORCH_HCCL_DUMP_ON_TIMEOUT") != "1" or not _entries:
        return
    path = f"{os.environ.get('TORCH_HCCL_DEBUG_INFO_TEMP_FILE', _FILE)}{torch.distributed.get_rank()}"
    try:
        with open(path, "wb") as file:
            pickle.dump(dump(entries=True, frames=True, only_active=False), file)
    except OSError as error:
        _log.warning("the flight recorder cannot write %s: %s", path, error)
