"""Facade module `apt_model.optimization.gpu_flash_optimization`: FP4 weights and fused attention.

Programs that were written for apt_model call it. The FP4 codec is `toprope.tiers.pages`, attention is torch's own;
names, arguments and results are the original's, how they are computed is free. Tests:
tests/compat/test_apt_gpu_flash.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from toprope.errors import PageError, UsageError
from toprope.tiers import pages

__all__ = ["FP4Codec", "FlashAttention", "FusedFP4Linear", "OptimizedTransformerBlock"]

_FORMAT = "mxfp4"
"""Of the codec: two codes a byte and one scale byte for 32 values, with nothing else."""

_ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "none": lambda x: x,
    None: lambda x: x,
}


class FP4Codec:
    """Tensors in 4 bits (E2M1): two codes a byte, and a scale for 32 values of a row."""

    @staticmethod
    def encode(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes, int8 of [..., ceil(N / 2)] with the first of two in the low half, and scales of [..., ceil(N / 32)].

        While it works it takes less memory than twice the tensor, in addition to the tensor. A value far from the
        others costs the precision of the other 31 in its scale, and of no more.

        Raises:
            PageError: the tensor has no dimension, or a dtype that is not kept in 4 bits.
        """
        if tensor.dim() == 0:
            raise PageError("a tensor without dimensions has no rows.", do="give it one: tensor.reshape(1)")
        columns = tensor.shape[-1]
        even = functional.pad(tensor.detach(), (0, columns % 2))
        page = pages.encode(even, _FORMAT)
        blocks = page.format.blocks(even.shape[-1])
        packed = page.codes.view(torch.int8).view(*tensor.shape[:-1], even.shape[-1] // 2)
        return packed, page.scales.view(page.format.scale_dtype).view(*tensor.shape[:-1], blocks)

    @staticmethod
    def decode(
        packed: torch.Tensor,
        scale: torch.Tensor,
        original_size: int | Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """The values.

        Args:
            packed, scale: from `encode`.
            original_size: the last dimension of the tensor, or its shape.
            dtype: of the values.

        Raises:
            PageError: codes, scales and size do not fit each other.
        """
        columns = original_size if isinstance(original_size, int) else tuple(original_size)[-1]
        if not 0 <= 2 * packed.shape[-1] - columns <= 1 or packed.shape[:-1] != scale.shape[:-1]:
            raise PageError(
                f"codes of {list(packed.shape)} and scales of {list(scale.shape)} are no rows of {columns} values.",
                do="give what encode returned, and the tensor's last dimension",
            )
        shape = (*packed.shape[:-1], 2 * packed.shape[-1])
        codes = packed.contiguous().view(torch.uint8).flatten()
        page = pages.QuantisedTensor(
            pages.FORMATS[_FORMAT], shape, dtype, codes, scale.contiguous().view(torch.uint8).flatten(), None
        )
        return pages.decode(page, dtype)[..., :columns]


class FusedFP4Linear(nn.Module):
    """A linear layer with an activation, whose weight is kept in 4 bits once `quantize` was called.

    Args:
        in_features, out_features, bias: as for torch.nn.Linear.
        activation: "gelu", the original's default, "relu", "silu", or "none".
        use_triton: without effect: on the CPU our own kernels multiply, on a card the weight is decoded for each pass.

    Raises:
        UsageError: there is no such activation.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str | None = "gelu",
        use_triton: bool = True,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise UsageError(
                f"there is no activation {activation!r}.", do=f"give {', '.join(each for each in _ACTIVATIONS if each)}"
            )
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.linear: nn.Linear | pages.QuantisedLinear = nn.Linear(in_features, out_features, bias)

    @property
    def weight(self) -> torch.Tensor:
        """The weight: a parameter, or what it decodes to once it is quantised."""
        return self.linear.weight if isinstance(self.linear, nn.Linear) else pages.decode(self.linear.page)

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias."""
        return self.linear.bias

    def quantize(self) -> None:
        """Keep the weight in 4 bits from now on; it trains no more. Make optimizers after this, or leave it out."""
        if isinstance(self.linear, nn.Linear):
            self.linear = pages.QuantisedLinear.from_linear(self.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias)."""
        return _ACTIVATIONS[self.activation](self.linear(x))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # torch loads the layer inside after this: it becomes what was saved, or makes 4 bits of what was saved
        plain, coded = f"{prefix}linear.weight", f"{prefix}linear.codes"
        if coded in state_dict and isinstance(self.linear, nn.Linear):
            self.quantize()
        elif plain in state_dict and not isinstance(self.linear, nn.Linear):
            page = pages.encode(state_dict.pop(plain))
            state_dict.update(page.state_dict(f"{prefix}linear."))
        super()._load_from_state_dict(state_dict, prefix, *others)


class FlashAttention(nn.Module):
    """Self-attention by torch's scaled_dot_product_attention, with masks, and memory that grows with the length.

    Args:
        d_model: of the input.
        n_heads: how many; they share d_model.
        dropout: of the attention weights, in training.
        use_triton: without effect: torch chooses the kernel.

    Raises:
        UsageError: the heads do not share d_model evenly.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.1, use_triton: bool = True) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise UsageError(f"{n_heads} heads do not share {d_model} evenly.")
        self.d_model, self.n_heads, self.dropout = d_model, n_heads, dropout
        self.qkv_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """Attention of a sequence to itself.

        Args:
            x: batch x length x d_model.
            mask: what takes part: bool or 0 and 1, of length x length, batch x length x length, batch x heads x length
                x length, or of batch x length for padding, or broadcast to these; a mask of floats is added.
            is_causal: each place looks at itself and what is before it; a mask then leaves out more.

        Raises:
            UsageError: the mask does not fit.
        """
        batch, length, _ = x.shape
        query, key, value = (
            each.view(batch, length, self.n_heads, -1).transpose(1, 2) for each in self.qkv_proj(x).chunk(3, dim=-1)
        )
        allowed = None if mask is None else _mask(mask, batch, self.n_heads, length, query.dtype)
        if is_causal and allowed is not None:
            before = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            kept = allowed.dtype is torch.bool
            allowed = allowed & before if kept else allowed.masked_fill(~before, float("-inf"))
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal and allowed is None,
        )  # fmt: skip
        result: torch.Tensor = self.out_proj(out.transpose(1, 2).reshape(batch, length, self.d_model))
        return result


def _mask(mask: torch.Tensor, batch: int, heads: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """A mask as torch's attention takes it: four dimensions, bool or the dtype of the products."""
    shape = list(mask.shape)
    if mask.dim() == 2 and shape == [batch, length] and batch != length:
        mask = mask[:, None, None, :]
    elif mask.dim() == 3:
        mask = mask[:, None]
    try:
        if mask.dim() < 2:
            raise RuntimeError
        torch.broadcast_to(mask, (batch, heads, length, length))
    except RuntimeError:
        raise UsageError(
            f"a mask of {shape} fits no {batch} sequences of {length} with {heads} heads.",
            do=f"give one of {[length, length]}, {[batch, length]} or {[batch, 1, length, length]}",
        ) from None
    return mask.to(dtype) if mask.is_floating_point() else mask.bool()


class OptimizedTransformerBlock(nn.Module):
    """A block of a transformer, norms first: attention, and two layers behind it.

    Args:
        d_model, n_heads, dropout: as for `FlashAttention`.
        d_ff: of the inner layer.
        use_fp4: the two layers are kept in 4 bits once `quantize` was called.
        use_checkpoint: the block is computed again in backward.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        use_fp4: bool = True,
        use_checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = FlashAttention(d_model, n_heads, dropout)
        self.up = FusedFP4Linear(d_model, d_ff)
        self.down = FusedFP4Linear(d_ff, d_model, activation="none")
        self.dropout = nn.Dropout(dropout)
        self.use_fp4, self.use_checkpoint = use_fp4, use_checkpoint

    def quantize(self) -> None:
        """Keep the weights of the two layers in 4 bits, where `use_fp4` says so."""
        if self.use_fp4:
            self.up.quantize()
            self.down.quantize()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """The block's output; the mask is as for `FlashAttention`."""
        if self.use_checkpoint and torch.is_grad_enabled():
            result: torch.Tensor = checkpoint(self._run, x, mask, is_causal, use_reentrant=False)
            return result
        return self._run(x, mask, is_causal)

    def _run(self, x: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), mask, is_causal))
        out: torch.Tensor = x + self.dropout(self.down(self.up(self.norm2(x))))
        return out
