"""Scales and codes for blocks of values: the rule of each format, and the search for a better scale."""

from __future__ import annotations

from itertools import pairwise

import torch

from toprope.tiers.pages.formats import E2M1_MAX, Format

__all__ = ["quantise"]

_E4M3_MAX = 448.0
_E4M3_SMALLEST = 2.0**-6  # torchao's: the smallest normal number
_E8M0_BIAS = 127
_E8M0_NAN = 255
_NF4_FRACTIONS = (1.0, 0.96, 0.92, 0.88)


def quantise(
    values: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, one a byte, and scales for blocks.

    Args:
        values: fp32, blocks x values of a block.
        form: one with 4 bits.
        global_scale: of the tensor, where the format has one.
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
        codes, rounded = _nf4_codes(scaled, form) if form.name == "nf4" else _e2m1_codes(scaled)
        if rule == "reference":
            return codes, _spoil(scale, spoilt)
        error = rounded.mul_(real.unsqueeze(-1)).sub_(values).square_().sum(dim=-1)
        best = (codes, scale, error) if best is None else _better(best, (codes, scale, error))
    assert best is not None
    return best[0], _spoil(best[1], spoilt)


def _better(
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each block that of two whose error is smaller, the first where they are equal."""
    better = other[2] < best[2]
    stored = torch.uint8 if best[1].itemsize == 1 else best[1].dtype  # torch chooses among no dtypes of 8 bits but this
    return (
        torch.where(better.unsqueeze(-1), other[0], best[0]),
        torch.where(better, other[1].view(stored), best[1].view(stored)).view(best[1].dtype),
        torch.where(better, other[2], best[2]),
    )


def _candidates(
    sizes: torch.Tensor, form: Format, global_scale: torch.Tensor | None, rule: str
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Scales to try, the reference's first: as stored, what values are multiplied with (MXFP4: divided by) before they
    are rounded, and what codes are multiplied with when they are decoded.
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
    # zero times infinity is none
    factor = ((1.0 / global_scale) / wide).clamp(max=torch.finfo(torch.float32).max)
    return stored, factor, global_scale * wide


def _mxfp4(exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    bits = exponent << 23
    # the reference divides by the smallest normal number where the scale is 2^-127
    divisor = bits.view(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
    real = torch.where(exponent == 0, 1 << 22, bits).view(torch.float32)
    return exponent.to(torch.uint8).view(torch.float8_e8m0fnu), divisor, real


def _nf4(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # where 1 / scale would be infinite, all is rounded to zero
    factor = torch.where(scale > torch.finfo(torch.float32).tiny, 1.0 / scale, 0.0)
    return scale, factor, scale


def _e2m1_codes(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and values of the nearest E2M1 numbers, of two that are equally near the one with the even code.

    Codes 0 to 4 stand for steps of 1/2, 4 to 6 for steps of 1 and 6 to 7 for steps of 2; rounding is to even already.
    """
    size = scaled.abs().clamp_(max=E2M1_MAX)
    code = torch.minimum((size * 2).round_(), torch.minimum(size.round().add_(2), size.mul_(0.5).round_().add_(4)))
    value = torch.maximum(code * 0.5, torch.maximum(code - 2, code * 2 - 8)).copysign_(scaled)
    return code.to(torch.uint8).add_(torch.signbit(scaled), alpha=8), value


def _nf4_codes(scaled: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and values of the nearest NF4 numbers, of two that are equally near the lower one."""
    code = torch.zeros_like(scaled, dtype=torch.uint8)
    value = torch.full_like(scaled, form.values[0])
    for lower, upper in pairwise(torch.tensor(form.values, dtype=torch.float64).tolist()):
        above = scaled > float(torch.tensor((lower + upper) / 2, dtype=torch.float32))
        code += above
        value.add_(above, alpha=upper - lower)
    return code, value


def _spoil(scale: torch.Tensor, spoilt: torch.Tensor) -> torch.Tensor:
    """NaN as the scale of blocks that hold one, or an infinity."""
    if scale.dtype == torch.float32:
        return torch.where(spoilt, torch.nan, scale)
    none = _E8M0_NAN if scale.dtype == torch.float8_e8m0fnu else 0x7F
    return torch.where(spoilt, none, scale.view(torch.uint8)).to(torch.uint8).view(scale.dtype)
