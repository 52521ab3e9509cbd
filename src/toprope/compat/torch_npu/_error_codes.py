"""Codes of torch_npu's errors, and the line that they add to a message: "ERR00001 PTA invalid parameter".

Used wherever an error of the torch_npu facade ends with torch_npu's code. Numbers, texts (with their misspelling) and
the variable TORCH_NPU_COMPACT_ERROR_OUTPUT are torch_npu's: torch_npu/utils/_error_code.py of Ascend/pytorch. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import os
import sys
from enum import Enum

__all__ = ["ErrCode", "dist_error", "graph_error", "ops_error", "prof_error", "pta_error"]


class _SubModuleID(Enum):
    PTA = 0
    OPS = 1
    DIST = 2
    GRAPH = 3
    PROF = 4
    UNKNOWN = 99


class ErrCode(Enum):
    """Kinds of errors, each with its number and text."""

    SUCCESS = (0, "success")
    PARAM = (1, "invalid parameter")
    TYPE = (2, "invalid type")
    VALUE = (3, "invalid value")
    PTR = (4, "invalid pointer")
    INTERNAL = (5, "internal error")
    MEMORY = (6, "memory error")
    NOT_SUPPORT = (7, "feature not supported")
    NOT_FOUND = (8, "resource not found")
    UNAVAIL = (9, "resource unavailable")
    SYSCALL = (10, "system call failed")
    TIMEOUT = (11, "timeout error")
    PERMISSION = (12, "permission error")
    ACL = (100, "call acl api failed")
    HCCL = (200, "call hccl api failed")
    GE = (300, "call ge api failed")
    EXCEPT = (999, "applicaiton exception")  # spelled as torch_npu prints it

    @property
    def code(self) -> int:
        """Number of the kind."""
        return self.value[0]

    @property
    def msg(self) -> str:
        """Text of the kind."""
        return self.value[1]


def pta_error(error: ErrCode) -> str:
    """End of a message of torch_npu itself."""
    return _end(_SubModuleID.PTA, error)


def ops_error(error: ErrCode) -> str:
    """End of a message of an operator."""
    return _end(_SubModuleID.OPS, error)


def dist_error(error: ErrCode) -> str:
    """End of a message of torch_npu.distributed."""
    return _end(_SubModuleID.DIST, error)


def graph_error(error: ErrCode) -> str:
    """End of a message of the graph mode."""
    return _end(_SubModuleID.GRAPH, error)


def prof_error(error: ErrCode) -> str:
    """End of a message of the profiler."""
    return _end(_SubModuleID.PROF, error)


def get_env_compact_error_output() -> int:
    """Value of TORCH_NPU_COMPACT_ERROR_OUTPUT: other than 0, messages end without this line."""
    return int(os.environ.get("TORCH_NPU_COMPACT_ERROR_OUTPUT", "0"))


def _end(part: _SubModuleID, error: ErrCode) -> str:
    if get_env_compact_error_output() or _is_interactive():
        return ""
    from toprope.sim.npu._state import message

    return message("", f"ERR{part.value:02d}{error.code:03d} {part.name} {error.msg}", _rank())


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else -1
