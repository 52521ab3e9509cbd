"""Releases of torch, torch_npu and CANN that belong together, by the vendor's table. Pure but for reading it.

Called by `device.doctor.software_checks`. The table is versions.toml next to it: a new release of torch_npu is a row
there, with its source. Here is how versions are compared; their forms ("2.1.0.post4", "8.0.RC1") are the vendor's.
Tests: tests/device/test_doctor_collect.py (the table), tests/device/test_doctor.py (what is said of a machine).
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Pair", "cann_for", "minor", "newest", "pairs", "pythons_for", "releases_for", "same_cann", "source"]


@dataclass(frozen=True)
class Pair:
    """A row of the table: a release of torch_npu with the torch and the CANN it was made for."""

    torch_npu: str
    torch: str
    cann: str


def pairs() -> tuple[Pair, ...]:
    """Every row, newest first."""
    return tuple(Pair(**row) for row in _table()["pairs"])


def source() -> str:
    """Source of the table."""
    return str(_table()["source"]["url"])


def newest() -> Pair:
    """The row for the newest torch."""
    return pairs()[0]


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, which torch and torch_npu must share; as many as there are.

    Example:
        >>> minor("2.13.0+cpu"), minor("2.1.0.post4")
        ((2, 13), (2, 1))
    """
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:2])


def cann_for(torch_npu: str) -> str | None:
    """The CANN that a release of torch_npu was made for; None where the table does not list the release."""
    wanted = _release(torch_npu)
    return next((row.cann for row in pairs() if _release(row.torch_npu) == wanted), None)


def releases_for(torch: str, cann: str) -> tuple[str, ...]:
    """The releases of torch_npu for a torch and a CANN, newest first."""
    return tuple(row.torch_npu for row in pairs() if minor(row.torch) == minor(torch) and same_cann(row.cann, cann))


def pythons_for(torch: str) -> tuple[str, ...]:
    """The Pythons ("3.11") that torch_npu is built for with this torch; empty where the table does not say."""
    found = [pythons for listed, pythons in _table()["python"].items() if minor(listed) == minor(torch)]
    return tuple(found[0]) if found else ()


def same_cann(one: str, other: str) -> bool:
    """True if two versions of CANN are one release: "8.0.RC1" and "8.0.RC1.beta1" are, "8.0.RC1" and "8.0.0" not."""
    first, second = (re.split(r"[.\-_]", each.strip().casefold()) for each in (one, other))
    shorter = min(len(first), len(second))
    return shorter >= 3 and first[:shorter] == second[:shorter]


def _release(version: str) -> tuple[str, ...]:
    """A version without its local part and with "rc1" and ".rc1" alike."""
    return tuple(re.findall(r"\d+|[a-z]+", version.partition("+")[0].casefold()))


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("versions.toml").read_text(encoding="utf-8"))
