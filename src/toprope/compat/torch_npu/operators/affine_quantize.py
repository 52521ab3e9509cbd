"""Affine quantisation into a given result: torch.ops.npu._quantize_per_tensor_impl and _quantize_per_channel_impl.

On a real card torch.quantize_per_tensor and torch.quantize_per_channel end in them; here programs call them by these
names. round(x / scale + zero point), ties to even, within the range of the quantised dtype. Names and parameters follow
support/npu_operators.toml; tests/compat/operators/test_optimizer_steps.py holds the values.

Sources: op_plugin/ops/opapi/QuantizePerChannelKernelNpuOpApi.cpp of Ascend/op-plugin and
experimental/quant/quantize/docs/aclnnQuantize.md of ops-nn.
"""

from __future__ import annotations

import torch

from .checks import floating, refuse
from .registry import operator

__all__ = ["_quantize_per_channel_impl", "_quantize_per_tensor_impl"]

_LIMITS = {torch.qint8: (-128, 127), torch.quint8: (0, 255), torch.qint32: (-(2**31), 2**31 - 1)}
_ZERO_POINTS = (torch.int32, torch.int8, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float16)
_LAST_BELOW_2_31 = 2147483520.0
"""The largest float32 that an int32 can hold."""


def _quantize(
    operator_name: str,
    inputs: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    dtype: torch.dtype,
    result: torch.Tensor,
) -> torch.Tensor:
    floating(operator_name, inputs=inputs, scales=scales)
    if zero_points.dtype not in _ZERO_POINTS:
        refuse(operator_name, f"zero_points is {zero_points.dtype}; the kernel takes int32, int8, uint8 and bfloat16")
    if dtype not in _LIMITS:
        refuse(operator_name, f"dtype is {dtype}; the kernel takes torch.qint8, torch.quint8 and torch.qint32")
    if result.shape != inputs.shape:
        refuse(operator_name, f"result has shape {list(result.shape)} and inputs {list(inputs.shape)}")
    low, high = _LIMITS[dtype]
    value = inputs.float() / _along(operator_name, scales, inputs, axis).float()
    value = (value + _along(operator_name, zero_points, inputs, axis).float()).round()
    whole = value.clamp(low, min(high, _LAST_BELOW_2_31)).to(torch.int32)
    if dtype is torch.qint32:
        whole = whole.masked_fill(value > _LAST_BELOW_2_31, high)
    return result.copy_(whole)


def _along(operator_name: str, factors: torch.Tensor, inputs: torch.Tensor, axis: int) -> torch.Tensor:
    """One value, or one for each position of the axis, in a shape that broadcasts to the input."""
    if factors.numel() == 1:
        return factors.reshape(())
    if inputs.dim() == 0 or not -inputs.dim() <= axis < inputs.dim() or factors.numel() != inputs.shape[axis]:
        found = f"{factors.numel()} scales or zero points for axis {axis} of {list(inputs.shape)}"
        refuse(operator_name, f"{found}; there must be one, or one for each position of the axis")
    shape = [1] * inputs.dim()
    shape[axis] = -1
    return factors.reshape(shape)


@operator("_quantize_per_channel_impl.out")
def _quantize_per_channel_impl(
    inputs: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    dtype: torch.dtype,
    *,
    result: torch.Tensor,
) -> torch.Tensor:
    """Quantise with one scale and zero point for each position of an axis.

    Args:
        inputs: float16, bfloat16 or float32.
        scales: one value for each position of the axis, or one value.
        zero_points: as `scales`; int32, int8, uint8 or bfloat16.
        axis: of the channels.
        dtype: torch.qint8, torch.quint8 or torch.qint32.
        result: int8, uint8 or int32, of the shape of `inputs`; it is written.

    Returns:
        `result`.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    return _quantize("_quantize_per_channel_impl", inputs, scales, zero_points, axis, dtype, result)


@operator("_quantize_per_tensor_impl.out")
def _quantize_per_tensor_impl(
    inputs: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, dtype: torch.dtype, *, result: torch.Tensor
) -> torch.Tensor:
    """Quantise with one scale and zero point.

    Args:
        inputs: float16, bfloat16 or float32.
        scales: one value. The kernel is called for axis 1, so that it takes one for each position of that axis as well.
        zero_points: as `scales`; int32, int8, uint8 or bfloat16.
        dtype: torch.qint8, torch.quint8 or torch.qint32.
        result: int8, uint8 or int32, of the shape of `inputs`; it is written.

    Returns:
        `result`.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    return _quantize("_quantize_per_tensor_impl", inputs, scales, zero_points, 1, dtype, result)
