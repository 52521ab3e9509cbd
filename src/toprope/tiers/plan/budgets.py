"""Resolve the budget "auto" of the device, the host or the disk from the free bytes. Pure.

Called by `attach`, `toprope tiers plan` and the modes, each of which measures the free bytes itself (`Free`). What
"auto" leaves free is stated in docs/tiers.md: change both. Tests: tests/cli/test_cli_tiers.py,
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from toprope.errors import PlanError, SizeError
from toprope.sizes import decimal, parse_size
from toprope.tiers.plan.model import Budgets

__all__ = ["Free", "folder_and_limit", "resolve"]

_SEGMENT = 20 * 2**20
"""Bytes of one segment of torch's allocator, which may be partly unused."""

_FOR_THE_REST = 2 * 2**30
"""Bytes of the host that "auto" leaves to other programs, after half of what is available."""


@dataclass(frozen=True, slots=True)
class Free:
    """Free bytes of the device, the host and the disk, measured by the caller.

    Attributes:
        device: free bytes of the device; None if it does not report them.
        host: MemAvailable of the host.
        disk: free bytes of the folder's disk; None without a disk.
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
    """Replace each "auto" by bytes: what is free, without a reserve for computing and for the rest of the system.

    On a device "auto" is the free memory minus the activations of a step and one segment of torch's allocator (or a
    quarter of the free memory if that is less), and at most 95 % of it; on the host half of the available memory minus
    2 GiB; on the disk the free bytes. If the device's memory is the host's, both share the host's part.

    Args:
        free: bytes that are free now.
        device, host, disk: "auto", a number of bytes, or a size such as "24GB".
        activations: peak of the bytes that computing takes in addition to the weights, from a traced step.
        reserve: part of the device's budget, as in `Budgets`.

    Raises:
        PlanError: "auto" for a device that does not report its free memory, or the disk has less free than its budget.
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
                "the device does not report its free memory.",
                do='give its budget as a size, such as "24GB"',
            )
        on_device = max(0, free.device - max(activations + min(_SEGMENT, free.device // 4), free.device // 20))
    if on_disk is not None and free.disk is not None and on_disk > free.disk:
        raise PlanError(
            "the disk has less free space than its budget.",
            looked_at=f"{decimal(on_disk)} asked for, {decimal(free.disk)} free",
            do="free some of it, or name a folder on another disk",
        )
    return Budgets(on_device, share if on_host is None else on_host, free.disk if on_disk is None else on_disk, reserve)


def folder_and_limit(text: str) -> tuple[str, int | None]:
    """Split "/folder:64GB" into the folder and the limit in bytes; None without a limit."""
    path, colon, size = text.rpartition(":")
    if colon:
        try:
            return path, parse_size(size)
        except SizeError:
            pass
    return text, None
