"""Questions that operator modules ask before they compute: real values or shapes alone, an Ascend 950 or not.

Also `gradients`, by which an operator that is itself a backward pass uses autograd. Used by many modules of this
folder. A tensor without values (meta, or a compiler's) must give results of the same shapes, dtypes and strides, and
none of its values may be read. Tests: tests/sim/simulated/test_npu_operators.py;
tests/compat/operators/test_vision_boxes.py for `gradients`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["gradients", "has_values", "on_950"]

_FIRST_950 = 260
"""SocVersion of the Ascend 950 in torch_npu's enumeration."""


def has_values(*tensors: torch.Tensor | None) -> bool:
    """Return True if no tensor is a meta tensor or one of a compiler's shape inference; None is passed over."""
    return not any(tensor is not None and (tensor.is_meta or isinstance(tensor, FakeTensor)) for tensor in tensors)


def on_950(tensor: torch.Tensor) -> bool:
    """Return True if the tensor is on a simulated Ascend 950 or a later chip."""
    from toprope.sim.npu._state import chip  # only where there is a simulated card

    return tensor.device.type == "npu" and (chip().soc_version or 0) >= _FIRST_950


def gradients(
    function: Callable[..., torch.Tensor], grad: torch.Tensor, *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradients of a composition of differentiable operators, for operators that are backward passes themselves.

    Args:
        function: of the inputs.
        grad: gradient of its result, of the same shape.
        inputs: floating-point tensors.

    Returns:
        one gradient for each input; tensors without values where the inputs have none.
    """
    if not has_values(grad, *inputs):
        return tuple(torch.empty_like(tensor) for tensor in inputs)
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        return torch.autograd.grad(function(*leaves), leaves, grad)
