"""Measure once per process if products with quantised weights are faster on a device.

The modes quantise only where they are (`verdict`); users call `tiers.pages.measure`. It times the same code as a
layer runs, so it needs no change when the kernels change. Shapes and number of runs are free; a figure is always of
this machine, never of a table. Tests: tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from toprope import device as devices
from toprope.device import Device
from toprope.device.memory import needs_memory
from toprope.tiers.quant import kernels as native
from toprope.tiers.quant.codec import encode
from toprope.tiers.quant.matmul import multiply

__all__ = ["BATCHES", "SIZE", "Measurement", "Verdict", "measure", "verdict"]

SIZE, BATCHES = 2048, (1, 32)
"""Products that a verdict is based on: number of inputs and outputs, and numbers of activation rows."""

_ROUNDS = 5
_known: dict[tuple[object, ...], Measurement] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Measurement:
    """Times of one layer's product with a quantised weight, and of torch's product with the plain weight.

    Attributes:
        format: format of the quantised weight.
        batch: number of activation rows.
        size: number of inputs and outputs of the layer.
        dtype: dtype of the activations of the quantised product.
        plain_dtype: dtype of torch's weight and activations.
        path: instruction set of our kernels; empty on a device with its own memory, or without kernels.
        seconds: time of the quantised product, the median of alternating rounds; 0 if it was not timed.
        plain_seconds: time of torch's product.
        reason: reason why it was not timed; empty if it was.
    """

    format: str
    batch: int
    size: int
    dtype: torch.dtype
    plain_dtype: torch.dtype
    path: str
    seconds: float
    plain_seconds: float
    reason: str = ""

    @property
    def speedup(self) -> float:
        """torch's time divided by the time of the quantised product; 0 if it was not timed."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    @property
    def faster(self) -> bool:
        """True if the quantised product is faster."""
        return self.speedup > 1.0


@dataclass(frozen=True)
class Verdict:
    """Measurements from which a mode decides to quantise weights or not.

    Attributes:
        device: the measured device.
        format: format of the quantised weight.
        dtype: dtype of the plain weight and its activations.
        speedups: pairs of activation rows and speedup of the quantised product.
        reason: reason why it could not be timed; empty if it was.
    """

    device: str
    format: str
    dtype: torch.dtype
    speedups: tuple[tuple[int, float], ...] = ()
    reason: str = ""

    @property
    def faster(self) -> bool:
        """True if the quantised product is faster for all measured numbers of rows."""
        return bool(self.speedups) and all(each > 1.0 for _, each in self.speedups)

    @property
    def text(self) -> str:
        """The figures in one line."""
        if self.reason:
            return self.reason
        facts = ", ".join(
            f"{each:.2f} times as fast with {rows} row{'' if rows == 1 else 's'}" for rows, each in self.speedups
        )
        return f"{self.format} on {self.device}, {SIZE} x {SIZE}, compared with {str(self.dtype)[6:]}: {facts}"


def verdict(device: Device, format: str = "nvfp4", dtype: torch.dtype = torch.float32) -> Verdict:
    """The measurements for a device, taken at the first call in a process.

    For a simulated card they are those of this machine, which computes for it.

    Args:
        device: the device that computes.
        format: format of the quantised weights.
        dtype: dtype of the plain weights.
    """
    found = [measure(format, rows, SIZE, dtype, device=device) for rows in BATCHES]
    if found[0].reason:
        return Verdict(str(device), format, dtype, reason=found[0].reason)
    return Verdict(str(device), format, dtype, tuple((each.batch, each.speedup) for each in found))


def measure(
    format: str = "nvfp4",
    batch: int = 1,
    size: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
    plain_dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> Measurement:
    """Time a product of `batch` x `size` activations with a `size` x `size` weight, done the same way as by a mode.

    It takes about half a second the first time; the result is kept for the process.

    Args:
        format: format of the quantised weight.
        batch, size: sizes of the product.
        dtype: dtype of the activations of the quantised product.
        plain_dtype: dtype of torch's product; `dtype` by default.
        device: the device that computes; None for the CPU.
    """
    device = device or devices.get("cpu")
    key = (str(device), format, batch, size, dtype, plain_dtype or dtype)
    with _lock:
        if key not in _known:
            _known[key] = _measure(device, format, batch, size, dtype, plain_dtype or dtype)
        return _known[key]


def _measure(
    device: Device, format: str, batch: int, size: int, dtype: torch.dtype, plain_dtype: torch.dtype
) -> Measurement:
    own = device.capabilities.separate_memory
    found = None if own else native.kernels()
    if not own and found is None:
        reason = f"there are no kernels: {native.why_none()}"
        return Measurement(format, batch, size, dtype, plain_dtype, "", 0.0, 0.0, reason)
    there = device.torch_device
    with torch.no_grad(), torch.autocast(there.type, enabled=False), needs_memory(device, "measure it"):
        # its own generator, so that the program's random numbers stay the same
        some = torch.randn(64, size, generator=torch.Generator().manual_seed(0), device="cpu")
        some = some.repeat(-(-max(size, batch) // 64), 1)
        weight = some[:size].to(plain_dtype)
        page = encode(weight, format, "reference").to(there)
        weight = weight.to(there)
        x, plain_x = some[:batch].to(there, dtype), some[:batch].to(there, plain_dtype)
        ours, plain = _in_turns(device, lambda: multiply(x, page, None), lambda: functional.linear(plain_x, weight))
    return Measurement(format, batch, size, dtype, plain_dtype, "" if found is None else found.paths[-1], ours, plain)


def _in_turns(device: Device, first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of two functions in alternating rounds, without the first round."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS + 1):
        for kept, work in zip(seconds, (first, second), strict=True):
            device.synchronize()
            begin = time.perf_counter()
            work()
            device.synchronize()
            kept.append(time.perf_counter() - begin)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])
