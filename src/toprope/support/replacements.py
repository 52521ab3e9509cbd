"""Replacements on Ascend NPUs for packages and kernels that are written for CUDA; pure, from replacements.toml.

The port's rules and its report ask it (port/rules/kernels.py, extensions.py, attention.py, port/files/sources.py).
Kernels are found by words in their names: a word that is too short finds kernels of others, and a longer word of
another row has precedence. A new replacement is a row, with its source. Tests: tests/port/test_port_sources.py (the
table), tests/port/test_port_unseen_second.py (names of kernels).
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources

__all__ = ["Replacement", "for_kernels", "for_module", "rows"]


@dataclass(frozen=True)
class Replacement:
    """One row: something for CUDA, and what replaces it.

    Attributes:
        modules: names of packages and modules.
        kernels: words in names of kernels, in lower case and without "_"; "=nms" is the whole name.
        instead: what replaces it.
        source: where that is said.
        read: the day on which it was read.
    """

    modules: tuple[str, ...]
    kernels: tuple[str, ...]
    instead: str
    source: str
    read: str

    @property
    def text(self) -> str:
        """The replacement with its source."""
        return f"{self.instead} ({self.source})"


def for_module(name: str) -> Replacement | None:
    """Return what replaces a package or module, such as "xformers.ops"; None where nothing is known.

    A row for the whole name comes before one for its package.
    """
    name = name.replace("-", "_")
    while name:
        found = _by_module().get(name)
        if found is not None:
            return found
        name = name.rpartition(".")[0]
    return None


def for_kernels(names: str) -> list[Replacement]:
    """Return what replaces the kernels whose names are in a text, in the order of the rows."""
    text = _OTHERS.sub(" ", re.sub(r"[_\W]+", "", names.lower()))
    if "iou3d" in text:
        text = text.replace("nmskernel", " ")  # of rotated boxes
    found = {row: [span for word in row.kernels for span in _spans(word, text)] for row in rows()}
    every = [span for spans in found.values() for span in spans]
    whole = {f"={name.replace('_', '')}" for name in re.findall(r"\w+", names.lower())}
    return [
        row for row, spans in found.items()
        if any(not _is_inside(span, every) for span in spans) or whole.intersection(row.kernels)
    ]  # fmt: skip


_OTHERS = re.compile(r"devoxeliz|(?:deform(?:able)?)?psroi(?:pool|align)")
"""Kernels that no row computes, whose names have words of one."""


def _spans(word: str, text: str) -> list[tuple[int, int]]:
    """Return the places of a word in a text."""
    return [found.span() for found in re.finditer(re.escape(word), text)]


def _is_inside(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    """Return whether a longer word of another row has this one in it: the longer one says more."""
    return any(low <= span[0] and span[1] <= high and (low, high) != span for low, high in others)


@functools.cache
def rows() -> tuple[Replacement, ...]:
    """All rows, in the order of the file."""
    data = tomllib.loads(resources.files("toprope.support").joinpath("replacements.toml").read_text(encoding="utf-8"))
    return tuple(
        Replacement(
            tuple(row.get("modules", "").split()),
            tuple(row.get("kernels", "").split()),
            row["instead"],
            row["source"],
            str(row["read"]),
        )
        for row in data["row"]
    )


@functools.cache
def _by_module() -> dict[str, Replacement]:
    return {name: row for row in rows() for name in row.modules}
