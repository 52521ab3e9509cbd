"""Kinds of device: toprope's own, those of the entry points `toprope.backends`, other accelerators.

Called by `select`, by `device` itself, by compat.apt_model and by doctor's child process. A kind of toprope's own is
a row of `_OWN`; others come by entry points, whose group is public (docs/adding.md). A kind that cannot be loaded must
never end a program that does not ask for it. Tests: tests/device/test_device_backends.py,
tests/device/test_device_accelerator.py.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from toprope.device.base import Availability, Device, State
from toprope.errors import DeviceBrokenError, DeviceError, DeviceNameError

__all__ = ["GROUP", "device_class", "kinds", "look"]

GROUP = "toprope.backends"
"""The group of entry points in which other packages name their kinds of device."""

_OWN = {
    "npu": ("toprope.device.npu", "NpuDevice"),
    "cuda": ("toprope.device.cuda", "CudaDevice"),
    "cpu": ("toprope.device.cpu", "CpuDevice"),
}
_classes: dict[str, type[Device]] = {}
_broken: dict[str, DeviceBrokenError] = {}  # what failed once is not tried again


def kinds() -> tuple[str, ...]:
    """Names of all kinds, whether they work here or not, in the order in which they are tried."""

    def order(kind: str) -> tuple[int, str]:
        try:
            return -device_class(kind).priority, kind
        except DeviceError:
            return 0, kind

    import torch

    accelerator = torch.accelerator.current_accelerator()
    of_torch = {accelerator.type} if accelerator is not None and _is_whole(accelerator.type) else set()
    return tuple(sorted({*_OWN, *_others(), *of_torch}, key=order))


def device_class(kind: str) -> type[Device]:
    """The class of a kind of device.

    Raises:
        DeviceNameError: there is no such kind.
        DeviceBrokenError: another package names this kind, but its file cannot be loaded.
    """
    found = _classes.get(kind)
    if found is None:
        if kind in _broken:
            raise _broken[kind]
        try:
            found = _classes[kind] = _own(kind) if kind in _OWN else _other(kind)
        except DeviceBrokenError as error:
            _broken[kind] = error
            raise
    return found


def look(kind: str) -> Availability:
    """Answer if a kind of device can be used in this process, or why not.

    Raises:
        DeviceNameError: there is no such kind.
    """
    try:
        return device_class(kind).look()
    except DeviceBrokenError as error:
        return Availability(
            kind, State.BROKEN, reason=error.what.rstrip("."), looked_at=error.looked_at, do=error.do, surprising=True
        )


def _own(kind: str) -> type[Device]:
    module, name = _OWN[kind]
    found: type[Device] = getattr(import_module(module), name)
    return found


@cache
def _others() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _OWN}


def _other(kind: str) -> type[Device]:
    """The class of a kind that is not toprope's own: of an entry point, or by torch.accelerator."""
    if kind not in _others():
        _others.cache_clear()  # the package may have come onto sys.path since
    entry = _others().get(kind)
    if entry is None and _is_whole(kind):
        from toprope.device.accelerator import AcceleratorDevice

        return type(f"{kind.capitalize()}Device", (AcceleratorDevice,), {"kind": kind, "title": kind.upper()})
    if entry is None:
        known = ", ".join(sorted({*_OWN, *_others()}))
        more = ""
        if kind in ("gpu", "nvidia", "rocm", "hip"):
            more = '; "cuda" is the kind of NVIDIA and AMD'
        elif _module(kind) is not None:
            more = f"; torch itself has {kind}, to use without toprope.device: torch.device({kind!r})"
        raise DeviceNameError(
            f"there is no kind of device {kind!r}.",
            looked_at=f"kinds: {known}; entry points {GROUP}",
            do=f"use one of {known}, or install the package that has this kind{more}",
        )
    try:
        found = entry.load()
    except Exception as error:  # whatever a foreign file does
        raise DeviceBrokenError(
            f"the kind of device {kind!r} cannot be loaded: {type(error).__name__}: {error}.",
            looked_at=f"entry point {GROUP}: {entry.name} = {entry.value}",
            do="fix or remove the package that has this entry point",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Device)) or getattr(found, "kind", None) != kind:
        raise DeviceBrokenError(
            f"the kind of device {kind!r} cannot be used: {entry.value} is not a subclass of toprope.device.Device"
            f" with kind = {kind!r}.",
            looked_at=f"entry point {GROUP}: {entry.name} = {entry.value}",
            do="fix or remove the package that has this entry point",
        )
    return found


def _module(kind: str) -> Any:
    """torch's module of a kind of device, such as torch.xpu; None where torch knows no such kind."""
    import torch

    try:
        return torch.get_device_module(torch.device(kind))
    except RuntimeError:
        return None


def _is_whole(kind: str) -> bool:
    """Check that torch's module has what toprope asks of a device; torch.mps has neither streams nor properties."""
    return all(hasattr(_module(kind), name) for name in ("Stream", "Event", "get_device_properties", "is_initialized"))
