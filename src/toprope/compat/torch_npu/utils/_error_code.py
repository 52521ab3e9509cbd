"""Facade module `torch_npu.utils._error_code`: codes of torch_npu's errors; the code is in ../_error_codes.py.

Tests: tests/compat/test_torch_npu_utils.py.
"""

from .._error_codes import (
    ErrCode,
    dist_error,
    get_env_compact_error_output,
    graph_error,
    ops_error,
    prof_error,
    pta_error,
)

__all__ = [
    "ErrCode",
    "dist_error",
    "get_env_compact_error_output",
    "graph_error",
    "ops_error",
    "prof_error",
    "pta_error",
]
