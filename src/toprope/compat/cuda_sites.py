"""Log of the program's lines that asked something of CUDA, with their stacks, for `toprope run --trace-cuda FILE`.

toprope.compat.cuda records into it in each process; cli/run.py merges the processes' files into one. The merged JSON
("version", "sites") is read by `toprope port --with-trace` (port/report/trace.py), so a change of its keys needs
another version; which frames are kept is free. Tests: tests/compat/test_compat_cuda.py, tests/port/test_port_options.py
for the reader.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Log", "Site", "is_ours", "merge"]

_FRAMES = 12
"""Frames of the program that are kept of a stack."""

_PATCHES = tuple(str(Path(__file__).with_name(name)) for name in ("cuda.py", "cuda_patches.py"))


class Site:
    """A place from which the program asked something of CUDA.

    Attributes:
        what: "a name of CUDA as a device" or the function of torch.cuda.
        text: the device's name, or the function.
        stack: file, line and function, the innermost first; frames of torch and toprope are left out.
        count: how often.
    """

    def __init__(self, what: str, text: str, stack: tuple[tuple[str, int, str], ...]) -> None:
        self.what = what
        self.text = text
        self.stack = stack
        self.count = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        frames = [{"file": file, "line": line, "function": function} for file, line, function in self.stack]
        return {"what": self.what, "text": self.text, "count": self.count, "stack": frames}


class Log:
    """The places that this process has seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sites: dict[tuple[Any, ...], Site] = {}
        self._process = os.getpid()

    def note(self, what: str, text: str, direct: bool = False) -> None:
        """Record a request to CUDA.

        Args:
            what, text: as `Site` has them.
            direct: whether it counts only where the program itself asks, and not where torch does for its own sake.
        """
        stack = tuple(_program(sys._getframe(2), direct))
        if stack:
            site = self._sites.setdefault((what, text, stack), Site(what, text, stack))
            site.count += 1

    def write(self) -> None:
        """Write them down, where the folder is still there."""
        if os.getpid() != self._process or not self._sites:
            return
        try:
            with open(self._folder / f"{self._process}.cuda.json", "w", encoding="utf-8") as file:
                json.dump([site.as_dict() for site in self._sites.values()], file)
        except OSError:
            pass  # the run is over


def merge(folder: Path) -> dict[str, Any]:
    """The places that all processes of a run have seen, each once."""
    sites: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.cuda.json")):
        for each in json.loads(path.read_text(encoding="utf-8")):
            count = each.pop("count")
            kept = sites.setdefault(json.dumps(each, sort_keys=True), {**each, "count": 0})
            kept["count"] += count
    return {"version": 1, "sites": sorted(sites.values(), key=lambda each: -each["count"])}


@functools.cache
def _ours() -> tuple[str, ...]:
    """Folders whose frames are not the program's."""
    import torch

    return tuple(str(Path(name).parent) + os.sep for name in (torch.__file__, Path(__file__).parent))


def _program(frame: FrameType | None, direct: bool) -> Iterator[tuple[str, int, str]]:
    """The frames of the program; nothing where torch or toprope asks for itself and only the program counts."""
    while frame is not None and frame.f_code.co_filename in (__file__, *_PATCHES):
        frame = frame.f_back
    if frame is None or (direct and is_ours(frame)):
        return
    kept = 0
    while frame is not None and kept < _FRAMES:
        code = frame.f_code
        if not is_ours(frame) and not code.co_filename.startswith("<frozen"):
            yield os.path.abspath(code.co_filename), frame.f_lineno, code.co_qualname
            kept += 1
        frame = frame.f_back


def is_ours(frame: FrameType) -> bool:
    """True if torch or toprope itself is at work in a frame."""
    return frame.f_code.co_filename.startswith(_ours())
