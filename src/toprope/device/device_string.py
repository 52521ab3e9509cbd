"""Parsing of device arguments: "npu", "npu:1", a number, a torch.device, a `Device`.

Called by `select` for every argument and setting that names a device, and by `portable`. The spellings are public
(docs/device.md): more may be taken, none may get another meaning. Tests: tests/device/test_device_select.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toprope.errors import DeviceNameError

__all__ = ["AUTO", "DeviceRequest", "read_name"]

AUTO = "auto"
"""The name that leaves the choice to toprope."""

_NAME = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]*))?")


@dataclass(frozen=True)
class DeviceRequest:
    """A parsed device argument.

    Attributes:
        kind: "npu", "cuda", ...; "auto" where only a number was given, or nothing.
        index: None where it was left out.
    """

    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


def read_name(device: object) -> DeviceRequest:
    """Parse a device argument.

    Args:
        device: a text (case and surrounding blanks do not matter), a number (that device of the kind that toprope
            would choose), anything with `type` and `index`, such as a torch.device, or one of toprope's devices.

    Raises:
        DeviceNameError: it is none of these.

    Example:
        >>> read_name(" NPU:1 ")
        DeviceRequest(kind='npu', index=1)
        >>> read_name(1)
        DeviceRequest(kind='auto', index=1)
    """
    if isinstance(device, str):
        found = _NAME.fullmatch(device.strip().lower())
        if found:
            return DeviceRequest(found[1], None if found[2] is None else int(found[2]))
    elif isinstance(device, int) and not isinstance(device, bool):
        if device >= 0:
            return DeviceRequest(AUTO, device)
    else:
        kind = getattr(device, "kind", getattr(device, "type", None))
        index = getattr(device, "index", None)
        if isinstance(kind, str) and (index is None or isinstance(index, int)):
            return DeviceRequest(kind, index)
    if isinstance(device, str) and device.strip().isdecimal():
        number = int(device.strip())  # int() alone knows fewer blanks
        raise DeviceNameError(
            f"{device!r} is not the name of a device.",
            do=f'put the kind before the number: "npu:{number}", "cuda:{number}"',
        )
    raise DeviceNameError(
        f"{device!r} is not the name of a device.",
        do='give a kind with or without a number ("npu", "npu:1", "cuda:0", "cpu"), a number, or a torch.device',
    )
