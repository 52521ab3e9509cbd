"""The door's calls that act: load a file, seed everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from toprope.device import seeds
from toprope.device.select import get
from toprope.device.torch_import import check_torch

if TYPE_CHECKING:
    import torch

    from toprope.device.select import DeviceLike

__all__ = ["load", "seed_all"]


def load(
    path: str | os.PathLike[str],
    device: DeviceLike | None = None,
    *,
    dtype: torch.dtype | None = None,
    fallback: bool | None = None,
) -> Any:
    """The contents of a file of weights, on a device.

    The file is mapped into memory and copied to the device piece by piece: beyond the device's own bytes, at most
    64 MB of the host's memory are used, however large the file is. On the CPU the tensors are the mapped file itself
    until a program writes to them; the file is never changed, and must not be cut short while they live.

    Args:
        path: a safetensors file, or a checkpoint of torch.save, which is read with `weights_only=True`.
        device: as for `get`, in every spelling.
        dtype: what floating-point tensors are turned into on their way; None leaves them as they are.
        fallback: as for `get`.

    Returns:
        For safetensors the tensors by name; for a checkpoint what was saved, with its tensors on the device. Tensors
        that share memory in a checkpoint share it on the device.

    Raises:
        WeightsError: the file holds no weights that can be loaded.
        OSError: the file is not there or cannot be read.
        TopropeError: as for `get`.
    """
    return get(device, fallback=fallback).load(path, dtype=dtype)


def seed_all(seed: int | Literal["random"] | None = None) -> int:
    """Seed everything that draws random numbers here: Python, numpy, torch on the CPU and on every device.

    It changes no switch: whether operators are deterministic is left as it is.

    Args:
        seed: 0 to 2**64 - 1; None, "random" or -1 draws one.

    Returns:
        The seed that was used.

    Raises:
        SeedError: no such seed.
    """
    check_torch()
    return seeds.seed_all(seed)
