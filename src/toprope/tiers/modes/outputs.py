"""Convert results of bf16 computation to the dtype that the program expects.

For modes that compute in bf16 (`modes.switch`); the other effects ask `transforming` whether their hooks may act, by a
private function of torch. Results in any container keep its type; other dtypes are left alone. Tests:
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["as_dtype_of", "transforming"]


def transforming() -> bool:
    """True inside a transform of torch.func, whose tensors have no memory of their own and no hooks."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def as_dtype_of(model: nn.Module, output: Any) -> Any:
    """Convert an output that was computed in bf16 to the dtype of the model's weights."""
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    return output if dtype is torch.bfloat16 else _cast(output, dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is torch.bfloat16 else value
    if isinstance(value, dict):
        if type(value) is dict:
            return {name: _cast(each, dtype) for name, each in value.items()}
        for name in list(value):  # such as the outputs of transformers
            value[name] = _cast(value[name], dtype)
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(each, dtype) for each in value))
    if type(value) in (tuple, list):
        return type(value)(_cast(each, dtype) for each in value)
    return value
