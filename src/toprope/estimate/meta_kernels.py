"""Kernels of torch_npu that diffusers calls where torch_npu is installed, for models on the meta device.

diffusers 0.42 asks `is_torch_npu_available()` in RMSNorm (models/normalization.py, npu_rms_norm) and in GEGLU
(models/activations.py, npu_geglu). Elsewhere models run the operators that they are written with.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from toprope.estimate.calls import OperatorCall, Role, TensorShape

__all__ = ["kernels_of_torch_npu"]

Emit = Callable[[OperatorCall], None]


def _of(tensor: torch.Tensor, role: Role = "read") -> TensorShape:
    return TensorShape(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), role)


class _Kernel(torch.autograd.Function):
    """A kernel that keeps its inputs and one statistic for its backward pass."""

    @staticmethod
    def forward(
        context: Any, name: str, emit: Emit, columns: int, statistic: int, source: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        result = source.new_empty((*source.shape[:-1], columns))
        kept = source.new_empty(
            (*source.shape[:-1], statistic), dtype=torch.float32 if statistic == 1 else source.dtype
        )
        emit(OperatorCall(f"npu::{name}", (*map(_of, (source, *weights)), _of(result, "result"), _of(kept, "result"))))
        context.save_for_backward(source, kept, *weights)
        context.name, context.emit = name, emit
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        source, kept, *weights = context.saved_tensors
        made = [torch.empty_like(each) for each in (source, *weights)]
        read = map(_of, (gradients[0], source, kept, *weights))
        context.emit(OperatorCall(f"npu::{context.name}_backward", (*read, *(_of(each, "result") for each in made))))
        return (None, None, None, None, *made)


@contextlib.contextmanager
def kernels_of_torch_npu(emit: Emit) -> Iterator[None]:
    """Let diffusers' layers call these kernels on the meta device; nothing is changed where diffusers is not loaded."""
    normalization = sys.modules.get("diffusers.models.normalization")
    activations = sys.modules.get("diffusers.models.activations")
    before = []

    def rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.weight is None or hidden_states.device.type != "meta":
            return old_norm(self, hidden_states)  # type: ignore[no-any-return]
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        result = _Kernel.apply("npu_rms_norm", emit, hidden_states.shape[-1], 1, hidden_states, self.weight)  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias  # type: ignore[no-any-return]

    def geglu(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hidden_states.device.type != "meta":
            return old_geglu(self, hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
        both = self.proj(hidden_states)
        half = both.shape[-1] // 2
        return _Kernel.apply("npu_geglu", emit, half, half, both)  # type: ignore[no-any-return, no-untyped-call]

    if normalization is not None:
        old_norm = normalization.RMSNorm.forward
        before.append((normalization.RMSNorm, old_norm))
        normalization.RMSNorm.forward = rms_norm
    if activations is not None:
        old_geglu = activations.GEGLU.forward
        before.append((activations.GEGLU, old_geglu))
        activations.GEGLU.forward = geglu
    try:
        yield
    finally:
        for kind, forward in before:
            kind.forward = forward
