"""The port of a notebook: its cells are one program, so that names of earlier cells are known in later ones.

What IPython understands and Python does not (`!`, `%`, `?`) is set aside and put back afterwards; commands of the shell
are looked at as scripts are. A cell that is no Python is reported where it says CUDA, and the others are done.

Called by `scan`; a cell goes through `engine` like a file, the JSON through `syntax.notebook_json`.
tests/port/test_port_notebooks.py.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from toprope.port.conditions.across import DECIDES, keys_in
from toprope.port.engine import concerns, port
from toprope.port.file import ALIASES, RUNTIME, is_vendored_runtime
from toprope.port.files import FileKind, port_text
from toprope.port.files.rules import NOTEBOOK
from toprope.port.finding import Finding, Ported
from toprope.port.project.context import Context
from toprope.port.project.facts import Project
from toprope.port.registry import table
from toprope.port.runtime.imports import import_text
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.notebook_json import Cell, code_cells, with_cells
from toprope.port.syntax.source import UnreadableError, parse

__all__ = ["MOST_NOTEBOOK_BYTES", "port_notebook", "program_of"]

MOST_NOTEBOOK_BYTES = 100_000_000
"""Notebooks larger than this are skipped. They hold pictures, so they are larger than programs."""

_ASKS = re.compile(r"\bcuda\.is_available\b|\.is_cuda\b")
_SAID = re.compile(r"cuda|nccl|nvidia", re.I)
_SHELL_CELLS = ("bash", "sh", "script", "shell", "system", "sx")
_PYTHON_CELLS = ("time", "timeit", "capture", "prun", "memit", "debug", "python", "python3")
_OTHER_LANGUAGE = re.compile(rf"%%(?:{'|'.join(_SHELL_CELLS)}|html|HTML|javascript|js|latex|markdown|svg|SVG)\b")
_MAGIC = re.compile(r"\s*(?:[!%?]|[\w., ]+=\s*[!%]\S|[\w.%*]+\?\??\s*$)")
_SHELL = re.compile(r"\s*(?:[\w., ]+=\s*)?(?:!|%(?:pip|conda|mamba|uv|sx|system)\b)")
_PARTS = re.compile(r"#.*|'''|\"\"\"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[\[({]|[\])}]|\\$")
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass
class _Code:
    """A cell as one part of the program.

    Attributes:
        cell: the cell.
        head: the line of a command for the whole cell, such as "%%time", with its end.
        python: what Python understands of it; None for a cell that is no part of the program.
        after: what becomes of a cell that is no part of the program.
        above: number of the program's lines above its first one.
    """

    cell: Cell
    head: str = ""
    python: str | None = None
    after: str = ""
    above: int = 0


@dataclass
class _Notebook:
    """State of the port of one notebook.

    Attributes:
        path, leave: as given to `port_notebook`.
        vendored: whether ported code calls the vendored file.
        mark: text that does not occur in the notebook.
        findings: places that are not the engine's, by cell.
        aside: lines that were set aside, as they are put back.
        ignored: how many places were left out.
    """

    path: str
    leave: Callable[[Finding], bool] | None
    vendored: bool
    mark: str
    findings: list[Finding] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    ignored: int = 0

    def add(self, finding: Finding, cell: Cell) -> None:
        finding.cell = cell.number
        if self.leave is not None and self.leave(finding):
            self.ignored += 1
        else:
            self.findings.append(finding)

    def report(self, cell: Cell, number: int, line: str, message: str = "") -> None:
        """Report a line that says CUDA and is not looked at further."""
        if _SAID.search(line):
            text = line.strip()
            column = len(line) - len(line.lstrip()) + 1
            self.add(Finding(NOTEBOOK, number, column, number, column + len(text), text, message=message), cell)

    def shell(self, cell: Cell, above: int, text: str) -> str:
        """Look at commands of the shell. Returns what becomes of them."""
        looked = port_text(
            text.encode("utf-8", "replace"), self.path, FileKind.SHELL, self.leave, vendored=self.vendored
        )
        self.ignored += looked.ignored
        for each in looked.findings:
            each.line, each.end_line, each.cell = each.line + above, each.end_line + above, cell.number
            self.findings.append(each)
        return looked.after.decode("utf-8") if looked.changed else text


def port_notebook(
    data: bytes,
    path: str = "",
    *,
    runtime: str = RUNTIME,
    project: Project | None = None,
    leave: Callable[[Finding], bool] | None = None,
    context: Context | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> Ported:
    """The port of one notebook.

    Args:
        data: its bytes.
        path: its name, for the report.
        runtime: the module that ported code calls.
        project: what is known of all the files that are ported; left out, what this one says.
        leave: says of a finding that it is not wanted.
        context: what is known of the project and of the card.
        elsewhere: answers that must not change for the sake of another file, as `engine.port` takes them.

    Returns:
        The notebook afterwards. One that cannot be read says so in `skipped` and stays as it is.
    """
    ported = Ported(path, data, data)
    if not concerns(data, table(), project, context) and not re.search(
        rb"cuda|nccl|nvidia|install|accelerator", data, re.I
    ):
        return ported
    try:
        text = data.decode("utf-8")
        cells = code_cells(text)
    except UnicodeDecodeError as error:
        ported.skipped = f"byte {error.start} is not utf-8"
        return ported
    except ValueError as error:
        ported.skipped = f"it cannot be read as a notebook: {error}"
        return ported
    except RecursionError:
        ported.skipped = "it is nested too deeply"
        return ported
    book = _Notebook(path, leave, is_vendored_runtime(runtime), _mark(text))
    codes = [_code(book, cell) for cell in cells]
    parts = [code for code in codes if code.python is not None]
    program = _program(book, parts)
    unread = _unread(book, codes) | dict(elsewhere or {})
    look = partial(port, program, path, runtime=runtime, project=project, context=context, elsewhere=unread)
    done = look(leave=leave)
    if not done.skipped and _unlooked(book, codes) & (_imported(program) - _imported(done.after)):
        # what was not looked at may use a name whose import would go
        done = look(leave=partial(_goes, leave))
    if done.skipped:  # each cell is Python, and all of them together are too long
        ported.skipped = done.skipped
        return ported
    _place(done, parts)
    ported.findings = sorted(
        (*book.findings, *done.findings), key=lambda each: (each.cell or 0, each.line, each.column, each.rule.code)
    )
    ported.ignored = done.ignored + book.ignored
    ported.operators = done.operators
    ported.lines = sum(len(_LINE_END.findall(code.cell.text)) + 1 for code in codes)
    pieces = done.after.decode("utf-8").split(f"# {book.mark}\n")[1:]
    for code, piece in zip(parts, _with_imports(pieces, runtime), strict=True):
        code.after = code.head + _restored(book, piece[:-1])
    changed = [(code.cell, code.after) for code in codes if code.after != code.cell.text]
    if changed:
        ported.after = with_cells(text, changed).encode("utf-8")
    return ported


def program_of(data: bytes) -> bytes:
    """The code of a notebook as one program; empty where it cannot be read."""
    try:
        text = data.decode("utf-8")
        book = _Notebook("", None, False, _mark(text))
        codes = [_code(book, cell) for cell in code_cells(text)]
    except (ValueError, RecursionError):
        return b""
    return _program(book, [code for code in codes if code.python is not None])


def _imported(program: bytes) -> set[str]:
    """The names that a program imports."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes_of(parse(program.decode("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _unread(book: _Notebook, codes: list[_Code]) -> dict[str, str]:
    """Keys of answers that are used where no rule looks: in commands of IPython, and in cells that are no Python."""
    commands = [*book.aside, *(code.head for code in codes)]
    found = {key: "a command of IPython" for line in commands for key in keys_in(_expanded(line))}
    for code in codes:
        if code.python is None and not _OTHER_LANGUAGE.match(code.cell.text):
            place = f"cell {code.cell.number}, which is no Python"
            found |= dict.fromkeys(keys_in(code.cell.text), place)
            if _ASKS.search(code.cell.text):
                found.setdefault(DECIDES, place)
    return found


def _expanded(line: str) -> str:
    """The parts of a command that are Python: in a command of the shell what is in braces or behind a dollar."""
    return " ".join(re.findall(r"\{[^}]*\}|\$\w+", line)) if _SHELL.match(line) else line


def _unlooked(book: _Notebook, codes: list[_Code]) -> set[str]:
    """The words of what is no part of the program."""
    texts = [*book.aside, *(code.head for code in codes), *(code.cell.text for code in codes if code.python is None)]
    return set(re.findall(r"\w+", "\n".join(texts)))


def _goes(leave: Callable[[Finding], bool] | None, finding: Finding) -> bool:
    """Return whether a finding is not wanted, or would take an import away."""
    return (leave is not None and leave(finding)) or finding.rule.code == "TR102"


def _mark(text: str) -> str:
    """Make a text that does not occur in the notebook."""
    number = 0
    while f"cell {number}:" in text:
        number += 1
    return f"cell {number}:"


def _code(book: _Notebook, cell: Cell) -> _Code:
    """A cell, with what only IPython understands set aside and looked at."""
    code = _Code(cell, after=cell.text)
    lines = cell.text.split("\n")
    whole = re.match(r"%%(\w*)", lines[0])
    if whole is not None:
        code.head = lines.pop(0) + "\n"
        if whole[1] in _SHELL_CELLS:
            code.after = code.head + book.shell(cell, 1, "\n".join(lines)) if lines else cell.text
            return code
        if whole[1] not in _PYTHON_CELLS:
            for number, line in enumerate(lines, 2):
                if not line.lstrip().startswith("#"):
                    book.report(cell, number, line)
            return code
        book.report(cell, 1, code.head)
        if not lines:
            return code
    above = bool(code.head)
    masked = _masked(lines)
    python = "\n".join(
        line if indent is None else f"{indent}pass  # {book.mark} {len(book.aside) + number}"
        for line, indent, number in zip(lines, masked, _counted(masked), strict=True)
    )
    try:
        parse(python)
        python.encode("utf-8")
    except (UnreadableError, UnicodeEncodeError) as error:
        code_of = [re.sub(r"^\s*#.*", "", line) for line in lines]
        first = next((number for number, line in enumerate(code_of) if _SAID.search(line)), None)
        if first is not None:
            book.report(cell, first + above + 1, lines[first], f"the cell is no Python ({error})")
        return code
    for number, (line, indent) in enumerate(zip(lines, masked, strict=True)):
        if indent is not None:
            book.aside.append(_command(book, cell, number + above, line))
    code.python = python
    return code


def _counted(masked: list[str | None]) -> list[int]:
    """For each line how many before it were set aside."""
    counts, count = [], 0
    for each in masked:
        counts.append(count)
        count += each is not None
    return counts


def _command(book: _Notebook, cell: Cell, above: int, line: str) -> str:
    """Look at a line that only IPython understands. Returns what becomes of it."""
    if _SHELL.match(line):
        return book.shell(cell, above, line)
    book.report(cell, above + 1, line)
    return line


def _masked(lines: list[str]) -> list[str | None]:
    """For each line that only IPython understands its indentation; None for all others."""
    masked: list[str | None] = []
    depth, inside = 0, ""  # open brackets, and the quotes of a string that goes on
    joined, command = False, None  # whether the line before ends in a backslash, as Python or as a command
    for line in lines:
        if command is None and not depth and not inside and not joined and _MAGIC.match(line):
            command = line[: len(line) - len(line.lstrip())]
        if command is not None:
            masked.append(command)
            command = command if line.endswith("\\") else None
            continue
        masked.append(None)
        joined = False
        for part in _PARTS.findall(line):
            if inside:
                inside = "" if part == inside else inside
            elif part in ("'''", '"""'):
                inside = part
            elif part in "[({":
                depth += 1
            elif part in "])}":
                depth = max(0, depth - 1)
            else:
                joined = part == "\\"
    return masked


def _program(book: _Notebook, parts: list[_Code]) -> bytes:
    """All cells as one program, with the mark in front of each."""
    text, at = [], 0
    for code in parts:
        python = code.python or ""
        code.above = at + 1
        at += 1 + len(_LINE_END.findall(f"{python}\n"))  # a carriage return at its end is one end with what follows
        text.append(f"# {book.mark}\n{python}\n")
    return "".join(text).encode("utf-8")


def _place(done: Ported, parts: list[_Code]) -> None:
    """Give the findings of the program their places in the cells."""
    starts = [code.above for code in parts]
    for finding in done.findings:
        code = parts[bisect_right(starts, finding.line - 1) - 1]
        shift = code.above - bool(code.head)
        finding.line, finding.end_line, finding.cell = finding.line - shift, finding.end_line - shift, code.cell.number
        named = partial(_in_its_cell, parts, starts)
        finding.message = _LINE_NUMBER.sub(named, finding.message)
        finding.held_back = _LINE_NUMBER.sub(named, finding.held_back)


_LINE_NUMBER = re.compile(r"\bline (\d+)\b")


def _in_its_cell(parts: list[_Code], starts: list[int], found: re.Match[str]) -> str:
    """The place of a line of the program, as it is numbered in the notebook."""
    line = int(found[1])
    code = parts[bisect_right(starts, line - 1) - 1]
    return f"line {line - code.above + bool(code.head)} of cell {code.cell.number}"


_TORCH = re.compile(r"^(?:import torch\b|from torch\b)[^(\\\n]*\n", re.MULTILINE)


def _with_imports(pieces: list[str], runtime: str) -> list[str]:
    """The cells after the edits; the import of the runtime module is also in each that imports torch, where it must be.

    A first cell that uses torch without an import is left over: who begins with a later one needs the import there.
    """
    lines = [f"{import_text(runtime, alias)}\n" for alias in ALIASES]
    found = next(
        ((each, alias) for each, alias in zip(lines, ALIASES, strict=True) if any(each in p for p in pieces)), None
    )
    if found is None or _TORCH.search(next(each for each in pieces if found[0] in each)):
        return pieces
    line, used = found[0], re.compile(rf"\b{found[1]}\.")
    return [
        _TORCH.sub(lambda torch: torch[0] + line, each, count=1) if line not in each and used.search(each) else each
        for each in pieces
    ]


def _restored(book: _Notebook, text: str) -> str:
    """A cell's text with what was set aside."""
    return re.sub(rf"[^\S\n]*pass  # {book.mark} (\d+)", lambda found: book.aside[int(found[1])], text)
