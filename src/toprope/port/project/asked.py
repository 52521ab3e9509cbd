"""Texts of devices across files: arguments that functions hand on, by name, and tables with a key for CUDA.

Part of `facts`; `conditions.asked_texts` and `scan` follow texts by it. Tests: tests/port/test_port_asked_texts.py,
tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from toprope.port.syntax.nodes import Nodes, nodes_of

__all__ = [
    "OTHERS",
    "REST",
    "Answers",
    "Argument",
    "answers_of",
    "begins_with_cuda",
    "has_cuda_key",
    "is_one_device",
    "option_of",
]

Argument = tuple[str, str | int]
"""A function, method or class by its name, with an argument by its name or its place."""

REST = "**"
"""In the place of an argument: all that are given by name, handed on as `**more`."""

OTHERS = frozenset({"mps", "npu", "xpu", "hpu", "mlu", "musa", "xla", "rocm", "hip", "ipu", "privateuseone"})
"""Kinds of accelerators next to CUDA, as devices are named after them."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_OF_OTHERS = {"to", "cuda", "get", "format", "append", "update", "join", "print", "str", "isinstance", "getattr"}
"""Methods and functions that the names of others would be taken for."""
_ONE_DEVICE = re.compile(r"(?:^|_)(?:dev|device|map_location)(?:$|_(?:name|str|string|text|spec|id|in_use)$)", re.I)
_MAY_BE_DEVICE = re.compile(r"dev|cuda|gpu|provider|accel|location|where|place", re.IGNORECASE)
_SAYS_CUDA = re.compile(r"\^?\(?cuda(?:\b|_|:|\W|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Answers:
    """How a file hands texts of devices on, and looks them up.

    Attributes:
        handed: arguments that are handed on to another function, with that function's.
        tables: names of tables that have a key for CUDA and none for an NPU.
    """

    handed: frozenset[tuple[Argument, Argument]] = frozenset()
    tables: frozenset[str] = frozenset()


def is_one_device(name: str) -> bool:
    """Return whether a name says that it holds one device or the text of one: `device`, `device_str`, `self.dev`."""
    return bool(_ONE_DEVICE.search(name.strip("_")))


def option_of(call: ast.Call) -> str:
    """The attribute that `add_argument("-d", "--dist-backend")` gives to what is parsed; "" where that is not known."""
    for each in call.keywords:
        if each.arg == "dest":
            return str(each.value.value) if isinstance(each.value, ast.Constant) else ""
    names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    name = next((each for each in names if each.startswith("--")), names[0] if names else "")
    return name.lstrip("-").replace("-", "_")


def answers_of(tree: ast.Module, nodes: Nodes) -> Answers:
    """Return how a file hands its arguments on.

    Args:
        tree: the file.
        nodes: its nodes.
    """
    given = [(call, name, target) for call in nodes.calls for name, target in _handed(call)]
    tables = frozenset(_tables(tree))
    if not given:
        return Answers(tables=tables)
    places = _Places(nodes.parents())
    handed: set[tuple[Argument, Argument]] = set()
    for call, name, target in given:
        handed |= {(argument, target) for argument in places.arguments(call, name)}
    return Answers(frozenset(handed), tables)


def _tables(tree: ast.Module) -> Iterator[str]:
    """The names of tables, of the module or of its classes, that have a key for CUDA and none for an NPU."""
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    for statement in [*tree.body, *(inner for each in classes for inner in each.body)]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if has_cuda_key(value):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict() as value) if has_cuda_key(value):
                yield name


def begins_with_cuda(node: ast.AST | None) -> bool:
    """Return whether it is a text that begins with "cuda", in any case."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and len(text) < 40 and bool(_SAYS_CUDA.match(text))


def has_cuda_key(node: ast.expr) -> bool:
    """Return whether it is a table with a key for CUDA, and with none for an NPU."""
    match node:
        case ast.Dict(keys=keys):
            return any(map(begins_with_cuda, keys)) and not any(getattr(each, "value", None) == "npu" for each in keys)
        case ast.Call(func=ast.Name(id="dict"), keywords=given):
            return "cuda" in {each.arg for each in given} and "npu" not in {each.arg for each in given}
    return False


class _Places:
    """The functions and classes around the nodes of a file."""

    def __init__(self, parents: dict[ast.AST, ast.AST]) -> None:
        self._parents = parents
        self._kept: dict[ast.ClassDef, dict[str, set[Argument]]] = {}

    def arguments(self, node: ast.AST, name: str) -> set[Argument]:
        """The arguments, in calls of the function or class around a node, that have a name there."""
        attribute = name.removeprefix("self.") if name.startswith("self.") else ""
        at = self._parents.get(node)
        while at is not None:
            if attribute and isinstance(at, ast.ClassDef):
                return self._keeps(at).get(attribute, set())
            if not attribute and isinstance(at, _Function):
                called, names = self._names(at)
                if name in names:
                    return {(called, each) for each in names[name]}
            at = self._parents.get(at)
        return set()

    def _names(self, function: _Function) -> tuple[str, dict[str, list[str | int]]]:
        """The name under which a function is called, and the arguments of a call by the names of the parameters."""
        around = self._parents.get(function)
        owner = around if isinstance(around, ast.ClassDef) else None
        static = any(getattr(each, "id", "") == "staticmethod" for each in function.decorator_list)
        positional = [*function.args.posonlyargs, *function.args.args][owner is not None and not static :]
        names: dict[str, list[str | int]] = {each.arg: [place, each.arg] for place, each in enumerate(positional)}
        names |= {each.arg: [each.arg] for each in function.args.kwonlyargs}
        if function.args.kwarg is not None:
            names[function.args.kwarg.arg] = [REST]
        return owner.name if owner is not None and function.name == "__init__" else function.name, names

    def _keeps(self, owner: ast.ClassDef) -> dict[str, set[Argument]]:
        """The arguments that a class keeps as attributes when it is made."""
        if owner not in self._kept:
            kept: dict[str, set[Argument]] = {}
            for function in owner.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    called, names = self._names(function)
                    for name, attribute in _kept(function):
                        kept.setdefault(attribute, set()).update((called, each) for each in names.get(name, ()))
            self._kept[owner] = kept
        return self._kept[owner]


def _text_of(node: ast.expr) -> str:
    """The name whose text a node is: `device`, `str(device)`, `device.lower()`.

    It is "self.x" for an attribute of self, ".x" for one of something else.
    """
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=holder), attr=name) if name not in ("type", "device_type"):
            return f"self.{name}" if holder == "self" else f".{name}"
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _text_of(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "strip" | "split"), args=_):
            return _text_of(inner)
        case ast.Subscript(value=ast.Call() as inner):
            return _text_of(inner)
    return ""


def _handed(call: ast.Call) -> Iterator[tuple[str, Argument]]:
    """The names that a call hands on to a function, with the function and the argument."""
    called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if not called or called in _OF_OTHERS:
        return
    given: list[tuple[str | int, ast.expr]] = []
    for place, each in enumerate(call.args):
        if isinstance(each, ast.Starred):
            break
        given.append((place, each))
    given += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Name):
            yield keyword.value.id, (called, REST)
    for argument, value in given:
        if _MAY_BE_DEVICE.search(name := _text_of(value)):
            yield name, (called, argument)


def _kept(function: _Function) -> Iterator[tuple[str, str]]:
    """The parameters that a class keeps as they are, with the attributes."""
    for node in nodes_of(function):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=ast.Name(id=name)
            ):
                yield name, attribute
