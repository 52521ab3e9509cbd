"""Facade package `torch_npu.distributed.tensor`: how DTensor splits operators of torch_npu.

`torch_npu.distributed` imports it with torch.distributed.tensor. Operators that are composed of torch's own and
differentiable need no rule: DTensor sees torch's. The operators that multiply and communicate at once, and the
gradients of fused attention as operators of their own, have none. Tests: tests/compat/test_torch_npu_dtensor.py.
"""

from toprope.compat.missing import missing_from

from . import _calls, _rules  # noqa: F401

__all__: list[str] = []

__getattr__ = missing_from(__name__)
