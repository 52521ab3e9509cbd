"""Answers about a GPU that other devices do not give, or give in a way that the program does not expect.

The runtime answers for every device: (0, 0) as a compute capability, None as the number of multiprocessors. Behind a
condition on CUDA a program may compute with such an answer, and stops where it went the other way before the port.

Called by `guards`; tests/port/test_port_answers.py. What the runtime answers is in `device._portable_runtime`.
"""

from __future__ import annotations

import ast

from toprope.port.file import File

__all__ = ["is_given"]

_EVERYWHERE = {"name", "total_memory"}
"""Properties that the runtime gives for every device."""
_SHOWN = {"print", "debug", "info", "warning", "warn", "log", "write", "str", "repr"}
_DEPTH = 4


def is_given(file: File, code: str, node: ast.AST) -> bool:
    """Return whether the program can go on with the answer that another device gives to a converted question.

    Args:
        file: the file.
        code: the question's rule.
        node: the function that is called.
    """
    if code not in ("TR039", "TR040", "TR041"):
        return True
    call = file.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        return isinstance(node, ast.alias)  # an import; where it is used is not known here
    used = {"TR039": _name, "TR040": _capability, "TR041": _properties}[code]
    return used(file, call, _DEPTH)


def _is_shown(file: File, node: ast.expr) -> bool:
    """Return whether a value is only printed: an argument of a function that prints, a part of such a text."""
    around = file.parent(node)
    while isinstance(around, ast.FormattedValue | ast.JoinedStr | ast.BinOp | ast.Tuple | ast.keyword):
        around = file.parent(around)
    if not isinstance(around, ast.Call):
        return isinstance(around, ast.Expr)
    name = getattr(around.func, "id", None) or getattr(around.func, "attr", None)
    return name in _SHOWN or (name == "format" and _is_shown(file, around))


def _reads(file: File, node: ast.expr) -> list[ast.Name] | None:
    """Return where the name is read that a value is assigned to; None where it is not assigned to one name."""
    statement = file.parent(node)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name) as target], value=value) if value is node:
            return file.reads(name, statement, target)
    return None


def _name(file: File, node: ast.expr, depth: int) -> bool:
    """The name of a device: any text will do, but as a key of a table or where one name is excluded."""
    around = file.parent(node)
    match around:
        case ast.Subscript(slice=key) if key is node:
            return False
        case ast.Compare(ops=operators):
            return not any(isinstance(each, ast.NotIn | ast.NotEq) for each in operators)
    reads = _reads(file, node)
    return reads is None or not depth or all(_name(file, each, depth - 1) for each in reads)


def _capability(file: File, node: ast.expr, depth: int) -> bool:
    """The compute capability: (0, 0) says "less than any", which is what is asked by > and >= alone."""
    if _is_shown(file, node) or not depth:
        return bool(depth)
    around = file.parent(node)
    match around:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Eq()]) if left is node:
            return True
        case ast.Compare(comparators=[right], ops=[ast.Lt() | ast.LtE() | ast.Eq()]) if right is node:
            return True
        case ast.Subscript(value=value) if value is node:
            return _capability(file, around, depth - 1)
        case ast.Tuple():
            return _capability(file, around, depth - 1)
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value) if value is node:
            parts = [each for each in elements if isinstance(each, ast.Name)]
            every = [read for each in parts for read in file.reads(each.id, around, each)]
            return len(parts) == len(elements) and all(_capability(file, each, depth - 1) for each in every)
    reads = _reads(file, node)
    return reads is not None and all(_capability(file, each, depth - 1) for each in reads)


def _properties(file: File, node: ast.expr, depth: int) -> bool:
    """The properties: name and memory are there on every device, and anything may be printed."""
    if _is_shown(file, node) or not depth:
        return bool(depth)
    around = file.parent(node)
    if isinstance(around, ast.Attribute):
        if around.attr == "name":
            return _name(file, around, depth - 1)
        return around.attr in _EVERYWHERE or _is_shown(file, around)
    reads = _reads(file, node)
    return reads is not None and all(_properties(file, each, depth - 1) for each in reads)
