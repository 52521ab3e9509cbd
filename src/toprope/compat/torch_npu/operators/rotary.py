"""Rotary position embedding: the mathematics of npu_rotary_mul.

Part of the torch_npu facade: programs call `torch_npu.npu_rotary_mul`. Name and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/test_torch_npu_facade.py
and tests/compat/operators/test_rope.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = ["npu_rotary_mul", "turned"]

_LONGEST_HEAD = 896
_BLOCK_BYTES, _SHORTEST_UNALIGNED = 32, 80
_MOST_PER_POSITION = 8
_OPERATOR = "npu_rotary_mul"

# Axes (of the leading ones) along which r1 and r2 may have size 1 where the input does not, by number of dimensions.
# half: 11SD, 1S1D, S11D; B1SD, BS1D and SB1D; no broadcast. T1D and TND with three dimensions.
_HALF = {4: ({0, 1}, {0, 2}, {1, 2}, {1}, {2}, set[int]()), 3: ({1}, set[int]())}
_INTERLEAVE = {4: ({0, 1}, {0, 2}, {1, 2}), 3: ({1},)}


def turned(x: torch.Tensor, mode: str) -> torch.Tensor:
    """The quarter turn of `x` in its last axis, which the sine multiplies.

    Args:
        x: the last axis has an even size.
        mode: "half" pairs element i with element i + D/2, "interleave" pairs neighbours.
    """
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), dim=-1)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((-odd, even), dim=-1).flatten(-2)


def _check(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, mode: str) -> None:
    floating(_OPERATOR, input=x, r1=r1, r2=r2)
    if mode not in ("half", "interleave"):
        reason = f"The rotary_mode of npu_rotary_mul should be half or interleave, but got {mode}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    if x.dim() not in (3, 4) or r1.dim() != x.dim():
        refuse(_OPERATOR, f"the input has {x.dim()} dimensions and r1 {r1.dim()}; both must have 4 (or 3, for TND)")
    if r1.shape != r2.shape:
        refuse(_OPERATOR, f"r1 {list(r1.shape)} and r2 {list(r2.shape)} must have one shape")
    head = x.shape[-1]
    if head % 2 or head > _LONGEST_HEAD:
        refuse(_OPERATOR, f"the last axis has {head} elements; the kernel takes an even number up to {_LONGEST_HEAD}")
    if r1.shape[-1] != head:
        refuse(_OPERATOR, f"r1 has {r1.shape[-1]} elements along the last axis, the input {head}")
    _check_broadcast(x, r1, mode)
    if mode == "half" and x.dim() == len("BNSD") and x.device.type == "npu":
        _check_blocks(x, r1)


def _check_blocks(x: torch.Tensor, r1: torch.Tensor) -> None:
    """Refuse BNSD shapes for which the kernel of the A2 and A3 says that single operators are faster.

    Source: CheckBnsdBlockSkip in rope_rotate_half_tiling.cpp (ops-transformer). r1 is BNSD's where it is broadcast
    along the first two axes and has more than one position.
    """
    from toprope.sim.npu._state import chip

    batches, heads, positions, head = x.shape
    broadcast = batches != r1.shape[0] and heads != r1.shape[1]
    if not broadcast or r1.shape[2] == 1 or not chip().family.startswith(("Ascend 910B", "Ascend 910C")):
        return
    many = batches * heads
    aligned = head // 2 * x.element_size() % _BLOCK_BYTES == 0
    per_core = -(-positions // (chip().vector_cores or 1))
    if aligned and many > _MOST_PER_POSITION * positions:
        reason = f"B * N, {many}, is more than {_MOST_PER_POSITION} * S, {_MOST_PER_POSITION * positions}"
    elif not aligned and head < _SHORTEST_UNALIGNED and 2 * many > per_core:
        reason = (
            f"half of the last axis, {head}, is no multiple of {_BLOCK_BYTES} bytes, and B * N, {many}, is too many"
        )
    else:
        return
    refuse(
        _OPERATOR,
        f"call aclnnRotaryPositionEmbedding failed, error code is 561002: the input {list(x.shape)} is BNSD, and "
        f"{reason}. Use BSND, or single operators.",
    )


def _check_broadcast(x: torch.Tensor, r1: torch.Tensor, mode: str) -> None:
    patterns = (_HALF if mode == "half" else _INTERLEAVE)[x.dim()]
    leading = range(x.dim() - 1)
    # An axis where both have size 1 fits either way: it may count as broadcast or not.
    fits = any(all(r1.shape[i] == (1 if i in pattern else x.shape[i]) for i in leading) for pattern in patterns)
    if not fits:
        known = "11SD, B1SD, BNSD; 1S1D, BS1D, BSND; S11D, SB1D, SBND; T1D, TND"
        if mode == "interleave":
            known = "11SD, 1S1D, S11D, T1D"
        refuse(_OPERATOR, f"r1 {list(r1.shape)} does not fit the input {list(x.shape)}; {mode} mode takes {known}")


@operator("npu_rotary_mul")
def npu_rotary_mul(
    self: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotary position embedding, r1 * x + r2 * turned(x).

    Args:
        self: x, as BNSD, BSND or SBND (or TND); float16, bfloat16 or float32; the last axis is even, at most 896.
        r1: cosines, of one shape with r2; cast to the dtype of `self` as on the card.
        r2: sines.
        rotary_mode: "half" or "interleave".
        rotate: matrix that turns x (x @ rotate) instead of the mode; then there is no gradient.

    Returns:
        a tensor like `self`.

    Raises:
        RuntimeError: the kernel would not take the input, or a gradient is asked for with `rotate`.
    """
    _check(self, r1, r2, rotary_mode)
    wide = self.to(compute_dtype(self))
    cosine, sine = (part.to(self.dtype).to(wide.dtype) for part in (r1, r2))
    if rotate is None:
        return (cosine * wide + sine * turned(wide, rotary_mode)).to(self.dtype)
    head = self.shape[-1]
    if list(rotate.shape) != [head, head]:
        refuse(_OPERATOR, f"rotate has shape {list(rotate.shape)}; it must be a matrix of {head} x {head}")
    if torch.is_grad_enabled() and (self.requires_grad or r1.requires_grad or r2.requires_grad):
        refuse(_OPERATOR, "there is no gradient when rotate is given; leave rotate out or use torch.no_grad()")
    return (cosine * wide + sine * (wide @ rotate.to(wide.dtype))).to(self.dtype)
