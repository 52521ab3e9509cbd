"""A result with everything that is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toprope.flow.exceptions import MODEL_EXECUTE_TIMEOUT, QUEUE_EMPTY, DfException
from toprope.flow.flow_info import FlowInfo

__all__ = ["FlowResult"]


@dataclass(frozen=True)
class FlowResult:
    """What `FlowGraph.fetch_result` gives.

    Attributes:
        values: one for each output; empty where there is no result.
        info: what travels with them.
        code: 0, or the code that `fetch` would return.
        error: what the user's code raised for this input, with its traceback as a note; None where nothing failed.
    """

    values: list[Any]
    info: FlowInfo
    code: int = 0
    error: BaseException | None = None

    @property
    def is_late(self) -> bool:
        """Whether there was no result within the time, and it failed for no other reason."""
        return self.error is None and self.code in (MODEL_EXECUTE_TIMEOUT, QUEUE_EMPTY)

    def get(self) -> list[Any]:
        """The values.

        Raises:
            Whatever the user's code raised; DfException with the code where there are no values for another reason.
        """
        if self.error is not None:
            raise self.error
        if self.code and not self.values:
            raise DfException(f"there is no result ({self.code})", self.code)
        return self.values
