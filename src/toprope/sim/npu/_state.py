"""What all topics of `torch.npu` share: initialisation, device numbers, the tail of torch_npu's messages."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from toprope.sim.native import native

__all__ = ["check_index", "device_index", "lazy_init", "message"]

_BAD_FORK = (
    "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start"
    " method"
)


def message(text: str, code: str) -> str:
    """A message as torch_npu's Python side ends it, such as code "ERR00003 PTA invalid value"."""
    date = time.strftime("%Y-%m-%d-%H:%M:%S")
    device, rank = native().current_device(), os.environ.get("RANK", "-1")
    return f"{text}\n[ERROR] {date} (PID:{os.getpid()}, Device:{device}, RankID:{rank}) {code}"


def lazy_init() -> None:
    """Initialises the cards of this process, as every call that touches one does.

    Raises:
        RuntimeError: this process was forked from one that had used a card.
    """
    if native().forked_after_use():
        raise RuntimeError(_BAD_FORK)
    native().device_count()


def device_index(device: Any = None, optional: bool = True, allow_cpu: bool = False) -> int:
    """The number of a card given as number, string, torch.device, `torch.npu.device` or None (the current one).

    Raises:
        ValueError: the device is of another kind, or none was given and `optional` is false.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "npu":
            kinds = "npu or cpu" if allow_cpu else "npu"
            raise ValueError(message(f"Expected a {kinds} device, but got: {device}", "ERR00003 PTA invalid value"))
        if device.index is not None:
            return device.index
    elif device is not None:
        index = getattr(device, "idx", None)
        if isinstance(index, int):
            return index
        raise ValueError(message(f"Expected a npu device, but got: {device!r}", "ERR00003 PTA invalid value"))
    if not optional:
        raise ValueError(
            message(
                "Expected a device with a specified index or an integer, but got: None", "ERR00003 PTA invalid value"
            )
        )
    return int(native().current_device())


def check_index(device: Any) -> int:
    """The number of a card that is there.

    Raises:
        AssertionError: no card of that number, as torch_npu's queries report it.
    """
    index = device_index(device)
    if not 0 <= index < native().device_count():
        raise AssertionError(message("Invalid device id", "ERR00003 PTA invalid value"))
    return index
