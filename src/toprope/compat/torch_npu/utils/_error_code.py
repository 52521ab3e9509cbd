"""Codes of torch_npu's errors, under the name that torch_npu has them."""

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
