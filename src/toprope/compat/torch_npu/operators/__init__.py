"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import activation, cast, formats, fusion_attention, int4, norm, rotary, storage
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "cast",
    "formats",
    "fusion_attention",
    "int4",
    "norm",
    "register",
    "rotary",
    "storage",
]
