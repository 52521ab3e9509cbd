"""Devices with memory of their own, by torch.accelerator: what NPU, CUDA, XPU and other kinds have in common.

torch.accelerator (https://docs.pytorch.org/docs/stable/accelerator.html) serves one kind in a process. Another one,
such as CUDA next to a simulated NPU, is asked through its own module, whose functions have the same names: torch fixes
both. A question must not make the process use a card that it has not used yet (`is_initialized`).

The base class of `npu` and `cuda`, and the class of kinds without a file here (`kinds`). Its methods are those of
`base.Device`. Tests: tests/device/test_device_accelerator.py, tests/sim/simulated/test_device.py; on a GPU,
tests/device/cuda/test_cuda_device.py.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch

from toprope.device.base import Availability, Capabilities, Device, Properties, State
from toprope.device.host.libraries import reason
from toprope.device.seeds import draws_random_numbers
from toprope.errors import UnsupportedError
from toprope.messages import Message

__all__ = ["AcceleratorDevice"]


class AcceleratorDevice(Device):
    """One device of a kind of accelerator, such as "xpu". Subclasses for NPU and CUDA add their own functions."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._module: Any = torch.get_device_module(self.kind)
        self._is_accelerator = _accelerator() == self.kind
        self._memory: Any = torch.accelerator if self._is_accelerator else self._module

    @classmethod
    def look(cls) -> Availability:
        """State of this kind: whether torch is built for it, and sees a device."""
        if _accelerator() != cls.kind:
            return Availability(
                cls.kind,
                State.NOT_INSTALLED,
                reason=Message("torch {version} is built without {kind}", version=torch.__version__, kind=cls.kind),
                looked_at=Message(
                    "torch.accelerator.current_accelerator() is {accelerator}", accelerator=_accelerator() or None
                ),
                do=Message("install a torch that is built for {kind}", kind=cls.kind),
            )
        try:
            count = torch.accelerator.device_count()
        except Exception as error:  # whatever a driver raises
            return Availability(
                cls.kind, State.BROKEN, reason=Message("torch cannot count the devices: {error}", error=reason(error)),
                looked_at=cls.facts(), do=Message("check the driver"), surprising=True,
            )  # fmt: skip
        if count:
            return Availability(cls.kind, State.WORKS, count)
        return Availability(
            cls.kind,
            State.NO_CARD,
            reason=Message("no {kind} is visible", kind=cls.kind),
            looked_at=cls.facts(),
            do=Message("check the driver"),
        )

    @classmethod
    def facts(cls) -> str:
        """torch's version."""
        return f"torch {torch.__version__}"

    @classmethod
    def current_index(cls) -> int:
        """The index of this thread's current device; 0 where the process has not used one yet, which is left so."""
        module: Any = torch.get_device_module(cls.kind)
        if not module.is_initialized():
            return 0
        return int(torch.accelerator.current_device_index() if _accelerator() == cls.kind else module.current_device())

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of the device."""
        collectives = ""
        with contextlib.suppress(AttributeError, ValueError):  # torch is built without, or there are none for this kind
            collectives = torch.distributed.get_default_backend_for_device(self.kind)
        return Capabilities(
            separate_memory=True, streams=True, generators=draws_random_numbers(self.kind), pinned_memory=True,
            collectives=collectives,
        )  # fmt: skip

    def properties(self) -> Properties:
        """Name and memory."""
        found = self._module.get_device_properties(self.index)
        return Properties(str(found.name), total_memory=int(found.total_memory))

    def set_current(self) -> None:
        """Make it the current device of this thread."""
        if self._is_accelerator:
            torch.accelerator.set_device_index(self.index)
        else:
            self._module.set_device(self.index)

    def as_current(self) -> AbstractContextManager[Any]:
        """A context in which it is the current device of this thread."""
        if self._is_accelerator:
            return torch.accelerator.device_index(self.index)
        return self._module.device(self.index)  # type: ignore[no-any-return]

    def memory_allocated(self) -> int:
        """Bytes in use by tensors of this process."""
        return int(self._memory.memory_allocated(self.index))

    def memory_reserved(self) -> int:
        """Bytes that torch's allocator holds for this process."""
        return int(self._memory.memory_reserved(self.index))

    def max_memory_allocated(self) -> int:
        """The most bytes that were allocated."""
        return int(self._memory.max_memory_allocated(self.index))

    def reset_peak_memory(self) -> None:
        """Start `max_memory_allocated` again from what is allocated now."""
        if self._module.is_initialized():  # before, there is no peak, and the allocator would be asked too early
            self._memory.reset_peak_memory_stats(self.index)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device, other processes counted."""
        if self._memory is torch.accelerator:
            return torch.accelerator.get_memory_info(self.index)
        return self._module.mem_get_info(self.index)  # type: ignore[no-any-return]

    def empty_cache(self) -> None:
        """Give back what torch's allocator holds and no tensor uses, on every device of this kind."""
        self._memory.empty_cache()

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        if self._is_accelerator:
            torch.accelerator.synchronize(self.index)
        else:
            self._module.synchronize(self.index)

    def stream(self, priority: int = 0) -> Any:
        """A new stream of the device; a lower number goes first."""
        return self._module.Stream(device=self.index, priority=priority)

    def current_stream(self) -> Any:
        """The stream that this thread's work on the device goes to."""
        return self._module.current_stream(self.index)

    def default_stream(self) -> Any:
        """The device's first stream.

        Raises:
            UnsupportedError: torch does not tell it for this kind, such as xpu.
        """
        if not hasattr(self._module, "default_stream"):
            raise UnsupportedError(
                f"torch does not tell the default stream of {self}.",
                looked_at=f"torch.{self.kind}",
                do="use current_stream(), outside of on_stream()",
            )
        return self._module.default_stream(self.index)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread's work goes to the stream."""
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def event(self, *, timing: bool = False) -> Any:
        """A new event."""
        return self._module.Event(enable_timing=timing)

    def manual_seed(self, seed: int) -> None:
        """Seed the device's default generator."""
        with self.as_current():
            self._module.manual_seed(seed)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the default generators of all devices of this kind; those that are not used yet, when they are."""
        module: Any = torch.get_device_module(cls.kind)
        module.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor:
        """The state of the device's default generator."""
        state: torch.Tensor = self._module.get_rng_state(self.torch_device)
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back a state that `rng_state` gave."""
        self._module.set_rng_state(state, self.torch_device)


def _accelerator() -> str:
    """The kind that torch.accelerator serves in this process; "" where torch is built without one."""
    found = torch.accelerator.current_accelerator()
    return "" if found is None else found.type
