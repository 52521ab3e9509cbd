"""Move gradients out of the device as soon as they are made.

A parameter's gradient is moved to the store when autograd has accumulated it; `parameter.grad` is then a
`StoredTensor`: the next backward pass adds to it tile by tile; GradScaler and `torch.nn.utils.clip_grad_norm_` work
on it, with one gradient on the device at a time. `zero_grad` and `parameter.grad = None` free its room. Made by
`training.training`, which also has this module's `clip_grad_norm_`: its result has the bits of torch's, so it follows
the order in which torch adds norms, by private functions of torch. Tests:
tests/tiers/test_tiers_training_optimizer.py, tests/tiers/test_tiers_training.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.utils._foreach_utils import _device_has_foreach_support, _group_tensors_by_device_and_dtype

from toprope.tiers.plan.model import What
from toprope.tiers.store.base import Store
from toprope.tiers.store.memory import is_dense
from toprope.tiers.training.offloaded_tensor import StoredTensor, store_tensor
from toprope.tiers.training.tiles import Tile

__all__ = ["Gradients", "clip_grad_norm_", "total_norm"]

Cut = Callable[[torch.Tensor], Sequence[Tile]]
"""Function that returns the tiles of a parameter."""

Place = Callable[[What, torch.Tensor], Store | None]
"""Function that returns the store for a parameter's gradient or states; None if they stay on the device."""


class Gradients:
    """Moves the gradients of some parameters to a store.

    Args:
        parameters: the parameters, with names for the store's keys.
        place: chooses the store; None for a parameter whose gradient stays.
        cut: returns the tiles of a parameter.
        smallest: gradients with fewer bytes stay on the device.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, torch.Tensor]], place: Place, cut: Cut, *, smallest: int = 2**20
    ) -> None:
        self.place, self.cut = place, cut
        self.peak = 0
        """Bytes of the largest gradient that was moved to the store."""
        self._hooks = []
        moved = [(name, each) for name, each in parameters if each.requires_grad and each.nbytes >= smallest]
        self._parameters = [each for _, each in moved]
        for name, parameter in moved:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook(name)))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Stop moving gradients, and bring those that were moved back to the device."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters:
            if isinstance(parameter.grad, StoredTensor):
                values = parameter.grad.on(parameter.device)
                parameter.grad = None
                parameter.grad = values

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def move(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if gradient is None or isinstance(gradient, StoredTensor) or gradient.layout is not torch.strided:
                return
            store = self.place("gradients", parameter)
            if store is None:
                return
            self.peak = max(self.peak, gradient.nbytes)
            parameter.grad = None
            parameter.grad = store_tensor(
                store, f"gradient/{name}", _strided_like(gradient, parameter), self.cut(parameter)
            )

        return move


def _strided_like(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The gradient with the parameter's strides, which autograd gives it except for unusual ones."""
    if gradient.stride() == parameter.stride() or not is_dense(parameter):
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


@torch.no_grad()
def total_norm(gradients: Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """`torch.nn.utils.get_total_norm`, bit for bit, with one gradient on the device at a time."""
    every = list(gradients)
    if not every:
        return torch.tensor(0.0)
    norms: list[torch.Tensor] = []
    for each in _in_torchs_order(every):
        value = each.values() if isinstance(each, StoredTensor) else each
        if _device_has_foreach_support(each.device):
            norms.extend(torch._foreach_norm([value], norm_type))
        else:
            norms.append(torch.linalg.vector_norm(value, norm_type))
        del value
    first = every[0].device
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(first) for norm in norms]), norm_type)
    return total


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_`, bit for bit, with one gradient on the device at a time.

    Returns:
        The norm of all gradients together before they were scaled.

    Raises:
        RuntimeError: the norm is not finite, with `error_if_nonfinite`, like torch.
    """
    some = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    gradients = [each.grad for each in some if each.grad is not None]
    total = total_norm(gradients, float(norm_type))
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped. "
            "With error_if_nonfinite=False they are scaled by it all the same."
        )
    factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for gradient in gradients:
        there = factor.to(gradient.device)
        if _device_has_foreach_support(gradient.device) and not isinstance(gradient, StoredTensor):
            torch._foreach_mul_([gradient], there)
        else:
            gradient.mul_(there)
    return total


def _in_torchs_order(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sort tensors by device and dtype, the order in which torch adds up their norms."""
    groups = _group_tensors_by_device_and_dtype([tensors])  # type: ignore[list-item]
    return [each for [some], _ in groups.values() for each in some if each is not None]
