"""HCCL's collectives: their kinds, the vector cores that HCCL recommends, dtypes that only newer releases take.

Called by `cores` (findings, plans), `sim.distributed` and `cli.reports.failure`. The data and their sources are in
collectives.toml: a figure is added there, with the page that says so, and never here. Names of kinds are parts of
HCCL's own names for its operators. What no source says is None or "", never a guess. Tests:
tests/cores/test_cores_findings.py, tests/cli/test_failure.py for `newer_releases`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toprope import chips
from toprope.errors import UnknownChipError

__all__ = ["Minimum", "collective_kind", "hccl_minimum", "newer_releases"]


@dataclass(frozen=True, slots=True)
class Minimum:
    """Vector cores that HCCL recommends for a collective.

    Attributes:
        cores: how many at least.
        source: the page that says so.
    """

    cores: int
    source: str


@cache
def collective_kind(name: str) -> str:
    """The collective that a name means: "allreduce" for "hcom_allReduce__606_0_1"; empty where it is not known."""
    letters = "".join(letter for letter in name.casefold() if letter.isalpha())
    return next((kind for kind in _read()["kinds"] if kind in letters), "")


def hccl_minimum(name: str, chip: str, ranks: int) -> Minimum | None:
    """Vector cores that HCCL recommends for a collective on vector cores; None where no source says.

    Args:
        name: the collective's name, such as "AllReduce".
        chip: the chip of its cards.
        ranks: cards of its communicator.
    """
    family = _family(chip)
    data = _read()
    for row in data["minimum"]:
        if row["chips"] == family and collective_kind(name) in row["collective"]:
            cores = max(row["least"], math.ceil(ranks / row["ranks"]) if "ranks" in row else 0)
            return Minimum(cores + (cores % 2 if row.get("even", False) else 0), data["sources"][row["source"]])
    return None


def newer_releases(name: str, dtype: str, chip: str) -> str:
    """Releases of torch_npu that take a dtype which older ones refuse in a collective; empty where none is known.

    Args:
        name: the collective's name, such as "hccl::allreduce".
        dtype: such as "float64".
        chip: the chip of its cards.
    """
    family, kind = _family(chip), collective_kind(name)
    for row in _read()["newer"]:
        if row["chips"] == family and kind in row["collective"] and dtype in row["dtypes"]:
            return str(row["releases"])
    return ""


def _family(chip: str) -> str:
    try:
        return chips.get(chip).family if chip else ""
    except UnknownChipError:
        return ""


@cache
def _read() -> dict[str, Any]:
    import tomllib  # not needed by those who only import the names

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
