"""Dropout with masks of bits or bytes, drawn from the device's generator.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_dropout.py
for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

A mask of bits has one bit for each element, the first element in the lowest bit of the first byte, padded to 128 bits.
A mask of bytes has one byte, 0 or 1. The numbers are not those of the card; their distribution is.
"""

from __future__ import annotations

import math

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = [
    "byte_dropout",
    "byte_dropout_backward",
    "drawn_bits",
    "dropout_with_byte_mask",
    "keep_bits",
    "npu_dropout",
    "npu_dropout_backward",
    "npu_dropout_do_mask",
    "npu_dropout_gen_mask",
    "npu_dropout_with_add_softmax",
    "npu_dropout_with_add_softmax_backward",
    "seeded_dropout_gen_mask",
]

_ALIGN = 128
_AT_ONCE = 1 << 22  # numbers that are drawn together, which bounds the memory that it takes
_SIDES = (128, 256, 384, 512)
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # shifts and factors of SplitMix64


def _check_p(p: float) -> None:
    if not 0 <= p <= 1:
        reason = f"dropout probability has to be between 0 and 1, but got {p:g}"
        raise RuntimeError(reason + ops_error(ErrCode.VALUE))


def _check_floating(tensor: torch.Tensor, what: str) -> None:
    if not tensor.is_floating_point():
        raise RuntimeError(f"{what} only supports floating-point dtypes" + ops_error(ErrCode.TYPE))


def _check_mask(mask: torch.Tensor) -> None:
    if mask.dtype != torch.uint8:
        raise RuntimeError("mask should be torch.uint8 dtype" + ops_error(ErrCode.TYPE))


def _packed(bits: torch.Tensor) -> torch.Tensor:
    weights = 2 ** torch.arange(8, device=bits.device)
    return (bits.reshape(-1, 8) * weights).sum(-1).to(torch.uint8)


def _bit_mask(count: int, p: float, device: torch.device) -> torch.Tensor:
    bits = -(-count // _ALIGN) * _ALIGN
    return _packed(torch.rand(bits, device=device) >= p)


def keep_bits(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Bits of a packed mask as booleans of a shape.

    Raises:
        RuntimeError: the mask has fewer bits than the shape elements.
    """
    count = math.prod(shape)
    if mask.numel() * 8 < count:
        refuse("npu_dropout_do_mask", f"the mask has {mask.numel() * 8} bits for {count} elements")
    shifts = torch.arange(8, device=mask.device)
    bits = (mask.reshape(-1, 1).int() >> shifts) & 1
    return bits.flatten()[:count].reshape(shape).bool()


def _dropped(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """x / (1 - p) where `keep`, else 0."""
    wide = x.to(compute_dtype(x))
    return torch.where(keep, wide / (1 - p) if p < 1 else torch.zeros_like(wide), 0).to(x.dtype)


@operator("_npu_dropout")
def npu_dropout(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout with a mask of bits.

    Args:
        self: floating point.
        p: probability that an element is dropped.

    Returns:
        (y, mask): self / (1 - p) where the bit is set, else 0; and the mask, uint8.

    Raises:
        RuntimeError: p is outside [0, 1], or the dtype is no floating point.

    Source: （beta）torch_npu-_npu_dropout.md and DropoutKernelNpu.cpp of op-plugin.
    """
    _check_p(p)
    _check_floating(self, "dropout")
    mask = _bit_mask(self.numel(), p, self.device)
    return _dropped(self, keep_bits(mask, self.shape), p), mask


@operator("npu_dropout_do_mask")
def npu_dropout_do_mask(self: torch.Tensor, mask: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout with a given mask of bits.

    Args:
        self: floating point.
        mask: uint8, as npu_dropout_gen_mask gives it.
        p: probability with which the mask was drawn.

    Returns:
        (y, mask): self / (1 - p) where the bit is set, else 0; and a copy of the mask.

    Raises:
        RuntimeError: the mask is too short or not uint8.
    """
    _check_mask(mask)
    return _dropped(self, keep_bits(mask, self.shape), p), mask.clone()


@operator("npu_dropout_backward")
def npu_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Gradient of dropout with a mask of bits: grad / (1 - p) where the bit is set, else 0.

    Raises:
        RuntimeError: the gradient is no floating point, or the mask not uint8 or too short.
    """
    _check_floating(grad_output, "dropoutbackward")
    _check_mask(mask)
    return _dropped(grad_output, keep_bits(mask, grad_output.shape), p)


@operator("npu_dropout_gen_mask")
def npu_dropout_gen_mask(
    size: list[int],
    p: float,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Mask of bits for dropout.

    Args:
        size: shape of what it is for.
        p: probability that a bit is not set.
        dtype: of what it is for; not used.
        layout, pin_memory: not used.
        device: where the mask lies.

    Returns:
        uint8, ceil(elements / 128) * 16 bytes.

    Raises:
        RuntimeError: p is outside [0, 1].
    """
    _check_p(p)
    return _bit_mask(math.prod(size), p, torch.device("cpu") if device is None else device)


@operator("_npu_dropout_gen_mask.Tensor")
def seeded_dropout_gen_mask(
    self: torch.Tensor,
    size: list[int],
    p: float,
    seed: int,
    offset: int,
    *,
    parallel: bool | None = True,
    sync: bool | None = None,
) -> torch.Tensor:
    """Mask of bits for dropout that depends on a seed and an offset alone.

    Args:
        self: gives the device.
        size: shape of what the mask is for.
        p: probability that a bit is not set.
        seed: seed of the numbers.
        offset: offset in them.
        parallel: whether the card draws on a second stream; not used.
        sync: whether it waits for it; not used.

    Returns:
        uint8, ceil(elements / 128) * 16 bytes; the bits behind the last whole byte of elements are not set.

    Raises:
        RuntimeError: p is outside [0, 1].

    Source: DropoutGenMaskKernelNpuOpApi.cpp and test_npu_dropout_gen_mask.py of op-plugin.
    """
    _check_p(p)
    count = math.prod(size)
    whole = -(-count // 8) * 8
    bits = drawn_bits(whole, p, seed, offset, self.device)
    return _packed(torch.nn.functional.pad(bits, (0, -(-count // _ALIGN) * _ALIGN - whole)))


def drawn_bits(
    count: int, p: float, seed: int | torch.Tensor, offset: int | torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Draw booleans, one after the other; each is False with probability p.

    _npu_dropout_gen_mask and the dropout of the fused attention draw the same ones from a seed and an offset, which may
    be tensors of one int64.
    """
    starts = range(0, count, _AT_ONCE)
    drawn = [
        _uniform(torch.arange(start, min(start + _AT_ONCE, count), device=device), seed, offset) >= p
        for start in starts
    ]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.bool, device=device)


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _uniform(place: torch.Tensor, seed: int | torch.Tensor, offset: int | torch.Tensor) -> torch.Tensor:
    """Numbers in [0, 1) that depend on the place, the seed and the offset alone (SplitMix64, 24 bits of it)."""
    start = (seed * _signed(_GOLDEN) + offset) * _signed(_GOLDEN)
    value = place * _signed(_GOLDEN) + (start if isinstance(start, torch.Tensor) else _signed(start))
    for shift, factor in _MIX:
        value = (value ^ ((value >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return ((value >> 40) & 0xFFFFFF).float() / 2**24


def _byte_dropout(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    _check_p(p)
    _check_floating(x, "dropout")
    keep = torch.rand(x.shape, device=x.device) >= p
    return _dropped(x, keep, p), keep.to(torch.uint8)


@operator("_dropout_with_byte_mask")
def byte_dropout(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout with a mask of bytes: the result, and the mask in uint8 with the shape of the input.

    Raises:
        RuntimeError: p is outside [0, 1], or the dtype is no floating point.
    """
    return _byte_dropout(self, p)


@operator("_dropout_with_byte_mask_backward")
def byte_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Gradient of dropout with a mask of bytes.

    Raises:
        RuntimeError: the gradient is no floating point, or the mask not uint8.
    """
    _check_floating(grad_output, "dropoutbackward")
    _check_mask(mask)
    return _dropped(grad_output, mask.reshape(grad_output.shape).bool(), p)


@operator("dropout_with_byte_mask")
def dropout_with_byte_mask(self: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout with a mask of bytes that is not returned; a copy of the input if `train` is false or p is 0.

    Raises:
        RuntimeError: p is outside [0, 1], or the dtype is no floating point.
    """
    if p == 0 or not train or not self.numel():
        return self.clone()
    if p == 1:
        return self * torch.zeros_like(self)
    return _byte_dropout(self, p)[0]


def _check_add_softmax(name: str, x: torch.Tensor, prob: float, dim: int) -> None:
    floating(name, input=x)
    if x.dim() != 4 or dim not in (-1, 3):
        refuse(name, f"the input has {x.dim()} dimensions and dim is {dim}; the kernel takes 4 and -1")
    if x.shape[2] not in _SIDES or x.shape[3] not in _SIDES or x.shape[0] * x.shape[1] % 32:
        rule = f"H and W out of {', '.join(map(str, _SIDES))} and N * C a multiple of 32"
        refuse(name, f"the input has shape {list(x.shape)}; the kernel takes {rule}")
    if not 0 <= prob < 1:
        refuse(name, f"prob is {prob}; the kernel takes 0 <= prob < 1")


@operator("npu_dropout_with_add_softmax")
def npu_dropout_with_add_softmax(
    self: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dropout(softmax(self * alpha + x1)).

    Args:
        self: [N, C, H, W], H and W out of 128, 256, 384, 512 and N * C a multiple of 32; floating point.
        x1: like `self`. Its gradient is the gradient of the result: the card's operator returns it unchanged.
        alpha: factor of `self`.
        prob: probability that an element is dropped, below 1.
        dim: -1.

    Returns:
        (mask, softmax, y): the mask of bytes as one row, padded to 128; the softmax; and the result, which alone has
        a gradient.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: （beta）torch_npu-npu_dropout_with_add_softmax.md and DropoutWithAddSoftmaxKernelNpu.cpp of op-plugin.
    """
    name = "npu_dropout_with_add_softmax"
    _check_add_softmax(name, self, prob, dim)
    if x1.shape != self.shape or x1.dtype != self.dtype:
        refuse(name, f"self {list(self.shape)} {self.dtype} and x1 {list(x1.shape)} {x1.dtype} must be alike")
    wide = compute_dtype(self)
    mask = torch.zeros(-(-self.numel() // _ALIGN) * _ALIGN, dtype=torch.uint8, device=self.device)
    keep = torch.rand(self.shape, device=self.device) >= prob
    mask[: self.numel()] = keep.flatten()
    softmax = torch.softmax(self.to(wide) * alpha + x1.detach().to(wide), dim)
    y = torch.where(keep, softmax / (1 - prob), 0).to(self.dtype)
    if x1.requires_grad:
        y = y + torch.nan_to_num(x1 - x1.detach(), posinf=0.0, neginf=0.0)  # adds 0, and its gradient to x1
    return mask, softmax.detach().to(x1.dtype), y


@operator("npu_dropout_with_add_softmax_backward")
def npu_dropout_with_add_softmax_backward(
    grad: torch.Tensor, mask: torch.Tensor, softmax_out: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of npu_dropout_with_add_softmax.

    Args:
        grad: gradient of the result.
        mask: mask of bytes of the forward operator.
        softmax_out: softmax of the forward operator.
        alpha, prob, dim: as there.

    Returns:
        the gradients of `self` and of `x1`; the second is a copy of `grad`, as on the card.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check_add_softmax("npu_dropout_with_add_softmax_backward", softmax_out, prob, dim)
    wide = compute_dtype(softmax_out)
    keep = mask.flatten()[: softmax_out.numel()].reshape(softmax_out.shape).bool()
    softmax = softmax_out.to(wide)
    inner = torch.where(keep, grad.to(wide) / (1 - prob), 0) * softmax
    result = alpha * (inner - softmax * inner.sum(dim, keepdim=True))
    return result.to(softmax_out.dtype), grad.clone()
