"""Encode and decode quantised tensors; scales follow the rule of torchao, or are searched for the smallest error.

`tiers.pages` has `encode` and `decode` for users; the modes and `quant.linear` call them for layers. On a CPU the C++
kernels (csrc/encode.cpp, csrc/basics.inl) do the same work with the same result, but for nearly equal scales; the code
here is for cards and odd shapes: change both. A block with a NaN or an infinity decodes to NaN as a whole; other blocks
are not affected. Decoded bits are fixed by the formats; the search for scales is free. Tests:
tests/tiers/test_pages_formats.py, against plain Python and torchao.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch.nn import functional

from toprope.errors import PageError
from toprope.tiers.quant.formats import E2M1_MAX, Format, format_named
from toprope.tiers.quant.kernels import kernels
from toprope.tiers.quant.tensor import QuantisedTensor

__all__ = ["decode", "encode", "quantise"]

_E4M3_SMALLEST = 2.0**-6  # torchao's: the smallest normal number
_E8M0_BIAS = 127
_E8M0_NAN = 255
_NF4_FRACTIONS = (1.0, 0.96, 0.92, 0.88)


def quantise(
    values: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise values to codes, one per byte, and one scale per block.

    Args:
        values: fp32 tensor of blocks x values of a block.
        form: a format with 4 bits.
        global_scale: scale of the whole tensor, if the format has one.
        rule: "search" or "reference".
    """
    sizes = values.abs().amax(dim=-1)
    spoilt = ~torch.isfinite(sizes)
    if bool(spoilt.any()):
        values = torch.where(spoilt.unsqueeze(-1), 0.0, values)
        sizes = torch.where(spoilt, 0.0, sizes)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for scale, factor, real in _candidates(sizes, form, global_scale, rule):
        scaled = values / factor.unsqueeze(-1) if form.name == "mxfp4" else values * factor.unsqueeze(-1)
        if form.name == "nvfp4" and bool(factor.isinf().any()):  # zero times infinity is NaN
            scaled = torch.where(values == 0, values, scaled)
        codes, rounded = _nf4_codes(scaled, form) if form.name == "nf4" else _e2m1_codes(scaled)
        if rule == "reference":
            return codes, _set_nan_scales(scale, spoilt)
        error = rounded.mul_(real.unsqueeze(-1)).sub_(values).square_().sum(dim=-1)
        best = (codes, scale, error) if best is None else _smaller_error(best, (codes, scale, error))
    assert best is not None
    return best[0], _set_nan_scales(best[1], spoilt)


def _smaller_error(
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose for each block the candidate with the smaller error, the first one if both are equal."""
    better = other[2] < best[2]
    stored = torch.uint8 if best[1].itemsize == 1 else best[1].dtype  # torch.where takes no other 8-bit dtype
    return (
        torch.where(better.unsqueeze(-1), other[0], best[0]),
        torch.where(better, other[1].view(stored), best[1].view(stored)).view(best[1].dtype),
        torch.where(better, other[2], best[2]),
    )


def _candidates(
    sizes: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Scales to try, the reference's first.

    Returns:
        Triples: the scale as stored, the factor for values before rounding (MXFP4: the divisor), and the factor for
        codes in decoding.
    """
    if form.name == "nvfp4":
        assert global_scale is not None
        return [_nvfp4(sizes / top, global_scale) for top in ((E2M1_MAX,) if rule == "reference" else (E2M1_MAX, 4.0))]
    if form.name == "mxfp4":
        # floor(log2(amax)) - 2, by the exponent's bits; a block of zeros has the smallest
        exponent = ((sizes.view(torch.int32) >> 23) & 0xFF) - 2
        return [_mxfp4((exponent + step).clamp(0, 254)) for step in ((0,) if rule == "reference" else (0, 1, -1))]
    fractions = _NF4_FRACTIONS[:1] if rule == "reference" else _NF4_FRACTIONS
    return [_nf4(sizes * fraction) for fraction in fractions]


def _nvfp4(scale: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stored = (scale / global_scale).clamp(_E4M3_SMALLEST, _E4M3_MAX).to(torch.float8_e4m3fn)
    wide = stored.float()
    factor = (1.0 / global_scale) / wide
    return stored, factor, global_scale * wide


def _mxfp4(exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    bits = exponent << 23
    # the reference divides by the smallest normal number where the scale is 2^-127
    divisor = bits.view(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
    real = torch.where(exponent == 0, 1 << 22, bits).view(torch.float32)
    return exponent.to(torch.uint8).view(torch.float8_e8m0fnu), divisor, real


def _nf4(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # if 1 / scale were infinite, all values are rounded to zero
    factor = torch.where(scale > torch.finfo(torch.float32).tiny, 1.0 / scale, 0.0)
    return scale, factor, scale


def _e2m1_codes(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to E2M1; return codes and values. Of two equally near numbers the one with the even code is taken.

    Codes 0 to 4 are in steps of 1/2, 4 to 6 in steps of 1, 6 to 7 in steps of 2; `round` rounds to even.
    """
    size = scaled.abs().clamp_(max=E2M1_MAX)
    code = torch.minimum((size * 2).round_(), torch.minimum(size.round().add_(2), size.mul_(0.5).round_().add_(4)))
    value = torch.maximum(code * 0.5, torch.maximum(code - 2, code * 2 - 8)).copysign_(scaled)
    return code.to(torch.uint8).add_(torch.signbit(scaled), alpha=8), value


def _nf4_codes(scaled: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to NF4; return codes and values. Of two equally near numbers the lower one is taken."""
    code = torch.zeros_like(scaled, dtype=torch.uint8)
    value = torch.full_like(scaled, form.values[0])
    for lower, upper in pairwise(torch.tensor(form.values, dtype=torch.float64).tolist()):
        above = scaled > float(torch.tensor((lower + upper) / 2, dtype=torch.float32))
        code += above
        value.add_(above, alpha=upper - lower)
    return code, value


def _set_nan_scales(scale: torch.Tensor, spoilt: torch.Tensor) -> torch.Tensor:
    """Set the scales of blocks with a NaN or an infinity to NaN."""
    if scale.dtype == torch.float32:
        return torch.where(spoilt, torch.nan, scale)
    none = _E8M0_NAN if scale.dtype == torch.float8_e8m0fnu else 0x7F
    return torch.where(spoilt, none, scale.view(torch.uint8)).to(torch.uint8).view(scale.dtype)


_AT_ONCE = 2**15  # values per pass: their temporaries fit in the cache, and torch uses one thread
_E4M3_MAX = 448.0
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@torch.no_grad()
def encode(
    tensor: torch.Tensor, format: str = "nvfp4", scale: str = "search", *, path: str | None = None
) -> QuantisedTensor:
    """Quantise a tensor.

    This takes less than twice the tensor's memory in addition to it, the result included. A tensor on a card is encoded
    on the host, and the result is copied to the card.

    Args:
        tensor: of any shape, of fp32, bf16, fp16 or fp64 (which is rounded to fp32 first).
        format: "nvfp4", "mxfp4", "nf4" or "int8".
        scale: "search": for each block the scale with the smallest squared error among those that could be best, in
            nvfp4 amax / 6 and amax / 4, in mxfp4 three exponents, in nf4 four fractions of amax. "reference": by the
            rule alone, with the same bytes as torchao for nvfp4 (with its scale for the tensor) and mxfp4 (FLOOR).
            For int8 both are the same.
        path: for tests: "torch" to use no kernels of ours.

    Raises:
        PageError: no such format or rule, or a tensor that holds no such numbers.
    """
    form = format_named(format)
    if scale not in ("search", "reference"):
        raise PageError(f"there is no rule {scale!r} for the scales of a page.", do="use search or reference")
    if tensor.dtype not in _DTYPES or tensor.is_sparse:
        raise PageError(f"a tensor of {tensor.dtype} cannot be stored in few bits.", do="convert it to float32 first")
    if tensor.device.type != "cpu":
        return encode(tensor.detach().cpu(), format, scale, path=path).to(
            tensor.device
        )  # many cards have no 8-bit floating-point types
    columns = tensor.shape[-1] if tensor.dim() else 1
    ours = tensor.detach().reshape(tensor.numel() // columns if columns else 0, columns).contiguous()
    whole = form.bits == 4 and ours.numel() > 0 and columns % form.block == 0
    native = kernels() if whole and ours.dtype in (torch.float32, torch.bfloat16) and path != "torch" else None
    if native is not None:
        page = _empty(tuple(tensor.shape), tensor.dtype, form)
        native.encode(ours, page, scale == "search")
        return page
    global_scale = _global_scale(ours, form) if form.has_global else None
    if form.bits == 8 or ours.numel() == 0:
        codes, scales = _rows(ours, form)
    elif whole:
        codes, scales = _whole_blocks(ours, form, global_scale, scale)
    else:
        codes, scales = _any_columns(ours, form, global_scale, scale)
    kept = None if global_scale is None else global_scale.reshape(1).view(torch.uint8)
    return QuantisedTensor(form, tuple(tensor.shape), tensor.dtype, codes, scales.view(torch.uint8).flatten(), kept)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, form: Format) -> QuantisedTensor:
    """Allocate a quantised tensor of whole blocks."""
    count = math.prod(shape)
    codes = torch.empty(count // 2, dtype=torch.uint8)
    scales = torch.empty(count // form.block * form.scale_dtype.itemsize, dtype=torch.uint8)
    return QuantisedTensor(
        form, shape, dtype, codes, scales, torch.empty(4, dtype=torch.uint8) if form.has_global else None
    )


def _global_scale(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Global scale with which the scale of the largest block is the largest E4M3 number."""
    largest = torch.zeros((), device=values.device)
    for part in _spans(values, form) if values.numel() else ():
        sizes = torch.linalg.vector_norm(part.float(), float("inf"), dim=-1)
        # a NaN or an infinity spoils its own block, not the tensor
        largest = torch.maximum(largest, torch.where(torch.isfinite(sizes), sizes, 0.0).max())
    # With a subnormal scale 1 / scale would be infinite; a tensor of zeros may have any scale.
    smallest = torch.finfo(torch.float32).tiny
    return torch.where(largest > 0, (largest / (_E4M3_MAX * E2M1_MAX)).clamp(min=smallest), 1.0)


def _spans(values: torch.Tensor, form: Format) -> Iterator[torch.Tensor]:
    """Iterate over all values as matrices of whole blocks; a row's last block may be padded with zeros."""
    columns = values.shape[1]
    if columns % form.block == 0:
        yield from _split(values.view(-1, form.block), _AT_ONCE // form.block)
        return
    whole = columns - columns % form.block
    width = min(max(_AT_ONCE // form.block * form.block, form.block), columns + form.block - columns % form.block)
    for rows in _split(values, max(_AT_ONCE // width, 1)):
        for begin in range(0, columns, width):
            part = rows[:, begin : begin + width]
            if begin + part.shape[1] > whole:
                part = functional.pad(part, (0, -part.shape[1] % form.block))
            yield part.reshape(-1, form.block)


def _whole_blocks(
    values: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> tuple[torch.Tensor, torch.Tensor]:
    packed = torch.empty(values.numel() // 2, dtype=torch.uint8, device=values.device)
    scales = torch.empty(values.numel() // form.block, dtype=form.scale_dtype, device=values.device)
    done = 0
    for part in _spans(values, form):
        codes, scale = quantise(part.float(), form, global_scale, rule)
        packed[done // 2 : (done + part.numel()) // 2] = _pack(codes.view(-1))
        scales[done // form.block : (done + part.numel()) // form.block] = scale
        done += part.numel()
    return packed, scales


def _any_columns(
    values: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode rows that are no whole number of blocks; as a row may begin within a byte, codes are packed at the end."""
    rows, columns = values.shape
    blocks = form.blocks(columns)
    loose = torch.zeros(rows * columns + 1, dtype=torch.uint8, device=values.device)
    matrix = loose[: rows * columns].view(rows, columns)
    scales = torch.empty(rows, blocks, dtype=form.scale_dtype, device=values.device)
    row = block = 0
    for part in _spans(values, form):
        codes, scale = quantise(part.float(), form, global_scale, rule)
        count = max(part.shape[0] // blocks, 1)
        width = part.shape[0] // count
        begin, end = block * form.block, min((block + width) * form.block, columns)
        matrix[row : row + count, begin:end] = codes.view(count, -1)[:, : end - begin]
        scales[row : row + count, block : block + width] = scale.view(count, width)
        block += width
        if block == blocks:
            row, block = row + count, 0
    packed = torch.empty(-(-rows * columns // 2), dtype=torch.uint8, device=values.device)
    for begin in range(0, packed.numel(), _AT_ONCE):
        span = loose[2 * begin : 2 * (begin + _AT_ONCE)]
        packed[begin : begin + _AT_ONCE] = _pack(span[: span.numel() // 2 * 2])
    return packed, scales


def _pack(codes: torch.Tensor) -> torch.Tensor:
    return codes[0::2] | (codes[1::2] << 4)


def _rows(values: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode as int8, with the largest absolute value of each row as 127."""
    rows, columns = values.shape
    per_code = 1 if form.bits == 8 else 2
    codes = torch.empty(-(-rows * columns // per_code), dtype=torch.uint8, device=values.device)
    scales = torch.empty(rows * form.blocks(columns), dtype=form.scale_dtype, device=values.device)
    if values.numel() == 0:
        return codes, scales
    matrix = codes.view(torch.int8).view(rows, columns)
    step = max(_AT_ONCE // columns, 1)
    for first in range(0, rows, step):
        parts = _split(values[first : first + step], _AT_ONCE, 1)
        sizes = torch.stack([part.abs().amax(dim=1) for part in parts]).amax(dim=0).float()
        scale = torch.where(torch.isfinite(sizes), sizes / 127, torch.nan)
        scales[first : first + step] = scale
        divisor = torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
        for part, target in zip(parts, _split(matrix[first : first + step], _AT_ONCE, 1), strict=True):
            target.copy_((part.float() / divisor).round_().clamp_(-127, 127).nan_to_num_(0.0))
    return codes, scales


def _split(tensor: torch.Tensor, size: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.split(size, dim))  # type: ignore[no-untyped-call]


_DECODED_AT_ONCE = 2**20  # values per pass of decoding with torch


@torch.no_grad()
def decode(
    page: QuantisedTensor, dtype: torch.dtype | None = None, out: torch.Tensor | None = None, *, path: str | None = None
) -> torch.Tensor:
    """Decode a quantised tensor: code times scale in fp32, rounded once to the dtype.

    Args:
        page: the quantised tensor; the result is on the same device.
        dtype: dtype of the result; by default the dtype of the tensor before quantisation.
        out: tensor to write the result to; its dtype is used.
        path: for tests: the kernels' set of instructions, such as "avx2", or "torch".

    Raises:
        PageError: `out` has another shape or device, or `dtype` is no floating-point type.
    """
    if out is None:
        out = torch.empty(page.shape, dtype=dtype or page.dtype, device=page.device)
    if tuple(out.shape) != page.shape or out.device != page.device or not out.is_floating_point():
        raise PageError(
            "a page cannot be decoded into this tensor.",
            f"{list(page.shape)} on {page.device}; the tensor is {list(out.shape)}, {out.dtype} on {out.device}",
        )
    native = kernels() if page.device.type == "cpu" and path != "torch" else None
    if native is not None:
        if out.is_contiguous() and out.dtype in (torch.float32, torch.bfloat16):
            native.decode(page, out, path)
        else:
            wide = torch.empty(page.shape, dtype=torch.float32)
            native.decode(page, wide, path)
            out.copy_(wide)
    elif out.is_contiguous():
        _by_torch(page, out)
    else:
        out.copy_(decode(page, out.dtype, path=path))
    return out


def _by_torch(page: QuantisedTensor, out: torch.Tensor) -> None:
    form, columns = page.format, page.columns
    matrix, scales = out.view(page.rows, columns), _scales(page)
    table = torch.tensor(form.values, dtype=torch.float32, device=page.device)
    step = max(_DECODED_AT_ONCE // max(columns, 1), 1)
    if page.numel() == 0:
        return
    for row in range(0, page.rows, step):
        end = min(row + step, page.rows)
        codes = _codes(page, row * columns, end * columns)
        values = codes.float() if form.bits == 8 else table[codes]
        scale = scales[row:end]
        if page.global_scale is not None:
            scale = page.global_scale.view(torch.float32) * scale
        wide = scale.repeat_interleave(form.block or columns, dim=1)[:, :columns]
        matrix[row:end] = values.view(end - row, columns).mul_(wide)


def _scales(page: QuantisedTensor) -> torch.Tensor:
    """Scales as fp32; 8-bit scales by a table, as many cards cannot convert these types."""
    form = page.format
    if form.scale_dtype == torch.float32:
        return page.typed_scales()
    table = torch.arange(256, dtype=torch.uint8).view(form.scale_dtype).float().to(page.device)
    return table[page.scales.int()].view(page.rows, form.blocks(page.columns))


def _codes(page: QuantisedTensor, begin: int, end: int) -> torch.Tensor:
    """Codes of the values from `begin` to `end`, one per element."""
    if page.format.bits == 8:
        return page.codes.view(torch.int8)[begin:end]
    packed = page.codes[begin // 2 : -(-end // 2)]
    both = torch.stack((packed & 15, packed >> 4), dim=-1).view(-1)
    return both[begin % 2 : begin % 2 + end - begin].int()
