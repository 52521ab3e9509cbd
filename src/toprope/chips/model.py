"""Data classes of the catalogue: a chip, its figures, and the source of each figure.

Public through `toprope.chips`; the simulator, estimates, tiers and cli read the fields. A field of `Chip` is a key of
the TOML files (`FIGURES`); its unit is part of its name. `soc_name`, `npu_smi_name` and `soc_version` are the
vendor's. Tests: tests/base/test_chips.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NEEDED", "Chip", "Figure", "Source", "Value"]

Value = str | int | float | tuple[str, ...] | Mapping[str, int] | Mapping[str, float]

NEEDED = ("soc_name", "npu_smi_name", "soc_version", "hbm_mib", "cube_cores", "vector_cores", "dtypes")
"""The figures without which a chip cannot be simulated."""


@dataclass(frozen=True)
class Source:
    """A public page or file that a figure was read from."""

    id: str
    """The name that figures give, a table of sources.toml."""

    url: str
    what: str
    """A description, and how far the source can be trusted where that is not plain."""

    read: str
    """The day it was read, as YYYY-MM-DD."""


@dataclass(frozen=True)
class Figure:
    """One value of a chip with its sources, for reports that say where a figure comes from."""

    value: Value
    sources: tuple[Source, ...]
    """At least one; several when they agree."""

    note: str = ""
    """A remark that a reader needs, such as "about" or that another source disagrees."""


@dataclass(frozen=True)
class Chip:
    """One chip as a program sees it: one device. A field is None when no public source gives it.

    An Ascend 910C has two dies and each is a device, so a `Chip` of that family is one die.
    """

    name: str
    """As users write it: "910B3"."""

    family: str
    aliases: tuple[str, ...] = ()
    soc_name: str | None = None
    """The answer of torch.npu.get_device_name(): "Ascend910B3"."""

    npu_smi_name: str | None = None
    """The chip's name in npu-smi: "910B3"; all dies of the 910C are "Ascend910" there."""

    soc_version: int | None = None
    """The number of the chip in torch_npu's enum SocVersion."""

    hbm_mib: int | None = None
    """Device memory in MiB (2^20 bytes); a "64 GB" card has 65536. On the 310P it is DDR."""

    hbm_usable_mib: int | None = None
    """The part that the driver leaves to programs, in MiB."""

    core_structure: str | None = None
    """ "split": cube and vector cores are separate. "unified": an AI Core has both units, and is counted as a cube."""

    cube_cores: int | None = None
    """Cube cores; AI Cores where they are unified."""

    vector_cores: int | None = None
    """Vector cores; where AI Cores are unified, those in addition to them (0 on the 910A)."""

    l2_mib: int | None = None
    memory_gb_per_s: float | None = None
    """Bandwidth of the device memory in 10^9 bytes a second."""

    cube_mhz: int | None = None
    """Clock of the cube cores."""

    cube_macs_per_cycle: Mapping[str, int] | None = None
    """Multiply-adds of one cube core in one cycle, by dtype."""

    dtypes: tuple[str, ...] | None = None
    """dtypes that the cube or vector units compute with; torch's names, where torch has one."""

    host_link: str | None = None
    """How the card is connected to its host."""

    figures: Mapping[str, Figure] = field(default_factory=dict, repr=False, compare=False)
    """The same values with their sources, by field name."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def hbm_bytes(self) -> int | None:
        """Device memory in bytes."""
        return None if self.hbm_mib is None else self.hbm_mib * 2**20

    @property
    def usable_bytes(self) -> int | None:
        """Device memory that programs get, in bytes; all of it where no source says how much the driver keeps."""
        usable = self.hbm_usable_mib or self.hbm_mib
        return None if usable is None else usable * 2**20

    @property
    def peak_tflops(self) -> dict[str, float]:
        """Peak of the cube cores in 10^12 operations a second by dtype; a multiply-add is two. Empty when unknown."""
        if self.cube_cores is None or self.cube_mhz is None or self.cube_macs_per_cycle is None:
            return {}
        cycles = self.cube_cores * self.cube_mhz * 1e6
        return {dtype: round(cycles * macs * 2 / 1e12, 1) for dtype, macs in self.cube_macs_per_cycle.items()}

    @property
    def missing(self) -> tuple[str, ...]:
        """The figures that a simulation needs and no public source gives; empty when it can be simulated."""
        return tuple(each for each in NEEDED if getattr(self, each) is None)

    def supports(self, dtype: str) -> bool | None:
        """True if the chip computes with a dtype ("bfloat16", "torch.bfloat16"); None when no source says."""
        return None if self.dtypes is None else dtype.removeprefix("torch.") in self.dtypes

    def figure(self, name: str) -> Figure | None:
        """A field's value with its sources, None when unknown; "peak_tflops" names the sources it is computed from.

        Raises:
            KeyError: the chip has no figure of that name.
        """
        if name != "peak_tflops":
            if name not in FIGURES:
                raise KeyError(name)
            return self.figures.get(name)
        parts = [self.figures.get(part) for part in ("cube_cores", "cube_macs_per_cycle", "cube_mhz")]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        sources = dict.fromkeys(source for part in known for source in part.sources)
        return Figure(self.peak_tflops, tuple(sources), "cube_cores x cube_macs_per_cycle x 2 x cube_mhz")


FIGURES: tuple[str, ...] = tuple(
    each for each in Chip.__dataclass_fields__ if each not in ("name", "family", "aliases", "figures")
)
"""The fields of a chip that are read from a source, in the order in which they are shown."""
