"""Measures whether products with quantised weights are faster on a device, once a process."""

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
"""Of the products that a verdict rests on: inputs and outputs, and rows of activations."""

_ROUNDS = 5
_known: dict[tuple[object, ...], Measurement] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Measurement:
    """One layer's product with a quantised weight, next to torch's with the plain one.

    Attributes:
        format: of the quantised weight.
        batch: rows of activations.
        size: inputs and outputs of the layer.
        dtype: of the activations of the quantised product.
        plain_dtype: of torch's weight and activations.
        path: the instructions that our kernels use; empty where the device has memory of its own, or without kernels.
        seconds: of the quantised product, the median of rounds in which both take turns; 0 where it was not timed.
        plain_seconds: of torch's.
        reason: why it was not timed; empty where it was.
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
        """How many times faster the quantised product is; 0 where it was not timed."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    @property
    def faster(self) -> bool:
        """True if the quantised product is faster."""
        return self.speedup > 1.0


@dataclass(frozen=True)
class Verdict:
    """The measurements that decide whether a mode quantises weights.

    Attributes:
        device: where they were taken.
        format: of the weight.
        dtype: of the plain weight and its activations.
        speedups: how many times faster the quantised product is, by rows of activations.
        reason: why it could not be timed; empty where it was.
    """

    device: str
    format: str
    dtype: torch.dtype
    speedups: tuple[tuple[int, float], ...] = ()
    reason: str = ""

    @property
    def faster(self) -> bool:
        """True if it is faster for all of these rows."""
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
    """The measurements for a device, taken now where they were not yet in this process.

    On a simulated card they are those of this machine too: the card computes here.

    Args:
        device: that computes.
        format: of the weights.
        dtype: of the plain weights.
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
    """Time a product of `batch` x `size` activations with a `size` x `size` weight, as a mode multiplies them.

    It takes about half a second the first time and is remembered for the process.

    Args:
        format: of the quantised weight.
        batch, size: of the product.
        dtype: of the activations of the quantised product.
        plain_dtype: of torch's product; `dtype` by default.
        device: that computes; None for the CPU.
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
        # a generator of its own: the program's random numbers stay as they are
        some = torch.randn(64, size, generator=torch.Generator().manual_seed(0), device="cpu")
        some = some.repeat(-(-max(size, batch) // 64), 1)
        weight = some[:size].to(plain_dtype)
        page = encode(weight, format, "reference").to(there)
        weight = weight.to(there)
        x, plain_x = some[:batch].to(there, dtype), some[:batch].to(there, plain_dtype)
        ours, plain = _in_turns(device, lambda: multiply(x, page, None), lambda: functional.linear(plain_x, weight))
    return Measurement(format, batch, size, dtype, plain_dtype, "" if found is None else found.paths[-1], ours, plain)


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
