"""Budgets that are to be found out: "auto" for the device, the host or the disk. Pure: from bytes that are free."""

from __future__ import annotations

from dataclasses import dataclass

from toprope.errors import PlanError, SizeError
from toprope.sizes import decimal, parse_size
from toprope.tiers.plan.model import Budgets

__all__ = ["Free", "folder_and_limit", "resolve"]

_SEGMENT = 20 * 2**20
"""Bytes that torch's allocator takes at once, and may not fill."""

_FOR_THE_REST = 2 * 2**30
"""Bytes of the host that "auto" leaves to other programs, after half of what is available."""


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that are free.

    Attributes:
        device: of the device; None where it does not say.
        host: MemAvailable of the host.
        disk: of the disk that the folder is on; None where there is none.
        unified: the device's memory is the host's, as on the CPU.
    """

    device: int | None
    host: int
    disk: int | None = None
    unified: bool = False


def resolve(
    free: Free,
    device: int | str = "auto",
    host: int | str = "auto",
    disk: int | str = "auto",
    *,
    activations: int = 0,
    reserve: int = 0,
) -> Budgets:
    """The budgets, with what is free where one is "auto".

    On a device "auto" is what is free without the activations of a step and one stretch of torch's allocator (or a
    quarter, where that is less), at least without 5 %; on the host half of what is available without 2 GiB; on the disk
    what is free. Where the device's memory is the host's, both share the host's part.

    Args:
        free: bytes that are free now.
        device, host, disk: "auto", a number of bytes, or a size such as "24GB".
        activations: bytes that computing takes beside the weights at most, from a traced step.
        reserve: of the device's budget, as in `Budgets`.

    Raises:
        PlanError: "auto" for a device that does not say how much is free, or the disk has less free than it is to give.
        SizeError: a size cannot be read.
    """
    asked = {
        name: None if value == "auto" else parse_size(value, least=0)
        for name, value in (("device", device), ("host", host), ("disk", disk))
    }
    share = max(0, free.host // 2 - _FOR_THE_REST)
    on_device, on_host, on_disk = asked["device"], asked["host"], asked["disk"]
    if free.unified:
        if on_device is None:
            on_device = share // 2 if on_host is None else max(0, share - on_host)
        if on_host is None:
            on_host = max(0, share - on_device)
    if on_device is None:
        if free.device is None:
            raise PlanError(
                "the device does not say how much of its memory is free.",
                do='give its budget as a size, such as "24GB"',
            )
        on_device = max(0, free.device - max(activations + min(_SEGMENT, free.device // 4), free.device // 20))
    if on_disk is not None and free.disk is not None and on_disk > free.disk:
        raise PlanError(
            "the disk has less free than it is to give.",
            looked_at=f"{decimal(on_disk)} asked for, {decimal(free.disk)} free",
            do="free some of it, or name a folder on another disk",
        )
    return Budgets(on_device, share if on_host is None else on_host, free.disk if on_disk is None else on_disk, reserve)


def folder_and_limit(text: str) -> tuple[str, int | None]:
    """A folder, and the limit that may follow it: "/folder:64GB"; None for no limit."""
    path, colon, size = text.rpartition(":")
    if colon:
        try:
            return path, parse_size(size)
        except SizeError:
            pass
    return text, None
