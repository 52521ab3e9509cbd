"""From a tensor to a page: scales by the rule of torchao, or searched for the smaller error in the same layout.

A block with a NaN or an infinity decodes to NaN as a whole; others are not touched by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.nn import functional

from toprope.errors import PageError
from toprope.tiers.pages.formats import E2M1_MAX, Format, format_named
from toprope.tiers.pages.native import kernels
from toprope.tiers.pages.page import Page
from toprope.tiers.pages.scales import quantise

__all__ = ["encode"]

_AT_ONCE = 2**15  # values that are worked on at a time: what they need fits in the cache, and torch takes one thread
_E4M3_MAX = 448.0
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@torch.no_grad()
def encode(tensor: torch.Tensor, format: str = "nvfp4", scale: str = "search", *, path: str | None = None) -> Page:
    """Store a tensor in few bits.

    It takes less memory than twice the tensor beside it, the page included. What lies on a card is encoded on the host,
    and the page lies on the card.

    Args:
        tensor: of any shape, of fp32, bf16, fp16 or fp64 (which is rounded to fp32 first).
        format: "nvfp4", "mxfp4", "nf4" or "int8".
        scale: "search": for each block the scale with the smallest squared error among those that could be best, in
            nvfp4 amax / 6 and amax / 4, in mxfp4 three exponents, in nf4 four fractions of amax. "reference": by the
            rule alone, byte for byte what torchao makes of nvfp4 (with its scale for the tensor) and mxfp4 (FLOOR).
            They are the same for int8.
        path: for tests: "torch" to leave our kernels out.

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
        )  # many cards know no numbers of 8 bits
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
    return Page(form, tuple(tensor.shape), tensor.dtype, codes, scales.view(torch.uint8).flatten(), kept)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, form: Format) -> Page:
    """A page of whole blocks, to be written."""
    count = math.prod(shape)
    codes = torch.empty(count // 2, dtype=torch.uint8)
    scales = torch.empty(count // form.block * form.scale_dtype.itemsize, dtype=torch.uint8)
    return Page(form, shape, dtype, codes, scales, torch.empty(4, dtype=torch.uint8) if form.has_global else None)


def _global_scale(values: torch.Tensor, form: Format) -> torch.Tensor:
    """The fp32 of a tensor with which its largest block's scale is the largest that E4M3 has."""
    largest = torch.zeros((), device=values.device)
    for part in _spans(values, form) if values.numel() else ():
        sizes = torch.linalg.vector_norm(part.float(), float("inf"), dim=-1)
        # a NaN or an infinity spoils its own block, not the tensor
        largest = torch.maximum(largest, torch.where(torch.isfinite(sizes), sizes, 0.0).max())
    # Below the normal numbers 1 / scale would be infinite; a tensor of zeros may have any scale.
    smallest = torch.finfo(torch.float32).tiny
    return torch.where(largest > 0, (largest / (_E4M3_MAX * E2M1_MAX)).clamp(min=smallest), 1.0)


def _spans(values: torch.Tensor, form: Format) -> Iterator[torch.Tensor]:
    """All values as matrices of whole blocks, in order; a row's last block may be filled up with zeros."""
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
    """Rows that end within a block, where a row may begin within a byte: one byte a code first, packed afterwards."""
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
    """int8: the largest size of a row is 127."""
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
