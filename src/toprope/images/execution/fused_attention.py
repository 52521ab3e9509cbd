"""Attention by the fused operator of an Ascend NPU, in place of `scaled_dot_product_attention`, for all models alike.

torch_npu sends `scaled_dot_product_attention` to its fused kernel only in some releases and for some shapes; else all
scores are kept, which takes memory that grows with the square of the pixels. Here the operator is called directly
wherever possible; otherwise the reason is recorded.

The operator's arguments, dtypes and limits, and that its mask marks what is left out, are fixed by
torch_npu.npu_fusion_attention (documentation of Ascend Extension for PyTorch). Used by `images.engine` on devices that
have the operator. Tests: tests/images/simulated/test_images_attention.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from toprope.device import is_out_of_memory

__all__ = ["FusedAttention", "why_not"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes that the operator takes."""

LARGEST_HEAD = 512
"""Channels of a head that the operator takes at most."""


class FusedAttention(TorchFunctionMode):
    """A context in which attention on a device is computed by its fused operator.

    Args:
        operator: `npu_fusion_attention`; None for a device that has none, where nothing is changed.
        kind: of the device: "npu".

    Attributes:
        used: how often the operator ran.
        passed: why it did not, by reason, and how often.
    """

    def __init__(self, operator: Any, kind: str) -> None:
        super().__init__()
        self._operator, self._kind = operator, kind
        self.used = 0
        self.passed: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and self._operator is not None:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Compute scaled_dot_product_attention by the fused operator if it can, else by torch's own function."""
        reason = why_not(query, key, value, attn_mask, dropout_p, is_causal)
        if query.device.type == self._kind and not reason:
            mask = None if attn_mask is None else _excluded_mask(attn_mask, query, key)
            try:
                result: torch.Tensor = self._operator(
                    query.contiguous(), key.contiguous(), value.contiguous(), query.shape[1], "BNSD", atten_mask=mask,
                    scale=query.shape[-1] ** -0.5 if scale is None else scale, keep_prob=1.0,
                )[0]  # fmt: skip
            except (RuntimeError, NotImplementedError, ValueError) as error:
                if is_out_of_memory(error):
                    raise
                reason = f"it was refused: {' '.join(str(error).split())[:160]}"
            else:
                self.used += 1
                return result
        if query.device.type == self._kind:
            self.passed[reason] += 1
        own: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return own

    def forget(self) -> None:
        """Count from the beginning."""
        self.used = 0
        self.passed.clear()

    def describe(self) -> dict[str, Any]:
        """The choice and how it went, ready for JSON."""
        if self._operator is None:
            return {"chosen": "torch's own", "why": "the device has no npu_fusion_attention"}
        why = "; ".join(f"{count} times torch's own: {reason}" for reason, count in self.passed.items())
        return {"chosen": "npu_fusion_attention", "why": why or "the device has it", "calls": self.used}


def why_not(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
) -> str:
    """Name the reason why the operator cannot compute this; "" where it can."""
    if any(each.dim() != 4 for each in (query, key, value)):
        return "the tensors have not four dimensions"
    if query.dtype not in DTYPES or len({query.dtype, key.dtype, value.dtype}) > 1:
        return f"the dtype {str(query.dtype).removeprefix('torch.')}"
    if query.shape[-1] > LARGEST_HEAD or value.shape[-1] != query.shape[-1]:
        return f"heads of {query.shape[-1]} channels"
    if dropout or causal:
        return "dropout" if dropout else "a causal mask"
    if mask is not None and mask.dtype != torch.bool:
        return "a mask of numbers"
    if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
        return "gradients"
    return ""


def _excluded_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Convert torch's mask, True for positions that count, to the operator's, True for positions that are left out."""
    shape = (query.shape[0], 1 if mask.dim() < 4 or mask.shape[1] == 1 else mask.shape[1], query.shape[2], key.shape[2])
    wide = mask if mask.dim() == 4 else mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    return wide.logical_not().expand(shape).contiguous()
