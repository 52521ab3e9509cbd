"""`torch.npu`: which cards there are, which one is current, what a card is."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from toprope import chips
from toprope.sim.installation import installed
from toprope.sim.native import native
from toprope.sim.npu._state import check_index, device_index, lazy_init
from toprope.sim.spec import SimSpec

__all__ = [
    "current_device",
    "device",
    "device_count",
    "device_of",
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
]


def _spec() -> SimSpec:
    spec = installed()
    assert spec is not None, "torch.npu exists only where the simulated card is installed"
    return spec


def _chip() -> chips.Chip:
    return chips.get(_spec().chip)


def is_available() -> bool:
    """Whether the process sees a card."""
    return device_count() > 0


def device_count() -> int:
    """Number of cards that the process sees."""
    return int(native().device_count())


def is_initialized() -> bool:
    """Whether the process has used its cards."""
    return bool(native().is_initialised()) and not native().forked_after_use()


def init() -> None:
    """Initialises the cards; done by itself at first use."""
    lazy_init()


def current_device() -> int:
    """Number of the current card of this thread."""
    lazy_init()
    return int(native().current_device())


def set_device(device: int | str | torch.device) -> None:
    """Makes a card the current one of this thread.

    Raises:
        RuntimeError: 107001, no card of that number.
    """
    index = device_index(device)
    if index >= 0:
        torch._C._accelerator_setDeviceIndex(index)


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
    """Waits for all work on a card."""
    lazy_init()
    torch.accelerator.synchronize(torch.device("npu", device_index(device)))


def get_device_name(device_name: Any = None) -> str:
    """The chip's name as the card's runtime tells it, such as "Ascend910B3".

    Raises:
        AssertionError: no card of that number.
    """
    check_index(device_name)
    return _chip().soc_name or _chip().name


def get_soc_version() -> int:
    """The number of the chip in torch_npu's list of chips (223 is the 910B3), -1 where it has none."""
    lazy_init()
    return _chip().soc_version or -1


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """Whether the chip computes in bfloat16."""
    lazy_init()
    return bool(_chip().supports("bfloat16"))


@dataclass(frozen=True, repr=False)
class _NPUDeviceProperties:
    name: str
    total_memory: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    uuid: uuid.UUID
    multi_processor_count: int
    major: int = 0
    minor: int = 0
    max_threads_per_multi_processor: int = 0
    warp_size: int = 0
    regs_per_multiprocessor: int = 0
    gcnArchName: str = ""  # noqa: N815 - the original's name
    is_multi_gpu_board: int = 0
    is_integrated: int = 0

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
    chip = _chip()
    physical = native().physical_id(index)
    return _NPUDeviceProperties(
        name=get_device_name(index),
        total_memory=_spec().capacity,
        cube_core_num=chip.cube_cores or 0,
        vector_core_num=chip.vector_cores or 0,
        L2_cache_size=(chip.l2_mib or 0) * 2**20,
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"toprope simulated {chip.name} {physical}"),
        multi_processor_count=chip.vector_cores or chip.cube_cores or 0,
    )


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of a card.

    Raises:
        AssertionError: no card of that number.
    """
    index = check_index(device)
    free, total = torch.accelerator.get_memory_info(index)
    return int(free), int(total)
