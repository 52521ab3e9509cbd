"""Four-bit weights: eight values in an int32, the first in the lowest bits.

Part of the torch_npu facade: programs call `torch_npu.npu_convert_weight_to_int4pack`. Name and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_quant_dtypes.py and tests/compat/operators/test_static_quant.py
for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .evaluation import on_950
from .registry import operator

__all__ = ["FP4_E2M1", "npu_convert_weight_to_int4pack", "pack_int4", "unpack_int4"]

_PER_INT32 = 8

FP4_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of float4_e2m1fn by code; codes 8 to 15 are their negatives."""


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Pack integers into int32, eight along the last axis.

    Args:
        values: an integer dtype, on any device; the last axis is divisible by 8. The low 4 bits of each are kept.

    Returns:
        int32, with an eighth of the last axis; value i of eight is in bits 4i to 4i + 3.
    """
    nibbles = torch.unflatten(values.to(torch.int32) & 0xF, -1, (-1, _PER_INT32))
    packed: torch.Tensor = nibbles[..., 0]
    for place in range(1, _PER_INT32):
        packed = packed | nibbles[..., place] << 4 * place
    return packed


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The signed values of `pack_int4`.

    Args:
        packed: int32, or another integer dtype of which each byte holds two values.

    Returns:
        int8 from -8 to 7, with 8 times the last axis (2 times for bytes).
    """
    count = 2 * packed.element_size()
    bits = packed.to(torch.int32 if packed.element_size() < 4 else packed.dtype)
    parts = [((bits >> 4 * place & 0xF) ^ 8) - 8 for place in range(count)]  # 8 to 15 stand for -8 to -1
    return torch.stack(parts, dim=-1).flatten(-2).to(torch.int8)


@operator("npu_convert_weight_to_int4pack")
def npu_convert_weight_to_int4pack(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:
    """Weight as 4-bit values, eight in an int32: the weight of npu_weight_quant_batchmatmul.

    Args:
        weight: (k, n) or (n, k), contiguous, the last axis divisible by 8; int32 from -8 to 7. The Ascend 950 also
            takes three dimensions, and float32 values that float4_e2m1 has (others count as 0).
        inner_k_tiles: not used.

    Returns:
        the packed weight, with an eighth of the last axis: int32, or float32 for float32. Value i of eight is in
        bits 4i to 4i + 3.

    Raises:
        RuntimeError: an input that the operator does not take.

    Source: ConvertWeightToINT4PackKernelNpuOpApi.cpp of Ascend/op-plugin.
    """
    latest = on_950(weight)
    if not weight.is_contiguous():
        raise RuntimeError("weight should be contiguous" + ops_error(ErrCode.PARAM))
    if weight.dim() not in (2, 3):
        text = f"weight shape only support dim num 2/3, but it is {weight.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if weight.dtype not in (torch.int32, torch.float32):
        name = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int8: "signed char"}.get(weight.dtype)
        text = f"weight dtype only support int32 and float32, but it is {name or weight.dtype}"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if 0 in weight.shape:
        raise RuntimeError("weight dim should be greater than 0" + ops_error(ErrCode.PARAM))
    if weight.shape[-1] % _PER_INT32:
        text = f"weight last dim should be the multiple of 8, but it is {weight.shape[-1]}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if not latest:
        if weight.dtype != torch.int32:
            raise RuntimeError("expected scalar type Int but found Float")
        if weight.dim() != 2:
            raise RuntimeError("npu_convert_weight_to_int4pack: weight has 3 dimensions; only the Ascend 950 takes 3")
    if weight.dtype == torch.int32:
        return pack_int4(weight)
    return pack_int4(_fp4_codes(weight)).view(torch.float32)


def _fp4_codes(values: torch.Tensor) -> torch.Tensor:
    # like the kernel's host code: 10 bits of the float32 decide, and what is none of the 16 values counts as 0
    kept = (values.view(torch.int32) & -0x400000).view(torch.float32)
    table = torch.tensor(FP4_E2M1, dtype=torch.float32, device=values.device)
    same = kept.abs().unsqueeze(-1) == table
    code = (same * torch.arange(len(FP4_E2M1), dtype=torch.int32, device=values.device)).sum(-1, dtype=torch.int32)
    return code + torch.signbit(kept).to(torch.int32) * 8 * same.any(-1)
