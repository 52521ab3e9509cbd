"""`import torch`, and what to do where that fails: torch loads torch_npu with it, and a broken one ends both.

Called by `select` and `api` before anything else of torch. The texts by which causes are kept apart are torch's
("backend extension"). A failed import is not tried again in a process: parts of torch stay behind. Tests:
tests/device/test_device_absent.py, tests/device/test_doctor_wheel.py.
"""

from __future__ import annotations

import sys

from toprope.device.host.libraries import advice, reason
from toprope.errors import DeviceBrokenError, DeviceNotInstalledError, TopropeError

__all__ = ["check_torch"]

_failed: list[TopropeError] = []


def check_torch() -> None:
    """Import torch, if nobody has.

    Raises:
        DeviceNotInstalledError: there is no torch.
        DeviceBrokenError: torch cannot be imported, most often because of a backend that it loads with itself.
    """
    if "torch" in sys.modules:
        return
    if _failed:  # a second try would fail in another, misleading way: parts of torch stay behind
        raise _failed[0]
    try:
        import torch  # noqa: F401
    except Exception as error:  # whatever a broken installation raises
        _failed.append(_explained(error))
        raise _failed[0] from error


def _explained(error: Exception) -> TopropeError:
    """The error for a torch that cannot be imported: missing, broken, or ended by a backend."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return DeviceNotInstalledError("torch is not installed.", looked_at=sys.executable, do="install torch")
    if isinstance(error.__cause__, TopropeError):
        return error.__cause__  # the simulated card says itself what is wrong
    cause = error.__cause__ or error
    do = "install torch again"
    if "backend extension" in str(error):  # torch itself works
        do = f"{advice(cause)}; until then TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading other backends"
    return DeviceBrokenError(
        f"torch cannot be imported: {reason(cause)}.", looked_at=" ".join(str(error).split()), do=do
    )
