"""Rotary position embedding of query and key: in place, interleaved, from a cache of cosines, and the gradient of
npu_rotary_mul.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_rope.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

All operators compute in float32 and round to the dtype of the input. `interleaved_rope`, which does not, is used by
mla_prolog and kv_rope_cache too.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse, same_dtype
from .evaluation import on_950
from .registry import operator
from .rotary import turned

__all__ = [
    "interleaved_rope",
    "npu_apply_rotary_pos_emb",
    "npu_interleave_rope",
    "npu_mrope",
    "npu_rotary_embedding",
    "npu_rotary_mul_backward",
]

_LAYOUTS = ("BSND", "SBND", "BNSD", "TND")
_ROTARY_MODES = ("half", "quarter", "interleave")


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mode: str) -> torch.Tensor:
    """x * cosine + turned(x) * sine, in float32 and rounded to the dtype of `x`.

    Args:
        x: what is rotated along its last axis.
        cosine: as broad as `x`, or narrower: then the rest of `x` stays.
        sine: like `cosine`.
        mode: "half", "interleave" or "quarter" (half in each half).
    """
    wide, width = x.to(compute_dtype(x)), cosine.shape[-1]
    part = wide[..., :width]
    if mode == "quarter":
        shape = part.shape
        quarter = turned(part.reshape(*shape[:-1], 2, width // 2), "half").reshape(shape)
    else:
        quarter = turned(part, mode)
    result = part * cosine.to(wide.dtype) + quarter * sine.to(wide.dtype)
    if width < x.shape[-1]:
        result = torch.cat((result, wide[..., width:]), dim=-1)
    return result.to(x.dtype)


def interleaved_rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotation of `x` after its even elements were moved before its odd ones, in the dtype of `x`."""
    apart = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
    return apart * cosine.to(x.dtype) + turned(apart, "half") * sine.to(x.dtype)


@operator("npu_interleave_rope")
def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of neighbouring pairs: even elements go to the front half, odd ones to the back half.

    Args:
        x: [B, N, S, 64]; float16 or bfloat16.
        cos: [B, 1, S or 1, 64], of the same dtype.
        sin: like `cos`.

    Returns:
        a tensor like `x`, with the halves q * cos + RotateHalf(q) * sin of the reordered q.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_interleave_rope.md.
    """
    name = "npu_interleave_rope"
    floating(name, x=x, cos=cos, sin=sin)
    same_dtype(name, x=x, cos=cos, sin=sin)
    if x.dtype == torch.float32:
        refuse(name, "x is torch.float32; the kernel takes float16 and bfloat16")
    if x.dim() != 4 or cos.dim() != 4:
        refuse(name, f"x has {x.dim()} dimensions and cos {cos.dim()}; both must have 4, BNSD")
    if cos.shape != sin.shape:
        refuse(name, f"cos {list(cos.shape)} and sin {list(sin.shape)} must have one shape")
    if x.shape[-1] != 64 or cos.shape[-1] != 64:
        refuse(name, f"the last axis has {x.shape[-1]} elements in x and {cos.shape[-1]} in cos; both must be 64")
    if cos.shape[0] != x.shape[0] or cos.shape[1] != 1 or cos.shape[2] not in (1, x.shape[2]):
        expected = f"[{x.shape[0]}, 1, {x.shape[2]} or 1, 64]"
        refuse(name, f"cos has shape {list(cos.shape)}; {expected} is expected for x {list(x.shape)}")
    return interleaved_rope(x.to(compute_dtype(x)), cos, sin).to(x.dtype)


def _check_apply(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str, mode: str
) -> None:
    name = "npu_apply_rotary_pos_emb"
    if mode not in _ROTARY_MODES:
        reason = f"The layout should be half/quarter/interleave, but got {mode}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    floating(name, query=query, key=key, cos=cos, sin=sin)
    same_dtype(name, query=query, key=key, cos=cos, sin=sin)
    if layout not in _LAYOUTS:
        refuse(name, f"layout is {layout!r}; the kernel takes {', '.join(_LAYOUTS)}")
    dims = 3 if layout == "TND" else 4
    for what, tensor in (("query", query), ("key", key), ("cos", cos), ("sin", sin)):
        if tensor.dim() != dims:
            refuse(name, f"{what} has {tensor.dim()} dimensions; layout {layout} has {dims}")
    if cos.shape != sin.shape:
        refuse(name, f"cos {list(cos.shape)} and sin {list(sin.shape)} must have one shape")
    heads, batch, head, width = layout.index("N"), max(layout.find("B"), 0), query.shape[-1], cos.shape[-1]
    new = on_950(query)
    if not new:
        if mode != "half":
            refuse(name, f"rotary_mode {mode} is only taken on an Ascend 950; the others take half")
        if layout not in ("BSND", "TND"):
            refuse(name, f"layout {layout} is only taken on an Ascend 950; the others take BSND and TND")
        if head not in (64, 128) or width != head:
            refuse(name, f"query has {head} elements along the last axis and cos {width}; both must be 64 or 128")
    parts = 4 if mode == "quarter" else 2
    if head > 1024 or width > head or width % parts or key.shape[-1] != head:
        widths = f"query {head}, key {key.shape[-1]}, cos {width}"
        refuse(name, f"the last axes ({widths}) do not fit: multiples of {parts}, query = key >= cos, up to 1024")
    for axis in range(dims - 1):
        sizes = {query.shape[axis], key.shape[axis]} if axis != heads else {1}
        if len(sizes) > 1 or (cos.shape[axis] not in sizes and not (new and axis == batch and cos.shape[axis] == 1)):
            shapes = f"query {list(query.shape)}, key {list(key.shape)}, cos {list(cos.shape)}"
            refuse(name, f"{shapes} do not fit: all but the heads must be equal, and cos has one head")


@operator("npu_apply_rotary_pos_emb", composite=True)
def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of query and key, written into them.

    Args:
        query: as `layout` says; float16, bfloat16 or float32. The last axis is 64 or 128 (up to 1024 on an
            Ascend 950).
        key: like `query`, with a number of heads of its own.
        cos: like `query` with one head.
        sin: like `cos`.
        layout: "BSND" or "TND", on an Ascend 950 also "SBND" and "BNSD".
        rotary_mode: "half", on an Ascend 950 also "interleave" and "quarter".

    Returns:
        query and key.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-apply_rotary_pos_emb.md and ApplyRotaryPosEmbNpuOpApi.cpp of op-plugin.
    """
    _check_apply(query, key, cos, sin, layout, rotary_mode)
    with torch.no_grad():
        query.copy_(_rotate(query, cos, sin, rotary_mode))
        key.copy_(_rotate(key, cos, sin, rotary_mode))
    return query, key


@operator("npu_rotary_mul_backward")
def npu_rotary_mul_backward(
    grad: torch.Tensor, self: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of npu_rotary_mul.

    Args:
        grad: gradient of the result.
        self: input of npu_rotary_mul.
        r1: cosines.
        r2: sines.
        rotary_mode: "half" or "interleave".

    Returns:
        (dx, dr1, dr2) in the dtype of `self`. The last two are computed if r1 or r2 requires a gradient, else zero
        (unwritten memory on the card).

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: RotaryMulBackwardKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_rotary_mul_backward"
    if rotary_mode not in ("half", "interleave"):
        reason = f"The rotary_mode of npu_rotary_mul_backward should be half or interleave, but got {rotary_mode}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    floating(name, grad=grad, input=self, r1=r1, r2=r2)
    if grad.shape != self.shape or r1.shape != r2.shape or r1.dim() != self.dim():
        shapes = f"grad {list(grad.shape)}, input {list(self.shape)}, r1 {list(r1.shape)}, r2 {list(r2.shape)}"
        refuse(name, f"{shapes} do not fit")
    wide = compute_dtype(self)
    to, x = grad.to(self.dtype).to(wide), self.to(wide)
    cosine, sine = (part.to(self.dtype).to(wide) for part in (r1, r2))
    dx = to * cosine - turned(to * sine, rotary_mode)  # the turn is a quarter turn, so its transpose is its negative
    if not (r1.requires_grad or r2.requires_grad):
        return dx.to(self.dtype), torch.zeros_like(r1, dtype=self.dtype), torch.zeros_like(r2, dtype=self.dtype)
    broadcast = [axis for axis in range(self.dim()) if r1.shape[axis] == 1 and self.shape[axis] != 1]
    to_cosine, to_sine = to * x, to * turned(x, rotary_mode)
    if broadcast:
        to_cosine, to_sine = to_cosine.sum(broadcast, keepdim=True), to_sine.sum(broadcast, keepdim=True)
    return dx.to(self.dtype), to_cosine.to(self.dtype), to_sine.to(self.dtype)


def _positions_of_sections(values: torch.Tensor, sections: list[int], interleave: bool) -> torch.Tensor:
    """For each frequency, cosine or sine of the position it belongs to: [sections, tokens, D] to [tokens, D]."""
    if not interleave:
        parts = values.split_with_sizes(sections, dim=-1)
        return torch.cat([part[i] for i, part in enumerate(parts)], dim=-1)
    result = values[0].clone()
    for i in (1, 2):
        result[:, i : sections[1] * 3 : 3] = values[i, :, i : sections[1] * 3 : 3]
    return result


def _rotated_heads(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, head_size: int, half: bool
) -> torch.Tensor:
    """Rotation of each head of `x` [tokens, heads * head_size] by [tokens, D / 2] cosines and sines."""
    if half:
        cosine, sine = torch.cat((cosine, cosine), -1), torch.cat((sine, sine), -1)
    else:
        cosine, sine = cosine.repeat_interleave(2, -1), sine.repeat_interleave(2, -1)
    tokens = cosine.shape[0]
    heads = x.reshape(tokens, x.numel() // max(tokens * head_size, 1), head_size)
    return _rotate(heads, cosine.unsqueeze(1), sine.unsqueeze(1), "half" if half else "interleave").reshape(x.shape)


@operator("npu_mrope")
def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of query and key with cosines and sines from a cache, also of several positions.

    Args:
        positions: rows of the cache: [tokens], or [sections, tokens] with 3 or 4 sections; int32 or int64.
        query: [tokens, heads * head_size]; float16, bfloat16 or float32.
        key: like `query`, with a number of heads of its own.
        cos_sin_cache: [rows, D]: cosines in the first half, sines in the second; D is at most head_size, and what is
            behind it in a head stays.
        head_size: elements of a head; a multiple of 32 (of 16 for float32), and so is D.
        mrope_section: frequencies of each section; they sum to D / 2. None or zeros for one position.
        rotary_mode: "half" pairs element i with i + D / 2, "interleave" pairs neighbours.
        cache_mode: "default" for sections one after another, "interleave" for sections that take turns.

    Returns:
        the rotated query and key.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_mrope.md; RopeWithSinCosCacheKernelNpuOpApi.cpp for the names of the modes.
    """
    name = "npu_mrope"
    mode, cache = rotary_mode or "half", cache_mode or "default"
    if mode not in ("half", "interleave"):
        raise RuntimeError("rotary_mode only support half or interleave" + ops_error(ErrCode.VALUE))
    if cache not in ("default", "interleave"):
        raise RuntimeError("cache_mode only support default or interleave" + ops_error(ErrCode.VALUE))
    floating(name, query=query, key=key, cos_sin_cache=cos_sin_cache)
    same_dtype(name, query=query, key=key, cos_sin_cache=cos_sin_cache)
    sections = [size for size in mrope_section or () if size] and list(mrope_section or ())
    _check_mrope(positions, query, key, cos_sin_cache, head_size, sections)
    if len(sections) == 4 and cache == "interleave":
        refuse(name, f"mrope_section {sections} has 4 sections, which are not taken with cache_mode interleave")
    chosen = cos_sin_cache.to(compute_dtype(query)).index_select(0, positions.flatten())
    cosine, sine = chosen.reshape(*positions.shape, cos_sin_cache.shape[1]).chunk(2, dim=-1)
    if sections:
        cosine = _positions_of_sections(cosine, sections, cache == "interleave")
        sine = _positions_of_sections(sine, sections, cache == "interleave")
    half = mode == "half"
    return _rotated_heads(query, cosine, sine, head_size, half), _rotated_heads(key, cosine, sine, head_size, half)


def _check_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cache: torch.Tensor,
    head_size: int,
    sections: list[int],
) -> None:
    name = "npu_mrope"
    if positions.dtype not in (torch.int32, torch.int64):
        refuse(name, f"positions is {positions.dtype}; the kernel takes int32 and int64")
    if query.dim() != 2 or key.dim() != 2 or cache.dim() != 2:
        refuse(name, "query, key and cos_sin_cache must have 2 dimensions, [tokens, heads * head_size] and [rows, D]")
    tokens, width = positions.shape[-1] if positions.dim() else 0, cache.shape[1]
    expected = [len(sections), tokens] if sections else [tokens]
    if positions.dim() not in (1, 2) or list(positions.shape) != expected or len(sections) not in (0, 3, 4):
        refuse(name, f"positions of shape {list(positions.shape)} do not fit mrope_section {sections}")
    if query.shape[0] != tokens or key.shape[0] != tokens:
        refuse(name, f"query has {query.shape[0]} tokens and key {key.shape[0]}, but there are {tokens} positions")
    multiple = 16 if query.dtype == torch.float32 else 32
    if head_size <= 0 or head_size % multiple or width % multiple or width > head_size:
        sizes = f"head_size is {head_size} and the cache has {width} columns"
        refuse(name, f"{sizes}; both must be multiples of {multiple}, and a head is at least as wide as the cache")
    if query.shape[1] % head_size or key.shape[1] % head_size:
        refuse(name, f"query {query.shape[1]} and key {key.shape[1]} are not made of heads of {head_size} elements")
    if sections and sum(sections) != width // 2:
        refuse(name, f"mrope_section {sections} sums to {sum(sections)}, but the cache has {width // 2} frequencies")


@operator("_npu_rotary_embedding")
def npu_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Rotary position embedding of query and key with cosines and sines from a cache, written into them.

    The operator of the card keeps the first cache that it sees for the whole process; here each call has its own.

    Args:
        positions: rows of the cache, one for each token.
        query: [tokens, heads * head_size] or [tokens, heads, head_size]; float16 or bfloat16.
        key: like `query`, with a number of heads of its own.
        head_size: elements of a head.
        cos_sin_cache: [rows, head_size]: cosines in the first half, sines in the second.
        is_neox_style: element i is paired with i + head_size / 2 rather than with its neighbour.

    Raises:
        RuntimeError: the shapes do not fit; a cache that is narrower than a head is not simulated.

    Source: RopeAtb.cpp of op-plugin.
    """
    name = "_npu_rotary_embedding"
    floating(name, query=query, key=key, cos_sin_cache=cos_sin_cache)
    tokens = positions.numel()
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[1] != head_size:
        shape = list(cos_sin_cache.shape)
        refuse(name, f"cos_sin_cache has shape {shape}; only [rows, head_size = {head_size}] is simulated")
    for what, tensor in (("query", query), ("key", key)):
        if not tensor.dim() or tensor.shape[0] != tokens or tensor.numel() % max(tokens * head_size, 1):
            reason = f"{tokens} tokens with heads of {head_size} elements"
            refuse(name, f"{what} of shape {list(tensor.shape)} is not made of {reason}")
    chosen = cos_sin_cache.index_select(0, positions.flatten()).to(query.dtype).to(compute_dtype(query))
    cosine, sine = chosen.chunk(2, dim=-1)
    query.copy_(_rotated_heads(query, cosine, sine, head_size, is_neox_style))
    key.copy_(_rotated_heads(key, cosine, sine, head_size, is_neox_style))
