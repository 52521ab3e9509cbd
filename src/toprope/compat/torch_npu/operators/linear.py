"""Matrix products of floating tensors: npu_linear, npu_bmmV2, npu_transpose_batchmatmul and others.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_linear.py
for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: LinearKernelNpuOpApi.cpp, BmmV2KernelNpu.cpp, TransposeBatchMatMulKernelNpuOpApi.cpp,
TransposeQuantBatchMatMulKernelNpuOpApi.cpp, FusedMatmulKernelNpuOpApi.cpp and LinearAtb.cpp of Ascend/op-plugin, and
the pages of these operators there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import FLOATING, compute_dtype, floating, refuse, same_dtype
from .integer_matmul import not_simulated, only_on, requantised, torch_dtype, unpacked_scale
from .registry import operator

__all__ = [
    "npu_bmmV2",
    "npu_bmm_v2_mat1_backward",
    "npu_bmm_v2_mat2_backward",
    "npu_linear",
    "npu_linear_backward",
    "npu_transpose_batchmatmul",
    "npu_transpose_quant_batchmatmul",
]

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _product(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Product in float32 (float64 for float64)."""
    return x1.to(compute_dtype(x1)) @ x2.to(compute_dtype(x1))


@operator("npu_linear")
def npu_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight^T + bias.

    Args:
        input: (m, k), float16, bfloat16 or float32.
        weight: (n, k), of the same dtype.
        bias: (n,), or None.

    Returns:
        (m, n).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_linear"
    floating(name, input=input, weight=weight, bias=bias)
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        refuse(name, f"input {list(input.shape)} and weight {list(weight.shape)} must be [m, k] and [n, k]")
    if bias is None:
        return torch.mm(input, weight.t())
    return torch.addmm(bias, input, weight.t())


@operator("npu_linear_backward")
def npu_linear_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of npu_linear: grad @ weight for its input, and grad^T @ input for its weight.

    Args:
        grad: (m, n).
        input: (m, k).
        weight: (n, k).

    Returns:
        tensors like `input` and `weight`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_linear_backward", grad=grad, input=input, weight=weight)
    return torch.mm(grad, weight), torch.mm(grad.t(), input)


def _bmm_v2(self: torch.Tensor, mat2: torch.Tensor, output_sizes: Sequence[int]) -> torch.Tensor:
    if torch.int8 in (self.dtype, mat2.dtype):
        raise RuntimeError("bmm is not support int8 dtype" + ops_error(ErrCode.TYPE))
    result = torch.matmul(self, mat2)
    return result.sum_to_size(list(output_sizes)) if output_sizes else result


@operator("npu_bmmV2")
def npu_bmmV2(self: torch.Tensor, mat2: torch.Tensor, output_sizes: Sequence[int]) -> torch.Tensor:  # noqa: N802
    """Batched product of matrices; axes that are larger than those of `output_sizes` are summed.

    Args:
        self: (..., m, k), or (k,).
        mat2: (..., k, n), or (k,); batches are broadcast.
        output_sizes: shape of the result, or empty for the shape of the product.

    Returns:
        (..., m, n) or `output_sizes`.

    Raises:
        RuntimeError: int8, or shapes that do not fit.
    """
    return _bmm_v2(self, mat2, output_sizes)


@operator("npu_bmm_v2_mat1_backward")
def npu_bmm_v2_mat1_backward(
    grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: Sequence[int]
) -> torch.Tensor:
    """Gradient of npu_bmmV2 for its first matrix: grad @ mat2^T, summed to `size`.

    Args:
        grad: gradient of the result.
        mat1: first matrix.
        mat2: second matrix.
        size: shape of the first matrix.

    Returns:
        a tensor of that shape.
    """
    if mat1.dim() == 1:
        grad = grad.unsqueeze(-2)
    elif mat2.dim() == 1:
        grad = grad.unsqueeze(-1)
    other = mat2.unsqueeze(0) if mat2.dim() == 1 else mat2.transpose(-2, -1)
    result = torch.matmul(grad, other)
    return (result.squeeze(-2) if mat1.dim() == 1 else result).sum_to_size(list(size))


@operator("npu_bmm_v2_mat2_backward")
def npu_bmm_v2_mat2_backward(
    grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: Sequence[int]
) -> torch.Tensor:
    """Gradient of npu_bmmV2 for its second matrix: mat1^T @ grad, summed to `size`.

    Args:
        grad: gradient of the result.
        mat1: first matrix.
        mat2: second matrix.
        size: shape of the second matrix.

    Returns:
        a tensor of that shape.
    """
    if mat1.dim() == 1:
        grad = grad.unsqueeze(-2)
    elif mat2.dim() == 1:
        grad = grad.unsqueeze(-1)
    other = mat1.unsqueeze(-1) if mat1.dim() == 1 else mat1.transpose(-2, -1)
    result = torch.matmul(other, grad)
    return (result.squeeze(-1) if mat2.dim() == 1 else result).sum_to_size(list(size))


def _permuted(
    name: str, label: str, tensor: torch.Tensor, order: Sequence[int], allowed: tuple[tuple[int, ...], ...]
) -> torch.Tensor:
    if tensor.dim() != 3:
        refuse(name, f"{label} has {tensor.dim()} dimensions; the kernel takes 3")
    if tuple(order) not in allowed:
        texts = " or ".join(str(list(each)) for each in allowed)
        raise RuntimeError(f"{label} should be {texts}" + ops_error(ErrCode.VALUE))
    return tensor.permute(list(order))


def _check_split(name: str, factor: int, batch: int, rest: bool) -> None:
    if factor < 1 or batch % factor or (rest and factor != 1):
        refuse(name, f"batch_split_factor is {factor}; it must divide the batch of {batch}, and be 1 with scale")


def _laid_out(product: torch.Tensor, factor: int) -> torch.Tensor:
    """(batch, m, n) as (m, batch, n), or (factor, m, batch / factor * n)."""
    batch, rows, columns = product.shape
    if factor == 1:
        return product.transpose(0, 1).contiguous()
    split = product.reshape(factor, batch // factor, rows, columns).transpose(1, 2)
    return split.reshape(factor, rows, batch // factor * columns)


@operator("npu_transpose_batchmatmul")
def npu_transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> torch.Tensor:
    """Batched product of permuted matrices, with the batch of the result behind its rows.

    Args:
        input: three dimensions, (batch, m, k) after `perm_x1`; float16, bfloat16 or float32.
        weight: three dimensions, (batch, k, n) after `perm_x2`; of the same dtype.
        bias: None.
        scale: (batch * n,), int64 (from npu_trans_quant_param), for an int8 result; takes float16.
        perm_x1: [0, 1, 2] (None) or [1, 0, 2].
        perm_x2: [0, 1, 2] (None) or [0, 2, 1].
        perm_y: [1, 0, 2] (None).
        batch_split_factor: divides the batch; the parts are the first axis of the result.

    Returns:
        (m, batch, n); (m, 1, batch * n) int8 with `scale`; (factor, m, batch * n / factor) with a factor above 1.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name, factor = "npu_transpose_batchmatmul", batch_split_factor or 1
    for label, tensor in (("input", input), ("weight", weight)):
        if tensor.dtype not in FLOATING:
            text = f"{label}'s type supported for float16, float32 and bfloat16, but now is {tensor.dtype}"
            raise RuntimeError(text + ops_error(ErrCode.TYPE))
    same_dtype(name, input=input, weight=weight)
    if bias is not None:
        raise RuntimeError("The bias is not supported in TransposeBatchMatMul" + ops_error(ErrCode.TYPE))
    first = _permuted(name, "perm_x1", input, perm_x1 or (0, 1, 2), ((0, 1, 2), (1, 0, 2)))
    second = _permuted(name, "perm_x2", weight, perm_x2 or (0, 1, 2), ((0, 1, 2), (0, 2, 1)))
    if tuple(perm_y or (1, 0, 2)) != (1, 0, 2):
        raise RuntimeError("perm_y should be [1, 0, 2]" + ops_error(ErrCode.VALUE))
    if first.shape[0] != second.shape[0] or first.shape[2] != second.shape[1]:
        refuse(name, f"the permuted shapes {list(first.shape)} and {list(second.shape)} do not fit")
    _check_split(name, factor, first.shape[0], scale is not None)
    product = _product(first, second)
    if scale is None:
        return _laid_out(product.to(input.dtype), factor)
    if scale.dtype not in (torch.int64, torch.uint64) or scale.dim() != 1:
        refuse(name, f"scale is {scale.dtype} {list(scale.shape)}; the kernel takes int64 [batch * n]")
    if scale.shape[0] != first.shape[0] * second.shape[2]:
        refuse(name, f"scale has {scale.shape[0]} elements; it must have {first.shape[0] * second.shape[2]}")
    rows = _laid_out(product, 1).flatten(1).unsqueeze(1)
    return requantised(rows, *unpacked_scale(scale))


@operator("npu_transpose_quant_batchmatmul")
def npu_transpose_quant_batchmatmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    dtype: int,
    *,
    bias: torch.Tensor | None = None,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
) -> torch.Tensor:
    """Batched product of permuted float8 matrices, scaled by rows and columns. For the Ascend 950.

    Args:
        x1: (m, batch, k), float8_e4m3fn or float8_e5m2.
        x2: (batch, k, n), or (batch, n, k) with `perm_x2` [0, 2, 1].
        dtype: of the result, float16 or bfloat16.
        bias: None.
        x1_scale: (m,), float32.
        x2_scale: (n,), float32.
        group_sizes: for scales by groups of k; not simulated.
        perm_x1: [1, 0, 2] (None).
        perm_x2: [0, 1, 2] (None) or [0, 2, 1].
        perm_y: [1, 0, 2] (None).
        batch_split_factor: 1.
        x1_dtype: not simulated.
        x2_dtype: not simulated.

    Returns:
        (m, batch, n).

    Raises:
        RuntimeError: the kernel would not take the input, or the mode is not simulated.
    """
    name = "npu_transpose_quant_batchmatmul"
    only_on(name, x1, "Ascend 950")
    not_simulated(name, x1_dtype=x1_dtype, x2_dtype=x2_dtype, group_sizes=group_sizes or None)
    if bias is not None:
        refuse(name, "bias must be None")
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8:
        refuse(name, f"x1 is {x1.dtype} and x2 {x2.dtype}; float8_e4m3fn and float8_e5m2 are simulated")
    result_dtype = torch_dtype(name, dtype, torch.float16, (torch.float16, torch.bfloat16))
    first = _permuted(name, "perm_x1", x1, perm_x1 or (1, 0, 2), ((1, 0, 2),))
    second = _permuted(name, "perm_x2", x2, perm_x2 or (0, 1, 2), ((0, 1, 2), (0, 2, 1)))
    if tuple(perm_y or (1, 0, 2)) != (1, 0, 2) or (batch_split_factor or 1) != 1:
        refuse(name, "the kernel takes perm_y [1, 0, 2] and a batch_split_factor of 1")
    if first.shape[0] != second.shape[0] or first.shape[2] != second.shape[1]:
        refuse(name, f"the permuted shapes {list(first.shape)} and {list(second.shape)} do not fit")
    if x1_scale is None or x2_scale is None or x1_scale.dim() != 1 or x2_scale.dim() != 1:
        refuse(name, "x1_scale (m,) and x2_scale (n,) are needed; scales by groups of k are not simulated")
    rows, columns = first.shape[1], second.shape[2]
    if x1_scale.dtype != torch.float32 or x1_scale.shape[0] not in (1, rows):
        refuse(name, f"x1_scale is {x1_scale.dtype} {list(x1_scale.shape)}; the kernel takes float32 [{rows}]")
    if x2_scale.dtype != torch.float32 or x2_scale.shape[0] not in (1, columns):
        refuse(name, f"x2_scale is {x2_scale.dtype} {list(x2_scale.shape)}; the kernel takes float32 [{columns}]")
    product = first.to(torch.float32) @ second.to(torch.float32)
    return (product * x2_scale * x1_scale.unsqueeze(-1)).to(result_dtype).transpose(0, 1).contiguous()


@operator("_npu_matmul_add_fp32")
def npu_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:  # noqa: N803
    """Add x^T @ weight to C, in float32: for gradients of weights that are accumulated in float32.

    Args:
        x: (k, m), float16 or bfloat16.
        weight: (k, n), of the same dtype.
        C: (m, n), float32; written.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "_npu_matmul_add_fp32"
    if x.dtype not in (torch.float16, torch.bfloat16) or weight.dtype != x.dtype or C.dtype != torch.float32:
        dtypes = f"x is {x.dtype}, weight {weight.dtype} and C {C.dtype}"
        refuse(name, f"{dtypes}; the kernel takes x and weight of float16 or bfloat16 and a C of float32")
    if x.dim() != 2 or weight.dim() != 2 or x.shape[0] != weight.shape[0]:
        refuse(name, f"x {list(x.shape)} and weight {list(weight.shape)} must be [k, m] and [k, n]")
    if tuple(C.shape) != (x.shape[1], weight.shape[1]):
        refuse(name, f"C has the shape {list(C.shape)}; it must be {[x.shape[1], weight.shape[1]]}")
    C.add_(x.to(torch.float32).t() @ weight.to(torch.float32))
