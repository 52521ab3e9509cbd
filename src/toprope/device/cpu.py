"""The CPU: the fallback of every program; its memory and stream functions never raise.

Found by `kinds`; the methods are those of `base.Device`, the host's figures come from `memory.HostMemory`. Streams are
torch.cpu's stand-ins, and everything is done when a call returns. Tests: tests/device/test_device_cpu.py.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch

from toprope.device.base import Availability, Capabilities, Device, Properties, State
from toprope.device.memory import HostMemory

__all__ = ["CpuDevice", "CpuEvent"]


class CpuEvent:
    """A point in the work of the CPU, which does everything at once. With the methods of an event of a card."""

    def __init__(self) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: CpuEvent) -> float:
        """Milliseconds from this event to the other.

        Raises:
            ValueError: one of them was not recorded.
        """
        if self._time is None or end_event._time is None:
            raise ValueError("both events must be recorded before the time between them is asked for")
        return (end_event._time - self._time) * 1000

    def query(self) -> bool:
        """True: all work before it is done."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Do nothing: all work before it is done."""

    def synchronize(self) -> None:
        """Do nothing: all work before it is done."""


class CpuDevice(Device):
    """The CPU."""

    kind = "cpu"
    title = "CPU"
    priority = 0
    dtype_order = ("float32", "bfloat16", "float16")
    dtype_order_reason = "on most CPUs torch computes in shorter types more slowly"

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.torch_device = torch.device("cpu")  # without an index, as tensors there have none

    def __str__(self) -> str:
        return "cpu"

    @classmethod
    def look(cls) -> Availability:
        """It is always there, once."""
        return Availability("cpu", State.WORKS, count=1)

    @classmethod
    def current_index(cls) -> int:
        """0."""
        return 0

    @cached_property
    def capabilities(self) -> Capabilities:
        """The abilities of the CPU."""
        return Capabilities(generators=True, collectives="gloo")

    def properties(self) -> Properties:
        """The processor's name, the cores that this process may use, and the memory."""
        return Properties(_processor(), total_memory=_host.free_and_total()[1], cores=len(os.sched_getaffinity(0)))

    def set_current(self) -> None:
        """Do nothing: there is one."""

    def as_current(self) -> AbstractContextManager[Any]:
        """A context that changes nothing."""
        return contextlib.nullcontext()

    def memory_allocated(self) -> int:
        """Bytes that the process holds in memory."""
        return _host.resident()

    def memory_reserved(self) -> None:
        """None: torch keeps no host memory for later."""

    def max_memory_allocated(self) -> int:
        """The most bytes that the process held in memory."""
        return _host.peak()

    def reset_peak_memory(self) -> None:
        """Reset the peak, where the system allows it."""
        _host.reset_peak()

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the machine, or of the container where that is less."""
        return _host.free_and_total()

    def empty_cache(self) -> None:
        """Give back freed memory of the host: what the C library keeps, and torch's pinned blocks that nobody uses."""
        _empty_pinned_cache()
        _host.trim()

    def synchronize(self) -> None:
        """Do nothing: all work is done when the call returns."""

    def stream(self, priority: int = 0) -> Any:
        """A stand-in: work on it is done at once."""
        return torch.cpu.Stream()

    def current_stream(self) -> Any:
        """torch's stand-in for a stream."""
        return torch.cpu.current_stream()

    def default_stream(self) -> Any:
        """torch's stand-in for a stream."""
        return torch.cpu.current_stream()

    @contextlib.contextmanager
    def on_stream(self, stream: Any) -> Iterator[Any]:
        """A context that changes nothing: the order of work is the program's."""
        yield stream

    def event(self, *, timing: bool = False) -> CpuEvent:
        """An event that is done as soon as it is recorded, and takes the time."""
        return CpuEvent()

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator of the CPU, and no other device's."""
        torch.default_generator.manual_seed(seed)

    def rng_state(self) -> torch.Tensor:
        """The state of torch's generator of the CPU."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back a state that `rng_state` gave."""
        torch.set_rng_state(state)


_host = HostMemory()


def _empty_pinned_cache() -> None:
    """Free the pinned host memory that torch keeps for copies; where no card was used in this process there is none."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not getattr(torch.get_device_module(accelerator), "is_initialized", bool)():
        return
    empty = getattr(torch.accelerator, "empty_host_cache", None)  # not every torch that toprope runs with has it
    if empty is not None:
        with contextlib.suppress(RuntimeError):  # the card's software gave torch no such cache
            empty()


def _processor() -> str:
    """The processor's name as Linux gives it; "" where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(("model name", "Model", "Hardware")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
