"""Insert the import of the runtime module.

Called by `engine` for a file with edits; the place follows PEP 8, docstrings and `__future__` imports. Tests:
tests/port/test_port_engine.py, tests/port/test_port_options.py.
"""

from __future__ import annotations

import ast

from toprope.port.file import File
from toprope.port.syntax.edits import Edit

__all__ = ["import_text", "runtime_import"]


def import_text(runtime: str, alias: str) -> str:
    """The statement that gives a file the runtime module under a name."""
    dots = "." * (len(runtime) - len(runtime.lstrip(".")))
    package, _, name = runtime.lstrip(".").rpartition(".")
    package = dots + package
    if not package:
        return f"import {runtime}" if runtime == alias else f"import {runtime} as {alias}"
    return f"from {package} import {name}" + ("" if name == alias else f" as {alias}")


def runtime_import(file: File, used: int) -> Edit:
    """The insertion of the import.

    Behind the group of imports in which torch is first imported, so that what a program does before it imports torch
    (environment variables) is still done before; without one, behind the docstring and the imports from __future__.

    Args:
        file: the file.
        used: offset of the first edit; the import is inserted before it.
    """
    tree: ast.Module = file.walk.module.node  # type: ignore[assignment]
    body = tree.body
    source = file.source
    text = import_text(file.runtime, file.alias)
    head = 0  # statements that must come first
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        head = int(isinstance(body[0].value.value, str))
    while head < len(body) and isinstance(body[head], ast.ImportFrom) and body[head].module == "__future__":  # type: ignore[attr-defined]
        head += 1
    first = next((number for number in range(head, len(body)) if _imports_torch(body[number])), None)
    last = first
    while last is not None and last + 1 < len(body) and isinstance(body[last + 1], ast.Import | ast.ImportFrom):
        last += 1
    # step back over imports that are edited themselves, or share their line with something else
    while first is not None and last is not None and last >= first:
        if _ends_its_line(file, body, last) and _line_end(file, body[last]) <= _line_start(file, used):
            return _behind(file, body[last], text)
        last -= 1
    if head and _ends_its_line(file, body, head - 1) and _line_end(file, body[head - 1]) <= _line_start(file, used):
        return _behind(file, body[head - 1], text)
    if head:  # `"docstring"; import torch`
        _, end = source.span(body[head - 1])
        return Edit(end, end, (f"; {text}",))
    # a bare `pass` is a command of a notebook that was set aside: the import goes into the first cell of Python
    first_line = next((each for each in body if not isinstance(each, ast.Pass)), body[0])
    start = _line_start(file, source.span(_first_node(first_line))[0])
    return Edit(start, start, (text + source.newline,))


def _first_node(statement: ast.stmt) -> ast.AST:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return decorators[0] if decorators else statement


def _imports_torch(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return any(alias.name.partition(".")[0] == "torch" for alias in statement.names)
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and (statement.module or "").partition(".")[0] == "torch"
    return False


def _ends_its_line(file: File, body: list[ast.stmt], index: int) -> bool:
    """Return whether nothing but a comment follows the statement on its line."""
    _, end = file.source.span(body[index])
    rest = file.source.text[end : _line_end(file, body[index])].strip()
    return not rest or rest.startswith("#")


def _line_start(file: File, offset: int) -> int:
    line, _ = file.source.place(offset)
    return file.source.starts[line - 1]


def _line_end(file: File, statement: ast.stmt) -> int:
    """Return where the line after the statement begins."""
    starts = file.source.starts
    line = statement.end_lineno or statement.lineno
    return starts[line] if line < len(starts) else len(file.source.text)


def _behind(file: File, statement: ast.stmt, text: str) -> Edit:
    at = _line_end(file, statement)
    if at and file.source.text[at - 1] not in "\r\n":
        return Edit(at, at, (file.source.newline + text,))
    return Edit(at, at, (text + file.source.newline,))
