"""Names of torch that tests replace: `mock.patch("torch.cuda.is_available")`, `monkeypatch.setattr`.

Called by `project.facts`; `set_in` by `conditions.in_tests`, which holds back what would no longer call the replaced
name. Tests: tests/port/test_port_unseen_fourth.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from toprope.port.syntax.nodes import name_of

__all__ = ["PATCHES", "imported_in", "patched_in", "set_in"]

PATCHES = (
    rb"(?:patch|setattr|delattr|object|multiple)\w*\(\s*[\"'][\w.]*\btorch\."
    rb"|(?:object|setattr|delattr|multiple)\(\s*(?:[\w.]*\bcuda|torch[\w.]*)\s*,"
)
"""A part of `facts.WORDS`: a file with one is a reason to read all. It must find every call that `patched_in` knows."""

_QUOTED = re.compile(r"(?:.*\.)?(torch(?:\.\w+)+)")
_MODULE = re.compile(r"torch(?:\.\w+)*|(?:\w+\.)*cuda")
_CALLS = {"patch", "setattr", "delattr", "object", "multiple"}


def patched_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """The full names that a file replaces for a while, with the line. "torch.cuda" means all of its names."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=[first, *more]) if (
                called in _CALLS
            ):
                match first:
                    case ast.Constant(value=str(text)) if found := _QUOTED.fullmatch(text):
                        names = (
                            [f"{found[1]}.{each.arg}" for each in node.keywords] if called == "multiple" else [found[1]]
                        )
                        yield from ((each, node.lineno) for each in names)
                    case ast.Attribute() | ast.Name() if found := _MODULE.fullmatch(ast.unparse(first)):
                        module = "torch.cuda" if _is_cuda(first) else found[0]
                        if more and isinstance(more[0], ast.Constant) and isinstance(more[0].value, str):
                            yield f"{module}.{more[0].value}", node.lineno
                        for each in node.keywords if called == "multiple" else ():
                            yield f"{module}.{each.arg}", node.lineno


def _is_cuda(module: ast.expr) -> bool:
    """Return whether a module is torch.cuda by its last name."""
    return name_of(module) == "cuda"


def imported_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The full names of what a file imports: of modules, and of what is in them, which may be modules."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (f"{'.' * (level or 0)}{module or ''}.{each.name}" for each in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def set_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """The names that a program replaces for good: `torch.cuda.is_available = lambda: False`."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "torch.cuda":
                    yield f"torch.cuda.{target.attr}", node.lineno
