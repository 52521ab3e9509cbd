"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    atb_flash_attention,
    atb_paged_attention,
    cast,
    formats,
    fused_infer_attention,
    fusion_attention,
    indexed_update,
    kv_cache_transfer,
    latent_attention,
    norm,
    rotary,
    storage,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "atb_flash_attention",
    "atb_paged_attention",
    "cast",
    "formats",
    "fused_infer_attention",
    "fusion_attention",
    "indexed_update",
    "kv_cache_transfer",
    "latent_attention",
    "norm",
    "register",
    "rotary",
    "storage",
]
