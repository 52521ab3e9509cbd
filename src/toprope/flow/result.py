"""`FlowResult`: values, flow info, code and error of a result.

For users, of `FlowGraph.fetch_result`; futures and streams get their results in it. CANN has no such class: its
attributes are what docs/flow.md promises. Tests: tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toprope.flow.exceptions import MODEL_EXECUTE_TIMEOUT, QUEUE_EMPTY, DfException
from toprope.flow.flow_info import FlowInfo

__all__ = ["FlowResult"]


@dataclass(frozen=True)
class FlowResult:
    """Result of `FlowGraph.fetch_result`.

    Attributes:
        values: one for each output; empty where there is no result.
        info: their flow info.
        code: 0, or the code that `fetch` would return.
        error: the user's exception for this input, with its traceback as a note; None if nothing failed.
    """

    values: list[Any]
    info: FlowInfo
    code: int = 0
    error: BaseException | None = None

    @property
    def is_late(self) -> bool:
        """True if there was no result in time, for no other reason."""
        return self.error is None and self.code in (MODEL_EXECUTE_TIMEOUT, QUEUE_EMPTY)

    def get(self) -> list[Any]:
        """The values.

        Raises:
            The user's exception; DfException with the code if there are no values for another reason.
        """
        if self.error is not None:
            raise self.error
        if self.code and not self.values:
            raise DfException(f"there is no result ({self.code})", self.code)
        return self.values
