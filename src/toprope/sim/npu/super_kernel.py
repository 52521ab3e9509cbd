"""Checks of the options of `NPUGraph.super_kernel_optimize` and of the scopes of super kernels; nothing is fused here.

Used by graphs.py. The accepted options are torch_npu's. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprope.sim.npu._state import PARAMETER, message

__all__ = ["check_options", "check_scope"]

_Kind = type | list[type] | dict[str, Any]

# Source: torch_npu/npu/graphs.py of the torch-npu 2.13.0 wheel. A list has the type of its elements.
_OPTIMIZE: dict[str, _Kind] = {
    **dict.fromkeys(
        ("preload_code", "split_mode", "stream_fusion", "constant_codegen", "auto_op_parallel", "early_start"), int
    ),
    "opt_extend": str,
    "dcci_before_kernel_start": [str],
    "dcci_after_kernel_end": [str],
    "dcci_disable_on_kernel": [str],
    "ubuf_lock_ignore_kernel": [str],
    "aggressive_opt_strategies": dict.fromkeys(
        ("event_breaker_bypass", "value_breaker_bypass", "task_breaker_bypass"), int
    ),
}
_DEBUG: dict[str, _Kind] = {
    **dict.fromkeys(
        ("debug_sync_all", "debug_op_exec_trace", "debug_cross_core_sync_check", "debug_per_op_max_core_num"), int
    ),
    "debug_extend": str,
}
_KNOWN: dict[str, dict[str, _Kind]] = {"optimize_options": _OPTIMIZE, "debug_options": _DEBUG}


def _refuse(text: str) -> RuntimeError:
    return RuntimeError(text, message("", PARAMETER))


def _check(name: str, value: Any, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise _refuse(f"{name} must be {wanted.__name__}, got {type(value).__name__}")


def check_options(name: str, options: Mapping[str, Any] | None) -> None:
    """Check one argument of `super_kernel_optimize`.

    Args:
        name: "optimize_options" or "debug_options".
        options: the argument.

    Raises:
        RuntimeError: it is no dictionary, has a key that there is not, or a value of another type.
    """
    if options is None:
        return
    if not isinstance(options, dict):
        raise _refuse(f"{name} param must be dict or None.")
    for key, value in options.items():
        kind = _KNOWN[name].get(key)
        if kind is None:
            raise _refuse(f"Invalid {name} param key: '{key}'.")
        if isinstance(kind, type):
            _check(f"{name} param['{key}']", value, kind)
        elif isinstance(kind, list):
            _check(f"{name} param['{key}']", value, list)
            for place, each in enumerate(value):
                _check(f"{name} param['{key}'][{place}]", each, kind[0])
        else:
            _check(f"{name} param['{key}']", value, dict)
            for inner, each in value.items():
                if inner not in kind:
                    raise _refuse(f"Invalid sub_key '{inner}' in {name}['{key}'].")
                _check(f"{name}['{key}']['{inner}']", each, kind[inner])


def check_scope(name: str | None) -> None:
    """Check the name of a scope.

    Raises:
        RuntimeError: it is empty.
    """
    if name is not None and not name.strip():
        raise _refuse("scope_name should be None or a non-empty string.")
