"""Edits of parts of a text, and the text that they make.

An edit replaces a part of the text by pieces: new text, and nodes that stay. What stays is itself edited by the edits
inside it, so that rules for an outer and an inner call need not know of each other. All else is left as it is.

Made by `file` for rules, applied by `engine`; tests/port/test_port_engine.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toprope.port.syntax.source import Source

__all__ = ["Edit", "OverlapError", "drops_a_comment", "render"]

Kept = tuple[int, int]


@dataclass(frozen=True)
class Edit:
    """A part of the text that is replaced.

    Attributes:
        start, end: where the part begins and ends; the same for an insertion.
        pieces: what is there afterwards: new text, and parts of the old that stay, as (start, end).
    """

    start: int
    end: int
    pieces: tuple[str | Kept, ...]

    @classmethod
    def of(cls, source: Source, start: int, end: int, pieces: Iterable[str | ast.AST]) -> Edit:
        """An edit whose kept parts are nodes."""
        return cls(start, end, tuple(piece if isinstance(piece, str) else source.span(piece) for piece in pieces))

    @property
    def is_call(self) -> bool:
        """Return whether the new text is a call of one name."""
        said = "".join(piece if isinstance(piece, str) else "_" for piece in self.pieces)
        return re.fullmatch(r"[\w.]+\([\w., =\"]*\)", said) is not None

    def says(self, text: str) -> bool:
        """Return whether the new text has this in it."""
        return any(isinstance(piece, str) and text in piece for piece in self.pieces)


class OverlapError(ValueError):
    """Two edits change the same part, and neither lies in what the other keeps."""


def render(text: str, edits: Sequence[Edit], start: int = 0, end: int | None = None) -> str:
    """The text, or a part of it, after the edits.

    An edit that lies in what another one takes away is gone with it; of two edits of the same part the first holds.

    Raises:
        OverlapError: two edits cross each other.
    """
    ordered = sorted(edits, key=lambda edit: (edit.start, -edit.end if edit.end > edit.start else -len(text) - 1))
    return _render(text, ordered, start, len(text) if end is None else end)


def _render(text: str, edits: list[Edit], start: int, end: int) -> str:
    parts = []
    at = start
    index = 0
    while index < len(edits):
        edit = edits[index]
        index += 1
        if edit.start < at or edit.end > end:
            raise OverlapError(f"edits cross at {edit.start}")
        inner = []
        while index < len(edits) and edits[index].start < edit.end:
            if edits[index].end > edit.end:
                raise OverlapError(f"edits cross at {edits[index].start}")
            inner.append(edits[index])
            index += 1
        parts.append(text[at : edit.start])
        for piece in edit.pieces:
            if isinstance(piece, str):
                parts.append(piece)
            else:
                low, high = piece
                within = [each for each in inner if low <= each.start and each.end <= high]
                parts.append(_render(text, within, low, high))
        at = edit.end
    parts.append(text[at:end])
    return "".join(parts)


def drops_a_comment(source: Source, edit: Edit) -> bool:
    """Return whether a comment is in what the edit takes away."""
    at = edit.start
    for low, high in sorted(piece for piece in edit.pieces if not isinstance(piece, str)):
        if source.has_comment(at, low):
            return True
        at = high
    return source.has_comment(at, edit.end)
