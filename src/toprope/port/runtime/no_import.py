"""Files that may not take the import of the runtime module, although they are Python.

Called by `engine`, which then reports what it would have rewritten. Tests: tests/port/test_port_engine.py,
tests/port/test_port_options.py, tests/port/test_port_rules.py.
"""

from __future__ import annotations

import ast

from toprope.port.file import File
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import Binding

__all__ = ["is_unbound_torch", "why_no_import"]

_BUILDERS = ("torch.utils.ffi.create_extension", "torch.utils.cpp_extension.CUDAExtension", "setuptools.Extension")
_PLAIN = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Name, ast.keyword, ast.UnaryOp, ast.BinOp,
          ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.expr_context, ast.operator, ast.unaryop)  # fmt: skip


def why_no_import(file: File) -> str:
    """Reason why a file must not have the import, as a sentence without a full stop; "" if it may have it.

    When a setup.py runs, only the packages needed for building are installed, and what it asks is how to build. So it
    is with any other file that makes an extension when it runs. Configurations of plain values (mmcv's,
    for example) are read by programs that take every name in them for a setting.
    """
    if any(each.imported in ("setuptools.setup", "distutils.core.setup") for each in _bindings(file)) or any(
        isinstance(each, ast.Call) and file.dotted(each.func) in _BUILDERS and file.at_import(each)
        for each in file.walk.parents
    ):
        return "what builds an extension, such as a setup.py, runs where only what it needs is installed"
    tree = file.walk.module.node
    if isinstance(tree, ast.Module) and _is_configuration(tree):
        return "a configuration of plain values should not import: who reads it may take the import for a setting"
    unbound = next((each for each in file.walk.scopes if is_unbound_torch(file, each)), None)
    if isinstance(unbound, ast.Attribute):
        return f"the file does not import torch: torch.{unbound.attr} in line {unbound.lineno} stays, and all with it"
    return ""


_OF_DEVICES = ("cuda", "device", "load", "autocast", "amp")


def is_unbound_torch(file: File, node: ast.AST) -> bool:
    """Return whether a node is `torch.cuda`, or another name about devices, where nothing in the file binds torch.

    Such a file is run inside another one (`%run -i`, `exec`), so that what torch is cannot be said here.
    """
    match node:
        case ast.Attribute(value=ast.Name(id="torch") as name, attr=attribute) if attribute in _OF_DEVICES:
            return not file.bindings(name) and file.dotted(name) is None and not _has_star(file)
    return False


def _has_star(file: File) -> bool:
    """Return whether `from module import *` may bind more names than are seen."""
    imports = (each for each in file.walk.parents if isinstance(each, ast.ImportFrom))
    return any(each.names[0].name == "*" for each in imports)


def _bindings(file: File) -> list[Binding]:
    return [each for bindings in file.walk.module.bindings.values() for each in bindings]


def _is_configuration(tree: ast.Module) -> bool:
    """Return whether there is nothing but names that get plain values, some of them by `dict(...)`."""
    made = False
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, ast.Assign):
            return False
        for node in nodes_of(statement.value):
            if isinstance(node, ast.Call):
                if not (isinstance(node.func, ast.Name) and node.func.id == "dict"):
                    return False
                made = True
            elif not isinstance(node, _PLAIN):
                return False
    return made
