"""Scripts of one folder that differ by their numbers alone, such as one for each release of CUDA.

The first of them has the line about CUDA's toolkit, which names the others. Used by `scan`. Tests:
tests/port/test_port_builds.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from toprope.port.files.kinds import FileKind, kind_of
from toprope.port.files.rules import TOOLKIT
from toprope.port.finding import Ported

__all__ = ["Alike"]

_NUMBERS = re.compile(rb"\d[\w.;+]*")
"""A release, or a list of them: `11.8`, `3.5;5.0+PTX;8.6`."""
_MOST_BYTES = 100_000
_MOST_NAMES = 3


class Alike:
    """The scripts among files that are alike.

    Args:
        files: the files that are ported together.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        groups: dict[tuple[Path, bytes], list[Path]] = {}
        for path in files:
            if path.suffix == ".sh" and kind_of(path.name) is FileKind.SHELL and (data := _bytes(path)):
                groups.setdefault((path.parent, _NUMBERS.sub(b"0", data)), []).append(path)
        self._others = {str(first): others for first, *others in groups.values() if others}
        self._left = {str(path) for others in self._others.values() for path in others}

    def fold(self, ported: Ported) -> Ported:
        """Name the others in the line of the first, and leave that line out in them."""
        if ported.path in self._left:
            ported.findings = [each for each in ported.findings if each.rule is not TOOLKIT]
        for each in ported.findings if ported.path in self._others else ():
            if each.rule is TOOLKIT:
                each.message = f"{each.said}; also in {_listed(self._others[ported.path])}"
        return ported


def _listed(others: list[Path]) -> str:
    names = ", ".join(path.name for path in others[:_MOST_NAMES])
    more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    return f"{names}{more}, which {'differs' if len(others) == 1 else 'differ'} by numbers alone"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return b""
