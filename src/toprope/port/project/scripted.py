"""Code that TorchScript compiles: functions and modules that are scripted, and all that they reach.

The compiler reads the text of a function and knows torch's names alone, so nothing of it may be rewritten. What is
traced, exported or compiled by torch.compile runs as Python and is none of this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "ANY_MODULE", "Scripts", "full_name", "imports_of", "is_outside", "reached", "scripted_functions", "scripts_of",
    "styled_functions",
]  # fmt: skip

ANY_MODULE = "*"
"""In place of a class: a module that is not known is compiled, so that each one of the project may be."""

_PERHAPS = "?"  # before the name of a function, or of a parameter that may be any module
_COMPILES = {"script", "script_if_tracing", "script_method", "export", "interface"}
_LEFT_OUT = {"ignore", "unused"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Class(Protocol):
    """Bases and methods of a class, as far as TorchScript asks for them."""

    @property
    def bases(self) -> frozenset[str]:
        """The last names of what it inherits from."""


@dataclass(frozen=True)
class Scripts:
    """Functions and classes that a file has compiled.

    Attributes:
        compiles: names of functions and classes, methods as "Net.forward", and ANY_MODULE.
        calls: for each function and method what it calls: imported names in full, methods of itself as "self.name".
    """

    compiles: frozenset[str] = frozenset()
    calls: dict[str, frozenset[str]] = field(default_factory=dict)

    def __or__(self, other: Scripts) -> Scripts:
        calls = dict(self.calls)
        for name, found in other.calls.items():
            calls[name] = calls.get(name, frozenset()) | found
        return Scripts(self.compiles | other.compiles, calls)


def scripts_of(tree: ast.Module) -> Scripts:
    """Return what a file has compiled, and what calls what in it."""
    names = _jit_names(tree)
    own = {each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef | _Function)}
    imports = {name: full for name, full in imports_of(tree).items() if name not in own}
    compiles: set[str] = set()
    calls: dict[str, frozenset[str]] = {}
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    values.setdefault(_last(target), []).append(node.value)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if _last(base) == "ScriptModule":
                    compiles.add(f"{node.name}.forward")
    for function, name in _functions(tree, ""):
        does = {names.get(_dotted(each)) for each in function.decorator_list}
        does |= {names.get(_dotted(each.func)) for each in function.decorator_list if isinstance(each, ast.Call)}
        if does & _LEFT_OUT:
            continue
        if does & _COMPILES:
            compiles.add(name)
            owner = name.rpartition(".")[0]
            if "export" in does and owner:
                compiles.add(owner)
        found = calls.get(name, frozenset())
        calls[name] = found | {_called(each, imports) for each in ast.walk(function) if isinstance(each, ast.Call)} - {
            ""
        }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if {names.get(_dotted(each)) for each in node.decorator_list} & _COMPILES:
                compiles.add(node.name)
        elif isinstance(node, ast.Call) and names.get(_dotted(node.func)) in ("script", "script_if_tracing"):
            compiles |= _argument(node.args[0], values, 4) if node.args else {ANY_MODULE}
    return Scripts(frozenset(compiles), calls)


def _functions(node: ast.AST, owner: str) -> list[tuple[_Function, str]]:
    """The functions of a tree, those in classes with the class's name before their own."""
    found: list[tuple[_Function, str]] = []
    for each in ast.iter_child_nodes(node):
        if isinstance(each, _Function):
            found.append((each, f"{owner}.{each.name}" if owner else each.name))
            found += _functions(each, "")
        else:
            found += _functions(each, each.name if isinstance(each, ast.ClassDef) else owner)
    return found


def scripted_functions(tree: ast.AST, scripted: frozenset[str]) -> list[_Function]:
    """The functions of a tree that are among the scripted ones."""
    names = _jit_names(tree)
    return [
        function
        for function, name in _functions(tree, "")
        if name in scripted and not {names.get(_dotted(each)) for each in function.decorator_list} & _LEFT_OUT
    ]


_SCRIPT_TYPES = re.compile(
    r"(?:torch\.)?(?:Tensor|device|dtype)|(?:typing\.)?(?:Optional|List|Tuple|Dict|Union|list|tuple|dict)|int|float|bool|str"
    r"|None|Final|(?:jit\.|torch\.jit\.)?Final"
)
_TYPE_COMMENT = re.compile(rb"#\s*type:\s*\(.*\)\s*->")


def styled_functions(tree: ast.AST, data: bytes) -> list[_Function]:
    """The functions of a file that are written for TorchScript, whether or not anything in the project scripts them.

    A library's functions are scripted by its users. All arguments have types that TorchScript knows, and the function
    says that it may be compiled: by a name of torch.jit in it, a comment with its types, or a call of torch.ops.
    """
    if not (b"torch.ops." in data or b"jit" in data or _TYPE_COMMENT.search(data)):
        return []
    comments = {number for number, line in enumerate(data.splitlines(), 1) if _TYPE_COMMENT.search(line)}
    return [function for function, name in _functions(tree, "") if _is_styled(function, name, comments)]


def _is_styled(function: _Function, name: str, comments: set[int]) -> bool:
    if comments.intersection(range(function.lineno, function.body[0].lineno + 1)):
        return True
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    arguments = arguments[1:] if "." in name and arguments[:1] and arguments[0].arg == "self" else arguments
    if not arguments or function.args.vararg or function.args.kwarg:
        return False
    if not all(each.annotation is not None and _is_script_type(each.annotation) for each in arguments):
        return False
    dotted = (_dotted(each) for each in ast.walk(function) if isinstance(each, ast.Attribute))
    return any(
        re.match(r"torch\.ops\.(?!aten\.)\w+\.\w|(?:torch\.)?jit\.(?:is_scripting|annotate)", each) for each in dotted
    )


def _is_script_type(node: ast.expr) -> bool:
    names = [_dotted(each) or "?" for each in _outermost(node)]
    return all(_SCRIPT_TYPES.fullmatch(each) for each in names)


def _outermost(node: ast.AST) -> list[ast.AST]:
    """The names of an annotation, those with dots as a whole."""
    if isinstance(node, ast.Name | ast.Attribute):
        return [node]
    if isinstance(node, ast.Constant):
        return [] if node.value is None else [node]
    return [each for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.expr) for each in _outermost(inner)]


def _jit_names(tree: ast.AST) -> dict[str, str]:
    """The names in torch.jit by the texts under which a file has them, such as "jit.script"."""
    every = (*_COMPILES, *_LEFT_OUT)
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    if alias.name == "torch" or (alias.name == "torch.jit" and alias.asname is None):
                        found |= {f"{alias.asname or 'torch'}.jit.{name}": name for name in every}
                    elif alias.name == "torch.jit":
                        found |= {f"{alias.asname}.{name}": name for name in every}
            case ast.ImportFrom(module="torch", names=aliases):
                for alias in aliases:
                    if alias.name == "jit":
                        found |= {f"{alias.asname or 'jit'}.{name}": name for name in every}
            case ast.ImportFrom(module="torch.jit", names=aliases):
                found |= {alias.asname or alias.name: alias.name for alias in aliases if alias.name in every}
    for node in ast.walk(tree):  # script = torch.jit.script
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _dotted(node.value) in found:
            found[node.targets[0].id] = found[_dotted(node.value)]
    return found


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        below = _dotted(node.value)
        return f"{below}.{node.attr}" if below else ""
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def imports_of(tree: ast.AST) -> dict[str, str]:
    """The full names of what a file imports, by its own names for them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{base}{'' if base.endswith('.') else '.'}{alias.name}"
    return found


def full_name(node: ast.AST, imports: Mapping[str, str]) -> str:
    """The full name of what is imported, such as "torch.gather"; "" for what is not."""
    root, _, rest = _dotted(node).partition(".")
    base = imports.get(root, "")
    return f"{base}.{rest}" if base and rest else base


def is_outside(name: str, modules: Collection[str]) -> bool:
    """Return whether a full name is of another project: "torch.gather", where no file here is called torch."""
    root, dot, _ = name.partition(".")
    return bool(root and dot) and root != "self" and root not in modules


def _called(call: ast.Call, imports: Mapping[str, str]) -> str:
    """The name of what is called: in full where it is imported; "" for a method of some object."""
    function = call.func
    if isinstance(function, ast.Name):
        return imports.get(function.id, function.id)
    if not isinstance(function, ast.Attribute):
        return ""
    if isinstance(function.value, ast.Name) and function.value.id == "self":
        return f"self.{function.attr}"
    return full_name(function, imports)


def _argument(node: ast.expr, values: Mapping[str, list[ast.expr]], depth: int) -> set[str]:
    """Return what is compiled where this is handed to torch.jit.script."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            inner = [each for each in node.args if isinstance(each, ast.Call)]  # Sequential(Net()), Net().to(device)
            below = node.func.value if isinstance(node.func, ast.Attribute) else None
            inner += [below] if isinstance(below, ast.Call) else []
            found = {name} if name[:1].isupper() else set()
            for each in inner:
                found |= _argument(each, values, depth)
            if isinstance(below, ast.Name) and not found and depth:
                return _argument(below, values, depth - 1)  # net.eval()
            return found or {ANY_MODULE}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name in values and depth:
                every = [_argument(each, values, depth - 1) for each in values[name]]
                return set().union(*every)
            return {name} if name[:1].isupper() else {f"{_PERHAPS}{name}"}
    return {ANY_MODULE}


def reached(
    scripts: Scripts, classes: Mapping[str, _Class], modules: frozenset[str], files: Collection[str] = ()
) -> frozenset[str]:
    """Functions and methods that are compiled, with all that these call.

    Args:
        scripts: of all files.
        classes: the project's classes.
        modules: names of the classes that may be torch modules.
        files: the names under which the project's files may be imported.
    """
    own = {
        name: frozenset(_last_part(each) for each in called if not is_outside(each, files))
        for name, called in scripts.calls.items()
    }
    scripts = Scripts(scripts.compiles, own)
    found: set[str] = set()
    ahead = list(scripts.compiles)
    while ahead:
        name = ahead.pop()
        if name.startswith(_PERHAPS):
            name = name.removeprefix(_PERHAPS)
            name = name if name in scripts.calls or name in classes else ANY_MODULE
        if name in found:
            continue
        found.add(name)
        if name == ANY_MODULE:
            ahead += [each for each in modules if each in classes]
        elif name in classes:
            ahead += _of_class(name, scripts, classes, modules)
        else:
            owner, _, _ = name.rpartition(".")
            for each in scripts.calls.get(name, ()):
                ahead += _targets(each, owner, scripts, classes)
    return frozenset(found - {ANY_MODULE})


def _last_part(name: str) -> str:
    return name if name.startswith("self.") else name.rpartition(".")[2]


def _lineage(name: str, classes: Mapping[str, _Class]) -> list[str]:
    """A class and those of the project that it inherits from."""
    found = [name]
    for each in found:
        found += [base for base in sorted(classes[each].bases) if base in classes and base not in found]
    return found


def _of_class(name: str, scripts: Scripts, classes: Mapping[str, _Class], modules: frozenset[str]) -> list[str]:
    """The methods of a class that are compiled first: a module's forward, all of another class; and its submodules."""
    first: list[str] = []
    for each in _lineage(name, classes):
        methods = [key for key in scripts.calls if key.startswith(f"{each}.")]
        if name in modules:
            first += [key for key in methods if key == f"{each}.forward"]
            made = {called for key in methods for called in scripts.calls[key]}
            first += [called for called in made if called in modules]
        else:
            first += methods
    return first


def _targets(called: str, owner: str, scripts: Scripts, classes: Mapping[str, _Class]) -> list[str]:
    """The functions and methods of the project that a name called in a compiled function may be."""
    if called.startswith("self."):
        method = called.removeprefix("self.")
        return [f"{each}.{method}" for each in (_lineage(owner, classes) if owner in classes else [owner])
                if f"{each}.{method}" in scripts.calls]  # fmt: skip
    return [called] if called in scripts.calls or called in classes else []
