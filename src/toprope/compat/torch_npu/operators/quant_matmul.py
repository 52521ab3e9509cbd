"""Matrix products of quantised matrices: npu_quant_matmul and its relatives.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_quant_matmul.py and tests/sim/simulated/test_npu_matmul.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: the pages torch_npu-npu_quant_matmul.md, ...-npu_quant_matmul_gelu.md and ...-npu_quant_matmul_reduce_sum.md,
QuantMatmulKernelNpuOpApi.cpp and _meta_registrations.py of Ascend/op-plugin; aclnnQuantMatmulV5.md and
aclnnQuantMatmulDequant.md of ops-nn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from .._error_codes import ErrCode, ops_error
from .checks import FLOATING, refuse
from .evaluation import has_values
from .formats import Format, format_of
from .grouped_matmul import msd_product
from .integer_matmul import (
    coarse_scale,
    groups_of_rows,
    integer_matmul,
    integers_of,
    is_transposed,
    not_simulated,
    only_on,
    requantised,
    torch_dtype,
    unpacked_scale,
)
from .registry import operator

__all__ = [
    "npu_quant_grouped_matmul_dequant",
    "npu_quant_matmul",
    "npu_quant_matmul_dequant",
    "npu_quant_matmul_gelu",
    "npu_quant_matmul_reduce_sum",
]

_NAME = "npu_quant_matmul"
_LARGEST_GROUP = 65535
_BLOCK = 128


def _wrong(text: str, code: ErrCode = ErrCode.VALUE) -> NoReturn:
    raise RuntimeError(text + ops_error(code))


def _batch(x1: torch.Tensor, x2: torch.Tensor) -> list[int]:
    """Shape of the batches of a product, broadcast."""
    first, second = x1.shape[:-2], x2.shape[:-2]
    count = max(len(first), len(second))
    shapes = [[1] * (count - len(shape)) + list(shape) for shape in (first, second)]
    for one, other in zip(*shapes, strict=True):
        if one > 1 and other > 1 and one != other:
            short, long = (one, other) if len(first) <= len(second) else (other, one)
            _wrong(
                f"the x1 shape and x2 shape not supported for broadcast, the short_dim is {short} and  the long_dim is "
                f"{long}",
                ErrCode.PARAM,
            )
    return [max(pair) for pair in zip(*shapes, strict=True)]


def _matrices(name: str, x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two matrices as int8, of which the inner axes are equal."""
    for label, matrix in (("x1", x1), ("x2", x2)):
        if not 2 <= matrix.dim() <= 6:
            _wrong(f"{label} dim num should be 2 ~ 6, please check {label} dim num")
    if x1.dtype == torch.int32 and is_transposed(x1):
        refuse(name, "an x1 of 4-bit values must be contiguous")
    first, second = integers_of(x1), integers_of(x2)
    if first.shape[-1] != second.shape[-2]:
        refuse(name, f"x1 of shape {list(x1.shape)} and x2 of shape {list(x2.shape)} have different k")
    return first, second


def _check_bias(bias: torch.Tensor, columns: int, batch: list[int], four_bit: bool) -> None:
    count = 1
    for size in batch:
        count *= size
    if bias.dim() == 1:
        if bias.shape[0] != columns:
            _wrong("bias_first_dim should be equal to x2 n dim, please check bias 1st dim value ")
    elif bias.dim() != 3 or four_bit:
        kind = "int32" if four_bit else "int8"
        dims = "1" if four_bit else "1 or 3"
        _wrong(f"bias_dim_num should be {dims} when x1's dtype is {kind}, please check bias dim num ")
    elif len(batch) != 1 or list(bias.shape) != [count, 1, columns]:
        refuse(_NAME, f"bias has the shape {list(bias.shape)}; the kernel takes [n] or, of 3 dimensions, [batch, 1, n]")


def _check_groups(group_sizes: Sequence[int] | None) -> None:
    if not group_sizes:
        return
    if len(group_sizes) != 3:
        _wrong(f"group_sizes only support input with three elements, but got {len(group_sizes)}", ErrCode.PARAM)
    if not all(0 <= size <= _LARGEST_GROUP for size in group_sizes):
        _wrong("group param value must conform to range [0, 65535]")


def _check_parameters(
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    per_token: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows: int,
    columns: int,
    dtype: torch.dtype,
) -> None:
    """Refuse dtypes and shapes of the parameters that the kernel does not take for this output."""
    if scale.dtype not in (torch.int64, torch.uint64, torch.float32, torch.bfloat16):
        refuse(_NAME, f"scale is {scale.dtype}; the kernel takes int64, float32 and bfloat16")
    if scale.dtype == torch.bfloat16 and dtype not in (torch.bfloat16, torch.int32):
        _wrong("When scale's dtype is bfloat16, output_dtype must be bfloat16 or int32", ErrCode.TYPE)
    packed = scale.dtype in (torch.int64, torch.uint64)
    if packed and dtype in (torch.bfloat16, torch.int32):
        name = str(dtype).removeprefix("torch.")
        refuse(_NAME, f"scale is {scale.dtype}; an output of {name} takes float32 and bfloat16")
    if scale.dim() != 1 or scale.shape[0] not in (1, columns):
        refuse(_NAME, f"scale has the shape {list(scale.shape)}; the kernel takes [1] and [{columns}] here")
    if offset is not None:
        if dtype != torch.int8:
            refuse(_NAME, f"offset takes an output of int8, not {dtype}")
        if offset.dtype != torch.float32 or offset.dim() != 1 or offset.shape[0] not in (1, columns):
            refuse(_NAME, f"offset is {offset.dtype} {list(offset.shape)}; the kernel takes float32 [1] or [{columns}]")
    if per_token is not None:
        if per_token.dtype != torch.float32 or per_token.dim() != 1 or per_token.shape[0] not in (1, rows):
            found = f"{per_token.dtype} {list(per_token.shape)}"
            refuse(_NAME, f"pertoken_scale is {found}; the kernel takes float32 [{rows}] here")
        if packed or dtype not in (torch.float16, torch.bfloat16, torch.int32):
            refuse(_NAME, f"pertoken_scale takes a float scale and an output of float16 or bfloat16, not {dtype}")
    if bias is None:
        return
    if bias.dtype not in (torch.int32, *FLOATING):
        kinds = "bias's type supported for int32, bfloat16, float16 and float32"
        _wrong(f"{kinds}, but bias.dtype is {bias.dtype}", ErrCode.TYPE)
    if bias.dtype == torch.bfloat16 and dtype != torch.bfloat16:
        _wrong(f"When bias dtype is bfloat16, output_dtype must be bfloat16, but it is {dtype}", ErrCode.TYPE)
    if dtype == torch.int32 and bias.dtype != torch.int32:
        text = f"When output_dtype dtype is int32, bias_dtype must be int32, but it is {bias.dtype}"
        _wrong(text, ErrCode.TYPE)
    if bias.dtype == torch.float16 and per_token is None:
        _wrong("Bias dtype cannot be float16 when pertoken not given.", ErrCode.TYPE)
    if bias.dtype == torch.float16 and dtype != torch.float16:
        text = f"When bias dtype is float16 and pertoken is given, output_dtype must be float16, but it is {dtype}"
        _wrong(text, ErrCode.TYPE)
    if bias.is_floating_point() and per_token is None and dtype != torch.bfloat16:
        refuse(_NAME, f"without pertoken_scale, an output of {dtype} takes a bias of int32, not {bias.dtype}")


def dequantised(
    total: torch.Tensor, scale: torch.Tensor, per_token: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """(total + bias) * scale * per_token for an integer bias, total * scale * per_token + bias for a floating one.

    Args:
        total: (..., m, n), int32.
        scale: (1,) or (n,), any float dtype.
        per_token: (m,) or None.
        bias: broadcast to `total`, or None.

    Returns:
        float32.
    """
    if bias is not None and not bias.is_floating_point():
        total = total + bias
    value = total.to(torch.float32) * scale.to(torch.float32)
    if per_token is not None:
        value = value * per_token.to(torch.float32).unsqueeze(-1)
    return value if bias is None or not bias.is_floating_point() else value + bias.to(torch.float32)


def _by_blocks(
    x1: torch.Tensor, x2: torch.Tensor, scale: torch.Tensor, row_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Sum over blocks of 128 of k: the product of a block times the scales of its row and of its 128 columns."""
    depth, columns = x1.shape[-1], x2.shape[-1]
    blocks = (-(-depth // _BLOCK), -(-columns // _BLOCK))
    rows = x1.shape[-2]
    if tuple(scale.shape[-2:]) != blocks or tuple(row_scale.shape[-2:]) != (rows, blocks[0]):
        shapes = f"scale {list(scale.shape)} and pertoken_scale {list(row_scale.shape)}"
        refuse(_NAME, f"{shapes}; for blocks of [1, 128, 128] they are {list(blocks)} and {[rows, blocks[0]]}")
    total: torch.Tensor | None = None
    for block in range(blocks[0]):
        part = slice(block * _BLOCK, min((block + 1) * _BLOCK, depth))
        per_column = scale[..., block, :].repeat_interleave(_BLOCK, dim=-1)[..., :columns].unsqueeze(-2)
        value = integer_matmul(x1[..., part], x2[..., part, :]).to(torch.float32)
        value = value * (row_scale[..., block : block + 1] * per_column)
        total = value if total is None else total + value
    assert total is not None
    return total if bias is None else total + bias.to(torch.float32)


def _asymmetric(
    x1: torch.Tensor, x2: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor, row_scale: torch.Tensor
) -> torch.Tensor:
    """x1 @ (x2 - offset) by groups of k, times the scale of each group and column, times the scale of each row."""
    size = x1.shape[-1] // scale.shape[0]
    total: torch.Tensor | None = None
    for group in range(scale.shape[0]):
        part = slice(group * size, (group + 1) * size)
        sums = x1[:, part].to(torch.float32).sum(-1, keepdim=True)
        value = integer_matmul(x1[:, part], x2[part]).to(torch.float32) - sums * offset[group].to(torch.float32)
        value = value * scale[group]
        total = value if total is None else total + value
    assert total is not None
    return total * row_scale.reshape(-1, 1)


def _with_four_bit_weight(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    per_token: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    first, second = _matrices(_NAME, x1, x2)
    if first.dim() != 2 or second.dim() != 2:
        refuse(_NAME, "x1 of int8 with x2 of int32 takes 2 dimensions")
    columns = second.shape[-1]
    if scale.dtype not in (torch.int64, torch.uint64):
        text = "scale's type should be torch.int64 in A8W4,                 but scale.dtype is "
        _wrong(f"{text}{scale.dtype} ", ErrCode.TYPE)
    if offset is None or per_token is None or bias is not None:
        refuse(_NAME, "x1 of int8 with x2 of int32 takes offset and pertoken_scale, and no bias")
    if offset.dtype != torch.float32 or per_token.dtype != torch.float32:
        refuse(_NAME, "x1 of int8 with x2 of int32 takes offset and pertoken_scale of float32")
    if scale.dim() != 2 or scale.shape[1] != columns or first.shape[1] % scale.shape[0]:
        refuse(_NAME, f"scale has the shape {list(scale.shape)}; here it is [parts of {first.shape[1]}, {columns}]")
    value = msd_product(first, second, scale, offset.reshape(-1))
    return (value * per_token.reshape(-1, 1)).to(dtype)


@operator("npu_quant_matmul")
def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Product of two quantised matrices, exact in int32, then scaled.

    With x1 and x2 both int8 or both int4, by the output dtype:

    - int8: (x1 @ x2 + bias) * scale, rounded and limited to 9 bits, + offset, limited to int8
    - float16, bfloat16: (x1 @ x2 + bias) * scale * pertoken_scale; a floating bias is added at the end
    - int32: x1 @ x2 + bias

    Without pertoken_scale, for float16 and int8, the lower 13 bits of a float32 scale are dropped, and an offset is
    rounded, as npu_trans_quant_param does.

    Of scales with two dimensions: for int8, blocks of [1, 128, 128]; for int4, groups of k with an offset of float16,
    pertoken_scale * sum over groups of scale * (x1 @ x2 - x1 @ offset). With x1 int8 and x2 int4,
    ((x1 - 8) @ (x2 * scale) + offset) * pertoken_scale, where offset has 8 times the column sums of x2 * scale.

    Args:
        x1: (..., m, k), int8; or int32, (..., m, k / 8), eight 4-bit values each.
        x2: (..., k, n), of the same dtype; int32 as (k, n / 8), or as the transpose of (n, k / 8).
        scale: (1,) or (n,), int64 (from npu_trans_quant_param), float32 or bfloat16.
        offset: (1,) or (n,), float32, for an int8 output.
        pertoken_scale: (m,), float32.
        bias: (n,) or (batch, 1, n); int32, float32, bfloat16 or float16.
        output_dtype: int8 (None), float16, bfloat16 or int32.
        x1_dtype: for the Ascend 950; not simulated, like the three after it and y_scale.
        x2_dtype: see x1_dtype.
        pertoken_scale_dtype: see x1_dtype.
        scale_dtype: see x1_dtype.
        group_sizes: sizes of the groups of m, n and k that share a scale.
        y_scale: see x1_dtype.

    Returns:
        (..., m, n), in the output dtype.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    not_simulated(
        _NAME,
        x1_dtype=x1_dtype,
        x2_dtype=x2_dtype,
        pertoken_scale_dtype=pertoken_scale_dtype,
        scale_dtype=scale_dtype,
        y_scale=y_scale,
    )
    _check_groups(group_sizes)
    kinds = (x1.dtype, x2.dtype)
    if kinds not in ((torch.int8, torch.int8), (torch.int32, torch.int32), (torch.int8, torch.int32)):
        refuse(_NAME, f"x1 is {x1.dtype} and x2 {x2.dtype}; the kernel takes int8, or int32 of 4-bit values")
    allowed = (torch.int8, torch.float16, torch.bfloat16, torch.int32)
    if torch.int32 in kinds:
        allowed = (torch.float16, torch.bfloat16)  # type: ignore[assignment]
    dtype = torch_dtype(_NAME, output_dtype, torch.int8, allowed)
    if kinds == (torch.int8, torch.int32):
        return _with_four_bit_weight(x1, x2, scale, offset, pertoken_scale, bias, dtype)
    first, second = _matrices(_NAME, x1, x2)
    batch, columns = _batch(first, second), second.shape[-1]
    four_bit = x1.dtype == torch.int32
    if four_bit and second.dim() != 2:
        _wrong("x2 dim num should be 2 when x1's dtype is int32,                 please check x2 dim num ")
    if bias is not None:
        _check_bias(bias, columns, batch, four_bit)
    if scale.dim() >= 2 and pertoken_scale is not None and pertoken_scale.dim() >= 2:
        if scale.dtype != torch.float32 or pertoken_scale.dtype != torch.float32:
            refuse(_NAME, "scales with two dimensions must be float32")
        if dtype not in (torch.float16, torch.bfloat16):
            refuse(_NAME, f"scales with two dimensions take an output of float16 or bfloat16, not {dtype}")
        if not four_bit:
            if group_sizes and tuple(group_sizes) not in ((0, 0, 0), (1, _BLOCK, _BLOCK)):
                _wrong(
                    "when the dtype of input is int8, group_sizes's value must be 0 or [1,128,128], please check "
                    "group_sizes's value"
                )
            return _by_blocks(first, second, scale, pertoken_scale, bias).to(dtype)
        if offset is None or offset.shape != scale.shape or first.shape[-1] % scale.shape[0] or bias is not None:
            refuse(_NAME, "4-bit values with groups of k take an offset of the shape of scale and no bias")
        return _asymmetric(first, second, scale, offset, pertoken_scale).to(dtype)
    _check_parameters(scale, offset, pertoken_scale, bias, first.shape[-2], columns, dtype)
    if four_bit and pertoken_scale is None and dtype != torch.float16:
        text = f"When input's dtype is int32, output_dtype must be float16, but output_dtype is {dtype}"
        _wrong(text, ErrCode.TYPE)
    total = integer_matmul(first, second)
    if dtype == torch.int32:
        return total if bias is None else total + bias
    factor, packed_offset = unpacked_scale(scale)
    if packed_offset is None and pertoken_scale is None and dtype != torch.bfloat16:
        factor = coarse_scale(factor)
    if dtype == torch.int8:
        total = total if bias is None else total + bias
        return requantised(total, factor, packed_offset if offset is None else offset)
    return dequantised(total, factor, pertoken_scale, bias).to(dtype)


@operator("npu_quant_matmul_gelu")
def npu_quant_matmul_gelu(
    x1: torch.Tensor,
    x2: torch.Tensor,
    x1_scale: torch.Tensor,
    x2_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    approximate: str | None = "gelu_erf",
) -> torch.Tensor:
    """GELU of the product of two quantised matrices: (x1 @ x2 + bias) * x2_scale * x1_scale.

    Args:
        x1: (..., m, k), int8; or int32, eight 4-bit values each.
        x2: (..., k, n), of the same dtype.
        x1_scale: (m,), float32.
        x2_scale: (1,) or (n,), float32 or bfloat16.
        bias: (n,) or (batch, 1, n); int32, or float32, float16 or bfloat16, which is added after the scales.
        approximate: "gelu_erf" or "gelu_tanh".

    Returns:
        (..., m, n); bfloat16 if `x2_scale` or `bias` is, else float16.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_quant_matmul_gelu"
    if (x1.dtype, x2.dtype) not in ((torch.int8, torch.int8), (torch.int32, torch.int32)):
        _wrong(
            "Only A4W4 (int4/int32) or A8W8 (int8) quantization is supported, but got x1.dtype="
            f"{x1.dtype}, x2.dtype={x2.dtype}",
            ErrCode.TYPE,
        )
    approximate = "gelu_erf" if approximate is None else approximate
    if approximate not in ("gelu_tanh", "gelu_erf"):
        _wrong(f"approximate must be 'gelu_tanh' or 'gelu_erf', but got: {approximate}", ErrCode.PARAM)
    first, second = _matrices(name, x1, x2)
    batch, columns = _batch(first, second), second.shape[-1]
    if x1_scale.dtype != torch.float32 or x1_scale.dim() != 1 or x1_scale.shape[0] != first.shape[-2]:
        refuse(name, f"x1_scale is {x1_scale.dtype} {list(x1_scale.shape)}; it must be float32 [{first.shape[-2]}]")
    if x2_scale.dtype not in (torch.float32, torch.bfloat16):
        refuse(name, f"x2_scale is {x2_scale.dtype}; the kernel takes float32 and bfloat16")
    if x2_scale.dim() != 1 or x2_scale.shape[0] not in (1, columns):
        refuse(name, f"x2_scale has the shape {list(x2_scale.shape)}; the kernel takes [1] and [{columns}]")
    dtype = torch.bfloat16 if x2_scale.dtype == torch.bfloat16 else torch.float16
    if bias is not None:
        _check_bias(bias, columns, batch, x1.dtype == torch.int32)
        dtype = torch.bfloat16 if bias.dtype == torch.bfloat16 else dtype
    value = dequantised(integer_matmul(first, second), x2_scale, x1_scale, bias)
    return torch.nn.functional.gelu(value, approximate="tanh" if approximate == "gelu_tanh" else "none").to(dtype)


@operator("npu_quant_matmul_reduce_sum")
def npu_quant_matmul_reduce_sum(
    x1: torch.Tensor, x2: torch.Tensor, *, x1_scale: torch.Tensor | None = None, x2_scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum over the batch of x1 @ x2 * x1_scale * x2_scale.

    Args:
        x1: (batch, m, k), int8.
        x2: (batch, k, n), int8, of the format FRACTAL_NZ where it is on a card.
        x1_scale: (batch, m), float32.
        x2_scale: (n,), bfloat16.

    Returns:
        (m, n), bfloat16.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_quant_matmul_reduce_sum"
    if x2.device.type == "npu" and type(x2) is torch.Tensor and format_of(x2) is not Format.FRACTAL_NZ:
        _wrong("only support x2's format is nz.", ErrCode.PARAM)
    for label, tensor, dims in (("x1", x1, 3), ("x2", x2, 3), ("x1_scale", x1_scale, 2), ("x2_scale", x2_scale, 1)):
        if tensor is None or tensor.dim() != dims:
            _wrong(f"{label} dim should be {dims}", ErrCode.PARAM)
    assert x1_scale is not None
    assert x2_scale is not None
    if x1.shape[0] != x2.shape[0]:
        _wrong("the first dim of x1 and x2 must be same", ErrCode.PARAM)
    if x1.shape[2] != x2.shape[1]:
        _wrong("the K dim of x1 and x2 must be same", ErrCode.PARAM)
    if x2_scale.shape[0] != x2.shape[2]:
        _wrong("the shape of x2_scale must be (N,)", ErrCode.PARAM)
    if x1_scale.shape != x1.shape[:2]:
        _wrong("the shape of x1_scale must be (B, M)", ErrCode.PARAM)
    dtypes = (x1.dtype, x2.dtype, x1_scale.dtype, x2_scale.dtype)
    if dtypes != (torch.int8, torch.int8, torch.float32, torch.bfloat16):
        refuse(name, f"the dtypes are {dtypes}; the kernel takes int8, int8, float32 and bfloat16")
    value = integer_matmul(x1, x2).to(torch.float32) * x1_scale.unsqueeze(-1) * x2_scale.to(torch.float32)
    return value.sum(0).to(torch.bfloat16)


def _quantised_rows(
    name: str,
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    x_offset: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    quant_mode: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the rows of a float16 matrix: the int8 values and the scale of each row."""
    if quant_mode not in ("pertoken", "pertensor"):
        refuse(name, f"quant_mode is {quant_mode!r}; the kernel takes 'pertoken' and 'pertensor'")
    if x_offset is not None:
        refuse(name, "x_offset is not taken")
    wide = x.to(torch.float32)
    if smooth_scale is not None:
        wide = wide * smooth_scale.to(torch.float32)
    if x_scale is None:
        size = wide.abs().amax(dim=-1, keepdim=True) if quant_mode == "pertoken" else wide.abs().amax()
        factor = (size / 127).expand(x.shape[0], 1)
    else:
        rows = 1 if quant_mode == "pertensor" else x.shape[0]
        if x_scale.numel() != rows:
            refuse(name, f"x_scale has {x_scale.numel()} elements; {quant_mode} takes {rows}")
        factor = x_scale.to(torch.float32).reshape(-1, 1).expand(x.shape[0], 1)
    values = torch.where(factor == 0, 0.0, wide / factor)
    return torch.round(values).clamp(-128, 127).to(torch.int8), factor


def _check_dequant(name: str, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dims: int) -> None:
    if x.dim() != 2:
        _wrong("the x dim support only 2")
    if x.dtype != torch.float16:
        _wrong("the x dtype support only float16")
    if weight.dim() != dims:
        _wrong(f"the quantized_weight dim support only {dims}")
    if weight.dtype != torch.int8:
        _wrong("the quantized_weight dtype support only int8")
    if scale.dim() != dims - 1:
        _wrong(f"the weight_scale dim support only {dims - 1}")
    if scale.dtype not in (torch.float32, torch.int64):
        refuse(name, f"weight_scale is {scale.dtype}; the kernel takes float32 and int64")
    if x.shape[1] != weight.shape[-1]:
        _wrong("x shape[1] not equal to quantized_weight shape[1]")
    if scale.shape != weight.shape[:-1]:
        _wrong("weight_scale shape[0] not equal to quantized_weight shape[0]")


def _dequantised_rows(
    values: torch.Tensor,
    factor: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    total = integer_matmul(values, weight.t())
    if bias is not None:
        total = total + bias
    scale, _ = unpacked_scale(weight_scale, all_bits=True)
    value = total.to(torch.float32) * scale
    packed = weight_scale.dtype == torch.int64  # then the scale of x is in it already
    return (value if packed else value * factor).to(torch.float16)


@operator("npu_quant_matmul_dequant")
def npu_quant_matmul_dequant(
    x: torch.Tensor,
    quantized_weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
    x_offset: torch.Tensor | None = None,
    smooth_scale: torch.Tensor | None = None,
    quant_mode: str | None = "pertoken",
) -> torch.Tensor:
    """Quantise a matrix to int8, multiply it by an int8 weight, and scale back. For the Ascend 310P.

    x times smooth_scale is divided by x_scale and rounded; without x_scale, by the largest absolute value of the row
    (of the matrix with "pertensor") over 127. The result is (x @ weight^T + bias) * weight_scale * x_scale.

    Args:
        x: (m, k), float16.
        quantized_weight: (n, k), int8.
        weight_scale: (n,), float32; or int64 with the bits of float32, into which x_scale is multiplied already.
        bias: (n,), int32.
        x_scale: (m,), or (1,) with "pertensor", float32.
        x_offset: None.
        smooth_scale: (k,), float16.
        quant_mode: "pertoken" or "pertensor".

    Returns:
        (m, n), float16.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_quant_matmul_dequant"
    only_on(name, x, "Ascend 310P")
    _check_dequant(name, x, quantized_weight, weight_scale, 2)
    values, factor = _quantised_rows(name, x, x_scale, x_offset, smooth_scale, quant_mode)
    return _dequantised_rows(values, factor, quantized_weight, weight_scale, bias)


@operator("npu_quant_grouped_matmul_dequant")
def npu_quant_grouped_matmul_dequant(
    x: torch.Tensor,
    quantized_weight: torch.Tensor,
    weight_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    x_scale: torch.Tensor | None = None,
    x_offset: torch.Tensor | None = None,
    smooth_scale: torch.Tensor | None = None,
    quant_mode: str | None = "pertoken",
) -> torch.Tensor:
    """`npu_quant_matmul_dequant` with one weight for each group of rows.

    Args:
        x: (m, k), float16.
        quantized_weight: (groups, n, k), int8.
        weight_scale: (groups, n), float32 or int64.
        group_list: (groups,) int64: running totals of the rows.
        bias: (groups, n), int32.
        x_scale: as for npu_quant_matmul_dequant, like the three after it.
        x_offset: see x_scale.
        smooth_scale: see x_scale.
        quant_mode: see x_scale.

    Returns:
        (m, n), float16. Rows behind the last group are 0.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_quant_grouped_matmul_dequant"
    only_on(name, x, "Ascend 310P")
    _check_dequant(name, x, quantized_weight, weight_scale, 3)
    values, factor = _quantised_rows(name, x, x_scale, x_offset, smooth_scale, quant_mode)
    result = x.new_zeros((x.shape[0], weight_scale.shape[1]))
    if not (has_values(x) and has_values(group_list)):
        return result
    for group in groups_of_rows(name, group_list, 0, quantized_weight.shape[0], x.shape[0]):
        rows, number = slice(group.begin, group.end), group.expert
        offset = None if bias is None else bias[number]
        result[rows] = _dequantised_rows(
            values[rows], factor[rows], quantized_weight[number], weight_scale[number], offset
        )
    return result
