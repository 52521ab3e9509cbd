"""Attention of fairseq over npu_multi_head_attention.

Programs import its names from `torch_npu.contrib.module`. Signature, attributes and errors are those of
torch_npu/contrib/module/multihead_attention.py of Ascend/pytorch, with arguments that have no effect there either.
Tests: tests/compat/test_torch_npu_contrib.py; the operator's values are held by
tests/compat/operators/test_attention_legacy.py.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import Parameter

from ..._error_codes import ErrCode, ops_error
from ._operators import operator
from .ensemble_dropout import NpuCachedDropout

__all__ = ["Matmul_transpose", "MultiheadAttention"]

dropout_class = NpuCachedDropout


def _quant_noise(module: Any, p: float, block_size: int) -> Any:
    """Set blocks of a layer's weights to 0 in each training pass, for quantisation by blocks afterwards.

    Args:
        module: a Linear, Embedding or Conv2d layer.
        p: probability of a block; 0 for none.
        block_size: weights in a block, which divides the input features (for a convolution the input channels if the
            kernel is 1 x 1, else the size of the kernel).

    Raises:
        TypeError: another layer.
        ValueError: the size does not divide.
    """
    if p <= 0:
        return module
    if not isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
        raise TypeError("Expected isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d))" + ops_error(ErrCode.TYPE))
    if not isinstance(module, nn.Conv2d):
        size, what = module.weight.size(1), "Input features must be a multiple of block sizes"
    elif module.kernel_size == (1, 1):
        size, what = module.in_channels, "Input channels must be a multiple of block sizes"
    else:
        size, what = math.prod(module.kernel_size), "Kernel size must be a multiple of block size"
    if size % block_size:
        raise ValueError(what + ops_error(ErrCode.VALUE))

    def drop(layer: Any, inputs: Any) -> None:
        if layer.training:
            dropped = _dropped_blocks(layer, p, block_size)
            layer.weight.data = layer.weight.detach().masked_fill(dropped, 0) / (1 - p)

    module.register_forward_pre_hook(drop)
    return module


def _dropped_blocks(layer: Any, p: float, block_size: int) -> torch.Tensor:
    weight = layer.weight
    if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1):
        drawn = torch.zeros(weight.shape[:2], device=weight.device).bernoulli_(p).bool()
        return drawn[..., None, None].expand_as(weight)
    drawn = torch.zeros(weight.numel() // block_size, device=weight.device).bernoulli_(p).bool()
    return drawn.repeat_interleave(block_size).view_as(weight)


class _NpuLinear(nn.Linear):
    """Linear layer over npu_linear, for 2 or 3 dimensions."""

    def forward(self, input2: torch.Tensor) -> torch.Tensor:
        if input2.dim() not in (2, 3):
            raise RuntimeError("not support this dim" + ops_error(ErrCode.NOT_SUPPORT))
        rows = input2.view(-1, self.in_features) if input2.dim() == 3 else input2
        result: torch.Tensor = operator("npu_linear")(rows, self.weight, self.bias)
        return result.view(*input2.shape[:2], self.out_features) if input2.dim() == 3 else result


class _MHAConfig:
    """Switch of the fused kernel."""

    use_fussion_mha: ClassVar[bool] = False

    @classmethod
    def set_fussion(cls) -> None:
        operator("npu_multi_head_attention")
        cls.use_fussion_mha = True


def Matmul_transpose(tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:  # noqa: N802  (torch_npu's name)
    """tensor1 @ tensor2.transpose(-1, -2)."""
    functions = importlib.import_module(f"{__name__.rpartition('.module.')[0]}.function._matmul_transpose")
    result: torch.Tensor = functions.MatmulApply.apply(tensor1, tensor2)
    return result


class MultiheadAttention(nn.Module):
    """Multi-head attention, with the projections in the fused kernel. Shapes must not change.

    Args:
        embed_dim: size of the model.
        num_heads: number of heads.
        kdim: features of the keys; None for `embed_dim`.
        vdim: features of the values; None for `embed_dim`.
        dropout: probability that a weight is dropped.
        bias: add a bias in the projections.
        add_bias_kv: have a bias for keys and values along the sequence.
        add_zero_attn: without effect.
        self_attention: query, key and value are one.
        encoder_decoder_attention: without effect.
        q_noise: probability of `_quant_noise`.
        qn_block_size: block size of `_quant_noise`.

    Raises:
        ValueError: the heads do not divide the model, or self-attention with other sizes of keys or values.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        self_attention: bool = False,
        encoder_decoder_attention: bool = False,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.qkv_same_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout_module = dropout_class(dropout, module_name=type(self).__name__)
        self.dropout_prob = dropout
        self.use_dropout_optim = True
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads" + ops_error(ErrCode.VALUE))
        self.scaling = self.head_dim**-0.5
        self.self_attention = self_attention
        self.encoder_decoder_attention = encoder_decoder_attention
        if self_attention and not self.qkv_same_dim:
            text = "Self-attention requires query, key and value to be of the same size"
            raise ValueError(text + ops_error(ErrCode.VALUE))
        self.k_proj = _quant_noise(_NpuLinear(self.kdim, embed_dim, bias=bias), q_noise, qn_block_size)
        self.v_proj = _quant_noise(_NpuLinear(self.vdim, embed_dim, bias=bias), q_noise, qn_block_size)
        self.q_proj = _quant_noise(_NpuLinear(embed_dim, embed_dim, bias=bias), q_noise, qn_block_size)
        self.out_proj = _quant_noise(_NpuLinear(embed_dim, embed_dim, bias=bias), q_noise, qn_block_size)
        self.bias_k = Parameter(torch.empty(1, 1, embed_dim)) if add_bias_kv else None
        self.bias_v = Parameter(torch.empty(1, 1, embed_dim)) if add_bias_kv else None
        self.add_zero_attn = add_zero_attn
        self.reset_parameters()
        self.onnx_trace = False
        self.tpu = False

    def prepare_for_onnx_export_(self) -> None:
        """Note that the model is exported."""
        self.onnx_trace = True

    def prepare_for_tpu_(self, **kwargs: Any) -> None:
        """Note that the model runs on a TPU."""
        self.tpu = True

    def reset_parameters(self) -> None:
        """Draw the weights."""
        gain = 1 / math.sqrt(2) if self.qkv_same_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.constant_(self.out_proj.bias, 0.0)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        bsz: int,
        tgt_len: int,
        s_len: int,
        key_padding_mask: torch.Tensor | None = None,
        incremental_state: Any = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: torch.Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[torch.Tensor | None, None]:
        """Attend.

        Args:
            query: [bsz * tgt_len, embed_dim].
            key: [bsz * src_len, kdim].
            value: [bsz * src_len, vdim].
            bsz: size of the batch.
            tgt_len: number of queries.
            s_len: without effect.
            key_padding_mask: added to the scores [bsz, heads, tgt_len, src_len].
            incremental_state: without effect, as are the arguments after it.
            need_weights: without effect.
            static_kv: without effect.
            attn_mask: without effect.
            before_softmax: without effect.
            need_head_weights: without effect.

        Returns:
            the result and None; (None, None) unless `_MHAConfig.set_fussion` was called.
        """
        if not _MHAConfig.use_fussion_mha:
            return None, None
        return self.multi_attn(query, key, value, key_padding_mask, bsz, tgt_len), None

    def multi_attn(
        self, query: torch.Tensor, key: Any, value: Any, key_padding_mask: Any, bsz: int, tgt_len: int
    ) -> torch.Tensor:
        """Call the fused kernel."""
        src_len = key.size(0) // bsz
        mask = self.dropout_module([(bsz, self.num_heads, tgt_len, src_len), query.dtype, query.device])
        result: torch.Tensor = operator("npu_multi_head_attention")(
            query, key, value, self.q_proj.weight, self.k_proj.weight, self.v_proj.weight, key_padding_mask,
            self.out_proj.weight, self.q_proj.bias, self.k_proj.bias, self.v_proj.bias, self.out_proj.bias, mask,
            self.num_heads, self.head_dim, src_len, tgt_len, self.dropout_prob, True,
        )[0]  # fmt: skip
        return result

    def apply_sparse_mask(self, attn_weights: torch.Tensor, tgt_len: int, src_len: int, bsz: int) -> torch.Tensor:
        """Give the weights as they are."""
        return attn_weights

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Split in_proj_weight and in_proj_bias of older checkpoints into those of the three projections."""
        prefix = f"{name}." if name else ""
        for kind in ("weight", "bias"):
            for old in [key for key in state_dict if key.endswith(f"{prefix}in_proj_{kind}")]:
                parts = state_dict.pop(old).chunk(3)
                for letter, part in zip("qkv", parts, strict=True):
                    state_dict[f"{prefix}{letter}_proj.{kind}"] = part
