"""Rotary embedding of queries and keys, with quantised keys and values written into a cache.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_swiglu_quant.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype
from .checks import refuse
from .low_precision import quantised_to
from .registry import operator

__all__ = ["npu_dequant_rope_quant_kvcache", "npu_rope_quant_kvcache"]

_Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


@operator("npu_dequant_rope_quant_kvcache", composite=True)
def npu_dequant_rope_quant_kvcache(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    scale_k: torch.Tensor,
    scale_v: torch.Tensor,
    size_splits: Sequence[int],
    *,
    offset_k: torch.Tensor | None = None,
    offset_v: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_mode: int = 0,
    input_layout: str = "BSND",
    kv_output: bool = False,
    cache_mode: str = "contiguous",
) -> _Results:
    """npu_rope_quant_kvcache of the product of integers x * weight_scale * activation_scale + bias.

    Args:
        x: (B, S, H) or (B, H) int32; an integer bias is added before the scales.
        cos: as npu_rope_quant_kvcache, and so the arguments without a line here.
        sin: see there.
        k_cache: see there.
        v_cache: see there.
        indices: see there.
        scale_k: see there.
        scale_v: see there.
        size_splits: see there.
        offset_k: see there.
        offset_v: see there.
        weight_scale: (H,) float32; needed.
        activation_scale: float32, one for each token.
        bias: (H,) int32 or floating.
        quant_mode: 0.
        input_layout: "BSND".
        kv_output: see there.
        cache_mode: see there.

    Returns:
        (q, k, v, k_cache, v_cache), as npu_rope_quant_kvcache.

    Raises:
        RuntimeError: an argument that the kernel does not take, or a mode that is not simulated.

    Source: DequantRopeQuantKVCacheKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_dequant_rope_quant_kvcache"
    if x.dtype != torch.int32:
        raise RuntimeError("x dtype should be Int32" + ops_error(ErrCode.PARAM))
    if weight_scale is None or weight_scale.numel() != x.shape[-1]:
        refuse(name, f"weight_scale must have {x.shape[-1]} values")
    with torch.no_grad():
        whole = x if bias is None or bias.dtype != torch.int32 else x + bias
        wide = whole.to(torch.float32) * weight_scale.to(torch.float32).reshape(-1)
        if activation_scale is not None:
            wide = wide * activation_scale.to(torch.float32).reshape(*x.shape[:-1], 1)
        if bias is not None and bias.dtype != torch.int32:
            wide = wide + bias.to(torch.float32).reshape(-1)
        caches, quant = (k_cache, v_cache, indices), (scale_k, scale_v, offset_k, offset_v)
        mode = (quant_mode, input_layout, kv_output, cache_mode)
        return _rope_into_cache(name, wide, (cos, sin), caches, quant, size_splits, mode)


@operator("npu_rope_quant_kvcache", composite=True)
def npu_rope_quant_kvcache(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    scale_k: torch.Tensor,
    scale_v: torch.Tensor,
    size_splits: Sequence[int],
    *,
    offset_k: torch.Tensor | None = None,
    offset_v: torch.Tensor | None = None,
    quant_mode: int = 0,
    input_layout: str = "BSND",
    kv_output: bool = False,
    cache_mode: str = "contiguous",
) -> _Results:
    """Rotary embedding of queries and keys; keys and values go as int8 into caches, which change in place.

    With rotate(k) = (-second half, first half): k' = k * cos + rotate(k) * sin, and the cache gets
    round(k' / scale + offset), for values without the embedding.

    Args:
        x: (B, S, H) or (B, H): queries, keys and values next to each other; float16 or bfloat16.
        cos: (B, S, 1, D) or (B, 1, D), or what broadcasts to it; of the dtype of `x`.
        sin: as `cos`.
        k_cache: int8, (B, tokens, N, D), or (blocks, block size, N, D) for "page".
        v_cache: as `k_cache`.
        indices: int32; where the tokens of each of B go, or for "page" where each token goes.
        scale_k: float32, (D,) or (N, D).
        scale_v: as `scale_k`.
        size_splits: sizes of queries, keys and values on the last axis of `x`.
        offset_k: as `scale_k`.
        offset_v: as `scale_v`.
        quant_mode: 0, static.
        input_layout: "BSND".
        kv_output: whether keys and values are results too.
        cache_mode: "contiguous" or "page".

    Returns:
        (q, k, v, k_cache, v_cache): in the dtype of `cos`; k and v are empty without `kv_output`; the caches are those
        that were given.

    Raises:
        RuntimeError: an argument that the kernel does not take, or a mode that is not simulated.

    Source: RopeQuantKVCacheKernelNpuOpApi.cpp of op-plugin; op_kernel/rope_quant_kvcache.h of ops-transformer, which
    divides by the scale, where a test of op-plugin that is skipped multiplies.
    """
    name = "npu_rope_quant_kvcache"
    if x.dtype not in _HALF:
        refuse(name, f"x is {x.dtype}; the kernel takes float16 and bfloat16")
    caches, quant = (k_cache, v_cache, indices), (scale_k, scale_v, offset_k, offset_v)
    mode = (quant_mode, input_layout, kv_output, cache_mode)
    with torch.no_grad():
        return _rope_into_cache(name, x.to(torch.float32), (cos, sin), caches, quant, size_splits, mode)


def _rope_into_cache(
    operator: str,
    wide: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    caches: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    quant: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    size_splits: Sequence[int],
    mode: tuple[int, str, bool, str],
) -> _Results:
    k_cache, v_cache, indices = caches
    scale_k, scale_v, offset_k, offset_v = quant
    quant_mode, layout, kv_output, cache_mode = mode
    if size_splits[0] < 0:
        raise RuntimeError("size_splits[0] should not less than 0" + ops_error(ErrCode.PARAM))
    if wide.dim() not in (2, 3):
        raise RuntimeError("3D or 2D tensor expected for input x" + ops_error(ErrCode.PARAM))
    if v_cache.dim() != 4:
        raise RuntimeError("4D tensor expected for input cache" + ops_error(ErrCode.PARAM))
    if len(size_splits) != 3:
        raise RuntimeError("size_splits's size should be 3" + ops_error(ErrCode.PARAM))
    if quant_mode != 0 or layout != "BSND" or cache_mode not in ("contiguous", "page"):
        found = f'quant_mode {quant_mode} with input_layout "{layout}" and cache_mode "{cache_mode}"'
        refuse(operator, f"{found} is not simulated")
    if k_cache.dtype != torch.int8 or v_cache.dtype != torch.int8 or k_cache.dim() != 4:
        refuse(operator, f"the caches are {k_cache.dtype} and {v_cache.dtype}; the kernel takes int8, 4 dimensions")
    if sum(size_splits) != wide.shape[-1]:
        refuse(operator, f"size_splits {list(size_splits)} do not add up to {wide.shape[-1]}")
    cos, sin = tables
    width, lead = v_cache.shape[3], wide.shape[:-1]
    q, k, v = (part.reshape(*lead, -1, width) for part in torch.split(wide, list(size_splits), dim=-1))
    if cos.numel() == lead.numel() * width:
        cos, sin = cos.reshape(*lead, 1, width), sin.reshape(*lead, 1, width)
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    for cache, part, scale, offset in ((k_cache, k, scale_k, offset_k), (v_cache, v, scale_v, offset_v)):
        scaled = part / scale.to(torch.float32).reshape(-1, width)
        if offset is not None:
            scaled = scaled + offset.to(torch.float32).reshape(-1, width)
        _write(cache, quantised_to(scaled, CardDtype.int8), indices, cache_mode)
    dtype = cos.dtype
    none = torch.empty(0, dtype=dtype, device=wide.device)
    keys, values = (k.to(dtype), v.to(dtype)) if kv_output else (none, none.clone())
    return q.to(dtype), keys, values, k_cache, v_cache


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(torch.float32) + torch.cat((-second, first), dim=-1) * sin.to(torch.float32)


def _write(cache: torch.Tensor, part: torch.Tensor, indices: torch.Tensor, cache_mode: str) -> None:
    where = indices.to(torch.int64).reshape(-1)
    if cache_mode == "page":
        cache.view(-1, *cache.shape[2:])[where] = part.reshape(-1, *cache.shape[2:])
        return
    tokens = part if part.dim() == 4 else part.unsqueeze(1)
    rows = torch.arange(tokens.shape[0], device=part.device).unsqueeze(1)
    places = where.unsqueeze(1) + torch.arange(tokens.shape[1], device=part.device)
    cache[rows, places] = tokens
