"""Calls of `toprope.device` that take a device by name: load a file, seed all, best dtype, why not.

Public through `toprope.device` (docs/device.md): names, arguments and the errors that each docstring lists stay. Each
calls `select` for the device, and then its method of the same name; nothing else belongs here. Tests:
tests/device/test_device_cpu.py, tests/device/test_device_weights.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from toprope.device import seeds
from toprope.device.select import choose, get
from toprope.device.torch_import import check_torch
from toprope.errors import DeviceError

if TYPE_CHECKING:
    import torch

    from toprope.device.select import DeviceLike

__all__ = ["best_dtype", "load", "seed_all", "why_not"]


def best_dtype(device: DeviceLike | None = None, *among: torch.dtype) -> torch.dtype:
    """The first dtype that works for matmul, convolution and attention on a device, tried there once a process.

    `toprope.device.get(device).choose_dtype().text` gives the reasons.

    Args:
        device: as for `get`, such as `torch.accelerator.current_accelerator()`.
        among: what to try, best first; left out, what the kind of device names.

    Raises:
        UnsupportedError: none of them works.
        DeviceFullError: the device has no memory left to try them.
        TopropeError: as for `get`.
    """
    return get(device).best_dtype(*among)


def why_not(what: DeviceLike | torch.dtype, device: DeviceLike | None = None) -> str:
    """Explain in one line why a program does not get a device, or a dtype as the best one; "" where it does.

    Args:
        what: a device as for `get`, or a dtype.
        device: of a dtype, as for `get`.

    Raises:
        DeviceNameError: no such name, or no such kind of device.
        DeviceFullError: the device has no memory left to try the dtype.
    """
    check_torch()
    import torch

    if isinstance(what, torch.dtype):
        return get(device).why_not(what)
    try:
        choose(what, fallback=False, quiet=True)
    except DeviceError as error:
        more = {"looked at": error.looked_at, "do": error.do}
        return "; ".join([error.what.rstrip("."), *(f"{name}: {text}" for name, text in more.items() if text)])
    return ""


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
