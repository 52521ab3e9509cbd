"""Whether products with weights in few bits are faster here: measured once a process, on the device that computes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from toprope.device import Device
from toprope.device.memory import needs_memory
from toprope.tiers import pages

__all__ = ["BATCHES", "SIZE", "Verdict", "verdict"]

SIZE, BATCHES = 2048, (1, 32)
"""Of the product that is timed: inputs and outputs, and rows of activations."""

_ROUNDS = 5
_known: dict[tuple[str, str, torch.dtype], Verdict] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Verdict:
    """A layer's product with a quantised weight beside torch's with the plain one.

    Attributes:
        device: where it was timed.
        format: of the weight.
        dtype: of the plain weight and its activations.
        speedups: how many times faster the quantised one is, by rows of activations.
        reason: why it could not be timed; empty where it was.
    """

    device: str
    format: str
    dtype: torch.dtype
    speedups: tuple[tuple[int, float], ...] = ()
    reason: str = ""

    @property
    def faster(self) -> bool:
        """Whether it is faster for all of these rows."""
        return bool(self.speedups) and all(each > 1.0 for _, each in self.speedups)

    @property
    def text(self) -> str:
        """The figures in one line."""
        if self.reason:
            return self.reason
        told = ", ".join(
            f"{each:.2f} times as fast with {rows} row{'' if rows == 1 else 's'}" for rows, each in self.speedups
        )
        return f"{self.format} on {self.device}, {SIZE} x {SIZE}, beside {str(self.dtype)[6:]}: {told}"


def verdict(device: Device, format: str = "nvfp4", dtype: torch.dtype = torch.float32) -> Verdict:
    """The measurement for a device, taken now where it was not yet in this process.

    On a simulated card it is that of this machine too: the card computes here.

    Args:
        device: that computes.
        format: of the weights.
        dtype: of the plain weights.
    """
    key = (str(device), format, dtype)
    with _lock:
        if key not in _known:
            _known[key] = _measure(device, format, dtype)
        return _known[key]


def _measure(device: Device, format: str, dtype: torch.dtype) -> Verdict:
    from toprope.tiers.modes.quantised import multiply
    from toprope.tiers.pages.native import kernels, why_none

    if not device.capabilities.separate_memory and kernels() is None:
        return Verdict(str(device), format, dtype, reason=f"there are no kernels: {why_none()}")
    there = device.torch_device
    with torch.no_grad(), torch.autocast(there.type, enabled=False), _random_kept(), needs_memory(device, "measure it"):
        part = torch.randn(64, SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)
        weight = part.repeat(SIZE // 64, 1)
        page = pages.encode(weight, format, "reference").to(there)
        weight = weight.to(there)
        speedups = []
        for rows in BATCHES:
            x = part[:rows].to(there)
            ours, plain = _in_turns(
                device,
                lambda x=x: multiply(x, page, None),  # type: ignore[misc]
                lambda x=x: functional.linear(x, weight),  # type: ignore[misc]
            )
            speedups.append((rows, plain / ours))
    return Verdict(str(device), format, dtype, tuple(speedups))


class _random_kept:  # noqa: N801 - reads as a state
    """Nothing here draws from the program's generators: this holds it to that."""

    def __enter__(self) -> None:
        self._before = torch.get_rng_state()

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._before)


def _in_turns(device: Device, first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Seconds of each: medians of rounds in which both take turns, the first round left out."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS + 1):
        for kept, work in zip(seconds, (first, second), strict=True):
            device.synchronize()
            begin = time.perf_counter()
            work()
            device.synchronize()
            kept.append(time.perf_counter() - begin)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])
