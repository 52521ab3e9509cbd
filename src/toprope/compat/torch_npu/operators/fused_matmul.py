"""Matrix product with the operation after it in one operator: npu_fused_matmul.

Part of the torch_npu facade: programs call `torch_npu.npu_fused_matmul`. Name and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_hyper_connections.py for values and refusals.
"""

from __future__ import annotations

import torch

from .checks import compute_dtype, floating, refuse
from .evaluation import on_950
from .registry import operator

__all__ = ["npu_fused_matmul"]

_TYPES = ("", "relu", "add", "mul", "gelu_erf", "gelu_tanh", "16cast32")


def _batch(x1: torch.Tensor, x2: torch.Tensor) -> None:
    for short, long in zip(reversed(x1.shape[:-2]), reversed(x2.shape[:-2]), strict=False):
        if short > 1 and long > 1 and short != long:
            sizes = f"the short_dim is {short} and  the long_dim is {long}"
            raise RuntimeError(f"the x1 shape and x2 shape not supported for broadcast, {sizes}")


@operator("npu_fused_matmul")
def npu_fused_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    x3: torch.Tensor | None = None,
    fused_op_type: str = "",
) -> torch.Tensor:
    """op(x1 @ x2 + bias, x3), a kernel of the Ascend 950.

    Args:
        x1: [..., M, K]; float16, bfloat16 or float32.
        x2: [..., K, N], of the same dtype.
        bias: [N], not with gelu; None for 0.
        x3: second operand of "add" and "mul", in the dtype of `x1`.
        fused_op_type: "", "relu", "add", "mul", "gelu_erf", "gelu_tanh", or "16cast32" for a float32 result.

    Returns:
        [..., M, N] in the dtype of `x1`, or float32.

    Raises:
        RuntimeError: the kernel would not take the input, or the chip has no such kernel.

    Source: aclnnFusedMatmul.md of ops-nn and FusedMatmulKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_fused_matmul"
    if x1.device.type == "npu" and not on_950(x1):
        refuse(name, "only the Ascend 950 has its kernel (aclnnFusedMatmul.md of ops-nn)")
    for what, tensor in (("x1", x1), ("x2", x2)):
        if tensor.dim() < 2:
            raise RuntimeError(f"{what} shape dim num cannot be less than 2, but it is {tensor.dim()}")
    if x1.shape[-1] != x2.shape[-2]:
        sizes = f"x1_k_dim is {x1.shape[-1]}, x2_k_dim is {x2.shape[-2]}"
        raise RuntimeError(f"The k of x1 and x2 should be equal. but {sizes}")
    _batch(x1, x2)
    floating(name, x1=x1, x2=x2, bias=bias, x3=x3)
    if fused_op_type not in _TYPES:
        refuse(name, f"fused_op_type is {fused_op_type!r}; the kernel takes {', '.join(map(repr, _TYPES))}")
    if (x3 is not None) != (fused_op_type in ("add", "mul")) or (bias is not None and "gelu" in fused_op_type):
        refuse(name, f"x3 is for add and mul alone, and bias is not for gelu, but fused_op_type is {fused_op_type!r}")
    wide = compute_dtype(x1)
    y = torch.matmul(x1.to(wide), x2.to(wide))
    if bias is not None:
        y = y + bias.to(wide)
    if x3 is not None:
        y = y.to(x1.dtype).to(wide)  # the second operator sees the rounded product
        y = y + x3.to(wide) if fused_op_type == "add" else y * x3.to(wide)
    if fused_op_type == "relu":
        y = torch.relu(y)
    elif "gelu" in fused_op_type:
        y = torch.nn.functional.gelu(y, approximate="tanh" if fused_op_type == "gelu_tanh" else "none")
    return y.to(torch.float32 if fused_op_type == "16cast32" else x1.dtype)
