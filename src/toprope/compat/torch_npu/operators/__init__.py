"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    cast,
    dynamic_quant,
    formats,
    fusion_attention,
    hans,
    int4,
    mx_quant,
    norm,
    norm_quant,
    rope_quant,
    rotary,
    static_quant,
    storage,
    swiglu_quant,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "cast",
    "dynamic_quant",
    "formats",
    "fusion_attention",
    "hans",
    "int4",
    "mx_quant",
    "norm",
    "norm_quant",
    "register",
    "rope_quant",
    "rotary",
    "static_quant",
    "storage",
    "swiglu_quant",
]
