"""Attention on the meta device as torch_npu computes it: one kernel forward, one backward.

Used by recorder.py and meta_kernels.py. The conditions and the operators around the kernel are those of op-plugin's
scaled_dot_product_attention (op_plugin/ops/opapi/ScaledDotProductAttentionKernelNpuOpApi.cpp, 015a2e4b): four
dimensions, at most 2048 heads of at most 512, no mask or a boolean one. A causal call has a mask of 2048 x 2048; the
kernel returns the maximum and the sum of each row of the softmax in float32, eight times. Any other call is composed of
products and a softmax. Tests: tests/estimate/test_paper.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from toprope.estimate.record.calls import Role

__all__ = ["FusedAttention", "Note", "fused_attention"]


class Note(Protocol):
    """Takes the launch of a kernel: its name, its tensors with their roles, and operations that shapes do not say."""

    def __call__(self, name: str, tensors: Iterable[tuple[torch.Tensor, Role]], operations: int = 0) -> None:
        """Take it."""


_CAUSAL_MASK, _MOST_HEADS, _MOST_HEAD, _SUMS = 2048, 2048, 512, 8
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class FusedAttention:
    """The kernel, forward and backward.

    Args:
        note: takes the launches.
    """

    def __init__(self, note: Note) -> None:
        self._note = note

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        is_causal: bool,
        scale: float | None,
        gqa: bool,
    ) -> Any:
        """The result of torch's scaled_dot_product_attention, without values."""
        if not _has_kernel(query, key, value, mask):
            result = torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=gqa
            )
            return result[0]
        hidden = None
        if is_causal:
            ones = torch.ones(_CAUSAL_MASK, _CAUSAL_MASK, dtype=torch.bool, device=query.device)
            hidden = ones.triu(1)
            del ones
        elif mask is not None:
            hidden = mask.logical_not()
        return _Attention.apply(query, key, value, hidden, is_causal, self._note)  # type: ignore[no-untyped-call]


def _has_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    if query.dtype not in _DTYPES or not query.dim() == key.dim() == value.dim() == 4:
        return False
    heads, shared = query.shape[1], key.shape[1]
    fits = heads <= _MOST_HEADS and shared <= heads and heads % shared == 0 and query.shape[3] <= _MOST_HEAD
    return fits and (mask is None or mask.dtype is torch.bool)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        hidden: torch.Tensor | None,
        is_causal: bool,
        note: Note,
    ) -> torch.Tensor:
        result = query.new_empty((*query.shape[:3], value.shape[3]))
        largest = query.new_empty((*query.shape[:3], _SUMS), dtype=torch.float32)
        total = torch.empty_like(largest)
        # two products; what a causal mask hides is not computed
        operations = 2 * query.numel() * key.shape[2] + 2 * result.numel() * key.shape[2]
        operations = operations // 2 if is_causal else operations
        read = (query, key, value, hidden)
        note("npu::npu_fusion_attention", _with_roles(read, (result, largest, total)), operations)
        context.save_for_backward(query, key, value, hidden, result, largest, total)
        context.operations, context.note = operations, note
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        saved = context.saved_tensors
        made = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in saved[:3]]
        read = (*saved[:3], gradients[0], *saved[3:])
        # five products, one of them again
        context.note("npu::npu_fusion_attention_grad", _with_roles(read, made), context.operations // 2 * 5)
        return (*made, None, None, None)


def _with_roles(
    read: Iterable[torch.Tensor | None], made: Iterable[torch.Tensor]
) -> Iterable[tuple[torch.Tensor, Role]]:
    yield from ((each, "read") for each in read if each is not None)
    yield from ((each, "result") for each in made)


def fused_attention(attention: FusedAttention) -> torch.library.Library:
    """Make torch's scaled_dot_product_attention of meta tensors this one, until the library is destroyed.

    The key is reached without gradients too, but not in inference mode.
    """

    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("scaled_dot_product_attention", call, "AutogradMeta")  # type: ignore[no-untyped-call]
    return library
