"""Facade module: lines on stdout in torch_npu's form: date, process, level and text.

Names and form are torch_npu's. Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import os
import time

__all__: list[str] = []


def _print_info_log(info_msg: str) -> None:
    """Print a line of the level INFO."""
    _print_log("INFO", info_msg)


def _print_warn_log(warn_msg: str) -> None:
    """Print a line of the level WARNING."""
    _print_log("WARNING", warn_msg)


def _print_error_log(error_msg: str) -> None:
    """Print a line of the level ERROR."""
    _print_log("ERROR", error_msg)


def _print_log(level: str, text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}({os.getpid()})-[{level}] {text}")
