"""The log of functions in stages (`FlowFuncLogger`), with the names and levels of CANN's `dataflow.flow_func`.

For functions of the UDF interface. Log lines of `toprope.flow` itself go to `flow.session.logger`. A line that cannot
be formatted must not fail the input; the form of a line is free. Tests: tests/flow/test_flow_func.py.
"""

from __future__ import annotations

import logging
import os
import threading
from enum import IntEnum

__all__ = ["FlowFuncLogLevel", "FlowFuncLogType", "FlowFuncLogger", "logger"]


class FlowFuncLogType(IntEnum):
    """Kinds of logs: the one for debugging has levels, the other is always written."""

    DEBUG_LOG = 0
    RUN_LOG = 1


class FlowFuncLogLevel(IntEnum):
    """Levels, as ASCEND_GLOBAL_LOG_LEVEL numbers them."""

    DEBUG = 0
    INFO = 1
    WARN = 2
    ERROR = 3


class FlowFuncLogger:
    """Writes to the logger "DATAFLOW.udf", which standard error takes. Level: ASCEND_GLOBAL_LOG_LEVEL, 3 (errors)."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("DATAFLOW.udf")
        if not self._logger.handlers and not logging.getLogger().handlers:
            self._logger.addHandler(logging.StreamHandler())
            self._logger.propagate = False
        self._logger.setLevel(logging.DEBUG)

    def is_log_enable(self, log_type: object, log_level: object) -> bool:
        """Ask whether lines of a level are written; False where an argument is something else."""
        if not isinstance(log_type, FlowFuncLogType) or not isinstance(log_level, FlowFuncLogLevel):
            return False
        return log_type is FlowFuncLogType.RUN_LOG or log_level >= _least()

    def get_log_header(self) -> str:
        """Begin of each line: process and thread."""
        return f"[{os.getpid()},{threading.get_native_id()}]"

    def debug(self, text: str, *values: object) -> None:
        """Write a line of level debug."""
        self._write(FlowFuncLogLevel.DEBUG, logging.DEBUG, text, values)

    def info(self, text: str, *values: object) -> None:
        """Write a line of level info."""
        self._write(FlowFuncLogLevel.INFO, logging.INFO, text, values)

    def warn(self, text: str, *values: object) -> None:
        """Write a line of level warn."""
        self._write(FlowFuncLogLevel.WARN, logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        """Write a line of level error."""
        self._write(FlowFuncLogLevel.ERROR, logging.ERROR, text, values)

    def run_info(self, text: str, *values: object) -> None:
        """Write a line of level info, whatever the level is."""
        self._put(logging.INFO, text, values)

    def run_error(self, text: str, *values: object) -> None:
        """Write a line of level error, whatever the level is."""
        self._put(logging.ERROR, text, values)

    event = run_info
    """As the manual has it; the reference does not."""

    def _write(self, level: FlowFuncLogLevel, number: int, text: str, values: tuple[object, ...]) -> None:
        if level >= _least():
            self._put(number, text, values)

    def _put(self, number: int, text: str, values: tuple[object, ...]) -> None:
        try:
            line = text % values if values else text
        except (TypeError, ValueError, KeyError):  # a line that cannot be formatted must not fail the input
            line = f"{text} {values!r}"
        self._logger.log(number, "%s %s", self.get_log_header(), line)


def _least() -> int:
    """The lowest level that is written; errors where the variable is no number."""
    text = os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "").strip()
    return int(text) if text.isdecimal() else FlowFuncLogLevel.ERROR


logger = FlowFuncLogger()
"""The log."""
