"""Facade module: `FlopsCounter`, floating-point operations of a program's products, convolutions and attention.

They are counted by torch's own formulas (torch.utils.flop_counter); the methods are torch_npu's. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch

__all__: list[str] = []


class _Counts:
    """The two sums of a process: all operations since `start`, and those outside of a pause."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set both sums to 0."""
        self.paused = False
        self.recorded = 0
        self.traversed = 0

    def add(self, flops: int) -> None:
        """Add the operations of one call."""
        self.traversed += flops
        if not self.paused:
            self.recorded += flops


_Mode: Any = _python_dispatch.TorchDispatchMode  # it has no annotations


class _Counting(_Mode):  # type: ignore[misc]
    """Sees every operator of the thread that entered it, and of its backward passes."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        from torch.utils.flop_counter import flop_registry

        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        if formula is not None and _on_card(out):
            _counts.add(int(formula(*args, **kwargs, out_val=out)))
        return out


_counts = _Counts()
_mode: Any = None


class _FlopsCounter:
    """Counter of the operations that this thread, and its backward passes, run on the card. All counters are one.

    As on a card, what was compiled into one kernel is not counted.
    """

    def __enter__(self) -> _FlopsCounter:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Count from here on."""
        global _mode
        if _mode is None:
            _mode = _Counting()
            _mode.__enter__()

    def stop(self) -> None:
        """End the counting, and set the sums to 0."""
        global _mode
        if _mode is not None:
            mode, _mode = _mode, None
            mode.__exit__(None, None, None)
        _counts.reset()

    def pause(self) -> None:
        """Leave what follows out of the first sum."""
        _counts.paused = True

    def resume(self) -> None:
        """End a pause."""
        _counts.paused = False

    def get_flops(self) -> list[int]:
        """The operations outside of pauses, and all."""
        return [_counts.recorded, _counts.traversed]


class FlopsCounter(_FlopsCounter):
    """The counter under its old name, with torch_npu's warning."""

    def __init__(self) -> None:
        super().__init__()
        warnings.warn(
            "torch_npu.utils.flops_count.FlopsCounter will be deprecated: use torch_npu.utils.FlopsCounter.",
            FutureWarning,
            stacklevel=2,
        )


def _on_card(out: Any) -> bool:
    if isinstance(out, torch.Tensor):
        return out.device.type == "npu"
    return isinstance(out, tuple | list) and any(_on_card(entry) for entry in out)
