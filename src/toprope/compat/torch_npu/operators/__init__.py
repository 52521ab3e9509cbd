"""Operators of torch_npu, composed of torch's own: one module for each family."""

from . import (
    activation,
    box_coding,
    box_overlap,
    box_rotated,
    box_selection,
    cast,
    convolution,
    deformable_convolution,
    formats,
    fusion_attention,
    norm,
    roi_pooling,
    rotary,
    storage,
    tensor_layout,
    tensor_values,
)
from .registry import OPERATORS, Operator, register

__all__ = [
    "OPERATORS",
    "Operator",
    "activation",
    "box_coding",
    "box_overlap",
    "box_rotated",
    "box_selection",
    "cast",
    "convolution",
    "deformable_convolution",
    "formats",
    "fusion_attention",
    "norm",
    "register",
    "roi_pooling",
    "rotary",
    "storage",
    "tensor_layout",
    "tensor_values",
]
