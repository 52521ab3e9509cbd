"""The simulated machine as npu-smi speaks of it: NPUs with their chips, numbered as the vendor numbers them. Pure.

Made by `cli.npu_smi` from what the cards of a run have in shared memory (`sim.metrics.cards`). Fixed by the vendor: the
numbering (two dies on one NPU of a 910C, steps of 32 on a 310P), the names in the tables, and torch_npu's numbers of
SocVersion; docs/npu-smi.md has the sources. Tests: tests/cli/test_npu_smi.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from toprope import chips
from toprope.sim.metrics.cards import CardState
from toprope.sim.spec import SimSpec

__all__ = ["Device", "Layout", "Machine", "Process", "machine"]


class Layout(Enum):
    """The tables of npu-smi differ by the kind of card."""

    HBM = "one chip on each NPU, memory as HBM: Ascend 910A, 910B"
    DIES = "two dies on each NPU, each a device with its Phy-ID: Ascend 910C"
    DDR = "memory as DDR: Ascend 310P"
    A5 = "the tables of npu-smi 25.6: Ascend 950"


_SLOT = 32
"""Step of the numbers of 310P NPUs from slot to slot, as on Atlas servers (0, 32, 96, 32768 are seen)."""


@dataclass(frozen=True)
class Process:
    """A process on a device: its number, its name, and the MiB that it holds."""

    pid: int
    name: str
    mib: int


@dataclass(frozen=True)
class Device:
    """One chip, or one die of a chip: what torch.npu calls a device.

    Attributes:
        npu: the NPU ID that npu-smi gives to the card it is on.
        chip: its Chip ID on that card.
        logic: its number on the machine: npu:3 of a program without a mask has 3.
        unhealthy: the code with which it fails, 0 while it is well.
        used_mib, total_mib: device memory.
        processes: those that hold memory of it, by process number.
    """

    npu: int
    chip: int
    logic: int
    unhealthy: int
    used_mib: int
    total_mib: int
    processes: tuple[Process, ...]

    @property
    def health(self) -> str:
        """The vendor's word for its health."""
        return "Critical" if self.unhealthy else "OK"

    @property
    def usage(self) -> int:
        """Per cent of its memory that is held."""
        return 100 * self.used_mib // self.total_mib if self.total_mib else 0


@dataclass(frozen=True)
class Machine:
    """All cards of a run.

    Attributes:
        name: the chip's name in the tables.
        layout: which tables it has.
        ai_cores: AI cores of a device, None where no source says.
        devices: by their number on the machine.
    """

    name: str
    layout: Layout
    ai_cores: int | None
    devices: tuple[Device, ...]

    @property
    def npus(self) -> dict[int, tuple[Device, ...]]:
        """The devices of each NPU, by NPU ID."""
        return {npu: self.of(npu) for npu in dict.fromkeys(device.npu for device in self.devices)}

    def of(self, npu: int) -> tuple[Device, ...]:
        """The devices of one NPU; none where there is no such NPU."""
        return tuple(device for device in self.devices if device.npu == npu)


def machine(spec: SimSpec, cards: Iterable[CardState]) -> Machine:
    """The machine of a run: its cards as they were asked for, with what living processes hold of them."""
    chip = chips.get(spec.chip)
    layout = _layout(chip.soc_version)
    return Machine(
        chip.npu_smi_name or chip.name,
        layout,
        chip.cube_cores,
        tuple(_device(card, layout, spec) for card in cards),
    )


def _layout(soc_version: int | None) -> Layout:
    """The numbers are those of torch_npu's enum SocVersion."""
    if soc_version is None:
        return Layout.HBM
    if 200 <= soc_version < 220:
        return Layout.DDR
    if 250 <= soc_version < 260:
        return Layout.DIES
    return Layout.A5 if soc_version >= 260 else Layout.HBM


def _device(card: CardState, layout: Layout, spec: SimSpec) -> Device:
    number = card.physical
    npu, chip = {Layout.DIES: (number // 2, number % 2), Layout.DDR: (number * _SLOT, 0)}.get(layout, (number, 0))
    # what the driver keeps counts as used there; on a 310P it is left out of the total
    total = spec.capacity if layout is Layout.DDR else spec.nominal
    used = total - spec.capacity + card.reserved
    processes = sorted(card.processes, key=lambda each: each.pid)
    return Device(
        npu, chip, number, card.unhealthy, used // 2**20, total // 2**20,
        tuple(Process(each.pid, each.name, each.reserved[number] // 2**20) for each in processes),
    )  # fmt: skip
