"""Operators that normalise, rotate and write keys and values into a cache in one call: npu_kv_rmsnorm_rope_cache.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_rope.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

Everything is computed in float32; results are rounded to the dtype of the input, and what goes into a cache to the
dtype of the cache: from the float32 values, not from the rounded results.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse, same_dtype
from .evaluation import on_950
from .norm import rms_norm
from .registry import operator
from .rope import interleaved_rope
from .rotary import turned

__all__ = [
    "npu_kv_rmsnorm_rope_cache",
    "npu_kv_rmsnorm_rope_cache_v2",
    "npu_kv_rmsnorm_rope_cache_v2_functional",
    "npu_qkv_rms_norm_rope_cache",
    "npu_qkv_rms_norm_rope_cache_functional",
    "paged",
    "quantised",
    "write_rows",
]

_PAGED = ("PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")
_ROPE, _RMS, _VALUE, _KEY = 64, 512, 128, 192

Pair = tuple[torch.Tensor, torch.Tensor]
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Six = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def quantised(values: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Values in the dtype of a cache: times `scale` and rounded to int8 (half to even) if there is a scale."""
    if scale is None:
        return values.to(dtype)
    return torch.round(values * scale.to(values.dtype)).clamp(-128, 127).to(dtype)


def write_rows(cache: torch.Tensor, where: Pair, values: torch.Tensor) -> None:
    """Write one row of `values` at each pair of indices; pairs whose first index is negative are skipped.

    Skipped rows write what the first row that is not skipped writes too, so that no shape depends on values.

    Args:
        cache: any strides; the first two axes are indexed.
        where: indices along these axes, one for each row.
        values: [rows, ...] with the other axes of the cache, in its dtype.
    """
    if not values.shape[0]:
        return
    keep = where[0] >= 0
    first = keep.to(torch.int8).argmax().reshape(1)
    at = [torch.where(keep, index, index.index_select(0, first)).clamp(min=0) for index in where]
    chosen = keep.reshape(-1, *[1] * (values.dim() - 1))
    rows = torch.where(chosen, values, values.index_select(0, first))
    old = cache[at[0].narrow(0, 0, 1), at[1].narrow(0, 0, 1)]
    cache[at[0], at[1]] = torch.where(keep.any(), rows, old)


def paged(cache: torch.Tensor, mode: str) -> torch.Tensor:
    """View of a cache [blocks, block size, heads, D] as [blocks, block size, ...] with all that a token has.

    In a mode that ends with NZ the memory of a block is laid as [D / d0, block size, d0], d0 elements having 32 bytes.
    """
    if not mode.endswith("NZ"):
        return cache
    blocks, size, width = cache.shape[0], cache.shape[1], cache.shape[2] * cache.shape[3]
    part = 32 // cache.element_size()
    return cache.view(blocks, width // part, size, part).transpose(1, 2)


class _Request(NamedTuple):
    """Arguments that the three overloads of npu_kv_rmsnorm_rope_cache share."""

    name: str
    kv: torch.Tensor
    gamma: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    k_scale: torch.Tensor | None
    ckv_scale: torch.Tensor | None
    v: torch.Tensor | None
    epsilon: float
    mode: str
    is_output_kv: bool

    @property
    def second(self) -> bool:
        """True if `v` comes apart, so that the whole of `kv` is normalised and becomes the key."""
        return self.v is not None and self.v.dim() == 4 and self.v.shape[3] == _VALUE


def _check_ranks(request: _Request) -> None:
    for what, tensor, dims in (("kv", request.kv, 4), ("gamma", request.gamma, 1), ("cos", request.cos, 4)):
        if tensor.dim() != dims:
            raise RuntimeError(f"{dims}D tensor expected for input {what}" + ops_error(ErrCode.PARAM))


def _check(request: _Request, k_cache: torch.Tensor, ckv_cache: torch.Tensor, offsets: bool) -> None:
    name, kv, gamma, cos = request.name, request.kv, request.gamma, request.cos
    _check_ranks(request)
    floating(name, kv=kv, gamma=gamma, cos=cos, sin=request.sin)
    same_dtype(name, kv=kv, gamma=gamma, cos=cos, sin=request.sin)
    if kv.dtype == torch.float32:
        refuse(name, "kv is torch.float32; the kernel takes float16 and bfloat16")
    if offsets:
        refuse(name, "k_rope_offset and c_kv_offset are not supported yet by the kernel")
    if request.mode != "Norm" and request.mode not in _PAGED:
        refuse(name, f"cache_mode is {request.mode!r}; the kernel takes Norm, {', '.join(_PAGED)}")
    if (request.k_scale is None) != (request.ckv_scale is None) and not on_950(kv):
        refuse(name, "k_rope_scale and c_kv_scale must be given together")
    batch, heads, length, width = kv.shape
    rms, rope, key, value = gamma.shape[0], cos.shape[3], cos.shape[3], gamma.shape[0]
    if request.second:
        rms, key, value = width, width, _VALUE
        expected: tuple[int, ...] = (_KEY, _KEY, _ROPE)
    else:
        expected = (_RMS + _ROPE, _RMS, _ROPE)
    if (width, gamma.shape[0], rope) != expected and not on_950(kv):
        found = f"kv {width}, gamma {gamma.shape[0]} and cos {rope} elements"
        refuse(name, f"{found} along the last axis; the kernel takes {expected[0]}, {expected[1]} and {expected[2]}")
    if width != (rms if request.second else rms + rope) or heads != 1:
        refuse(name, f"kv of shape {list(kv.shape)} does not fit gamma {list(gamma.shape)} and cos {list(cos.shape)}")
    if request.sin.shape != cos.shape or cos.shape[:3] != kv.shape[:3]:
        refuse(name, f"cos {list(cos.shape)} and sin {list(request.sin.shape)} must be {[batch, 1, length, rope]}")
    for what, cache, size in (("k_cache", k_cache, key), ("ckv_cache", ckv_cache, value)):
        if cache.dim() != 4 or cache.shape[3] != size:
            refuse(name, f"{what} has shape {list(cache.shape)}; four axes with {size} elements in the last expected")
    for what, cache, scale in (
        ("k_cache", k_cache, request.k_scale),
        ("ckv_cache", ckv_cache, request.ckv_scale),
    ):
        if scale is None and cache.dtype != kv.dtype:
            refuse(name, f"{what} is {cache.dtype} and kv {kv.dtype}; without a scale both must have one dtype")
        if scale is not None and cache.dtype != torch.int8:
            refuse(name, f"{what} is {cache.dtype}; with a scale it must be int8 (others are not simulated)")
    _check_index(request, k_cache, ckv_cache)


def _check_index(request: _Request, k_cache: torch.Tensor, ckv_cache: torch.Tensor) -> None:
    name, index, (batch, _, length, _) = request.name, request.slots, request.kv.shape
    if index.dtype != torch.int64:
        refuse(name, f"index is {index.dtype}; the kernel takes int64")
    if k_cache.shape[:3] != ckv_cache.shape[:3]:
        refuse(name, f"k_cache {list(k_cache.shape)} and ckv_cache {list(ckv_cache.shape)} do not fit each other")
    if request.mode == "Norm":
        expected = [batch, length]
        if k_cache.shape[0] != batch or k_cache.shape[1] != 1 or k_cache.shape[2] < length:
            refuse(name, f"k_cache has shape {list(k_cache.shape)}; [{batch}, 1, {length} or more, ...] is expected")
    else:
        size = k_cache.shape[1]
        expected = [batch * (-(-length // size) if "BLK" in request.mode else length)]
    if list(index.shape) != expected:
        refuse(name, f"index has shape {list(index.shape)}; {expected} is expected in mode {request.mode}")


def _places(request: _Request, size: int) -> Pair:
    """Block and place in it of each token, [batch * length]; the block is negative for tokens to skip."""
    batch, _, length, _ = request.kv.shape
    token = torch.arange(length, device=request.slots.device)
    if request.mode == "Norm":
        batches = torch.arange(batch, device=token.device).unsqueeze(1).expand(batch, length).flatten()
        places = request.slots.flatten()
        return torch.where(places >= 0, batches, -1), places
    if "BLK" not in request.mode:
        return request.slots.div(size, rounding_mode="floor"), request.slots % size
    starts = request.slots.reshape(batch, -1)[:, token // size]
    return starts.flatten().div(size, rounding_mode="floor"), (token % size).expand(batch, length).flatten()


def _kv_rmsnorm_rope_cache(request: _Request, k_cache: torch.Tensor, ckv_cache: torch.Tensor) -> Pair:
    """Normalise, rotate, write into the caches; gives key and value as they were before the write."""
    kv, cos, sin = request.kv.float(), request.cos.float(), request.sin.float()
    batch, _, length, width = kv.shape
    rope = cos.shape[3]
    if request.second:
        normal = rms_norm(kv, request.gamma, request.epsilon)[0]
        key = torch.cat((interleaved_rope(normal[..., :rope], cos, sin), normal[..., rope:]), dim=-1)
        value = cast(torch.Tensor, request.v).float()
    else:
        value = rms_norm(kv[..., : width - rope], request.gamma, request.epsilon)[0]
        key = interleaved_rope(kv[..., width - rope :], cos, sin)
    where = _places(request, k_cache.shape[1])
    for cache, wide, scale in ((k_cache, key, request.k_scale), (ckv_cache, value, request.ckv_scale)):
        rows = quantised(wide.reshape(batch * length, wide.shape[3]), scale, cache.dtype)
        view = cache[:, 0] if request.mode == "Norm" else paged(cache, request.mode)
        write_rows(view, where, rows.reshape(batch * length, *view.shape[2:]))
    if request.is_output_kv and request.mode != "Norm":
        return key.to(request.kv.dtype), value.to(request.kv.dtype)
    shape = request.kv.shape[:3]
    return request.kv.new_empty((*shape, key.shape[3])), request.kv.new_empty((*shape, value.shape[3]))


@operator("npu_kv_rmsnorm_rope_cache", composite=True)
def npu_kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> Four:
    """Latent attention: RMSNorm of the latent part, rotation of the other part, and the write into both caches.

    Args:
        kv: [B, 1, S, 576]: 512 latent elements and 64 to rotate (interleaved, as npu_interleave_rope); float16 or
            bfloat16. With `v`: [B, 1, S, 192], all of it normalised and the first 64 elements rotated.
        gamma: scale of the normalisation, [512] (or [192]).
        cos: [B, 1, S, 64].
        sin: like `cos`.
        index: int64: where tokens go. "Norm": [B, S], places in the cache of each batch. Paged: [B * S], places
            counted over all blocks. "PA_BLK_*": [B * ceil(S / block size)], starts of blocks. Negative: skipped.
        k_cache: [B, 1, places, 64] or [blocks, block size, 1, 64] (192 with `v`); written to.
        ckv_cache: like `k_cache` with 512 elements (128 with `v`); written to.
        k_rope_scale: factor of each element for an int8 cache; None for a cache in the dtype of `kv`.
        c_kv_scale: the same for `ckv_cache`.
        k_rope_offset, c_kv_offset: not supported by the kernel.
        v: [B, 1, S, 128], written to `ckv_cache` as it is.
        epsilon: added to the mean square.
        cache_mode: "Norm", "PA" (or "PA_BNSD"), "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ".
        is_output_kv: whether the key and the value of the tokens are returned; only in paged modes.

    Returns:
        (k_cache, ckv_cache, k, ckv): the caches, and key and value like `kv`, before quantisation. They are unwritten
        memory unless `is_output_kv`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_kv_rmsnorm_rope_cache.md and test_npu_kv_rms_norm_rope_cache.py of op-plugin.
    """
    name = "npu_kv_rmsnorm_rope_cache"
    request = _Request(name, kv, gamma, cos, sin, index, k_rope_scale, c_kv_scale, v, epsilon, cache_mode, is_output_kv)
    _check(request, k_cache, ckv_cache, k_rope_offset is not None or c_kv_offset is not None)
    with torch.no_grad():
        k, ckv = _kv_rmsnorm_rope_cache(request, k_cache, ckv_cache)
    return k_cache, ckv_cache, k, ckv


def _check_dtypes(name: str, k_cache_dtype: int | None, ckv_cache_dtype: int | None) -> None:
    if k_cache_dtype is not None or ckv_cache_dtype is not None:
        refuse(name, "k_cache_dtype and ckv_cache_dtype, for caches in 8-bit formats of the 950, are not simulated")


@operator("npu_kv_rmsnorm_rope_cache_v2")
def npu_kv_rmsnorm_rope_cache_v2(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    k_cache_dtype: int | None = None,
    ckv_cache_dtype: int | None = None,
) -> Pair:
    """npu_kv_rmsnorm_rope_cache with a schema that says that the caches are written to.

    Returns:
        (k, ckv), as npu_kv_rmsnorm_rope_cache.

    Raises:
        RuntimeError: the kernel would not take the input; the dtypes of caches are not simulated.
    """
    name = "npu_kv_rmsnorm_rope_cache_v2"
    _check_dtypes(name, k_cache_dtype, ckv_cache_dtype)
    request = _Request(name, kv, gamma, cos, sin, index, k_rope_scale, c_kv_scale, v, epsilon, cache_mode, is_output_kv)
    _check(request, k_cache, ckv_cache, k_rope_offset is not None or c_kv_offset is not None)
    return _kv_rmsnorm_rope_cache(request, k_cache, ckv_cache)


@operator("npu_kv_rmsnorm_rope_cache_v2_functional")
def npu_kv_rmsnorm_rope_cache_v2_functional(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    k_cache_dtype: int | None = None,
    ckv_cache_dtype: int | None = None,
) -> Four:
    """npu_kv_rmsnorm_rope_cache_v2 that writes into copies of the caches.

    Returns:
        (k, ckv, k_cache, ckv_cache).

    Raises:
        RuntimeError: as npu_kv_rmsnorm_rope_cache_v2.
    """
    name = "npu_kv_rmsnorm_rope_cache_v2_functional"
    _check_dtypes(name, k_cache_dtype, ckv_cache_dtype)
    request = _Request(name, kv, gamma, cos, sin, index, k_rope_scale, c_kv_scale, v, epsilon, cache_mode, is_output_kv)
    _check(request, k_cache, ckv_cache, k_rope_offset is not None or c_kv_offset is not None)
    k_copy, ckv_copy = k_cache.clone(), ckv_cache.clone()
    k, ckv = _kv_rmsnorm_rope_cache(request, k_copy, ckv_copy)
    return k, ckv, k_copy, ckv_copy


class _Fused(NamedTuple):
    """Arguments that both overloads of npu_qkv_rms_norm_rope_cache share."""

    name: str
    qkv: torch.Tensor
    q_gamma: torch.Tensor
    k_gamma: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    qkv_size: list[int]
    head_nums: list[int]
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    k_offset: torch.Tensor | None
    v_offset: torch.Tensor | None
    epsilon: float
    mode: str


def _check_fused(fused: _Fused, q_out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    name, qkv = fused.name, fused.qkv
    told = "npu_qkv_rms_norm_rope_cache: "
    if len(fused.qkv_size) != 4:
        raise RuntimeError(told + "the size of qkv_size must be 4." + ops_error(ErrCode.PARAM))
    if len(fused.head_nums) != 3:
        raise RuntimeError(told + "the size of head_nums must be 3." + ops_error(ErrCode.PARAM))
    if qkv.dim() != 2:
        raise RuntimeError(told + "2D tensor expected for input qkv" + ops_error(ErrCode.PARAM))
    floating(name, qkv=qkv, q_gamma=fused.q_gamma, k_gamma=fused.k_gamma, cos=fused.cos, sin=fused.sin)
    if fused.mode != "PA_NZ":
        refuse(name, f"cache_mode is {fused.mode!r}; the kernel takes PA_NZ")
    batch, length, heads, head = fused.qkv_size
    if heads != sum(fused.head_nums) or list(qkv.shape) != [batch * length, heads * head]:
        sizes = f"qkv_size {fused.qkv_size} and head_nums {fused.head_nums}"
        refuse(name, f"qkv has shape {list(qkv.shape)}, which does not fit {sizes}")
    if fused.slots.dtype != torch.int64 or list(fused.slots.shape) != [batch * length]:
        refuse(name, f"index is {list(fused.slots.shape)} {fused.slots.dtype}; [{batch * length}] int64 is expected")
    if list(q_out.shape) != [batch * length, fused.head_nums[0] * head]:
        refuse(name, f"q_out has shape {list(q_out.shape)}; {[batch * length, fused.head_nums[0] * head]} is expected")
    for what, cache, count in (("k_cache", k_cache, fused.head_nums[1]), ("v_cache", v_cache, fused.head_nums[2])):
        if cache.dim() != 4 or cache.shape[1] * cache.shape[3] != count * head:
            expected = f"[blocks, {count} * {head} / d0, block size, d0]"
            refuse(name, f"{what} has shape {list(cache.shape)}; {expected} is expected")


def _qkv_rms_norm_rope_cache(
    fused: _Fused, q_out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise and rotate query and key, write them and the value; gives all three before quantisation."""
    batch, length, _, head = fused.qkv_size
    rows = batch * length

    def broad(part: torch.Tensor) -> torch.Tensor:
        parts = part.float().reshape(batch, part.shape[0] // batch, part.shape[1] // head, head)
        return parts.expand(batch, length, parts.shape[2], head).reshape(rows, parts.shape[2], head)

    cosine, sine = broad(fused.cos), broad(fused.sin)

    def rotated(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        normal = rms_norm(x, gamma, fused.epsilon)[0]
        return normal * cosine + turned(normal, "half") * sine

    wide = fused.qkv.float().reshape(rows, sum(fused.head_nums), head)
    query, key, value = wide.split_with_sizes(fused.head_nums, dim=1)
    query, key = rotated(query, fused.q_gamma), rotated(key, fused.k_gamma)
    q_out.copy_(query.reshape(q_out.shape))
    for cache, values, scale, offset in (
        (k_cache, key, fused.k_scale, fused.k_offset),
        (v_cache, value, fused.v_scale, fused.v_offset),
    ):
        size, part = cache.shape[2], cache.shape[3]
        if scale is not None:
            values = values / scale.float()
            values = torch.round(values if offset is None else values + offset.float()).clamp(-128, 127)
        where = fused.slots.div(size, rounding_mode="floor"), fused.slots % size
        write_rows(cache.transpose(1, 2), where, values.reshape(rows, -1, part).to(cache.dtype))
    dtype = fused.qkv.dtype
    return query.reshape(rows, -1).to(dtype), key.reshape(rows, -1).to(dtype), value.reshape(rows, -1).to(dtype)


@operator("npu_qkv_rms_norm_rope_cache")
def npu_qkv_rms_norm_rope_cache(
    qkv: torch.Tensor,
    q_gamma: torch.Tensor,
    k_gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    qkv_size: list[int],
    head_nums: list[int],
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_offset: torch.Tensor | None = None,
    v_offset: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    cache_mode: str = "PA_NZ",
    is_output_qkv: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMSNorm and rotation (half) of query and key by head, and the write of key and value into paged caches.

    Args:
        qkv: [B * S, (Nq + Nk + Nv) * D]; float16 or bfloat16.
        q_gamma, k_gamma: scales of the normalisations, [D].
        cos: [B * S, D], or fewer positions.
        sin: like `cos`.
        index: int64, [B * S]: place of each token, counted over all blocks; negative ones are skipped.
        q_out: [B * S, Nq * D], written to.
        k_cache: [blocks, Nk * D / d0, block size, d0], written to.
        v_cache: like `k_cache` with Nv heads, written to.
        qkv_size: [B, S, Nq + Nk + Nv, D].
        head_nums: [Nq, Nk, Nv].
        k_scale, v_scale: divisors of each head and element for an int8 cache, [Nk, D] and [Nv, D].
        k_offset, v_offset: added after the division.
        epsilon: added to the mean square.
        cache_mode: "PA_NZ".
        is_output_qkv: whether the results before quantisation are returned.

    Returns:
        query, key and value before quantisation, [B * S, N * D] in the dtype of `qkv`; None without `is_output_qkv`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: QkvRmsNormRopeCacheNpuOpApi.cpp and test_npu_qkv_rms_norm_rope_cache.py of op-plugin.
    """
    fused = _Fused(
        "npu_qkv_rms_norm_rope_cache", qkv, q_gamma, k_gamma, cos, sin, index, list(qkv_size), list(head_nums),
        k_scale, v_scale, k_offset, v_offset, epsilon, cache_mode,
    )  # fmt: skip
    _check_fused(fused, q_out, k_cache, v_cache)
    results = _qkv_rms_norm_rope_cache(fused, q_out, k_cache, v_cache)
    return results if is_output_qkv else cast(tuple[torch.Tensor, torch.Tensor, torch.Tensor], (None, None, None))


@operator("npu_qkv_rms_norm_rope_cache_functional")
def npu_qkv_rms_norm_rope_cache_functional(
    qkv: torch.Tensor,
    q_gamma: torch.Tensor,
    k_gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    qkv_size: list[int],
    head_nums: list[int],
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_offset: torch.Tensor | None = None,
    v_offset: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    cache_mode: str = "PA_NZ",
    is_output_qkv: bool = False,
) -> Six:
    """npu_qkv_rms_norm_rope_cache that writes into copies of q_out and the caches.

    Returns:
        the three results of npu_qkv_rms_norm_rope_cache, then q_out, k_cache and v_cache.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    fused = _Fused(
        "npu_qkv_rms_norm_rope_cache_functional", qkv, q_gamma, k_gamma, cos, sin, index, list(qkv_size),
        list(head_nums), k_scale, v_scale, k_offset, v_offset, epsilon, cache_mode,
    )  # fmt: skip
    _check_fused(fused, q_out, k_cache, v_cache)
    q_copy, k_copy, v_copy = q_out.clone(), k_cache.clone(), v_cache.clone()
    results = _qkv_rms_norm_rope_cache(fused, q_copy, k_copy, v_copy)
    if not is_output_qkv:
        results = cast(tuple[torch.Tensor, torch.Tensor, torch.Tensor], (None, None, None))
    return (*results, q_copy, k_copy, v_copy)
