"""Facade module `apt_model.optimization.npu_backend`: one interface to NPU, CUDA and CPU.

Programs that were written for apt_model call it; it passes on to `toprope.device`. Sizes are bytes; keys that end in
`_mb` are MiB (2**20 bytes), as in the original. tests/compat/test_apt_backend.py holds names and results.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from toprope import device as devices
from toprope.device import Device, State
from toprope.device.kinds import device_class, look

from .._choice import all_devices, answer_or_error, best, called, count, empty_caches, granted, memory_figures, numbered

if TYPE_CHECKING:
    from toprope.device.select import DeviceLike

__all__ = [
    "DeviceBackend",
    "UnifiedDeviceManager",
    "get_accelerator_type",
    "get_device_manager",
    "get_unified_backend",
    "is_cuda_available",
    "is_npu_available",
]

_MIB = 2**20


def get_accelerator_type() -> str:
    """The type of the device that `apt_model.core.system.get_device()` gives: "cuda", "npu" or "cpu".

    Raises:
        TopropeError: the user set a device for toprope that is not there.
    """
    return best().kind


def is_npu_available() -> bool:
    """True if an NPU can be used here; False if torch_npu cannot be loaded, which raises nothing."""
    return count("npu") > 0


def is_cuda_available() -> bool:
    """True if a GPU can be used here."""
    return count("cuda") > 0


def get_unified_backend(device: DeviceLike | None = None) -> DeviceBackend:
    """The backend of a device; without one, of the manager's best.

    Raises:
        TopropeError: as for `DeviceBackend`.
    """
    return _manager.get_backend(_manager.get_best_device() if device is None else device)


def get_device_manager() -> UnifiedDeviceManager:
    """The manager of this process: one object, whichever thread asks first."""
    return _manager


class DeviceBackend:
    """One device, with the same calls whatever its type.

    Args:
        device: a torch.device, or its name: "npu:0" is refused by torch.device itself where there is no torch_npu,
            and here gets the answer below. Without a number it is the current device of this thread.

    Raises:
        TopropeError: there is no such device: DeviceNotInstalledError, DeviceBrokenError, DeviceNotVisibleError or
            DeviceIndexError say why. With TOPROPE_FALLBACK=1 it is one warning, and the backend of another device.

    Attributes:
        device: the device for torch; the one that was granted.
        device_type: "cuda", "npu" or "cpu".
        device_index: its number, 0 on the CPU.
    """

    def __init__(self, device: torch.device | str | Device) -> None:
        self._device = granted(device)
        self.device = self._device.torch_device
        self.device_type = self._device.kind
        self.device_index = self._device.index

    def __repr__(self) -> str:
        return f"DeviceBackend({str(self._device)!r})"

    @property
    def npu_available(self) -> bool:
        """True if an NPU can be used here, whatever this backend's device is."""
        return is_npu_available()

    @property
    def torch_npu(self) -> ModuleType | None:
        """The module torch_npu, imported when it is asked for; None where it cannot be imported."""
        broken = look("npu").state is State.BROKEN  # this loads a real one; what failed once is not tried again
        if broken or "torch_npu" in sys.modules:
            return sys.modules.get("torch_npu")
        try:
            return import_module("torch_npu")
        except ImportError:
            return None

    def is_available(self) -> bool:
        """True if the device can be used."""
        return count(self.device_type) > self.device_index

    def device_count(self) -> int:
        """Number of devices of this type; the CPU is one."""
        return count(self.device_type)

    def get_device_name(self, index: int | None = None) -> str:
        """The name: "NPU Ascend 910B3", a GPU's own, "CPU".

        Args:
            index: number of another device of the type; None means this one. The CPU is one, whatever the number.

        Raises:
            DeviceIndexError: there is no device of this number.
        """
        return called(self._numbered(index))

    def get_device_properties(self, index: int | None = None) -> dict[str, Any]:
        """Facts of the device. Arguments and errors as for `get_device_name`.

        Returns:
            name, type, total_memory in bytes (on the CPU the machine's, or the container's where that is less) and
            multi_processor_count (vector cores of an NPU, cores of the CPU that this process may use); of a GPU major
            and minor of its compute capability too. What the device's software does not tell is None.
        """
        device = self._numbered(index)
        found = device.properties()
        figures = {
            "name": called(device),
            "type": device.kind,
            "total_memory": found.total_memory,
            "multi_processor_count": found.cores,
        }
        return figures if found.version is None else figures | dict(zip(("major", "minor"), found.version, strict=True))

    def memory_allocated(self, index: int | None = None) -> int:
        """Bytes in use by tensors of this process; on the CPU, what the process holds. Errors as for the name."""
        return memory_figures(self._numbered(index))["allocated"]

    def memory_reserved(self, index: int | None = None) -> int:
        """Bytes that torch's allocator holds; on the CPU, which reserves nothing, what is allocated."""
        return memory_figures(self._numbered(index))["reserved"]

    def max_memory_allocated(self, index: int | None = None) -> int:
        """The most bytes that were allocated, never less than are allocated now."""
        return memory_figures(self._numbered(index))["max_allocated"]

    def empty_cache(self) -> None:
        """Give back what torch keeps of freed memory on devices of this type; on the CPU, what the C library keeps."""
        self._device.empty_cache()

    def synchronize(self, index: int | None = None) -> None:
        """Wait until all work given to the device is done. Errors as for `get_device_name`."""
        self._numbered(index).synchronize()

    def set_device(self, index: int) -> None:
        """Make a device of this type torch's current one in this thread; the backend keeps its own device.

        Raises:
            DeviceIndexError: there is no device of this number.
        """
        self._numbered(index).set_current()

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generators of all devices of this type, on the CPU torch's own.

        Raises:
            SeedError: no such seed.
        """
        device_class(self.device_type).manual_seed_all(devices.concrete_seed(seed))

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on this device, its values unchanged; a tensor that is there already comes back itself."""
        return tensor.to(self.device)

    def stream_context(self) -> AbstractContextManager[Any]:
        """A context whose work goes to a new stream, after all that was queued before and before all that follows.

        Nothing has to be synchronised by hand. On the CPU all work is done at once.
        """
        return self._device.side_stream()

    def get_memory_summary(self) -> dict[str, Any]:
        """Figures of this process on this device, in MiB.

        Returns:
            device_type, device_name, allocated_mb, reserved_mb and max_allocated_mb; where the device tells its size,
            total_mb and utilization_pct (allocated of the total, in percent) too.
        """
        figures = memory_figures(self._device)
        summary: dict[str, Any] = {"device_type": self.device_type, "device_name": called(self._device)}
        summary |= {f"{name}_mb": size / _MIB for name, size in figures.items()}
        total = self._device.properties().total_memory
        if total:
            summary |= {"total_mb": total / _MIB, "utilization_pct": 100 * figures["allocated"] / total}
        return summary

    def _numbered(self, index: int | None) -> Device:
        return numbered(self._device, index)


class UnifiedDeviceManager:
    """All devices that this process can use. `get_device_manager` gives the one of the process."""

    def __init__(self) -> None:
        self._backends: dict[Device, DeviceBackend] = {}
        self._lock = threading.Lock()

    def get_all_devices(self) -> list[torch.device]:
        """Every device that can be used here: GPUs, then NPUs, then the CPU. What was looked up changes nothing."""
        return [each.torch_device for each in all_devices()]

    def get_best_device(self, prefer_npu: bool = False) -> torch.device:
        """The device that `apt_model.core.system.get_device()` gives. Argument and errors as there."""
        return best(prefer_npu=prefer_npu).torch_device

    def get_backend(self, device: DeviceLike) -> DeviceBackend:
        """The backend of a device, the same object each time: "cuda" is the current GPU's, "cuda:0" one GPU's.

        Raises:
            TopropeError: as for `DeviceBackend`.
        """
        found = granted(device)
        with self._lock:
            if found not in self._backends:
                self._backends[found] = DeviceBackend(found)
            return self._backends[found]

    def get_device_summary(self) -> dict[str, Any]:
        """All devices and their memory. Raises nothing.

        Returns:
            total_devices (the CPU is one of them), cuda_devices, npu_devices, and devices: for each by its name what
            `DeviceBackend.get_memory_summary` gives, or device_type and error, which says why it gives nothing.
        """
        found = all_devices()
        return {
            "total_devices": len(found),
            "cuda_devices": sum(each.kind == "cuda" for each in found),
            "npu_devices": sum(each.kind == "npu" for each in found),
            "devices": {str(each): self._summary(each) for each in found},
        }

    def cleanup_all(self) -> None:
        """Give back what torch and the C library keep of freed memory, on every device and the host."""
        empty_caches()

    def _summary(self, device: Device) -> dict[str, Any]:
        found = answer_or_error(lambda: self.get_backend(device).get_memory_summary())
        return {"device_type": device.kind, **found} if "error" in found else found


_manager = UnifiedDeviceManager()
