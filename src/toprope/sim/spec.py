"""`SimSpec`: the simulated cards that a process is to have; reading and writing of the variable TOPROPE_SIM; pure.

`toprope.sim.install` and `toprope run` make it, the processes of a run read it from the variable. A new option goes
into `make`, `parse` and `format`, and into docs/simulator.md. Tests: tests/sim/test_sim_spec.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from toprope import chips
from toprope.errors import SettingError, UsageError
from toprope.sizes import parse_size
from toprope.support import operators_on_card

__all__ = ["MAX_CARDS", "SimSpec"]

MAX_CARDS = 16
"""Most cards of one simulated machine, as on an Atlas 800T A3 (16 dies)."""

_FIRST_WITH_HF32 = 220
"""SocVersion of the 910B1; the vendor's page of SetHF32TransMode (asc-devkit) names A2, A3, 950 and 310B."""

_HEAD = re.compile(r"(?P<chip>[A-Za-z0-9_.-]+?)(?:[xX](?P<count>\d+))?")
_SWITCH = {"on": True, "1": True, "true": True, "off": False, "0": False, "false": False}


@dataclass(frozen=True)
class SimSpec:
    """The cards of one simulated machine.

    Attributes:
        chip: name of the chip as `toprope.chips` has it, such as "910B3".
        count: number of cards, 1 to 16.
        hbm: device memory of a card in bytes where the user set it, else None (the chip's own).
        force: whether to install even if there is a real torch_npu.
        refuse: whether the card refuses the dtypes that its chip refuses.
        torch_npu: the release of torch_npu whose operators the card has, as `toprope.support.operators_on_card` names
            it; empty for the newest for the installed torch.
        numerics: "host", or "card": float32 reaches products and convolutions as the cube units take it (HF32).
    """

    chip: str = "910B3"
    count: int = 1
    hbm: int | None = None
    force: bool = False
    refuse: bool = True
    torch_npu: str = ""
    numerics: str = "host"

    @classmethod
    def make(
        cls,
        chip: str = "910B3",
        count: int = 1,
        hbm: int | str | None = None,
        *,
        force: bool = False,
        refuse: bool = True,
        torch_npu: str | None = None,
        numerics: str = "host",
    ) -> SimSpec:
        """A checked specification.

        Raises:
            UnknownChipError: no chip of that name is known.
            UsageError: count is not an integer from 1 to 16, no source of that torch_npu is stored, or the arithmetic
                of the chip is not public.
            SizeError: hbm is not a size.
        """
        name = chips.get(chip).name
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_CARDS:
            raise UsageError(
                f"{count!r} is not a number of cards.", do=f"ask for 1 to {MAX_CARDS} cards, all of one chip"
            )
        if torch_npu:
            operators_on_card.find_release(torch_npu)
        _check_numerics(numerics, name)
        return cls(name, count, None if hbm is None else parse_size(hbm), force, refuse, torch_npu or "", numerics)

    def changed(self, **given: Any) -> SimSpec:
        """This specification with other values for some attributes, checked as `make` does."""
        return SimSpec.make(**{**vars(self), **given})

    @classmethod
    def parse(cls, text: str) -> SimSpec:
        """The specification that TOPROPE_SIM spells, such as "910B3x2,hbm=256MB".

        Raises:
            SettingError: the text is not of that form.
            UnknownChipError, UsageError, SizeError: as for `make`.
        """
        head, *options = [part.strip() for part in text.split(",")]
        match = _HEAD.fullmatch(head)
        if match is None:
            raise _malformed(text, f"{head!r} does not begin with a chip")
        given: dict[str, Any] = {}
        keys = [option.partition("=")[0] for option in options]
        for option in options:
            key, _, value = option.partition("=")
            if keys.count(key) > 1:
                raise _malformed(text, f"{key!r} is there more than once")
            if key in ("hbm", "torch_npu", "numerics") and value:
                given[key] = value
            elif key in ("force", "refuse") and value.lower() in _SWITCH:
                given[key] = _SWITCH[value.lower()]
            else:
                raise _malformed(text, f"{option!r} is not an option")
        return cls.make(match["chip"], int(match["count"] or 1), **given)

    def format(self) -> str:
        """The text that `parse` reads back as this specification."""
        text = self.chip if self.count == 1 else f"{self.chip}x{self.count}"
        if self.hbm is not None:
            text += f",hbm={self.hbm}"
        if self.force:
            text += ",force=on"
        if not self.refuse:
            text += ",refuse=off"
        if self.torch_npu:
            text += f",torch_npu={self.torch_npu}"
        return text if self.numerics == "host" else f"{text},numerics={self.numerics}"

    @property
    def capacity(self) -> int:
        """Device memory of one card that programs get, in bytes: what the user set, or what the driver leaves.

        Raises:
            UsageError: it was not given and is not public for this chip.
        """
        if self.hbm is not None:
            return self.hbm
        usable = chips.get(self.chip).usable_bytes
        if usable is None:
            raise UsageError(
                f"the device memory of a {self.chip} is not public.",
                do="give it yourself: hbm=SIZE, such as hbm=128GiB",
            )
        return usable

    @property
    def nominal(self) -> int:
        """Device memory of one card in bytes as npu-smi shows it, the driver's part included. Errors as above."""
        return max(self.capacity, chips.get(self.chip).hbm_bytes or 0) if self.hbm is None else self.hbm


def _check_numerics(numerics: str, chip: str) -> None:
    if numerics not in ("host", "card"):
        raise UsageError(f"{numerics!r} is no arithmetic.", do="choose host, or card")
    if numerics == "card" and (chips.get(chip).soc_version or 0) < _FIRST_WITH_HF32:
        raise UsageError(
            f"how a {chip} computes in float32 is not public.",
            looked_at="the vendor documents HF32 for the 910B and what came after it",
            do="leave out numerics=card, or simulate a 910B",
        )


def _malformed(text: str, why: str) -> SettingError:
    return SettingError(
        f"TOPROPE_SIM={text!r} cannot be read: {why}.",
        do='write CHIP[xCOUNT][,hbm=SIZE][,force=on][,refuse=off][,torch_npu=VERSION], such as "910B3x2,hbm=256MB"',
    )
