"""Facade module `apt_model.core.system`: the device in use and its description, memory figures, and seeds.

Programs that were written for apt_model call it; names and keys are the original's, and tests/compat/test_apt_system.py
holds them. Keys that end in `_gb` are GiB (2**30 bytes), as in the original. The device is chosen by the argument, else
by the user's setting for toprope (`toprope.device.use`, TOPROPE_DEVICE, PREFERRED_DEVICE, [tool.toprope]), else in the
order CUDA, NPU, CPU.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch

from toprope import device as devices
from toprope.device import Device
from toprope.device.memory import HostMemory

from .._choice import (
    all_devices,
    answer_or_error,
    best,
    called,
    count,
    empty_caches,
    granted,
    memory_figures,
    numbered,
)

device: torch.device
"""`get_device()`, asked at the first access and kept."""

__all__ = [
    "device",
    "get_device",
    "get_device_info",
    "get_memory_info",
    "memory_cleanup",
    "set_device",
    "set_seed",
]

_GIB = 2**30


def get_device(force_cpu: bool = False, prefer_npu: bool = False) -> torch.device:
    """The device to work on.

    Args:
        force_cpu: the CPU, whatever else is there or preferred.
        prefer_npu: an NPU goes before CUDA where there is one; without one it changes nothing.

    Raises:
        TopropeError: the user set a device for toprope that is not there.
    """
    return (granted("cpu") if force_cpu else best(prefer_npu=prefer_npu)).torch_device


def get_device_info() -> dict[str, Any]:
    """The devices that are there, and the one in use.

    Returns:
        cuda_available, npu_available: whether such a device can be used here, chosen or not.
        device_type, device_name: of the device that `get_device()` gives.
        device_count: cards of that type; 0 on the CPU, as in the original.
        cuda_version, npu_version: of CUDA (or ROCm) and of torch_npu; None for what is not there.

    Raises:
        TopropeError: the user set a device for toprope that is not there.
    """
    chosen = best()
    return {
        "cuda_available": count("cuda") > 0,
        "npu_available": count("npu") > 0,
        "device_count": 0 if chosen.kind == "cpu" else count(chosen.kind),
        "device_name": called(chosen),
        "device_type": chosen.kind,
        "cuda_version": _version("cuda"),
        "npu_version": _version("npu"),
    }


def get_memory_info() -> dict[str, Any]:
    """The memory of the machine, and what this process holds on each card. Raises nothing.

    Returns:
        ram: total_gb, used_gb, available_gb and percent (in use) of the whole machine.
        vram: for each GPU, as "gpu_0": allocated_gb, reserved_gb, max_allocated_gb of this process.
        npu_memory: the same for each NPU, as "npu_0".
        What cannot be read is {"error": why} in its place.
    """
    return {"ram": answer_or_error(_ram), "vram": _cards("cuda", "gpu"), "npu_memory": _cards("npu", "npu")}


def memory_cleanup() -> None:
    """Collect garbage; give back what torch and the C library keep of freed memory, on every device and of the host."""
    gc.collect()
    empty_caches()


def set_seed(seed: int = 42) -> None:
    """Seed Python, numpy and torch on the CPU and on every device.

    Where there is CUDA, cuDNN is set to be deterministic and not to try algorithms against each other, as in the
    original.

    Args:
        seed: 0 to 2**64 - 1.

    Raises:
        SeedError: no such seed.
    """
    devices.seed_all(seed)
    if count("cuda"):
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def set_device(device_id: int = 0) -> torch.device:
    """Make a card torch's current one in this thread: of the type that `get_device()` gives, CUDA or NPU.

    Args:
        device_id: number of the card. The CPU is one, whatever the number.

    Returns:
        The device.

    Raises:
        DeviceIndexError: there is no card of this number.
    """
    chosen = numbered(best(), device_id)
    chosen.set_current()
    return chosen.torch_device


def _version(kind: str) -> str | None:
    found = devices.available(kind)
    return found[0].software_version() if found else None


def _ram() -> dict[str, float]:
    total, used, available = HostMemory().machine()
    return {
        "total_gb": total / _GIB,
        "used_gb": used / _GIB,
        "available_gb": available / _GIB,
        "percent": round(100 * (total - available) / total, 1),
    }


def _cards(kind: str, prefix: str) -> dict[str, Any]:
    cards = (each for each in all_devices() if each.kind == kind)
    return {f"{prefix}_{each.index}": answer_or_error(partial(_held, each)) for each in cards}


def _held(device: Device) -> dict[str, float]:
    return {f"{name}_gb": size / _GIB for name, size in memory_figures(device).items()}


def __getattr__(name: str) -> Any:
    if name != "device":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("device", get_device())
