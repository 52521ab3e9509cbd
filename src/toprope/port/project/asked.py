"""Arguments that functions compare with "cuda", by name across files: what decides by the text of a device.

`def start(device): if device == "cuda": ...` stays as it is, since "cuda:1" is another text on CUDA. So what is given
to it must stay, too, where the answer says where tensors are: the name of another card is taken for the CPU there.

Part of `facts`; used by `rules.tests`. Tests: tests/port/test_port_compared.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toprope.port.syntax.nodes import Nodes, nodes_of

__all__ = ["OTHERS", "Answers", "Argument", "answers_of", "closure", "is_one_device", "option_of"]

Argument = tuple[str, str | int]
"""A function, method or class by its name, with an argument by its name or its place."""

OTHERS = frozenset({"mps", "npu", "xpu", "hpu", "mlu", "musa", "xla", "rocm", "hip", "ipu", "privateuseone"})
"""Kinds of accelerators next to CUDA, as devices are named after them."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_OF_OTHERS = {"to", "cuda", "get", "format", "append", "update", "join", "print", "str", "isinstance", "getattr"}
"""Methods and functions that the names of others would be taken for."""
_ONE_DEVICE = re.compile(r"(?:^|_)(?:dev|device|map_location)(?:$|_(?:name|str|string|text|spec|id|in_use)$)", re.I)
_MAY_BE_DEVICE = re.compile(r"dev|cuda|gpu|provider|accel|location|where|place", re.IGNORECASE)
_DEVICES = re.compile(r"(?:cuda|cpu|mps|npu|xpu)(?::\d+)?|\w+ExecutionProvider")
_OF_THE_RUN = {"autocast", "GradScaler", "print", "info", "debug", "warning", "synchronize", "empty_cache"}
"""Calls that only switch something on for CUDA: no tensor is on another device without them."""
_DTYPE = re.compile(r"dtype|\.(?:b?float|half|double|int|long|u?int)\d*$")


@dataclass(frozen=True)
class Answers:
    """Questions that the functions of a file ask about the text of an argument.

    Attributes:
        compared: arguments that are compared with "cuda".
        decided: those whose answer says where tensors are, or has no way for other devices.
        handed: arguments that are handed on to another function, with that function's.
        settings: attributes of options and their like (`args.run_device`) that decide in the same way.
    """

    compared: frozenset[Argument] = frozenset()
    decided: frozenset[Argument] = frozenset()
    handed: frozenset[tuple[Argument, Argument]] = frozenset()
    settings: frozenset[str] = frozenset()


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


def closure(
    decided: Iterable[frozenset[Argument]], handed: Iterable[frozenset[tuple[Argument, Argument]]]
) -> frozenset[Argument]:
    """Return the arguments that decide, also through the functions that they are handed on to."""
    found = frozenset[Argument]().union(*decided)
    pairs = frozenset[tuple[Argument, Argument]]().union(*handed)
    while True:
        more = {source for source, target in pairs if target in found} - found
        if not more:
            return found
        found |= more


def answers_of(tree: ast.Module, nodes: Nodes) -> Answers:
    """Return what the functions of a file ask of their arguments.

    Args:
        tree: the file.
        nodes: its nodes.
    """
    asking = [each for each in nodes.all if isinstance(each, ast.Compare | ast.Call | ast.Match)]
    tests = [(node, name) for node in asking for name in _names_in(node)]
    given = [(call, name, target) for call in nodes.calls for name, target in _handed(call)]
    if not tests and not given:
        return Answers()
    parents = nodes.parents()
    places = _Places(parents)
    compared: set[Argument] = set()
    decided: set[Argument] = set()
    handed: set[tuple[Argument, Argument]] = set()
    settings: set[str] = set()
    for test, name in tests:
        around, arguments = places.arguments(test, name)
        if arguments and _is_equality(test):
            compared |= arguments
        bare = name.rpartition(".")[2]
        if (arguments or name.startswith(".")) and _stays(around or tree, bare, test) and _decides(test, name, parents):
            decided |= arguments
            settings |= {bare} if name.startswith(".") else set()
    for call, name, target in given:
        handed |= {(argument, target) for argument in places.arguments(call, name)[1]}
    settings -= set(_of_two_kinds(nodes.all)) if settings else set()
    return Answers(frozenset(compared), frozenset(decided), frozenset(handed), frozenset(settings))


class _Places:
    """The functions and classes around the nodes of a file."""

    def __init__(self, parents: dict[ast.AST, ast.AST]) -> None:
        self._parents = parents
        self._kept: dict[ast.ClassDef, dict[str, set[Argument]]] = {}

    def arguments(self, node: ast.AST, name: str) -> tuple[ast.AST | None, set[Argument]]:
        """The function or class around a node whose argument has a name there, with that argument in a call."""
        attribute = name.removeprefix("self.") if name.startswith("self.") else ""
        at = self._parents.get(node)
        while at is not None:
            if attribute and isinstance(at, ast.ClassDef):
                return at, self._keeps(at).get(attribute, set())
            if not attribute and isinstance(at, _Function):
                called, names = self._names(at)
                if name in names:
                    return at, {(called, each) for each in names[name]}
            at = self._parents.get(at)
        return None, set()

    def _names(self, function: _Function) -> tuple[str, dict[str, list[str | int]]]:
        """The name under which a function is called, and the arguments of a call by the names of the parameters."""
        around = self._parents.get(function)
        owner = around if isinstance(around, ast.ClassDef) else None
        static = any(getattr(each, "id", "") == "staticmethod" for each in function.decorator_list)
        positional = [*function.args.posonlyargs, *function.args.args][owner is not None and not static :]
        names: dict[str, list[str | int]] = {each.arg: [place, each.arg] for place, each in enumerate(positional)}
        names |= {each.arg: [each.arg] for each in function.args.kwonlyargs}
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


def _of_two_kinds(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The options whose choices are "cuda" and "cpu": a comparison with "cuda" is converted."""
    for call in nodes:
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            given = next((each.value for each in call.keywords if each.arg == "choices"), None)
            words = given.elts if isinstance(given, ast.List | ast.Tuple) else []
            if {each.value for each in words if isinstance(each, ast.Constant)} in ({"cuda"}, {"cuda", "cpu"}):
                yield option_of(call)


def _is_equality(test: ast.AST) -> bool:
    """Return whether a name itself is compared with "cuda", or matched: another text gives another answer."""
    match test:
        case ast.Compare(left=ast.Name()):
            return True
        case ast.Compare(left=ast.Constant(), ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Name()]):
            return True
    return isinstance(test, ast.Match)


def _names_in(node: ast.Compare | ast.Call | ast.Match) -> Iterator[str]:
    """The names that a node compares with "cuda", or chooses by."""
    match node:
        case ast.Compare(left=left, ops=[_], comparators=[right]):
            for one, other in ((left, right), (right, left)):
                if _text_of(one) and any(_is_cuda(each) for each in nodes_of(other)):
                    yield _text_of(one)
        case ast.Call(func=ast.Attribute(value=value, attr="startswith"), args=[ast.Constant(value="cuda"), *_]):
            yield from filter(None, [_text_of(value)])
        case ast.Match(subject=ast.Name(id=name)):
            yield name


def _is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(":")[0] == "cuda"


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


def _stays(function: ast.AST, name: str, test: ast.AST) -> bool:
    """Return whether the port leaves a comparison: but for `"cuda" in device` of one that tells no kinds apart."""
    is_in = isinstance(test, ast.Call) or (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In | ast.NotIn) and _is_cuda(test.left)
    )
    if not is_in or not is_one_device(name.removeprefix("self.")):
        return True
    texts = {
        each.value for each in nodes_of(function) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    return any(each.partition(":")[0] in OTHERS for each in texts)


def _decides(test: ast.AST, name: str, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether what a comparison chooses says where tensors are, or where there is no way for other devices."""
    if isinstance(test, ast.Match):
        return any(map(_places, test.cases))
    inner, outer = test, parents.get(test)
    while isinstance(outer, ast.BoolOp | ast.UnaryOp):
        inner, outer = outer, parents.get(outer)
    if isinstance(outer, ast.IfExp) and inner is outer.test:
        return _places(outer.body) or _places(outer.orelse)
    if not isinstance(outer, ast.If) or inner is not outer.test:
        return False
    is_equal = not isinstance(test, ast.Compare) or isinstance(test.ops[0], ast.Eq | ast.In)
    others: list[ast.stmt] = outer.orelse if is_equal else outer.body
    statements = [each for each in (*outer.body, *outer.orelse) if not _sets(each, name)]
    if any(map(_places, statements)) or any(map(_refuses, others)):
        return True
    last = outer
    while len(last.orelse) == 1 and isinstance(last.orelse[0], ast.If):
        last = last.orelse[0]
    return not last.orelse and last is not outer and any(map(_binds, outer.body))


def _sets(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement gives the name itself another text: `if d == "cuda" and ...: d = "cpu"`."""
    return isinstance(statement, ast.Assign) and any(_text_of(each) == name for each in statement.targets)


def _binds(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Assign) and any(isinstance(each, ast.Name) for each in statement.targets)


def _refuses(statement: ast.AST) -> bool:
    return any(isinstance(each, ast.Raise) for each in nodes_of(statement))


def _places(node: ast.AST) -> bool:
    """Return whether code says on which device something is."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _OF_THE_RUN:
            return False
        case ast.Constant(value=str(text)) if _DEVICES.fullmatch(text):
            return True
        case ast.Call(func=ast.Attribute(attr="cuda" | "cpu" | "device")):
            return True
        case ast.Call(func=ast.Attribute(attr="to"), args=[where, *_]) if not _DTYPE.search(ast.unparse(where)):
            return True
        case ast.Compare():
            return False
    return any(map(_places, ast.iter_child_nodes(node)))


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
