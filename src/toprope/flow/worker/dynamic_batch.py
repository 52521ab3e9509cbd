"""Dynamic batching: inputs of several requests in one call, and the results split back to their requests; pure.

`worker.loop` collects by it, `worker.calls` divides by it; the decorators check their options by `check_batch`. A
stage with `batch=8, wait="5ms"` takes up to 8 inputs in one call, and waits at most 5 ms after the first of them.
Models (`npu_model`) are given tensors joined along their first axis, of rows of equal shape and dtype; functions
(`pyflow`) are given lists and return lists. The order of the inputs is kept. CANN has no such options: docs/serve.md
promises them, and their limits are free. Tests: tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toprope.flow.exceptions import DfException, DfTypeError
from toprope.flow.stage.spec import EMPTY, END, FAILURE

if TYPE_CHECKING:
    from toprope.flow.worker.input_matching import Gather, Group

__all__ = ["Collector", "check_batch", "chunks", "rows_of"]

_MOST = 65536
_LONGEST_NS = 60 * 10**9
_WAIT = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)")
_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def check_batch(batch: Any, wait: Any) -> tuple[int, int]:
    """The options `batch` and `wait` of a decorator.

    Returns:
        Most requests of a call (0 for no batching), and nanoseconds that the first of them waits for others.

    Raises:
        DfTypeError: a value has another type.
        DfException: a value is out of range.
    """
    if batch is None:
        if wait is not None:
            raise DfException("wait is given without batch: it is the time that the first request of a batch waits")
        return 0, 0
    if type(batch) is not int:
        raise DfTypeError(f"batch must be an int, got {batch!r}")
    if not 1 <= batch <= _MOST:
        raise DfException(f"batch must be 1 to {_MOST}, got {batch}")
    if wait is None:
        return batch, 0
    match = _WAIT.fullmatch(wait.strip()) if isinstance(wait, str) else None
    if match is None:
        raise DfTypeError(f'wait must be a time with its unit, such as "5ms" (us, ms, s), got {wait!r}')
    nanoseconds = round(float(match[1]) * _NS[match[2]])
    if nanoseconds > _LONGEST_NS:
        raise DfException(f"wait must be at most {_LONGEST_NS // 10**9} s, got {wait!r}")
    return batch, nanoseconds


def rows_of(values: Sequence[Any]) -> int | None:
    """The number of rows of the tensors of one request; None where they have none in common."""
    found = {len(each) if getattr(each, "ndim", 0) else None for each in values}
    return found.pop() if len(found) == 1 else None


def chunks(keys: Sequence[tuple[Any, int] | None], most: int) -> list[list[int]]:
    """Divide requests into calls.

    Args:
        keys: for each request what it must have in common with others, and its rows; None for one that goes alone.
        most: rows of a call; a request with more goes alone.

    Returns:
        Numbers of requests, each once.
    """
    found: list[list[int]] = []
    open_: dict[Any, tuple[list[int], int]] = {}
    for number, key in enumerate(keys):
        if key is None:
            found.append([number])
            continue
        kind, rows = key
        chunk, used = open_.get(kind, ([], 0))
        if not chunk or used + rows > most:
            chunk, used = [], 0
            found.append(chunk)
        chunk.append(number)
        open_[kind] = chunk, used + rows
    return found


class Collector:
    """Takes inputs until a batch is full, or its first input has waited long enough.

    Args:
        gather: the inputs.
        batch: most requests, or rows.
        wait_ns: see `StageSpec`.
        counts_rows: whether rows of tensors are counted, and not requests.
    """

    def __init__(self, gather: Gather, batch: int, wait_ns: int, *, counts_rows: bool) -> None:
        self._gather = gather
        self._batch = batch
        self._wait = wait_ns / 1e9
        self._counts_rows = counts_rows
        self._groups: list[Group] = []
        self._size = 0
        self._due: float | None = None

    def is_ready(self, now: float) -> bool:
        """Take inputs; true once there is a batch.

        Args:
            now: seconds of the steady clock.
        """
        while self._size < self._batch and len(self._groups) < 4 * self._batch and self._gather.is_ready():
            group = self._gather.take()
            self._groups.append(group)
            self._size += self._size_of(group)
            if self._due is None:
                self._due = now + self._wait
        if not self._groups:
            return False
        assert self._due is not None
        # inputs that need no call, such as failures, do not wait for others
        return self._size >= self._batch or not self._size or len(self._groups) >= 4 * self._batch or now >= self._due

    def _size_of(self, group: Group) -> int:
        if any(each.kind in (FAILURE, EMPTY) or each.head.flags & END for each in group.messages):
            return 0
        if not self._counts_rows:
            return 1
        return max(1, rows_of([each.payload for each in group.messages]) or 1)

    def take(self) -> list[Group]:
        """The batch."""
        found, self._groups, self._size, self._due = self._groups, [], 0, None
        return found

    def due(self) -> float | None:
        """The time at which `is_ready` changes without a new input; None for never."""
        found = self._gather.due()
        if self._due is None:
            return found
        return self._due if found is None else min(found, self._due)
