"""Facade module `dataflow.utils.log`: DataFlow's log is the standard logger "DATAFLOW".

Programs import it by this name, which is the vendor's, and so are the names in it; that a logger of Python is behind
them is ours. Tests: tests/flow/test_flow_func.py.
"""

import logging

from toprope.compat.missing import missing_from
from toprope.flow.session import logger

__all__ = [
    "DEBUG",
    "ERROR",
    "INFO",
    "WARNING",
    "debug",
    "error",
    "get_log_level",
    "get_logger",
    "info",
    "log",
    "set_log_level",
    "warning",
]

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

log, debug, info, warning, error = logger.log, logger.debug, logger.info, logger.warning, logger.error
set_log_level, get_log_level = logger.setLevel, logger.getEffectiveLevel


def get_logger() -> logging.Logger:
    """The logger."""
    return logger


__getattr__ = missing_from(__name__)
