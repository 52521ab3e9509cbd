"""Prolog of multi-head latent attention: projections, normalisation, rotation and the write into the caches.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_mla_prolog.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.

    query      = ((x W_dq) normalised W_uq) W_uk, by head
    query_rope = rotation of ((x W_dq) normalised W_qr)
    kv_cache   <- (x W_dkv) normalised
    kr_cache   <- rotation of (x W_kr)

Intermediate results are rounded to bfloat16 where the kernel writes them so; int8 products are exact.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .evaluation import on_950
from .kv_rope_cache import paged, quantised, write_rows
from .norm import rms_norm
from .registry import operator
from .rope import interleaved_rope

__all__ = ["npu_mla_prolog", "npu_mla_prolog_v2", "npu_mla_prolog_v3", "npu_mla_prolog_v3_functional"]

_HIDDEN = {
    1: (6144, 7168, 7680),
    2: (6144, 7168, 7680),
    3: (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192),
}
_QUERY_RANK = {1: (1536,), 2: (1536,), 3: (1536, 2048)}
_HEAD = {1: (128,), 2: (128,), 3: (128, 192)}
_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
_KEY_RANK, _ROPE = 512, 64
_EXACT = 1024
"""Terms of a sum of int8 products that float32 holds exactly: 1024 * 128 * 128 = 2^24."""

Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Seven = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class _Request(NamedTuple):
    """Arguments of all versions of the operator."""

    name: str
    version: int
    x: torch.Tensor
    weight_dq: torch.Tensor
    weight_uq_qr: torch.Tensor
    weight_uk: torch.Tensor
    weight_dkv_kr: torch.Tensor
    gamma_cq: torch.Tensor
    gamma_ckv: torch.Tensor
    sin: torch.Tensor
    cos: torch.Tensor
    slots: torch.Tensor | None
    scale_x: torch.Tensor | None
    scale_dq: torch.Tensor | None
    scale_uq_qr: torch.Tensor | None
    scale_dkv_kr: torch.Tensor | None
    quant_ckv: torch.Tensor | None
    quant_ckr: torch.Tensor | None
    smooth: torch.Tensor | None
    epsilon_cq: float
    epsilon_ckv: float
    mode: str
    lengths: torch.Tensor | None = None
    query_factor: float = 1.0
    key_factor: float = 1.0


class _Result(NamedTuple):
    query: torch.Tensor
    rope: torch.Tensor
    scale: torch.Tensor | None
    norm: torch.Tensor
    norm_scale: torch.Tensor | None


def _product(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor | None, scale: torch.Tensor | None
) -> torch.Tensor:
    """x @ weight in float32; of int8 tensors exactly, and times the scales of rows and columns."""
    if weight.dtype != torch.int8:
        return x.float() @ weight.float()
    total = torch.zeros((x.shape[0], weight.shape[1]), dtype=torch.int32, device=x.device)
    for start in range(0, x.shape[1], _EXACT):
        rows = x[:, start : start + _EXACT].float() @ weight[start : start + _EXACT].float()
        total = total + rows.to(torch.int32)
    result = total.float()
    if x_scale is not None:
        result = result * x_scale.float().reshape(-1, 1)
    return result if scale is None else result * scale.float().reshape(1, -1)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).float()


def _codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes of each row, and its scale: the largest magnitude over 127."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(torch.where(scale > 0, x / scale, 0)).clamp(-128, 127)
    return codes.to(torch.int8), scale


def _check_ranks(request: _Request) -> None:
    dims = request.x.dim()
    if dims not in (2, 3):
        reason = f"token_x dim num should be 2 or 3, but the actual value is {dims}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    if request.weight_uk.dim() != 3:
        reason = f"weight_uk dim num should be 3, but the actual value is {request.weight_uk.dim()}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    if request.version == 3 and request.sin.dim() != dims:
        reason = f"when token_x dim num is {dims}, rope_sin dim num should be {dims}, but the actual value is "
        raise RuntimeError(reason + str(request.sin.dim()) + ops_error(ErrCode.PARAM))
    if request.sin.dim() not in (2, 3):
        reason = f"rope_sin dim num should be 2 or 3, but the actual value is {request.sin.dim()}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))


def _check(request: _Request, kv_cache: torch.Tensor, kr_cache: torch.Tensor) -> None:
    name, version = request.name, request.version
    _check_ranks(request)
    hidden, (heads, head, key_rank) = request.x.shape[-1], request.weight_uk.shape
    rank = request.weight_dq.shape[-1]
    sizes = {
        "weight_dq": (request.weight_dq, [hidden, rank]),
        "weight_uq_qr": (request.weight_uq_qr, [rank, heads * (head + _ROPE)]),
        "weight_dkv_kr": (request.weight_dkv_kr, [hidden, key_rank + _ROPE]),
        "rmsnorm_gamma_cq": (request.gamma_cq, [rank]),
        "rmsnorm_gamma_ckv": (request.gamma_ckv, [key_rank]),
        "rope_sin": (request.sin, [*request.x.shape[:-1], _ROPE]),
        "rope_cos": (request.cos, [*request.x.shape[:-1], _ROPE]),
    }
    for what, (tensor, shape) in sizes.items():
        if list(tensor.shape) != shape:
            refuse(name, f"{what} has shape {list(tensor.shape)}; {shape} is expected")
    fits = hidden in _HIDDEN[version] and rank in _QUERY_RANK[version] and head in _HEAD[version]
    if not fits or heads not in _HEADS or key_rank != _KEY_RANK:
        found = f"He {hidden}, Hcq {rank}, N {heads}, D {head}, Hckv {key_rank}"
        known = f"He {_HIDDEN[version]}, Hcq {_QUERY_RANK[version]}, N {_HEADS}, D {_HEAD[version]}, Hckv {_KEY_RANK}"
        refuse(name, f"{found}; the kernel takes {known}")
    plain = {
        "weight_uk": request.weight_uk,
        "rmsnorm_gamma_cq": request.gamma_cq,
        "rmsnorm_gamma_ckv": request.gamma_ckv,
        "rope_sin": request.sin,
        "rope_cos": request.cos,
    }
    for what, tensor in plain.items():
        if tensor.dtype != torch.bfloat16:
            refuse(name, f"{what} is {tensor.dtype}; the kernel takes bfloat16")
    _check_scales(request, kv_cache, kr_cache)
    _check_caches(request, kv_cache, kr_cache)


def _check_scales(request: _Request, kv_cache: torch.Tensor, kr_cache: torch.Tensor) -> None:
    """Refuse int8 tensors other than the second weight of the query alone, or the input and all weights."""
    name = request.name
    outer = {request.x.dtype, request.weight_dq.dtype, request.weight_dkv_kr.dtype}
    found = f"token_x, weight_dq and weight_dkv_kr are {', '.join(sorted(map(str, outer)))}"
    full = outer == {torch.int8} and request.version > 1
    if not full and outer != {torch.bfloat16}:
        refuse(name, f"{found}; bfloat16{' or int8' if request.version > 1 else ''} for all three is simulated")
    inner = request.weight_uq_qr.dtype
    if inner not in (torch.bfloat16, torch.int8) or (full and inner != torch.int8):
        refuse(name, f"{found}, and weight_uq_qr is {inner}, which does not fit")
    needed = {"dequant_scale_w_uq_qr": request.scale_uq_qr} if inner == torch.int8 else {}
    if full:
        needed |= {
            "dequant_scale_x": request.scale_x,
            "dequant_scale_w_dq": request.scale_dq,
            "dequant_scale_w_dkv_kr": request.scale_dkv_kr,
        }
    if kv_cache.dtype == torch.int8:
        needed |= {"quant_scale_ckv": request.quant_ckv}
    if kr_cache.dtype == torch.int8:
        needed |= {"quant_scale_ckr": request.quant_ckr}
    for what, tensor in needed.items():
        if tensor is None:
            refuse(name, f"{what} is needed for these dtypes")
    for what, scale, cache in (
        ("quant_scale_ckv", request.quant_ckv, kv_cache),
        ("quant_scale_ckr", request.quant_ckr, kr_cache),
    ):
        if cache.dtype not in (torch.bfloat16, torch.int8) or (scale is not None and cache.dtype != torch.int8):
            refuse(name, f"the cache of {what} is {cache.dtype}; bfloat16, or int8 with a scale, is simulated")
    if inner == torch.bfloat16 and (kv_cache.dtype == torch.int8 or request.smooth is not None):
        refuse(name, "int8 caches and smooth_scales_cq are only taken with an int8 weight_uq_qr")


def _check_caches(request: _Request, kv_cache: torch.Tensor, kr_cache: torch.Tensor) -> None:
    name, mode, lead = request.name, request.mode, list(request.x.shape[:-1])
    modes = ("PA_BSND", "PA_NZ") if request.version < 3 else (
        "PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND" if len(lead) == 2 else "TND",
    )  # fmt: skip
    if mode not in modes:
        refuse(name, f"cache_mode is {mode!r}; the kernel takes {', '.join(modes)}")
    for what, cache, width in (("kv_cache", kv_cache, _KEY_RANK), ("kr_cache", kr_cache, _ROPE)):
        if mode.startswith("PA"):
            fits = cache.dim() == 4 and cache.shape[2] == 1 and cache.shape[3] == width
        else:
            fits = list(cache.shape) == [*lead, 1, width]
        if not fits:
            refuse(name, f"{what} has shape {list(cache.shape)}, which does not fit mode {mode} with {width} elements")
    if not mode.startswith("PA"):
        return
    if request.slots is None:
        refuse(name, f"cache_index is needed in mode {mode}")
    if "BLK" in mode and len(lead) == 1:
        if request.lengths is None:
            refuse(name, f"actual_seq_len is needed in mode {mode} for token_x of 2 dimensions")
        return
    size = max(kv_cache.shape[1], 1)
    expected = [lead[0], -(-lead[1] // size)] if "BLK" in mode else lead
    if list(request.slots.shape) != expected:
        refuse(name, f"cache_index has shape {list(request.slots.shape)}; {expected} is expected in mode {mode}")


def _places(request: _Request, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and place in it of each token."""
    index = cast(torch.Tensor, request.slots)
    if "BLK" not in request.mode:
        flat = index.flatten()
        return flat.div(size, rounding_mode="floor"), flat % size
    if request.x.dim() == 3:
        batch, length = request.x.shape[:2]
        token = torch.arange(length, device=index.device)
        return index[:, token // size].flatten(), (token % size).expand(batch, length).flatten()
    ends = cast(torch.Tensor, request.lengths).long()
    starts = torch.cat((torch.zeros_like(ends[:1]), ends[:-1]))
    pages = (ends - starts + size - 1).div(size, rounding_mode="floor")
    first = pages.cumsum(0) - pages
    token = torch.arange(request.x.shape[0], device=index.device)
    owner = torch.searchsorted(ends, token, right=True).clamp(max=ends.shape[0] - 1)
    place = token - starts.index_select(0, owner)
    page = first.index_select(0, owner) + place.div(size, rounding_mode="floor")
    return index.index_select(0, page.clamp(0, max(index.shape[0] - 1, 0))), place % size


def _write(request: _Request, cache: torch.Tensor, values: torch.Tensor) -> None:
    if request.mode in ("BSND", "TND"):
        cache.copy_(values.reshape(cache.shape))
    elif values.shape[0] and cache.numel():
        view = paged(cache, request.mode)
        write_rows(view, _places(request, cache.shape[1]), values.reshape(values.shape[0], *view.shape[2:]))


def _prolog(request: _Request, kv_cache: torch.Tensor, kr_cache: torch.Tensor) -> _Result:
    """Compute the query, and write key and value into the caches."""
    lead = request.x.shape[:-1]
    x = request.x.reshape(-1, request.x.shape[-1])
    heads, head, _ = request.weight_uk.shape
    cos, sin = request.cos.float().reshape(-1, _ROPE), request.sin.float().reshape(-1, _ROPE)
    full = x.dtype == torch.int8

    down = _product(x, request.weight_dq, request.scale_x, request.scale_dq)
    down = down if full else _rounded(down)
    norm = rms_norm(down, request.gamma_cq, request.epsilon_cq)[0] * request.query_factor
    norm_scale: torch.Tensor | None = None
    if request.weight_uq_qr.dtype == torch.int8:
        smooth = 1.0 if request.smooth is None else request.smooth.float().reshape(1, -1)
        codes, norm_scale = _codes(norm * smooth)
        up = _product(codes, request.weight_uq_qr, norm_scale, request.scale_uq_qr)
        norm = codes
    else:
        norm = norm.to(torch.bfloat16)
        up = _rounded(_product(norm, request.weight_uq_qr, None, None))
    up = up.reshape(-1, heads, head + _ROPE)
    latent = torch.einsum("tnd,ndc->tnc", _rounded(up[..., :head]), request.weight_uk.float())
    rope = interleaved_rope(up[..., head:], cos.unsqueeze(1), sin.unsqueeze(1))
    scale: torch.Tensor | None = None
    if full and kv_cache.dtype == torch.int8:
        query, scale = _codes(_rounded(latent))
        ratio = cast(torch.Tensor, request.quant_ckv).float().flatten()[0] / scale
        rope = _rounded(rope) * ratio
    else:
        query = latent.to(torch.bfloat16)

    key = _product(x, request.weight_dkv_kr, request.scale_x, request.scale_dkv_kr)
    value = rms_norm(key[:, :_KEY_RANK], request.gamma_ckv, request.epsilon_ckv)[0] * request.key_factor
    quant_ckv = None if request.quant_ckv is None else request.quant_ckv.flatten()
    quant_ckr = None if request.quant_ckr is None else request.quant_ckr.flatten()
    _write(request, kv_cache, quantised(value, quant_ckv, kv_cache.dtype))
    rotated = interleaved_rope(key[:, _KEY_RANK:], cos, sin)
    _write(request, kr_cache, quantised(rotated, quant_ckr, kr_cache.dtype))
    return _Result(
        query.reshape(*lead, heads, _KEY_RANK),
        rope.to(torch.bfloat16).reshape(*lead, heads, _ROPE),
        scale,
        norm.reshape(*lead, norm.shape[-1]),
        norm_scale,
    )


@operator("npu_mla_prolog", composite=True)
def npu_mla_prolog(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    cache_index: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    quant_scale_ckr: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
) -> Four:
    """Prolog of latent attention; see the module for the formula.

    Args:
        token_x: [T, He] or [B, S, He], bfloat16.
        weight_dq: [He, 1536], bfloat16.
        weight_uq_qr: [1536, N * (128 + 64)], bfloat16, or int8 with `dequant_scale_w_uq_qr`.
        weight_uk: [N, 128, 512], bfloat16.
        weight_dkv_kr: [He, 512 + 64], bfloat16.
        rmsnorm_gamma_cq: [1536], bfloat16.
        rmsnorm_gamma_ckv: [512], bfloat16.
        rope_sin: [T, 64] or [B, S, 64], bfloat16.
        rope_cos: like `rope_sin`.
        cache_index: int64, [T] or [B, S]: place of each token, counted over all blocks.
        kv_cache: [blocks, block size, 1, 512], bfloat16 or int8; written to.
        kr_cache: [blocks, block size, 1, 64], bfloat16 or int8; written to.
        dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_dkv_kr: reserved.
        dequant_scale_w_uq_qr: scale of each column of the int8 weight.
        quant_scale_ckv, quant_scale_ckr: factors of each element for int8 caches.
        smooth_scales_cq: factors of the normalised query before it is quantised row by row.
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: added to the mean squares.
        cache_mode: "PA_BSND" or "PA_NZ".

    Returns:
        (query, query_rope, kv_cache, kr_cache): query [..., N, 512] and query_rope [..., N, 64] in bfloat16.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_mla_prolog.md and test_mla_prolog.py of op-plugin.
    """
    request = _Request(
        "npu_mla_prolog", 1, token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq,
        rmsnorm_gamma_ckv, rope_sin, rope_cos, cache_index, dequant_scale_x, dequant_scale_w_dq,
        dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq,
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv, cache_mode,
    )  # fmt: skip
    _check(request, kv_cache, kr_cache)
    with torch.no_grad():
        result = _prolog(request, kv_cache, kr_cache)
    return result.query, result.rope, kv_cache, kr_cache


@operator("npu_mla_prolog_v2", composite=True)
def npu_mla_prolog_v2(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    cache_index: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    quant_scale_ckr: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
) -> Five:
    """Prolog of latent attention that also takes int8 inputs with int8 weights.

    Args:
        token_x: as for npu_mla_prolog, or int8 with all weights but `weight_uk` int8.
        dequant_scale_x: scale of each int8 token, [tokens, 1].
        dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr: scales of the columns of int8 weights.
        quant_scale_ckv: factor for an int8 `kv_cache`; with int8 tokens one value, repeated.
        weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin, rope_cos,
        cache_index, kv_cache, kr_cache, quant_scale_ckr, smooth_scales_cq, rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv,
        cache_mode: as for npu_mla_prolog.

    Returns:
        (query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope). With int8 tokens and an int8 `kv_cache` the
        query is int8, quantised by token and head, with the scales [tokens, N, 1], and query_rope is multiplied by
        quant_scale_ckv / scale; else the scale is unwritten memory, [1].

    Raises:
        RuntimeError: the kernel would not take the input, or the chip is an Ascend 950.

    Source: torch_npu-npu_mla_prolog_v2.md and test_mla_prolog_v2.py of op-plugin.
    """
    if on_950(token_x):
        reason = "npu_mla_prolog_v2 not support on this soc version, please use npu_mla_prolog_v3"
        raise RuntimeError(reason + ops_error(ErrCode.NOT_SUPPORT))
    request = _Request(
        "npu_mla_prolog_v2", 2, token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq,
        rmsnorm_gamma_ckv, rope_sin, rope_cos, cache_index, dequant_scale_x, dequant_scale_w_dq,
        dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq,
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv, cache_mode,
    )  # fmt: skip
    _check(request, kv_cache, kr_cache)
    with torch.no_grad():
        result = _prolog(request, kv_cache, kr_cache)
    scale = result.scale
    if scale is None:
        scale = torch.zeros(1, dtype=torch.float32, device=token_x.device)
    return result.query, result.rope, kv_cache, kr_cache, scale


class _Modes(NamedTuple):
    """Arguments of the third version that choose what is quantised and stored how."""

    weight: int
    cache: int
    query: int
    repo: int
    scale_repo: int
    clip: torch.Tensor | None
    dtypes: tuple[int | None, ...]


def _check_modes(request: _Request, modes: _Modes, kv_cache: torch.Tensor) -> None:
    name = request.name
    if modes.weight == 3 and not on_950(request.x):
        reason = "When weight_quant_mode is 3, not support on this soc version."
        raise RuntimeError(reason + ops_error(ErrCode.NOT_SUPPORT))
    if modes.weight not in (0, 1, 2) or any(dtype is not None for dtype in modes.dtypes):
        refuse(name, f"weight_quant_mode {modes.weight} and 8-bit floating point inputs are not simulated")
    if modes.cache == 3 or modes.repo or modes.scale_repo or modes.clip is not None:
        refuse(name, "the caches with a scale for each group of elements (kv_cache_quant_mode 3) are not simulated")
    allowed = {(0, 0, 0), (1, 0, 0), (1, 2, 0), (2, 0, 0), (2, 1, 1)}
    if (modes.weight, modes.cache, modes.query) not in allowed:
        found = f"weight_quant_mode {modes.weight}, kv_cache_quant_mode {modes.cache}, query_quant_mode {modes.query}"
        refuse(name, f"{found} do not fit each other")
    dtypes = (request.x.dtype == torch.int8, request.weight_uq_qr.dtype == torch.int8, kv_cache.dtype == torch.int8)
    if dtypes != (modes.weight == 2, modes.weight > 0, modes.cache > 0):
        given = f"token_x {request.x.dtype}, weight_uq_qr {request.weight_uq_qr.dtype}, kv_cache {kv_cache.dtype}"
        refuse(name, f"{given} do not fit weight_quant_mode {modes.weight} and kv_cache_quant_mode {modes.cache}")


def _results(result: _Result, query_norm_flag: bool) -> Five:
    norm = result.norm if query_norm_flag else None
    norm_scale = result.norm_scale if query_norm_flag else None
    return cast(Five, (result.query, result.rope, result.scale, norm, norm_scale))


@operator("npu_mla_prolog_v3")
def npu_mla_prolog_v3(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    cache_index: torch.Tensor | None = None,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    quant_scale_ckr: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    actual_seq_len: torch.Tensor | None = None,
    k_nope_clip_alpha: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    token_x_dtype: int | None = None,
    weight_dq_dtype: int | None = None,
    weight_uq_qr_dtype: int | None = None,
    weight_dkv_kr_dtype: int | None = None,
    kv_cache_dtype: int | None = None,
) -> Five:
    """Prolog of latent attention, the third version.

    Args:
        token_x to kr_cache: as for npu_mla_prolog_v2, with He from 1024 to 8192, Hcq 1536 or 2048 and D 128 or 192.
            In mode "BSND" the caches are [B, S, 1, ...], in mode "TND" [T, 1, ...].
        cache_index: as for npu_mla_prolog; in modes "PA_BLK_*" the block of each page, [B, ceil(S / block size)] or
            one row of pages; None for "BSND" and "TND".
        actual_seq_len: int32, ends of the sequences, for modes "PA_BLK_*" and token_x of 2 dimensions.
        k_nope_clip_alpha, ckvkr_repo_mode, quant_scale_repo_mode, tile_size: for kv_cache_quant_mode 3.
        cache_mode: "PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND" or "TND".
        query_norm_flag: whether the normalised query is returned.
        weight_quant_mode: 0 none, 1 weight_uq_qr in int8, 2 token_x and all weights but weight_uk in int8.
        kv_cache_quant_mode: 0 none, 1 one factor, 2 a factor for each element; 3 is not simulated.
        query_quant_mode: 1 for an int8 query (with weight_quant_mode 2 and kv_cache_quant_mode 1), else 0.
        qc_qr_scale: factor of the normalised query.
        kc_scale: factor of the normalised key.
        token_x_dtype to kv_cache_dtype: 8-bit formats of the 950; not simulated.

    Returns:
        (query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm); what there is not is None.

    Raises:
        RuntimeError: the kernel would not take the input, or it is not simulated.

    Source: torch_npu-npu_mla_prolog_v3.md and test_mla_prolog_v3.py of op-plugin.
    """
    request = _Request(
        "npu_mla_prolog_v3", 3, token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq,
        rmsnorm_gamma_ckv, rope_sin, rope_cos, cache_index, dequant_scale_x, dequant_scale_w_dq,
        dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq,
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv, cache_mode, actual_seq_len, qc_qr_scale, kc_scale,
    )  # fmt: skip
    modes = _Modes(
        weight_quant_mode, kv_cache_quant_mode, query_quant_mode, ckvkr_repo_mode, quant_scale_repo_mode,
        k_nope_clip_alpha,
        (token_x_dtype, weight_dq_dtype, weight_uq_qr_dtype, weight_dkv_kr_dtype, kv_cache_dtype),
    )  # fmt: skip
    _check_modes(request, modes, kv_cache)
    _check(request, kv_cache, kr_cache)
    return _results(_prolog(request, kv_cache, kr_cache), query_norm_flag)


@operator("npu_mla_prolog_v3_functional")
def npu_mla_prolog_v3_functional(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    cache_index: torch.Tensor | None = None,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    quant_scale_ckr: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    actual_seq_len: torch.Tensor | None = None,
    k_nope_clip_alpha: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    token_x_dtype: int | None = None,
    weight_dq_dtype: int | None = None,
    weight_uq_qr_dtype: int | None = None,
    weight_dkv_kr_dtype: int | None = None,
    kv_cache_dtype: int | None = None,
) -> Seven:
    """npu_mla_prolog_v3 that writes into copies of the caches.

    Returns:
        the five results of npu_mla_prolog_v3, then kv_cache and kr_cache.

    Raises:
        RuntimeError: as npu_mla_prolog_v3.
    """
    kv_copy, kr_copy = kv_cache.clone(), kr_cache.clone()
    results = npu_mla_prolog_v3(
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, kv_copy, kr_copy, cache_index=cache_index, dequant_scale_x=dequant_scale_x,
        dequant_scale_w_dq=dequant_scale_w_dq, dequant_scale_w_uq_qr=dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr, quant_scale_ckv=quant_scale_ckv,
        quant_scale_ckr=quant_scale_ckr, smooth_scales_cq=smooth_scales_cq, actual_seq_len=actual_seq_len,
        k_nope_clip_alpha=k_nope_clip_alpha, rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv, cache_mode=cache_mode, query_norm_flag=query_norm_flag,
        weight_quant_mode=weight_quant_mode, kv_cache_quant_mode=kv_cache_quant_mode,
        query_quant_mode=query_quant_mode, ckvkr_repo_mode=ckvkr_repo_mode,
        quant_scale_repo_mode=quant_scale_repo_mode, tile_size=tile_size, qc_qr_scale=qc_qr_scale, kc_scale=kc_scale,
        token_x_dtype=token_x_dtype, weight_dq_dtype=weight_dq_dtype, weight_uq_qr_dtype=weight_uq_qr_dtype,
        weight_dkv_kr_dtype=weight_dkv_kr_dtype, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    return (*results, kv_copy, kr_copy)
