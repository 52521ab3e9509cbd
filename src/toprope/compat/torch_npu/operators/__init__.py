"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    cast,
    cross_entropy,
    feed_forward,
    formats,
    fusion_attention,
    grouped_matmul,
    grouped_matmul_fused,
    int4,
    linear,
    microscaling,
    norm,
    quant_matmul,
    rotary,
    storage,
    weight_quant_matmul,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "cast",
    "cross_entropy",
    "feed_forward",
    "formats",
    "fusion_attention",
    "grouped_matmul",
    "grouped_matmul_fused",
    "int4",
    "linear",
    "microscaling",
    "norm",
    "quant_matmul",
    "register",
    "rotary",
    "storage",
    "weight_quant_matmul",
]
