"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    attention_legacy,
    block_sparse_attention,
    cast,
    causal_conv1d,
    delta_rule,
    formats,
    fusion_attention,
    fusion_attention_grad,
    lightning_indexer,
    norm,
    nsa,
    rotary,
    sparse_flash_attention,
    storage,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "attention_legacy",
    "block_sparse_attention",
    "cast",
    "causal_conv1d",
    "delta_rule",
    "formats",
    "fusion_attention",
    "fusion_attention_grad",
    "lightning_indexer",
    "norm",
    "nsa",
    "register",
    "rotary",
    "sparse_flash_attention",
    "storage",
]
