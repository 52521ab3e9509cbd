"""Versions of torch and its libraries that a project asks for, where they are older than ported code needs.

Used by `text` and `rules.builds`; the oldest torch is the one that `device._portable_runtime` names. Tests:
tests/port/test_port_releases.py, tests/port/test_port_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["OLDEST", "OLDEST_WITH_TOPROPE", "ended", "needed", "old_pins"]

Version = tuple[float, float]

OLDEST: Version = (2, 0)
"""The first release of torch that the vendored file runs with."""

OLDEST_WITH_TOPROPE: Version = (2, 10)
"""The first release of torch that toprope itself runs with, as its pyproject.toml says (a test compares them)."""

_ANY = float("inf")
_BELONGS = {"torchvision": (0, 15), "torchaudio": (2, 0), "torchtext": (0, 15)}
"""Releases that belong to torch 2.0; the others follow by one with each release of torch."""

_LAST = {"torchtext": (0, 18)}
"""Releases after which there are none: torchtext ended with the one for torch 2.3."""

_PIN = re.compile(
    r"(?<![\w./@:-])(?P<name>torchvision|torchaudio|torchtext|torch|pytorch)(?P<key>[\"']?\s*=\s*(?:\{\s*version\s*=\s*)?[\"'])?\s*"
    r"(?P<version>(?:[\^~<>=!]=?=?\s*)?v?\d[\w.*+]*(?:\s*,\s*[<>=!~]=?=?\s*\d[\w.*+]*)*)(?![\w.-])",
    re.I,
)
_PART = re.compile(
    r"(?P<sign>[\^~<>=!]*)\s*v?(?P<major>\d+)(?:\.(?:(?P<minor>\d+)|(?P<star>[*x])))?(?P<patch>\.[\d*x]+)?"
)


def old_pins(line: str, *, vendored: bool) -> Iterator[tuple[int, int]]:
    """Places in a line that ask for torch, and get or allow a release that is too old by what they name.

    torchvision, torchaudio and torchtext are each built for one release of torch, and count by that.

    A list without a version, or with nothing but an upper bound that is new enough, is none: the newest is installed.
    Where ported code imports toprope, whose own requirement raises a lower bound, a bound that keeps the release out
    is one; with the vendored file a lower bound that is too old for it, too.

    Args:
        line: the line.
        vendored: whether ported code calls the vendored file, and not toprope.
    """
    for found in _PIN.finditer(line):
        if found["key"] is None and not re.match(r"[\^~<>=!]", found["version"]):
            continue  # "torch 2" in a sentence
        parts = [_PART.match(part.strip()) for part in found["version"].split(",")]
        first = needed(found["name"], vendored=vendored)
        if any(part is not None and (_newest(part) < first or (vendored and _named(part) < first)) for part in parts):
            yield found.start(), found.end()


def needed(name: str, *, vendored: bool) -> Version:
    """Return the first release of torch, or of a library that is built for each torch, that ported code runs with."""
    major, minor = OLDEST if vendored else OLDEST_WITH_TOPROPE
    if name.lower() not in _BELONGS:
        return major, minor
    first, second = _BELONGS[name.lower()]
    return first, second + minor - OLDEST[1]


def ended(name: str, *, vendored: bool) -> str:
    """Return the last release of a library that has none for the torch that ported code needs; "" where it has one."""
    last = _LAST.get(name.lower())
    return ".".join(map(str, last)) if last is not None and last < needed(name, vendored=vendored) else ""


def _named(part: re.Match[str]) -> Version:
    """The release that a bound names and lets be; an upper bound lets all older ones be, but pip takes the newest."""
    if part["sign"].startswith(("!", "<")):
        return _ANY, _ANY
    return int(part["major"]), _minor(part)


def _minor(part: re.Match[str]) -> float:
    return _ANY if part["star"] else int(part["minor"] or 0)


def _newest(part: re.Match[str]) -> Version:
    """The newest release that a bound allows."""
    major, minor, sign = int(part["major"]), _minor(part), part["sign"]
    if sign.startswith((">", "!")):
        return _ANY, _ANY
    if sign == "<":
        return (major, minor - 1) if minor else (major - 1, _ANY)
    all_of_it = sign == "^" or (sign == "~=" and not part["patch"]) or (sign in ("=", "~") and part["minor"] is None)
    return (major, _ANY) if all_of_it else (major, minor)
