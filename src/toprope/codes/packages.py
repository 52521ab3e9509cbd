"""Package that a module, header or variable belongs to, and the one in which an exception was raised; pure.

For texts of families (families.toml: {owner}, {caller}), filled by messages.py: the keys of the results are the names
that those texts use. Forms of tracebacks and of installed paths are Python's. Known packages are the table `owner` of
families.toml. Tests: tests/device/test_doctor_families.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Owner", "of_frames", "of_name"]

UNKNOWN = "the releases of {name} and of the packages it works with that belong together, by their requirements"

_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in ([\w.<>]+))?')
_INSTALLED = re.compile(r"(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r"<|(?:^|/)lib(?:64)?/python3[.\d]*/(?!(?:site|dist)-packages/)")
_TWICE = re.compile(r"^(\w+)/(?=\1/)")


@dataclass(frozen=True)
class Owner:
    """A package, and how to repair an installation of it.

    Attributes:
        names: matches the first parts of the names that belong to it.
        advice: an instruction without a full stop.
        python: it is a Python package, which a frame of a traceback can be in.
    """

    names: re.Pattern[str]
    advice: str
    python: bool = False


def of_name(name: str, owners: Iterable[Owner]) -> Mapping[str, str]:
    """Values `owner` and `advice` for a module, header, library or variable.

    Example:
        >>> of_name("vllm.v1.core", [])["owner"]
        'vllm'
    """
    first = re.split(r"[./]", name)[0]
    for owner in owners:
        if owner.names.fullmatch(first):
            return {"owner": first, "advice": owner.advice}
    return {"owner": first or "the library", "advice": UNKNOWN.format(name=first or "the library")}


def of_frames(frames: Iterable[str], owners: Iterable[Owner]) -> Mapping[str, str]:
    """Values `caller`, `place` and `repair` of the innermost frame that is not Python's or torch's own.

    Args:
        frames: lines of a traceback with a file, the innermost first.
        owners: packages that are known in a folder of sources, too.

    Example:
        >>> of_frames(['  File "/x/site-packages/vllm/config.py", line 7, in check'], [])["place"]
        'vllm/config.py, line 7, in check'
    """
    owners = [owner for owner in owners if owner.python]
    known = "".join(f"{owner.names.pattern}|" for owner in owners)
    sources = re.compile(rf"/((?:{known}(?<=/src/)[a-z]\w+|(?<=/python/)[a-z]\w+)/.+)")
    caller, place = "the caller", "the innermost lines of the traceback"
    for text in frames:
        match = _FRAME.search(text)
        if match is None or _STANDARD.search(match[1]):
            continue
        inside = _INSTALLED.search(match[1]) or sources.search(match[1])
        path = _TWICE.sub("", inside[1]) if inside is not None else match[1].rpartition("/")[2]
        if inside is None or not path.startswith("torch/"):
            caller = path.split("/")[0] if inside is not None else "the program"
            place = f"{path}, line {match[2]}" + (f", in {match[3]}" if match[3] else "")
            break
    return {"caller": caller, "place": place, "repair": of_name(caller, owners)["advice"]}
