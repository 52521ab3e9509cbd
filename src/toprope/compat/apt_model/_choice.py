"""Choice of a device for the modules of the apt_model facade, the device's name, and its memory figures.

Shared by core.system and by npu_backend, vb_global and vgpu_stack in `optimization`; nothing else imports it. All is
asked of `toprope.device`; only the order of kinds (`ORDER`) and the names of devices (`called`) are apt_model's own.
Tests: tests/compat/test_apt_system.py, tests/compat/test_apt_backend.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from toprope import device as devices
from toprope.device import Device, State
from toprope.device.kinds import look

if TYPE_CHECKING:
    from toprope.device.select import DeviceLike

__all__ = [
    "all_devices",
    "answer_or_error",
    "best",
    "called",
    "count",
    "empty_caches",
    "granted",
    "memory_figures",
    "numbered",
]

Answer = TypeVar("Answer")

ORDER = ("cuda", "npu")
"""Kinds in apt_model's own order; the others, the CPU last, follow in toprope's."""


def granted(device: DeviceLike | None = None) -> Device:
    """The device that is asked for; without an argument as the user set it for toprope, else by apt_model's order.

    Args:
        device: as for `toprope.device.get`.

    Raises:
        TopropeError: as for `toprope.device.get`. What is not there is an error, also where a text names it that
            torch.device refuses; with TOPROPE_FALLBACK=1 it is one warning, and another device.
    """
    return devices.choose(device, first=ORDER).device


def best(*, prefer_npu: bool = False) -> Device:
    """The device that apt_model works on: as the user set it for toprope, else the first of CUDA, NPU, CPU.

    Args:
        prefer_npu: an NPU goes before everything else where there is one; the user's own, where the user set one.

    Raises:
        TopropeError: the user set a device that is not there, or a setting cannot be read.
    """
    if not prefer_npu or not count("npu"):
        return granted()
    with_npu = devices.choose(first=("npu", *ORDER)).device
    return with_npu if with_npu.kind == "npu" else granted("npu")


def count(kind: str) -> int:
    """Number of usable devices of a kind. 0 also where the kind's software is broken: nothing is raised."""
    stand = look(kind)
    return stand.count if stand.state is State.WORKS else 0


def all_devices() -> list[Device]:
    """Every device that can be used here, in apt_model's order."""
    found = devices.available()
    return sorted(found, key=lambda each: ORDER.index(each.kind) if each.kind in ORDER else len(ORDER))


def numbered(device: Device, index: int | None) -> Device:
    """Another device of the same kind; the same one where no number is given, or where there can be only one.

    Raises:
        DeviceIndexError: there is no device of this number.
    """
    if index is None or index == device.index or device.torch_device.index is None:
        return device
    return devices.get(f"{device.kind}:{index}")


def called(device: Device) -> str:
    """Name of a device in apt_model: "NPU Ascend 910B3", a GPU's own name, "CPU"."""
    if device.kind == "npu":
        return "NPU " + re.sub(r"^Ascend(?=[0-9])", "Ascend ", device.name)
    return "CPU" if device.kind == "cpu" else device.name


def memory_figures(device: Device) -> Mapping[str, int]:
    """Bytes that this process holds on a device: allocated, reserved and the most allocated.

    On the CPU they are what the process holds in memory; nothing is reserved beyond it.
    """
    allocated = device.memory_allocated()
    reserved, peak = device.memory_reserved(), device.max_memory_allocated()
    return {
        "allocated": allocated,
        "reserved": allocated if reserved is None else reserved,
        "max_allocated": allocated if peak is None else max(allocated, peak),
    }


def answer_or_error(question: Callable[[], Answer]) -> Answer | dict[str, str]:
    """The answer, or {"error": why there is none}: for reports on everything, which one sick card must not stop."""
    try:
        return question()
    except Exception as error:  # whatever a card's software does
        return {"error": f"{type(error).__name__}: {error}"}


def empty_caches() -> None:
    """Give back what torch and the C library keep of freed memory, on every device and of the host."""
    for each in devices.available():
        each.empty_cache()
