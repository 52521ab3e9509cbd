"""Part of `torch.npu`: the chip's treatment of values outside a dtype's range, and CANN's version, which decides it.

Tests: tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import math
import os
import warnings

import torch

from toprope.sim.npu._state import NOT_SUPPORTED, PARAMETER, TYPE, VALUE, chip, lazy_init, message, not_here

__all__ = [
    "NO_FLAG",
    "clear_npu_overflow_flag",
    "get_cann_version",
    "get_npu_overflow_flag",
    "is_force_overflow_check",
    "is_support_inf_nan",
    "npu_check_overflow",
]

_910B1, _310B1, _910_9391 = 220, 240, 250
"""SocVersions between which chips know inf and nan: from the first to before the second, and from the third on."""

_950 = 260
"""The first SocVersion that knows nothing else."""

NO_FLAG = "it computes with inf and nan and has no flag of overflows"
"""The reason why it lacks a feature of chips before the 910B1."""


def get_cann_version(module: str = "CANN") -> str:
    """An empty text for every module: there is no CANN. torch_npu returns it, too, where CANN does not tell."""
    if not isinstance(module, str):
        raise RuntimeError(message("invalid value of module, module must be string", PARAMETER))
    return ""


def _switch(name: str, default: bool) -> bool:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise RuntimeError(message(f"{name} should be 0 or 1.", VALUE))
    return value == "1" if value else default


def is_support_inf_nan() -> bool:
    """Return True if overflows become inf: the chip, INF_NAN_MODE_ENABLE and INF_NAN_MODE_FORCE_DISABLE decide.

    The simulated card's operators give inf on every chip.

    Raises:
        RuntimeError: a variable is neither 0 nor 1, or switches off what the chip has.
    """
    lazy_init()
    version = chip().soc_version or 0
    if version >= _950:
        return True
    known = _910B1 <= version < _310B1 or version >= _910_9391
    off = _switch("INF_NAN_MODE_FORCE_DISABLE", default=False)
    if not _switch("INF_NAN_MODE_ENABLE", default=True):
        if known and not off:
            raise RuntimeError(
                "INF_NAN_MODE_ENABLE shouldn't be set to 0 on the current device. If you want to disable inf-nan mode,"
                " please export INF_NAN_MODE_FORCE_DISABLE=1"
            )
        return False
    return known and not off


def is_force_overflow_check() -> bool:
    """Return True if FORCE_OVERFLOW_CHECK=1 asks for the flag all the same; it takes CANN 9.1, so never here."""
    return False


def get_npu_overflow_flag() -> bool:
    """Refused: whether an operator overflowed since the flag was cleared.

    Raises:
        RuntimeError: the chip has no such flag, overflows become inf.
        NotImplementedError: the chip has one, and the simulated card has not.
    """
    if is_support_inf_nan():
        raise RuntimeError(
            message("Unsupported api when soc_version >= Ascend910B1, please use npu_check_overflow", NOT_SUPPORTED)
        )
    raise not_here("get_npu_overflow_flag", NO_FLAG)


def clear_npu_overflow_flag() -> None:
    """Warn that there is no flag to clear.

    Raises:
        NotImplementedError: the chip has one, and the simulated card has not.
    """
    if not is_support_inf_nan():
        raise not_here("clear_npu_overflow_flag", NO_FLAG)
    warnings.warn("From the Ascend910B1 on, clear_npu_overflow_flag has no flag to clear.", stacklevel=2)


def npu_check_overflow(grad: torch.Tensor | float) -> bool:
    """Return True if the sum of a gradient is inf or nan.

    Raises:
        RuntimeError: it is neither a tensor nor a float.
        NotImplementedError: the chip asks its overflow flag instead, which the simulated card has not.
    """
    if not is_support_inf_nan():
        raise not_here("utils.npu_check_overflow", NO_FLAG)
    if isinstance(grad, torch.Tensor):
        grad = float(grad.float().sum())
    elif not isinstance(grad, float):
        raise RuntimeError(message("Unsupported type.", TYPE))
    return not math.isfinite(grad)
