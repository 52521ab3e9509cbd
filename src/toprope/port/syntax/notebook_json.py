"""Find the lines of code in a notebook's JSON, and replace them. Pure.

Everything but the changed lines stays the same, byte for byte: indentation, escapes, the end of the file.

Called by `port.notebook`; tests/port/test_port_notebooks.py.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "code_cells", "with_cells"]

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_PIECE = re.compile(r"(?:[^\\]|\\[^n])*?(?:\\n|$)", re.DOTALL)
_SOURCES = (("cells", None, "source"), ("worksheets", None, "cells", None, "input"))
"""Paths of the cells' text in the notebook formats 4 and 3; None is any index."""

Path = tuple[str | int, ...]


@dataclass
class Cell:
    """A cell with code.

    Attributes:
        number: its place among all cells, from 1.
        text: the code.
        start, end: where the value that holds the code begins and ends in the JSON.
        strings: where the strings of the value begin and end, quotes included.
    """

    number: int
    text: str
    start: int
    end: int
    strings: list[tuple[int, int]] = field(default_factory=list)


def code_cells(text: str) -> list[Cell]:
    """The cells with code; none where the notebook's language is not Python.

    Args:
        text: the JSON.

    Raises:
        ValueError: it is no JSON, or no notebook; RecursionError where it is nested too deeply.
    """
    notebook = json.loads(text)
    try:
        if "worksheets" in notebook:
            tops: list[tuple[Path, Any]] = [(("worksheets", k), each) for k, each in enumerate(notebook["worksheets"])]
        else:
            tops = [((), notebook)]
        cells = {(*top, "cells", n): each for top, holder in tops for n, each in enumerate(holder["cells"])}
        about = notebook.get("metadata", {})
        language = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language") or "python"
        said = {
            place: (number, "".join(each.get("source", each.get("input", ""))))
            for number, (place, each) in enumerate(cells.items(), 1)
            if each.get("cell_type") == "code"
        }
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it has no cells") from None
    if not str(language).lower().startswith(("python", "ipython")):
        return []
    found: dict[Path, Cell] = {}
    for place, cell in _values(text):
        if place in said and place in found:
            raise ValueError("one of its keys is there twice")
        found[place] = cell
    codes = []
    for place, (number, code) in said.items():
        if place in found:
            cell = found[place]
            cell.number = number
            if cell.text != code:
                raise ValueError("one of its keys is there twice")
            codes.append(cell)
    return codes


def _values(text: str) -> Iterator[tuple[Path, Cell]]:
    """The values that hold the text of cells of any kind, with the path of the cell."""
    path: list[str | int] = []  # the keys and indices above the token at hand
    begun: tuple[Path, Cell, int] | None = None
    expects_key = False
    for token in _TOKEN.finditer(text):
        said = token[0]
        if said in "{[":
            place = _cell(path)
            if place is not None and said == "[":
                begun = place, Cell(0, "", token.start(), 0), len(path)
            path.append("" if said == "{" else 0)
            expects_key = said == "{"
        elif said in "}]":
            path.pop()
            if begun is not None and len(path) == begun[2]:
                begun[1].end = token.end()
                yield begun[:2]
                begun = None
            expects_key = False
        elif said == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else ""
            expects_key = not isinstance(last, int)
        elif said == ":":
            expects_key = False
        elif expects_key:
            path[-1] = json.loads(said)
        elif said[0] == '"' and begun is not None:
            begun[1].text += json.loads(said)
            begun[1].strings.append(token.span())
        elif said[0] == '"':
            place = _cell(path)
            if place is not None:
                yield place, Cell(0, json.loads(said), *token.span(), [token.span()])


def _cell(path: Sequence[str | int]) -> Path | None:
    """The path of the cell that has its text at this path; None if it is something else."""
    for wanted in _SOURCES:
        if len(path) == len(wanted) and all(
            isinstance(each, int) if name is None else each == name for each, name in zip(path, wanted, strict=True)
        ):
            return tuple(path[:-1])
    return None


def with_cells(text: str, changed: Sequence[tuple[Cell, str]]) -> str:
    """The JSON with other code in some cells.

    Args:
        text: the JSON.
        changed: cells of it and their new code.
    """
    parts, at = [], 0
    for cell, code in sorted(changed, key=lambda each: each[0].start):
        parts += [text[at : cell.start], _value(text, cell, code)]
        at = cell.end
    return "".join((*parts, text[at:]))


def _value(text: str, cell: Cell, code: str) -> str:
    """The value that holds the code: the lines that were there as they were written."""
    ascii_only = text.isascii()
    if text[cell.start] == '"':
        pieces = [piece for piece in _PIECE.findall(text[cell.start + 1 : cell.end - 1]) if piece]
        old = [json.loads(f'"{piece}"') for piece in pieces]
        return f'"{"".join(_merged(old, pieces, _split(code), ascii_only))}"'
    raw = [text[start + 1 : end - 1] for start, end in cell.strings]
    lines = _merged([json.loads(f'"{each}"') for each in raw], raw, _split(code), ascii_only)
    begin, finish = cell.strings[0][0], cell.strings[-1][1]
    lead = text[cell.start + 1 : begin]
    between = "," + (lead or " ")
    if len(cell.strings) > 1:
        between = text[cell.strings[0][1] : cell.strings[1][0]]
    return f"[{lead}" + between.join(f'"{line}"' for line in lines) + text[finish : cell.end]


def _split(code: str) -> list[str]:
    """The lines with their ends, cut at line feeds alone, as notebooks cut them."""
    return [line for line in re.split(r"(?<=\n)", code) if line]


def _merged(old: list[str], raw: list[str], new: list[str], ascii_only: bool) -> Iterator[str]:
    """The new lines as JSON writes them; those that were there before as they were written then."""
    for tag, low, high, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from raw[low:high]
        else:
            yield from (json.dumps(line, ensure_ascii=ascii_only)[1:-1] for line in new[start:end])
