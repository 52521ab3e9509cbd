"""A trainable linear layer whose weights are on a level of a stack: `toprope.tiers.TierLinear`, for users.

It reserves room in the stack for its parameters and moves them itself; the stack never moves a parameter. The facade
`apt_model.optimization.vgpu_stack` uses it too. Arguments and keys of its state_dict are public; results have the bits
of nn.Linear. Tests: tests/tiers/test_tiers_stack.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.nn import functional

from toprope.tiers.stack.stack import Reservation, TierStack

__all__ = ["TierLinear"]


class TierLinear(torch.nn.Linear):
    """torch's Linear with weight and bias in the memory of the first level that has room for them.

    They are real parameters that never leave that level: their bytes are reserved there, gradients and updates are
    computed there, and every forward pass makes differentiable copies on the input's device. Autograd keeps such a copy
    until the backward pass. Gradients and the optimizer's states are not counted.

    After `.to()`, `.double()` and similar calls, the weights are on the level of the requested device if it has room,
    else on the first level that has. A copy of the layer takes room of its own in the same stack.

    Args:
        in_features, out_features, bias: as for torch.nn.Linear; initial values are the same too.
        stack: the stack whose levels hold the weights.

    Raises:
        TierCapacityError: no level has room for the weights.
    """

    def __init__(self, in_features: int, out_features: int, stack: TierStack, bias: bool = True) -> None:
        size = torch.get_default_dtype().itemsize
        reservation = stack.reserve(size * out_features * (in_features + bool(bias)))
        try:
            super().__init__(in_features, out_features, bias, device="cpu")
            self._stack = stack
            self._live_in(reservation)
            home = reservation.device.torch_device
            super()._apply(lambda tensor: tensor.to(home))  # type: ignore[no-untyped-call]
        except BaseException:
            reservation.release()
            raise

    @property
    def home(self) -> torch.device:
        """The device whose memory has the weights."""
        return self.weight.device

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's output, on the input's device."""
        if not torch.compiler.is_compiling():
            self._reservation.touch()
        bias = None if self.bias is None else self.bias.to(input.device)
        return functional.linear(input, self.weight.to(input.device), bias)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # torch converts and moves modules by this method; an empty tensor shows the target device and dtype
        sample = fn(self.weight.detach().new_empty(0))
        count = sum(each.numel() for each in self.parameters(recurse=False))
        if sample.is_meta:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self._move_to_room()
            return self
        self._reservation.change(count * sample.element_size(), sample.device)
        home = self._reservation.device.torch_device
        try:
            super()._apply(lambda tensor: fn(tensor).to(home), recurse)  # type: ignore[no-untyped-call]
        except BaseException:
            self._move_to_room()
            raise
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._move_to_room()  # assign=True may have replaced the parameters

    def _move_to_room(self) -> None:
        """Reserve the parameters' current bytes, and move them to the level that has room."""
        nbytes = sum(0 if each.is_meta else each.nbytes for each in self.parameters(recurse=False))
        self._reservation.change(nbytes, self.weight.device)
        home = self._reservation.device.torch_device
        if not self.weight.is_meta and self.weight.device != home:
            super()._apply(lambda tensor: tensor.to(home))  # type: ignore[no-untyped-call]

    def _live_in(self, reservation: Reservation) -> None:
        self._reservation = reservation
        weakref.finalize(self, reservation.release)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_reservation"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._live_in(self._stack.reserve(0))
        self._move_to_room()
