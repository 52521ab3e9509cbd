"""Errors of the dataflow API, and the codes that its calls return.

For users; all of `toprope.flow` raises and returns them. Names and numbers are fixed by CANN's dataflow API. Building a
graph raises; feeding and fetching return codes. If a decorator or an argument's type is refused, the error is a
`DfException`, as CANN's manual says, and at the same time the TypeError, ValueError or AssertionError that its package
raises. Tests: tests/flow/test_flow_run.py, tests/flow/test_flow_semantics.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

__all__ = [
    "DATATYPE_INVALID",
    "FAILED",
    "FLOW_FUNC_FAILED",
    "INNER_ERROR",
    "NOT_INIT",
    "PARAM_INVALID",
    "SHAPE_INVALID",
    "SUCCESS",
    "DfAbortException",
    "DfAssertionError",
    "DfException",
    "DfTypeError",
    "DfValueError",
    "as_exception",
    "with_notes",
]

SUCCESS = 0
PARAM_INVALID = 145000
NOT_INIT = 145001
SHAPE_INVALID = 145021
DATATYPE_INVALID = 145022
INNER_ERROR = 545000
FAILED = 4294967295
SUBHEALTHY = 345102
USER_RAISE_EXCEPTION = 345103
DATA_NOT_ALIGNED = 345104
MODEL_EXECUTE_TIMEOUT = 545601
QUEUE_EMPTY = 207013
QUEUE_FULL = 207014
UDF_PARAM_INVALID = 164000
DATA_ALIGN_FAILED = 364000
FLOW_FUNC_FAILED = 564000


class DfException(Exception):  # noqa: N818 - the reference's name
    """A graph, or a call of it, is invalid.

    Attributes:
        message: what is invalid.
        error_code: the reference's code.
    """

    def __init__(self, message: str, error_code: int = PARAM_INVALID) -> None:
        super().__init__(message, error_code)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"DfException:{self.error_code}:{self.message}"


class DfAbortException(DfException):
    """The graph ended during a wait."""


class DfTypeError(DfException, TypeError):
    """An argument has the wrong type."""


class DfValueError(DfException, ValueError):
    """The inputs and outputs of a class's functions do not match."""


class DfAssertionError(DfException, AssertionError):
    """The arguments of a decorator contradict each other."""


def as_exception(error: BaseException) -> Exception:
    """Make an Exception of an error: SystemExit and its kind would end the program that asks for the result."""
    if isinstance(error, Exception):
        return error
    text = f": {error}" if str(error) else ""
    return DfException(f"the function raised {type(error).__name__}{text}", FLOW_FUNC_FAILED)


def with_notes(error: BaseException) -> str:
    """The text of an error and its notes, such as a stage's traceback, for the log."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])
