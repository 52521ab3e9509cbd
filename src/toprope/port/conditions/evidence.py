"""Evidence that a question about the machine may be converted: something behind it is, and nothing there is unknown.

A block behind `if torch.cuda.is_available():` that imports a module of the project, starts a program or holds no place
that the port knows may be for CUDA without a word of it in the file. So the question stays, as it did off CUDA before.
Choices of a device and branches with converted places are evidence enough.

Called by `guards`; tests/port/test_port_unseen_fifth.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Sequence

from toprope.port.file import File, is_runtime
from toprope.port.syntax.nodes import nodes_of

__all__ = ["NOTHING", "why_unknown"]

NOTHING = "guards nothing that is converted"
"""Beginning of the reason why a question stays behind which no place is converted."""

_KNOWN = {*sys.stdlib_module_names, "torch", "torchvision", "torchaudio", "numpy"}
_SHOWS = {"print", "debug", "info", "warning", "warn", "error", "log"}
_STARTS = re.compile(r"subprocess\.\w+|os\.(?:system|popen|startfile|(?:exec|spawn|posix_spawn)\w*)")


def why_unknown(file: File, opened: Iterable[ast.AST], converted: Sequence[ast.AST]) -> str:
    """Return why the code that a question opens is not known to be right on another device; "" where it is.

    Args:
        file: the file.
        opened: the parts that run because of the answer.
        converted: the places that are converted.
    """
    opened = list(opened)
    statements = [each for each in opened if isinstance(each, ast.stmt)]
    if all(map(_only_shows, statements)):
        return ""
    inside = {each: None for part in opened for each in nodes_of(part)}
    for node in inside:
        if isinstance(node, ast.Import | ast.ImportFrom) and (module := _unknown(file, node)):
            return f"guards the import of {module} in line {node.lineno}, whose code is not seen with it"
        if isinstance(node, ast.Call) and _STARTS.fullmatch(file.dotted(node.func) or ""):
            return f"guards a program that is started in line {node.lineno}"
    if any(map(_to_host, inside)):
        return ""
    if any(each in inside for each in converted) or any(file.of_runtime(each) for each in inside):
        return ""
    return f"{NOTHING}: look at line {statements[0].lineno}"


def _to_host(node: ast.AST) -> bool:
    """Return whether a tensor is moved to the host, which is right from every device."""
    match node:
        case ast.Call(func=ast.Attribute(attr="cpu"), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant(value="cpu"), *_]):
            return True
        case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Call(args=[ast.Constant(value="cpu")]), *_]):
            return True
    return False


def _only_shows(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing but print or log."""
    match statement:
        case ast.Pass():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _SHOWS
    return False


def _unknown(file: File, node: ast.Import | ast.ImportFrom) -> str:
    """Return the module of an import whose code may be for CUDA; "" where the program goes on without it."""
    names = [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [f"{'.' * node.level}{node.module or ''}"]
    return "" if file.is_tried(node) else next((each for each in names if not _is_known(each)), "")


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN or is_runtime(module) or is_runtime(f"{module}.portable")
