"""What is known of kernels and of HCCL's collectives; the data with their sources are in the TOML files beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from toprope import chips
from toprope.errors import UnknownChipError

__all__ = ["Minimum", "collective_kind", "hccl_minimum", "needs_all_blocks"]


@dataclass(frozen=True, slots=True)
class Minimum:
    """Vector cores that HCCL recommends for a collective.

    Attributes:
        cores: how many at least.
        source: the page that says so.
    """

    cores: int
    source: str


def needs_all_blocks(kind: str, name: str = "") -> bool:
    """Whether a kernel is known to need all of its blocks at the same time; operators.toml says of which it is known.

    Args:
        kind: the operator's type, such as "NonZero".
        name: the kernel's name, for kernels whose type says less.
    """
    return any(
        row["sync_all"] and any(_is_kind(each, row["kind"]) for each in (kind, name) if each)
        for row in _read("operators.toml")["operator"]
    )


@cache
def collective_kind(name: str) -> str:
    """Which collective a name speaks of: "allreduce" for "hcom_allReduce__606_0_1"; empty where it is not known."""
    letters = "".join(letter for letter in name.casefold() if letter.isalpha())
    return next((kind for kind in _read("hccl.toml")["kinds"] if kind in letters), "")


def hccl_minimum(name: str, chip: str, ranks: int) -> Minimum | None:
    """Vector cores that HCCL recommends for a collective on vector cores; None where no source says.

    Args:
        name: the collective's name, such as "AllReduce".
        chip: the chip of its cards.
        ranks: cards of its communicator.
    """
    try:
        family = chips.get(chip).family if chip else ""
    except UnknownChipError:
        return None
    data = _read("hccl.toml")
    for row in data["minimum"]:
        if row["chips"] == family and collective_kind(name) in row["collective"]:
            cores = max(row["least"], math.ceil(ranks / row["ranks"]) if "ranks" in row else 0)
            return Minimum(cores + (cores % 2 if row.get("even", False) else 0), data["sources"][row["source"]])
    return None


def _is_kind(name: str, kind: str) -> bool:
    """Whether a name means this kind: torch's "npu_moe_distribute_combine_v2" means MoeDistributeCombineV2."""
    return fnmatchcase(name, kind) or name.replace("_", "").casefold().removeprefix("npu") == kind.casefold()


@cache
def _read(file: str) -> dict[str, Any]:
    import tomllib  # not needed by those who only import the room

    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
