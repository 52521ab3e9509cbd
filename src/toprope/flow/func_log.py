"""The log of functions in stages."""

from __future__ import annotations

import logging
import os
import threading

__all__ = ["FlowFuncLogger", "logger"]

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}


class FlowFuncLogger:
    """Writes to the logger "DATAFLOW.udf", which standard error takes. Level: ASCEND_GLOBAL_LOG_LEVEL, 3 (errors)."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("DATAFLOW.udf")
        if not self._logger.handlers and not logging.getLogger().handlers:
            self._logger.addHandler(logging.StreamHandler())
            self._logger.propagate = False
        self._logger.setLevel(logging.DEBUG)

    def is_log_enable(self, level: str) -> bool:
        """Whether a level is written: "debug", "info", "warn" or "error"."""
        return _LEVELS.get(level, 3) >= int(os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "3") or 3)

    def get_log_header(self) -> str:
        """What stands in front of each line: process and thread."""
        return f"[{os.getpid()},{threading.get_native_id()}]"

    def debug(self, text: str, *values: object) -> None:
        """Write a line of level debug."""
        self._write("debug", logging.DEBUG, text, values)

    def info(self, text: str, *values: object) -> None:
        """Write a line of level info."""
        self._write("info", logging.INFO, text, values)

    def warn(self, text: str, *values: object) -> None:
        """Write a line of level warn."""
        self._write("warn", logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        """Write a line of level error."""
        self._write("error", logging.ERROR, text, values)

    def run_info(self, text: str, *values: object) -> None:
        """Write a line of level info, whatever the level is."""
        self._logger.info("%s %s", self.get_log_header(), text % values if values else text)

    def run_error(self, text: str, *values: object) -> None:
        """Write a line of level error, whatever the level is."""
        self._logger.error("%s %s", self.get_log_header(), text % values if values else text)

    event = run_info
    """As the manual has it; the reference does not."""

    def _write(self, name: str, level: int, text: str, values: tuple[object, ...]) -> None:
        if self.is_log_enable(name):
            self._logger.log(level, "%s %s", self.get_log_header(), text % values if values else text)


logger = FlowFuncLogger()
"""The log."""
