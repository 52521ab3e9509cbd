"""Facade module: log of the environment variables that a program reads. Importing it starts the log, as in torch_npu.

`os.getenv` and `os.environ.get` write each variable that is set once, at the level INFO of the logger `torch_npu.env`.
Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import logging
import os
from typing import Any

__all__ = ["loggerEnv"]

loggerEnv = logging.getLogger("torch_npu.env")  # noqa: N816 - the vendor's name

_getenv = os.getenv
_get = os.environ.get
_logged: set[str] = set()


def _log(key: Any, value: Any) -> Any:
    if isinstance(value, str) and value and key in os.environ and key not in _logged:
        _logged.add(key)
        loggerEnv.info("get env %s = %s", key, value)
    return value


def _logging_getenv(key: Any, default: Any = None) -> Any:
    return _log(key, _getenv(key, default))


def _logging_get(key: Any, default: Any = None) -> Any:
    return _log(key, _get(key, default))


os.getenv = _logging_getenv
os.environ.get = _logging_get  # type: ignore[method-assign]
