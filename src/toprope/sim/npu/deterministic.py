"""Part of `torch.npu`: switches for algorithms that give the same result every time.

The simulated card's operators are the CPU's, which follow torch.use_deterministic_algorithms; a level adds nothing
here. Tests: tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from toprope.sim.npu._state import VALUE, message

__all__ = ["disable_deterministic_with_backward", "enable_deterministic_with_backward", "set_deterministic_level"]

_MOST = 3
_level = 0


class _Begin(torch.autograd.Function):
    """Switches on in the forward pass, and off again where the backward pass comes to the same place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        torch.use_deterministic_algorithms(False)
        return gradients[0]


class _End(torch.autograd.Function):
    """Switches off in the forward pass, and on where the backward pass comes to the same place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(False)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        return gradients[0]


def _not_in_graphs(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Mark a function that torch.compile must not trace, as torch._dynamo.forbid_in_graph does."""
    function._dynamo_forbidden = True  # type: ignore[attr-defined]
    return function


@_not_in_graphs
def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Switch deterministic algorithms on from here on, and off again once the gradient has come back here."""
    made: torch.Tensor = _Begin.apply(tensor)  # type: ignore[no-untyped-call]
    return made


@_not_in_graphs
def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Switch deterministic algorithms off from here on, and on again once the gradient has come back here."""
    made: torch.Tensor = _End.apply(tensor)  # type: ignore[no-untyped-call]
    return made


def set_deterministic_level(level: int) -> None:
    """Set how much is deterministic: 0 nothing, 1 results, 2 stricter. Switches torch's own setting with it.

    Raises:
        RuntimeError: the level is not 0 to 3; or it is 3 (the same for every batch size), which needs a CANN that
            supports it, and there is none here.
    """
    global _level
    if not 0 <= level <= _MOST:
        raise RuntimeError(
            message("'torch_npu.npu.set_deterministic_level' supports configuring 0/1/2/3.", VALUE),
        )
    if level == _MOST:
        raise RuntimeError(
            message(
                "'torch_npu.npu.set_deterministic_level(3)' requires CANN runtime and operator packages that support"
                " batch consistency.",
                VALUE,
            )
        )
    wanted = level >= 1
    if torch.are_deterministic_algorithms_enabled() != wanted:
        warnings.warn(
            f"torch.npu.set_deterministic_level({level}) sets torch.use_deterministic_algorithms({wanted}).",
            stacklevel=2,
        )
        torch.use_deterministic_algorithms(wanted)
    _level = level
    warnings.warn(
        "After torch.npu.set_deterministic_level, leave torch.use_deterministic_algorithms alone: they would"
        " contradict each other.",
        stacklevel=2,
    )


def _get_deterministic_level() -> int:
    """The level in force: torch's own setting, where it was changed since, wins."""
    if torch.are_deterministic_algorithms_enabled():
        return max(_level, 1)
    return 0
