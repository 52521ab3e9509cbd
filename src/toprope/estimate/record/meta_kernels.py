"""Kernels of torch_npu that diffusers calls where torch_npu is installed, for models on the meta device.

model/workloads.py switches them on. diffusers 0.42 asks `is_torch_npu_available()` in RMSNorm (models/normalization.py,
npu_rms_norm) and in GEGLU (models/activations.py, npu_geglu): compare with these for each new release. Elsewhere models
run the operators that they are written with. The methods are exchanged for the time of a recording, and put back
whatever happens. Tests: tests/estimate/test_paper.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from toprope.estimate.record.calls import Role
from toprope.estimate.record.meta_attention import Note

__all__ = ["kernels_of_torch_npu"]


def _with_role(tensors: Iterable[torch.Tensor], role: Role) -> list[tuple[torch.Tensor, Role]]:
    return [(each, role) for each in tensors]


class _Kernel(torch.autograd.Function):
    """A kernel that keeps its inputs and one statistic for its backward pass."""

    @staticmethod
    def forward(
        context: Any, name: str, note: Note, columns: int, statistic: int, source: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        result = source.new_empty((*source.shape[:-1], columns))
        kept = source.new_empty(
            (*source.shape[:-1], statistic), dtype=torch.float32 if statistic == 1 else source.dtype
        )
        note(f"npu::{name}", _with_role((source, *weights), "read") + _with_role((result, kept), "result"), 0)
        context.save_for_backward(source, kept, *weights)
        context.name, context.note = name, note
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        source, kept, *weights = context.saved_tensors
        made = [torch.empty_like(each) for each in (source, *weights)]
        tensors = _with_role((gradients[0], source, kept, *weights), "read") + _with_role(made, "result")
        context.note(f"npu::{context.name}_backward", tensors, 0)
        return (None, None, None, None, *made)


@contextlib.contextmanager
def kernels_of_torch_npu(note: Note) -> Iterator[None]:
    """Let diffusers' layers call these kernels on the meta device; nothing is changed where diffusers is not loaded."""
    normalization = sys.modules.get("diffusers.models.normalization")
    activations = sys.modules.get("diffusers.models.activations")
    before = []

    def rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.weight is None or hidden_states.device.type != "meta":
            return old_norm(self, hidden_states)  # type: ignore[no-any-return]
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        result = _Kernel.apply("npu_rms_norm", note, hidden_states.shape[-1], 1, hidden_states, self.weight)  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias  # type: ignore[no-any-return]

    def geglu(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hidden_states.device.type != "meta":
            return old_geglu(self, hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
        both = self.proj(hidden_states)
        half = both.shape[-1] // 2
        return _Kernel.apply("npu_geglu", note, half, half, both)  # type: ignore[no-any-return, no-untyped-call]

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
