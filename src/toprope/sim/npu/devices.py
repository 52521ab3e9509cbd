"""Part of `torch.npu`: the cards that exist, the current one, and the description of a card.

The C++ core has them (csrc/core/device.h, their health csrc/core/cards.h), toprope.chips their properties. Tests:
tests/sim/simulated/test_devices.py, and test_visible_devices.py there for the mask.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from types import TracebackType
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu._initialisation import check_environment
from toprope.sim.npu._state import (
    VALUE,
    check_index,
    chip,
    device_index,
    every_stream,
    lazy_init,
    message,
    spec,
    vendor_error,
)
from toprope.sim.npu.trace_callbacks import fire

__all__ = [
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_soc_version",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "mem_get_info",
    "set_device",
    "synchronize",
    "utilization",
]


def is_available() -> bool:
    """Return True if the process sees a card."""
    return device_count() > 0


def device_count() -> int:
    """Number of cards that the process sees."""
    return int(native().device_count())


def is_initialized() -> bool:
    """Return True if the process has used its cards."""
    return bool(native().is_initialised()) and not native().forked_after_use()


def init() -> None:
    """Initialise the cards; done by itself at first use."""
    if not native().is_initialised():
        check_environment()
    lazy_init()


def current_device() -> int:
    """Number of the current card of this thread."""
    lazy_init()
    return int(native().current_device())


def set_device(device: int | str | torch.device) -> None:
    """Make a card the current one of this thread.

    Raises:
        RuntimeError: 107001, no card of that number; or the card is stopped or unhealthy.
    """
    index = device_index(device)
    if index >= 0:
        if not native().is_initialised():
            check_environment()
        if index < native().device_count():
            refuse_unusable(index)
        torch._C._accelerator_setDeviceIndex(index)


def refuse_unusable(index: int) -> None:
    """Raise the error with which a stopped or unhealthy card refuses work."""
    for code, call in (
        (native().health_of_card(native().physical_id(index)), "c10_npu::SetDevice(device)"),
        (native().state_of_device(index), "FORCE STOP"),
    ):
        if code:
            raise vendor_error("SetDevice", call, code, "")


class device:  # noqa: N801 - torch's own name
    """Context in which a card is the current one; a negative number changes nothing.

    Args:
        device: number, string or torch.device.
    """

    def __init__(self, device: Any) -> None:
        self.idx = device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = int(native().current_device())
            if self.idx != self.prev_idx:
                set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idx >= 0:
            native().exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801 - torch's own name
    """Context in which the card of a tensor or storage is the current one; no-op for others."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_npu else -1)


def synchronize(device: Any = None) -> None:
    """Wait for all work on a card."""
    lazy_init()
    torch.accelerator.synchronize(torch.device("npu", device_index(device)))
    fire("device_synchronization")


def get_device_name(device_name: Any = None) -> str:
    """The chip's name as the card's runtime tells it, such as "Ascend910B3".

    Raises:
        AssertionError: no card of that number.
    """
    check_index(device_name)
    return chip().soc_name or chip().name


def get_soc_version() -> int:
    """The number of the chip in torch_npu's list of chips (223 is the 910B3), -1 where it has none."""
    lazy_init()
    return chip().soc_version or -1


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """Return True if the chip computes in bfloat16."""
    lazy_init()
    return bool(chip().supports("bfloat16"))


class _NPUDeviceProperties:
    """Properties of a card: the chip's figures; those that no NPU has (warps, registers) are None, as in torch_npu."""

    __slots__ = (
        "L2_cache_size",
        "cube_core_num",
        "gcnArchName",
        "is_integrated",
        "is_multi_gpu_board",
        "major",
        "max_threads_per_multi_processor",
        "minor",
        "multi_processor_count",
        "name",
        "regs_per_multiprocessor",
        "total_memory",
        "uuid",
        "vector_core_num",
        "warp_size",
    )

    L2_cache_size: int
    cube_core_num: int
    name: str
    total_memory: int
    uuid: uuid.UUID
    vector_core_num: int

    def __init__(self, **figures: Any) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, figures.get(name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("can't set attribute")

    def __repr__(self) -> str:
        return (
            f"_NPUDeviceProperties(name='{self.name}', total_memory={self.total_memory // 2**20}MB,"
            f" cube_core_num={self.cube_core_num}, vector_core_num={self.vector_core_num}, uuid={self.uuid},"
            f" L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def get_device_properties(device_name: Any = None) -> _NPUDeviceProperties:
    """Name, memory (bytes) and cores of a card.

    Raises:
        AssertionError: no card of that number.
    """
    index = check_index(device_name)
    kind = chip()
    physical = native().physical_id(index)
    return _NPUDeviceProperties(
        name=get_device_name(index),
        total_memory=spec().capacity,
        cube_core_num=kind.cube_cores or 0,
        vector_core_num=kind.vector_cores or 0,
        L2_cache_size=(kind.l2_mib or 0) * 2**20,
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"toprope simulated {kind.name} {physical}"),
        multi_processor_count=kind.vector_cores or kind.cube_cores or 0,
    )


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of a card.

    Raises:
        AssertionError: no card of that number.
    """
    index = check_index(device)
    free, total = torch.accelerator.get_memory_info(index)
    return int(free), int(total)


def can_device_access_peer(device_id: Any, peer_device_id: Any) -> bool:
    """Return True if a card reads the memory of another. Simulated cards all do; a card is not its own peer.

    Raises:
        AssertionError: no card of one of the numbers.
    """
    index, peer = check_index(device_id), device_index(peer_device_id)
    if not 0 <= peer < device_count():
        raise AssertionError(message("Invalid peer device id", VALUE))
    return index != peer


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """Return TORCH_NPU_DEVICE_CAPABILITY, such as "8.0"; it means nothing that an NPU has, and a warning says so.

    Args:
        device: not looked at.
    """
    text = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "")
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if found is None:
        state = f"is {text!r}, which is not of that form" if text else "is not set"
        warnings.warn(
            f"torch.npu.get_device_capability() returns what TORCH_NPU_DEVICE_CAPABILITY=MAJOR.MINOR says; it {state}.",
            stacklevel=2,
        )
        return None
    warnings.warn(
        "torch.npu.get_device_capability() returns what TORCH_NPU_DEVICE_CAPABILITY says, for programs written for"
        " CUDA; it tells nothing about the NPU.",
        stacklevel=2,
    )
    return int(found[1]), int(found[2])


def utilization(device: Any = None) -> int:
    """Percent of the card that is busy: 100 while a stream has work queued, else 0.

    Operators run in the thread that calls them, so a single thread never sees its own.

    Raises:
        AssertionError: no card of that number.
    """
    index = check_index(device)
    lazy_init()
    return 0 if all(stream.query() for stream in every_stream(index)) else 100
