"""Versions of torch that a project asks for, where they are older than ported code needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["OLDEST", "old_pins"]

OLDEST = (2, 0)
"""The first release of torch that the vendored file runs with."""

_PIN = re.compile(
    r"(?<![\w./@:-])(?P<name>torch|pytorch)(?P<key>[\"']?\s*=\s*(?:\{\s*version\s*=\s*)?[\"'])?\s*"
    r"(?P<version>(?:[\^~<>=!]=?=?\s*)?v?\d[\w.*+]*(?:\s*,\s*[<>=!~]=?=?\s*\d[\w.*+]*)*)(?![\w.-])",
    re.I,
)
_PART = re.compile(r"(?P<sign>[\^~<>=!]*)\s*v?(?P<major>\d+)(?:\.(?P<minor>\d+))?")


def old_pins(line: str) -> Iterator[tuple[int, int]]:
    """Places in a line that ask for torch, and allow a release that is too old by what they name.

    A list without a version, or with nothing but an upper bound that is new enough, is none: the newest is installed.
    """
    for found in _PIN.finditer(line):
        if found["key"] is None and not re.match(r"[\^~<>=!]", found["version"]):
            continue  # "torch 2" in a sentence
        parts = [_PART.match(part.strip()) for part in found["version"].split(",")]
        if any(part is not None and _is_old(part) for part in parts):
            yield found.start(), found.end()


def _is_old(part: re.Match[str]) -> bool:
    """Test for a bound that leaves torch below the oldest one, or lets it be."""
    version = int(part["major"]), int(part["minor"] or 0)
    sign = part["sign"]
    if sign.startswith("!"):
        return False
    return version <= OLDEST if sign == "<" else version < OLDEST
