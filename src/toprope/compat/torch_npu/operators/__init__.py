"""Operators of torch_npu, composed of torch's own: one module for each family."""

from .registry import OPERATORS, Operator, described, register

__all__ = ["OPERATORS", "Operator", "described", "register"]
