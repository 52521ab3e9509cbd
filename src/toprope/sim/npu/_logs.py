"""torch_npu's own log: lines on standard error, by the name of a part and its level.

Set by `torch_npu._C._logging` (TORCH_NPU_LOGS); distributed/process_group.py writes lines. Their form is torch_npu's.
Tests: tests/sim/test_distributed.py, with cases of tests/helpers/distributed_cases.py.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Mapping

__all__ = ["info", "set_levels"]

_INFO = 20

_levels: dict[str, int] = {}
"""The lowest level that is written, by part; parts that are not there write nothing below a warning."""


def set_levels(levels: Mapping[str, int]) -> None:
    """Set the levels of parts, such as {"torch.distributed": 20}; numbers are those of Python's logging."""
    _levels.clear()
    _levels.update(levels)


def info(part: str, text: str) -> None:
    """Write a line of the level INFO, if the part's level lets it through."""
    if _levels.get(part, _INFO + 1) > _INFO:
        return
    now = datetime.datetime.now()
    rank = os.environ.get("RANK")
    of_rank = f"[rank:{rank}] " if rank is not None else ""
    sys.stderr.write(f"I{now:%m%d %H:%M:%S.%f} {os.getpid()}] {of_rank}{text}\n")
    sys.stderr.flush()
