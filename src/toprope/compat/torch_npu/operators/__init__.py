"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    affine_quantize,
    batch_norm,
    cast,
    creation,
    formats,
    fusion_attention,
    norm,
    optimizer,
    recurrent,
    recurrent_layers,
    rotary,
    storage,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "affine_quantize",
    "batch_norm",
    "cast",
    "creation",
    "formats",
    "fusion_attention",
    "norm",
    "optimizer",
    "recurrent",
    "recurrent_layers",
    "register",
    "rotary",
    "storage",
]
