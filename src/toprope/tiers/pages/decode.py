"""From a page to its values: by our kernels on the CPU, by torch elsewhere, equal to the bit."""

from __future__ import annotations

import torch

from toprope.errors import PageError
from toprope.tiers.pages.native import kernels
from toprope.tiers.pages.page import Page

__all__ = ["decode"]

_AT_ONCE = 2**20  # values that torch works on at a time


@torch.no_grad()
def decode(
    page: Page, dtype: torch.dtype | None = None, out: torch.Tensor | None = None, *, path: str | None = None
) -> torch.Tensor:
    """The values of a page: code times scale in fp32, rounded once to the dtype.

    Args:
        page: where its bytes lie, the values will lie.
        dtype: of the result; that of the tensor it was made of by default.
        out: written to instead of new memory; its dtype counts.
        path: for tests: the kernels' set of instructions, such as "avx2", or "torch".

    Raises:
        PageError: `out` is of another shape or on another device, or `dtype` holds no such numbers.
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


def _by_torch(page: Page, out: torch.Tensor) -> None:
    form, columns = page.format, page.columns
    matrix, scales = out.view(page.rows, columns), _scales(page)
    table = torch.tensor(form.values, dtype=torch.float32, device=page.device)
    step = max(_AT_ONCE // max(columns, 1), 1)
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


def _scales(page: Page) -> torch.Tensor:
    """Scales as fp32, by a table where they are of 8 bits: many cards convert none of these."""
    form = page.format
    if form.scale_dtype == torch.float32:
        return page.typed_scales()
    table = torch.arange(256, dtype=torch.uint8).view(form.scale_dtype).float().to(page.device)
    return table[page.scales.int()].view(page.rows, form.blocks(page.columns))


def _codes(page: Page, begin: int, end: int) -> torch.Tensor:
    """Codes of the values from `begin` on, as indices (int8: as they are)."""
    if page.format.bits == 8:
        return page.codes.view(torch.int8)[begin:end]
    packed = page.codes[begin // 2 : -(-end // 2)]
    both = torch.stack((packed & 15, packed >> 4), dim=-1).view(-1)
    return both[begin % 2 : begin % 2 + end - begin].int()
