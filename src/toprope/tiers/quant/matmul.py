"""Product of activations with a quantised weight, differentiable in the activations.

Called by quantised layers, here and in `tiers.modes.quantised`, and as `tiers.pages.product`. `multiply` chooses the
C++ kernels or torch, which is free; the registered operators let `torch.compile` and autograd see the product, and
exported graphs hold their names. Tests: tests/tiers/test_tiers_modes.py, tests/tiers/test_pages_kernels.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from toprope.errors import PageError
from toprope.tiers.quant.codec import decode
from toprope.tiers.quant.formats import FORMATS
from toprope.tiers.quant.kernels import kernels
from toprope.tiers.quant.tensor import QuantisedTensor

__all__ = ["multiply", "product"]

_FUSED = (torch.float32, torch.bfloat16)


def product(
    x: torch.Tensor, page: QuantisedTensor, bias: torch.Tensor | None = None, *, path: str | None = None
) -> torch.Tensor:
    """Compute x @ page.T + bias; our kernels do it without decoding the weight as a whole.

    On the CPU, activations of fp32, bf16 and fp16 (converted to fp32) are multiplied by our kernels with sums in fp32.
    Up to 8 rows of activations are multiplied by fp32 weights; for more rows, weights are rounded to bf16 if the
    activations are bf16 and the CPU has bf16 products. On a card, simulated or real, without a compiler, and with an
    odd number of columns, the weight is decoded to the dtype of the activations first. The backward pass decodes it
    too; it gives gradients to x and the bias.

    Args:
        x: activations of shape (..., columns).
        page: quantised weight of shape (rows, columns).
        bias: tensor of shape (rows,).
        path: for tests: the kernels' instruction set, or "torch".

    Raises:
        PageError: the shapes do not fit.
    """
    if x.dim() == 0 or len(page.shape) != 2 or x.shape[-1] != page.columns:
        raise PageError(f"activations of {list(x.shape)} do not fit a page of {list(page.shape)}.")
    if torch.compiler.is_compiling():
        numbers = [page.format.number, *page.shape]
        compiled: torch.Tensor = _op(x, page.codes, page.scales, page.global_scale, bias, numbers)
        return compiled
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        result: torch.Tensor = _Product.apply(x, bias, page, path)  # type: ignore[no-untyped-call]
        return result
    return _multiply(x, page, bias, path)


def _multiply(
    x: torch.Tensor, page: QuantisedTensor, bias: torch.Tensor | None, path: str | None = None
) -> torch.Tensor:
    even = page.format.bits == 8 or page.columns % 2 == 0
    native = kernels() if even and path != "torch" and x.device.type == page.device.type == "cpu" else None
    if native is None or x.dtype not in (*_FUSED, torch.float16) or x.numel() == 0:
        weight = decode(page, x.dtype, path=path)
        return functional.linear(x, weight.to(x.device), None if bias is None else bias.to(x.dtype))
    dtype = x.dtype if x.dtype in _FUSED else torch.float32
    rows = x.detach().to(dtype).contiguous()
    out = torch.empty((*x.shape[:-1], page.rows), dtype=dtype)
    native.multiply(page, rows, None if bias is None else bias.detach().to(dtype).contiguous(), out, path)
    return out.to(x.dtype)


def _gradients(
    page: QuantisedTensor, gradient: torch.Tensor, needs: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of activations and bias."""
    to_x = gradient @ decode(page, gradient.dtype).to(gradient.device) if needs[0] else None
    to_bias = gradient.reshape(-1, page.rows).sum(dim=0) if needs[1] else None
    return to_x, to_bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, page: QuantisedTensor, path: str | None
    ) -> torch.Tensor:
        # Saved by autograd, and not as attributes: for offloaded weights they are loaded again for the backward pass.
        ctx.save_for_backward(page.codes, page.scales, page.global_scale)
        ctx.facts, ctx.bias_dtype = (page.format, page.shape, page.dtype), None if bias is None else bias.dtype
        return _multiply(x, page, bias, path)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        page = QuantisedTensor(*ctx.facts, *ctx.saved_tensors)
        to_x, to_bias = _gradients(page, gradient, (ctx.needs_input_grad[0], ctx.needs_input_grad[1]))
        return to_x, None if to_bias is None else to_bias.to(ctx.bias_dtype), None, None


# torch.compile sees one operator, whose inputs are tensors and numbers.


def _page_of(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, numbers: list[int]
) -> QuantisedTensor:
    form = next(each for each in FORMATS.values() if each.number == numbers[0])
    return QuantisedTensor(form, (numbers[1], numbers[2]), torch.float32, codes, scales, global_scale)


@torch.library.custom_op("toprope::page_product", mutates_args=())
def _op(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    return _multiply(x, _page_of(codes, scales, global_scale, numbers), bias)


@_op.register_fake
def _(x, codes, scales, global_scale, bias, numbers):  # type: ignore[no-untyped-def]
    return x.new_empty(*x.shape[:-1], numbers[1])


@torch.library.custom_op("toprope::page_gradient", mutates_args=())
def _gradient_op(
    gradient: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    page = _page_of(codes, scales, global_scale, numbers)
    return gradient @ decode(page, gradient.dtype).to(gradient.device)


@_gradient_op.register_fake
def _(gradient, codes, scales, global_scale, numbers):  # type: ignore[no-untyped-def]
    return gradient.new_empty(*gradient.shape[:-1], numbers[2])


def _keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    _, codes, scales, global_scale, bias, numbers = inputs
    ctx.save_for_backward(codes, scales, global_scale)
    ctx.numbers, ctx.bias_dtype = numbers, None if bias is None else bias.dtype


def _backward(ctx: Any, gradient: torch.Tensor) -> Any:
    to_x = _gradient_op(gradient, *ctx.saved_tensors, ctx.numbers) if ctx.needs_input_grad[0] else None
    to_bias = None
    if ctx.needs_input_grad[4]:
        to_bias = gradient.reshape(-1, ctx.numbers[1]).sum(dim=0).to(ctx.bias_dtype)
    return to_x, None, None, None, to_bias, None


_op.register_autograd(_backward, setup_context=_keep)


_MANY = 128
"""Number of activation rows from which the weight is decoded as a whole, temporarily, and multiplied by torch."""


def multiply(x: torch.Tensor, page: QuantisedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute x @ page.T + bias in the dtype of x; a CPU with bf16 products rounds activations to bf16."""
    native = kernels() if x.device.type == "cpu" and not torch.compiler.is_compiling() else None
    if native is None or x.dtype not in (torch.float32, torch.bfloat16) or "avx512_bf16" not in native.paths:
        return product(x, page, bias)
    rounded = x.to(torch.bfloat16)
    recorded = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if x.numel() < _MANY * page.columns or recorded:
        return product(rounded, page, bias).to(x.dtype)
    with torch.autocast("cpu", enabled=False):
        weight = decode(page, torch.bfloat16)
        return functional.linear(rounded, weight, None if bias is None else bias.to(torch.bfloat16)).to(x.dtype)
