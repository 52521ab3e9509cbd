"""Products of matrices with a scale, a power of two, for each 32 values of k (MX). For the Ascend 950.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_quant_matmul.py for values and refusals.

Sources: torch_npu-npu_add_quant_matmul_.md, QuantBatchMatmulInplaceAddNpuOpApi.cpp and
DualLevelQuantMatmulKernelNpuOpApi.cpp of Ascend/op-plugin; the golden code of both kernels in ops-nn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, card_dtype
from .checks import refuse
from .integer_matmul import not_simulated, only_on, torch_dtype
from .low_precision import fp4_values
from .registry import operator

__all__ = ["npu_add_quant_matmul", "npu_add_quant_matmul_", "npu_dual_level_quant_matmul"]

_BLOCK = 32
_LEVEL0 = 512
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def powers_of_two(scale: torch.Tensor) -> torch.Tensor:
    """float8_e8m0fnu, in any dtype of one byte, as float32: 2^(byte - 127); NaN for 255."""
    raw = scale.view(torch.uint8).to(torch.float32)
    return torch.where(raw == 255, torch.nan, torch.exp2(raw - 127))


def scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rows of values, each block of 32 times its scale.

    Args:
        values: (m, k), float32.
        scale: (m, blocks), float32.
    """
    return values * scale.repeat_interleave(_BLOCK, dim=-1)[:, : values.shape[-1]]


def _sum(
    name: str,
    self: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    x2_scale: torch.Tensor,
    x1_scale: torch.Tensor | None,
    group_sizes: Sequence[int] | None,
    scale_dtypes: tuple[int | None, int | None],
) -> torch.Tensor:
    only_on(name, self, "Ascend 950")
    if group_sizes and len(group_sizes) != 3:
        text = f"When group_sizes is not empty, it only supports input with 3 elements, but got {len(group_sizes)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8 or self.dtype != torch.float32:
        dtypes = f"x1 is {x1.dtype}, x2 {x2.dtype} and self {self.dtype}"
        refuse(name, f"{dtypes}; float8_e4m3fn and float8_e5m2 with a self of float32 are simulated")
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[1] != x2.shape[0] or self.shape != (x1.shape[0], x2.shape[1]):
        shapes = f"x1 {list(x1.shape)}, x2 {list(x2.shape)} and self {list(self.shape)}"
        refuse(name, f"{shapes} must be [m, k], [k, n] and [m, n]")
    marked = all(number is not None and card_dtype(number) is CardDtype.float8_e8m0fnu for number in scale_dtypes) or (
        x2_scale.dtype == torch.float8_e8m0fnu and (x1_scale is not None and x1_scale.dtype == x2_scale.dtype)
    )
    if not marked or x1_scale is None:
        refuse(name, "x1_scale and x2_scale must be float8_e8m0fnu: one scale for each 32 values of k is simulated")
    if group_sizes and tuple(group_sizes) not in ((0, 0, 0), (1, 1, _BLOCK)):
        refuse(name, f"group_sizes is {list(group_sizes)}; the kernel takes [1, 1, 32]")
    blocks = -(-x1.shape[1] // (2 * _BLOCK))
    if x1_scale.shape != (x1.shape[0], blocks, 2) or x2_scale.shape != (blocks, x2.shape[1], 2):
        shapes = f"x1_scale {list(x1_scale.shape)} and x2_scale {list(x2_scale.shape)}"
        refuse(name, f"{shapes} must be {[x1.shape[0], blocks, 2]} and {[blocks, x2.shape[1], 2]}")
    first = scaled(x1.to(torch.float32), powers_of_two(x1_scale).flatten(1))
    by_column = powers_of_two(x2_scale).transpose(0, 1).flatten(1)
    return self + first @ scaled(x2.to(torch.float32).t(), by_column).t()


@operator("npu_add_quant_matmul_")
def npu_add_quant_matmul_(
    self: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    x2_scale: torch.Tensor,
    *,
    x1_scale: torch.Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    x1_scale_dtype: int | None = None,
    x2_scale_dtype: int | None = None,
) -> torch.Tensor:
    """Add the product of two float8 matrices, with a scale for each 32 values of k, to a tensor.

    Args:
        self: (m, n), float32; written.
        x1: (m, k), float8_e4m3fn or float8_e5m2.
        x2: (k, n), float8_e4m3fn or float8_e5m2.
        x2_scale: (ceil(k / 64), n, 2), one byte each: float8_e8m0fnu.
        x1_scale: (m, ceil(k / 64), 2), one byte each: float8_e8m0fnu.
        group_sizes: [1, 1, 32], or None.
        x1_dtype: hifloat8 is not simulated.
        x2_dtype: hifloat8 is not simulated.
        x1_scale_dtype: float8_e8m0fnu.
        x2_scale_dtype: float8_e8m0fnu.

    Returns:
        `self`.

    Raises:
        RuntimeError: the kernel would not take the input, or the mode is not simulated.
    """
    name = "npu_add_quant_matmul_"
    not_simulated(name, x1_dtype=x1_dtype, x2_dtype=x2_dtype)
    dtypes = (x1_scale_dtype, x2_scale_dtype)
    return self.copy_(_sum(name, self, x1, x2, x2_scale, x1_scale, group_sizes, dtypes))


@operator("npu_add_quant_matmul")
def npu_add_quant_matmul(
    self: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    x2_scale: torch.Tensor,
    *,
    x1_scale: torch.Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    x1_scale_dtype: int | None = None,
    x2_scale_dtype: int | None = None,
) -> torch.Tensor:
    """`npu_add_quant_matmul_` whose result is a new tensor."""
    name = "npu_add_quant_matmul"
    not_simulated(name, x1_dtype=x1_dtype, x2_dtype=x2_dtype)
    dtypes = (x1_scale_dtype, x2_scale_dtype)
    return _sum(name, self, x1, x2, x2_scale, x1_scale, group_sizes, dtypes)


@operator("npu_dual_level_quant_matmul")
def npu_dual_level_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    x1_level0_scale: torch.Tensor,
    x2_level0_scale: torch.Tensor,
    x1_level1_scale: torch.Tensor,
    x2_level1_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    output_dtype: int = 15,
) -> torch.Tensor:
    """x1 @ x2^T + bias of float4 matrices, with scales for each 512 and for each 32 values of k.

    Args:
        x1: (m, k / 2), one byte each: two values of float4_e2m1fn.
        x2: (n, k / 2), one byte each.
        x1_level0_scale: (m, ceil(k / 512)), float32.
        x2_level0_scale: (ceil(k / 512), n), float32.
        x1_level1_scale: (m, ceil(k / 64), 2), one byte each: float8_e8m0fnu.
        x2_level1_scale: (n, ceil(k / 64), 2), one byte each: float8_e8m0fnu.
        bias: (n,), float32.
        output_dtype: bfloat16 or float16.

    Returns:
        (m, n).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_dual_level_quant_matmul"
    only_on(name, x1, "Ascend 950")
    for label, tensor in (("x1", x1), ("x2", x2)):
        if tensor.dim() != 2:
            text = f"The shape dimension of {label} is only supported to be 2, but it is {tensor.dim()}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        if tensor.element_size() != 1:
            refuse(name, f"{label} is {tensor.dtype}; the kernel takes bytes of two 4-bit values each")
    if x1.shape[1] != x2.shape[1]:
        text = f"The k of x1 and x2 should be equal. but x1_k_dim is {x1.shape[1] * 2}, x2_k_dim is {x2.shape[1] * 2}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    dtype = torch_dtype(name, output_dtype, torch.bfloat16, (torch.bfloat16, torch.float16))
    first = scaled(fp4_values(x1, CardDtype.float4_e2m1fn_x2), powers_of_two(x1_level1_scale).flatten(1))
    second = scaled(fp4_values(x2, CardDtype.float4_e2m1fn_x2), powers_of_two(x2_level1_scale).flatten(1))
    total = first.new_zeros((x1.shape[0], x2.shape[0]))
    for number in range(x1_level0_scale.shape[1]):
        part = slice(number * _LEVEL0, (number + 1) * _LEVEL0)
        factor = x1_level0_scale[:, number : number + 1] * x2_level0_scale[number]
        total = total + factor * (first[:, part] @ second[:, part].t())
    return (total if bias is None else total + bias.to(torch.float32)).to(dtype)
