"""Argument checks of the operators for mixtures of experts (MoE), with the error texts that op-plugin has in C++.

Used by moe_gating.py, moe_permute.py, moe_routing.py, moe_distribute.py and matmul_collectives.py. The texts are fixed:
a program that handles the vendor's error handles this one. Tests: tests/compat/operators/test_moe_routing.py,
tests/compat/operators/test_moe_gating.py.
"""

from __future__ import annotations

import torch

from toprope.sim.dtypes import scalar_name

from .._error_codes import ErrCode, ops_error
from .checks import FLOATING, refuse

__all__ = ["float_expected", "int32_expected", "known", "require"]


def require(right: bool, text: str, code: ErrCode | None = None) -> None:
    """TORCH_CHECK of C++.

    Args:
        right: what must hold.
        text: of the error, word for word.
        code: error code that is added to the text, if any.

    Raises:
        RuntimeError: it does not hold.
    """
    if not right:
        raise RuntimeError(text + (ops_error(code) if code else ""))


def float_expected(tensor: torch.Tensor, names: str, code: ErrCode | None = None) -> None:
    """Refuse dtypes other than float16, bfloat16 and float32.

    Args:
        tensor: what must have one of them.
        names: of the three, as the operator's text has them.
        code: error code that is added to the text, if any.
    """
    found = scalar_name(tensor.dtype)
    require(tensor.dtype in FLOATING, f"{names} tensor expected but got a tensor with dtype: {found}", code)


def int32_expected(tensor: torch.Tensor) -> None:
    """Refuse dtypes other than int32."""
    found = scalar_name(tensor.dtype)
    require(tensor.dtype == torch.int32, f"int32 tensor expected but got a tensor with dtype: {found}")


def known(operator: str, key: str, value: object, values: tuple[object, ...]) -> None:
    """Refuse a value of a mode that the kernel does not have."""
    if value not in values:
        refuse(operator, f"{key} is {value}; known are {', '.join(map(str, values))}")
