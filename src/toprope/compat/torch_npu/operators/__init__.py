"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    cast,
    formats,
    fusion_attention,
    matmul_collectives,
    moe_distribute,
    moe_gating,
    moe_permute,
    moe_routing,
    norm,
    rotary,
    storage,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "cast",
    "formats",
    "fusion_attention",
    "matmul_collectives",
    "moe_distribute",
    "moe_gating",
    "moe_permute",
    "moe_routing",
    "norm",
    "register",
    "rotary",
    "storage",
]
