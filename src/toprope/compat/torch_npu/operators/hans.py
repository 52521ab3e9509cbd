"""Lossless compression of floating point tensors: npu_hans_encode and npu_hans_decode.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_quant_dtypes.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

The card codes the bytes that hold the exponents by their frequency. That coding is not published; here those bytes are
kept as they are, so the parts have the documented sizes and decoding gives the tensor again, but nothing is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .checks import FLOATING, refuse
from .registry import operator

__all__ = ["npu_hans_decode", "npu_hans_encode"]


@operator("npu_hans_encode.out")
def npu_hans_encode(
    input: torch.Tensor,
    statistic: bool = False,
    reshuff: bool = False,
    *,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split a tensor into the bytes with the exponents and the others.

    Args:
        input: float16, bfloat16 or float32; a multiple of 64 elements, at least 32768.
        statistic: whether the frequencies of the exponent bytes go into `pdf`.
        reshuff: how the card lays the parts of its cores; no matter here.
        out: (pdf, mantissa, fixed, var). pdf has 256 values, int32. The others are of the dtype of the input: mantissa
            for all bytes but one of each element, fixed for the exponent bytes as far as they fit, var for the rest.

    Returns:
        (pdf, mantissa, fixed, var), as given, with the parts written into them.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnHansEncode.md of ops-math.
    """
    name, count = "npu_hans_encode", input.numel()
    if len(out) != 4:
        refuse(name, f"out must be (pdf, mantissa, fixed, var), but got {len(out)} tensors")
    pdf, mantissa, fixed, var = out
    if input.dtype not in FLOATING or any(part.dtype != input.dtype for part in (mantissa, fixed, var)):
        refuse(name, f"the input is {input.dtype}; it must be float16, bfloat16 or float32, as mantissa, fixed and var")
    if count % 64 or count < 32768:
        refuse(name, f"the input has {count} elements; the kernel takes multiples of 64 from 32768")
    if pdf.dtype != torch.int32 or pdf.numel() != 256:
        refuse(name, f"pdf is {pdf.dtype} {list(pdf.shape)}; it must be 256 values of int32")
    size = input.element_size()
    if mantissa.numel() * size != count * (size - 1):
        refuse(name, f"mantissa has {mantissa.numel()} elements; it must have {count * (size - 1) // size}")
    if fixed.numel() * size < 512 or (fixed.numel() + var.numel()) * size < count:
        refuse(name, f"fixed and var, {fixed.numel()} and {var.numel()} elements, are too small")
    bytes_ = input.contiguous().reshape(-1).view(torch.int16 if size == 2 else torch.int32)
    # the exponent without the sign is in the upper byte, after a rotation by one bit for the dtypes with 8 bits of it
    wide = bytes_.to(torch.int64) & (1 << 8 * size) - 1
    if input.dtype != torch.float16:
        wide = (wide << 1 | wide >> 8 * size - 1) & (1 << 8 * size) - 1
    exponents = (wide >> 8 * (size - 1)).to(torch.uint8)
    others = torch.stack([wide >> 8 * place & 255 for place in range(size - 1)], dim=-1).to(torch.uint8)
    if statistic:
        counts = torch.zeros(256, dtype=torch.int64, device=input.device)
        counts = counts.scatter_add(0, exponents.to(torch.int64), torch.ones_like(exponents, dtype=torch.int64))
        pdf.copy_(counts.to(torch.int32).reshape(pdf.shape))
    mantissa.copy_(_as(others.reshape(-1), mantissa))
    room = fixed.numel() * size
    fixed.copy_(_as(_filled(exponents[:room], room), fixed))
    var.copy_(_as(_filled(exponents[room:], var.numel() * size), var))
    return pdf, mantissa, fixed, var


@operator("npu_hans_decode.out")
def npu_hans_decode(
    mantissa: torch.Tensor,
    fixed: torch.Tensor,
    var: torch.Tensor,
    pdf: torch.Tensor,
    reshuff: bool = False,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """The tensor whose parts npu_hans_encode gave.

    Args:
        mantissa: as npu_hans_encode gave it, and so the other parts.
        fixed: first part of the exponent bytes.
        var: rest of them.
        pdf: their frequencies.
        reshuff: as for encoding.
        out: of the shape and dtype of the tensor; the result is written into it.

    Raises:
        RuntimeError: the parts do not fit each other.

    Source: aclnnHansDecode.md of ops-math.
    """
    name, count, size = "npu_hans_decode", out.numel(), out.element_size()
    if any(part.dtype != out.dtype for part in (mantissa, fixed, var)) or out.dtype not in FLOATING:
        refuse(name, f"out is {out.dtype}; mantissa, fixed and var must have its dtype")
    if mantissa.numel() * size != count * (size - 1) or pdf.numel() != 256:
        refuse(name, f"mantissa has {mantissa.numel()} elements; it must have {count * (size - 1) // size}")
    others = _bytes(mantissa).reshape(count, size - 1).to(torch.int64)
    wide = torch.cat((_bytes(fixed), _bytes(var)))[:count].to(torch.int64) << 8 * (size - 1)
    for place in range(size - 1):
        wide = wide | others[:, place] << 8 * place
    if out.dtype != torch.float16:
        wide = (wide >> 1 | wide << 8 * size - 1) & (1 << 8 * size) - 1
    limit = 1 << 8 * size - 1
    signed = (wide ^ limit) - limit
    kept = signed.to(torch.int16 if size == 2 else torch.int32)
    return out.copy_(kept.view(out.dtype).reshape(out.shape))


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.contiguous().reshape(-1).view(torch.uint8)


def _as(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Bytes as a tensor of the dtype and shape of another."""
    return whole.contiguous().view(part.dtype).reshape(part.shape)


def _filled(whole: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(whole, (0, length - whole.shape[0]))
