"""Operators of torch_npu, composed of torch's own: one module for each family.

`register` defines them all in torch.ops.npu and torch.ops.atb; the torch_npu facade calls it when it is imported. How
to add one: docs/adding.md. Tests: tests/compat/test_vendor_names.py for the names,
tests/sim/simulated/test_npu_operators.py for one call of each.
"""

from .registry import OPERATORS, Operator, described, register

__all__ = ["OPERATORS", "Operator", "described", "register"]
