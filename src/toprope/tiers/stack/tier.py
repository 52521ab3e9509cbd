"""`Tier`, one level of a stack, its statistics, and the checks of what a stack is given.

The public data types of `stack.stack`, without its behaviour: names of fields stay. Tests:
tests/tiers/test_tiers_stack.py, tests/tiers/test_tiers_stack_disk.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from toprope import device as devices
from toprope.device import Device
from toprope.errors import TierCapacityError, UsageError
from toprope.settings import Settings
from toprope.sizes import gibibytes
from toprope.tiers.store.disk_file import check_folder, file_system, free_on_disk
from toprope.tiers.store.memory import free_memory

__all__ = ["LevelStats", "StackStats", "Tier", "check_memory", "check_tensor"]

_Source = Literal["measured", "configured", "unknown"]
"""Source of a speed."""


@dataclass(frozen=True)
class Tier:
    """One level of a stack.

    Attributes:
        device: the device with its memory; None for a level on a disk.
        capacity: limit of the tensors' bytes on it.
        speed: configured speed of copies to it, or of reads from it if it is on a disk, in bytes a second; None if not
            configured.
        folder: for a level on a disk, the folder of its file.
    """

    device: Device | None
    capacity: int
    speed: float | None = None
    folder: Path | None = None

    @classmethod
    def named(
        cls,
        name: str | int | torch.device | Device,
        capacity: int,
        speed: float | None = None,
        folder: str | Path | None = None,
    ) -> Tier:
        """Make a level on a device, by any name that `toprope.device.get` takes, or on a disk: "ssd".

        Args:
            name: the device, or "ssd".
            capacity: its size in bytes.
            speed: its configured speed in bytes a second.
            folder: for "ssd", the folder of its file; None for one in toprope's cache directory.

        Raises:
            UsageError: the capacity is negative; the folder is not there, cannot be written, or is for a device.
            TopropeError: as for `toprope.device.get`.
        """
        if capacity < 0:
            raise UsageError(f"a level of {capacity} bytes cannot be made.", do="give 0 or more")
        kind, colon, _ = name.strip().lower().partition(":") if isinstance(name, str) else ("", "", "")
        if kind != "ssd":
            if folder is not None:
                raise UsageError(f"a level on {name} has no folder.", do='leave it out, or name the level "ssd"')
            return cls(devices.get(name), capacity, speed)
        if colon:
            raise UsageError(f"{name!r} is no level.", do='write "ssd", and give the folder separately: folder="..."')
        if folder is None:
            return cls(None, capacity, speed, Settings.load().cache_dir / "tiers")
        check_folder(Path(folder))
        return cls(None, capacity, speed, Path(folder).absolute())

    @property
    def name(self) -> str:
        """The device's name, or "ssd"."""
        return "ssd" if self.device is None else str(self.device)


@dataclass(frozen=True)
class LevelStats:
    """Statistics of one level.

    Attributes:
        device: its device's name; "ssd" for a level on a disk.
        capacity: its size in bytes.
        used: bytes of its tensors.
        taken: bytes that its tensors take; a level on a disk is allocated in whole blocks.
        entries: number of tensors, including reservations.
        hits: requests whose tensor was on this level.
        misses: requests that looked here and had to go on to the next level.
        evictions: tensors pushed out to a lower level.
        speed: speed of copies to this level, or of reads from it if it is on a disk, in bytes a second; None if it was
            neither configured nor measured.
        speed_source: source of the speed.
        brought: bytes copied to this level, or read from it if it is on a disk.
        written: bytes written to a level on a disk.
        write_speed: bytes a second of writing to a level on a disk, always measured; None before enough was written.
    """

    device: str
    capacity: int
    used: int
    taken: int
    entries: int
    hits: int
    misses: int
    evictions: int
    brought: int
    written: int
    speed: float | None
    speed_source: _Source
    write_speed: float | None = None


@dataclass(frozen=True)
class StackStats:
    """Statistics of a stack at one moment.

    Attributes:
        levels: statistics of each level, the fastest first.
        requests: number of requests for a tensor, including those for unknown keys.
        promotions, demotions: moves to a faster and to a slower level.
    """

    levels: tuple[LevelStats, ...]
    requests: int
    promotions: int
    demotions: int


def check_memory(tiers: Sequence[Tier]) -> None:
    """Refuse levels that are larger than the free memory of their device, or than the free space of their disk."""
    for device in dict.fromkeys(tier.device for tier in tiers if tier.device is not None):
        asked = sum(tier.capacity for tier in tiers if tier.device == device)
        free = free_memory(device)
        if free is not None and asked > free:
            raise TierCapacityError(
                f"{device} has less free memory than its levels need.",
                looked_at=f"{gibibytes(asked)} asked for, {gibibytes(free)} free",
                do="make the levels smaller, or free memory first",
            )
    disks: dict[int, list[tuple[Path, int]]] = {}
    for tier in tiers:
        if tier.folder is not None:
            disks.setdefault(file_system(tier.folder), []).append((tier.folder, tier.capacity))
    for levels in disks.values():
        folder, asked = levels[0][0], sum(capacity for _, capacity in levels)
        if asked > free_on_disk(folder):
            raise TierCapacityError(
                f"the disk of {folder} has less free space than its level needs.",
                looked_at=f"{gibibytes(asked)} asked for, {gibibytes(free_on_disk(folder))} free",
                do="make the level smaller, free some of the disk, or name a folder on another one",
            )


def check_tensor(key: Hashable, tensor: torch.Tensor) -> None:
    """Refuse a tensor that a stack cannot keep."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{key!r} is of type {type(tensor).__name__}, and no tensor.", do="give a torch.Tensor")
    wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass
    wrapped = wrapper(tensor) or tensor.is_quantized
    if tensor.layout is not torch.strided or tensor.is_meta or wrapped:
        kind = "has no values (meta)" if tensor.is_meta else f"is not dense ({tensor.layout})"
        kind = f"is more than its bytes ({type(tensor).__name__}, {tensor.dtype})" if wrapped else kind
        raise UsageError(f"the tensor {key!r} {kind}.", do="give a dense tensor with values")
    if tensor.requires_grad:
        raise UsageError(
            f"the tensor {key!r} has gradients, and a copy on another level would no longer train.",
            do="give tensor.detach() to keep its values, or use a layer whose weight lives in the stack",
        )
