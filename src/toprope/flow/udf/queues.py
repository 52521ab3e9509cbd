"""Queues of messages for functions with stream input.

A stage gives one to a function for each input that it declares as a stream; `worker.calls.InputQueue` is behind it.
The interface is Python's `queue.Queue`, and that timeouts are milliseconds is CANN's. Tests:
tests/flow/test_flow_assertions.py, tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import queue
from typing import Any, NoReturn

from toprope.flow.registry import unwrap

__all__ = ["FlowMsgQueue"]


class FlowMsgQueue(queue.Queue[Any]):
    """An input of a function with stream input, from which it takes as many values as it likes.

    Args:
        source: where they come from (`toprope.flow.worker.calls.InputQueue`).
    """

    def __init__(self, source: Any) -> None:
        self._source = source

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next value.

        Args:
            block: whether to wait for one.
            timeout: milliseconds; None for ever.

        Raises:
            queue.Empty: there is none within this time.
            ValueError: the timeout is negative.
            DfAbortException: the graph ends.
        """
        if block and timeout is not None and timeout < 0:
            raise ValueError(f"timeout must be at least 0 ms, got {timeout}")
        seconds = 0.0 if not block else None if timeout is None else timeout / 1000
        message = self._source.get(seconds)
        return unwrap(message.kind, message.payload)

    def get_nowait(self) -> Any:
        """The next value. Errors as of `get`."""
        return self.get(block=False)

    def qsize(self) -> int:
        """Number of available values."""
        return int(self._source.qsize())

    def empty(self) -> bool:
        """True if no value is available."""
        return not self.qsize()

    def full(self) -> bool:
        """Always False: the capacity is unknown here."""
        return False

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> NoReturn:
        """A stage does not put."""
        raise NotImplementedError("a stage takes from its inputs, it puts nothing into them")

    def put_nowait(self, item: Any) -> NoReturn:
        """A stage does not put."""
        self.put(item)

    def join(self) -> NoReturn:
        """A stage counts no tasks."""
        raise NotImplementedError("an input of a stage counts no tasks")

    def task_done(self) -> NoReturn:
        """A stage counts no tasks."""
        self.join()
