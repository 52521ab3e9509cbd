"""Code that TorchScript compiles: functions and modules that are scripted, and all that they reach.

The compiler reads the text of a function and knows torch's names alone, so nothing of it may be rewritten. What is
traced, exported or compiled by torch.compile runs as Python and is none of this.

Called by `facts`, and asked by `file` whether a place may be rewritten; tests/port/test_port_receivers.py,
tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toprope.port.syntax.nodes import Nodes, name_of, nodes_of

__all__ = [
    "ANY_MODULE", "Scripts", "fingerprint", "full_name", "imports_of", "is_outside", "scripted_functions", "scripts_of",
    "styled_functions",
]  # fmt: skip

ANY_MODULE = "*"
"""In place of a class: a module that is not known is compiled, so that each one of the project may be."""

PERHAPS = "?"
"""Before the name of a function, or of a parameter that may be any module."""
WRAPPED = "?of "
"""Before the name of a function that has its own argument compiled: `def maybe(f): return torch.jit.script(f)`."""
_COMPILES = {"script", "script_if_tracing", "script_method", "export", "interface"}
_LEFT_OUT = {"ignore", "unused"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Scripts:
    """Functions and classes that a file has compiled.

    Names are the file's own, methods as "Net.forward"; of what is imported they are in full.

    Attributes:
        compiles: functions, classes and methods, and ANY_MODULE.
        calls: for each function and method what it calls; methods of itself as "self.name", of what it holds as
            "self.*.name".
        bases: for each class what it inherits from.
        refused: functions and methods that TorchScript cannot compile, so that nothing that is compiled calls them.
        decorators: for each function what it is decorated with.
        given: functions whose names speak of scripts, each with a function or class that it is given.
        stars: whether the file has names from a star import.
        fingerprint: of the file, as `fingerprint` gives it.
    """

    compiles: frozenset[str] = frozenset()
    calls: dict[str, frozenset[str]] = field(default_factory=dict)
    bases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    decorators: dict[str, frozenset[str]] = field(default_factory=dict)
    given: frozenset[tuple[str, str]] = frozenset()
    stars: bool = False
    fingerprint: tuple[tuple[str, int], ...] = ()


def fingerprint(tree: ast.AST) -> tuple[tuple[str, int], ...]:
    """The functions of a file with their lines: which file it is, for one who has its tree alone."""
    return _lines_of(_functions(tree))


def _lines_of(functions: list[tuple[_Function, str]]) -> tuple[tuple[str, int], ...]:
    return tuple((name, function.lineno) for function, name in functions)


def scripts_of(tree: ast.Module, nodes: Nodes, imported: Mapping[str, str]) -> Scripts:
    """Return what a file has compiled, and what calls what in it.

    Args:
        tree: the file.
        nodes: its nodes.
        imported: what it imports, from `imports_of`.
    """
    names = _jit_names(nodes.statements)
    own = {each.name for each in nodes.statements if isinstance(each, ast.ClassDef | _Function)}
    imports = {name: full for name, full in imported.items() if name not in own}
    compiles: set[str] = set()
    calls: dict[str, frozenset[str]] = {}
    bases: dict[str, tuple[str, ...]] = {}
    refused: set[str] = set()
    decorators: dict[str, frozenset[str]] = {}
    given: set[tuple[str, str]] = set()
    values: dict[str, list[ast.expr]] = {}
    wrapped: dict[ast.AST, str] = {}
    stars = False
    for node in nodes.statements:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    values.setdefault(name_of(target), []).append(node.value)
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple | ast.List):
            values.setdefault(name_of(node.target), []).extend(node.iter.elts)
        elif isinstance(node, ast.ClassDef):
            inherits = (_meant(each, imports) for each in node.bases)
            bases[node.name] = bases.get(node.name, ()) + tuple(filter(None, inherits))
            if any(name_of(base) == "ScriptModule" for base in node.bases):
                compiles.add(f"{node.name}.forward")
            if {names.get(_dotted(each)) for each in node.decorator_list} & _COMPILES:
                compiles.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            stars |= any(each.name == "*" for each in node.names)
    functions = _functions(tree)
    for function, name in functions:
        does = {names.get(_dotted(each)) for each in function.decorator_list}
        does |= {names.get(_dotted(each.func)) for each in function.decorator_list if isinstance(each, ast.Call)}
        if does & _LEFT_OUT:
            continue
        owner = name.rpartition(".")[0]
        if does & _COMPILES:
            compiles.add(name)
            if "export" in does and owner:
                compiles.add(owner)
        inside = nodes_of(function)
        called = [each for each in inside if isinstance(each, ast.Call)]
        calls[name] = calls.get(name, frozenset()) | {_called(each, imports) for each in called} - {""}
        decorators[name] = frozenset(
            filter(None, (_meant(getattr(each, "func", each), imports) for each in function.decorator_list))
        )
        if not does & _COMPILES and _is_refused(function, inside, imports):
            refused.add(name)
        arguments = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        for each in called:
            if each.args and isinstance(each.args[0], ast.Name) and each.args[0].id in arguments:
                wrapped[each] = owner if owner and each.args[0].id == "self" else f"{WRAPPED}{name}"
    for call in nodes.calls:
        if names.get(_dotted(call.func)) in ("script", "script_if_tracing"):
            if call in wrapped:
                compiles.add(wrapped[call])
            elif call.args:
                compiles |= _argument(call.args[0], values, imports, 4)
            else:
                compiles |= {ANY_MODULE} if any(each.arg is None for each in call.keywords) else set()
                for keyword in call.keywords[:1]:
                    compiles |= _argument(keyword.value, values, imports, 4)
        elif call.args and _SPEAKS.search(name_of(call.func)):
            callee = _meant(call.func, imports)
            given |= {(callee, each) for each in _argument(call.args[0], values, imports, 4)} if callee else set()
    return Scripts(
        frozenset(compiles), calls, bases, frozenset(refused), decorators, frozenset(given), stars, _lines_of(functions)
    )


_SPEAKS = re.compile(r"jit|script", re.IGNORECASE)
_REFUSED = (
    ast.Try, ast.TryStar, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Lambda, ast.Import,
    ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.NamedExpr,
    ast.Set, ast.SetComp, ast.Match,
)  # fmt: skip
"""Nodes for which torch.jit.frontend has no builder."""
_HOSTS = {
    "os", "json", "pickle", "subprocess", "shutil", "glob", "threading", "queue", "socket", "time", "random", "pathlib",
    "argparse", "numpy", "cv2", "PIL", "librosa", "soundfile", "scipy", "pandas", "yaml", "tqdm", "onnxruntime",
    "tensorrt", "transformers",
}  # fmt: skip
"""Packages whose functions TorchScript cannot call."""


def _is_refused(function: _Function, nodes: Sequence[ast.AST], imports: Mapping[str, str]) -> bool:
    """Return whether TorchScript cannot compile a function: by its syntax, or by what it calls.

    One that asks whether it is scripted has code for Python next to code for TorchScript, and is not judged.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    inside = nodes[1:]  # but for the function itself
    if any(isinstance(each, ast.Attribute | ast.Name) and name_of(each) in _ASKS for each in inside):
        return False
    given = function.args
    if given.vararg or given.kwarg or any(each is not None for each in given.kw_defaults):
        return True
    for each in inside:
        if isinstance(each, _REFUSED) or (isinstance(each, ast.For | ast.While) and each.orelse):
            return True
        if isinstance(each, ast.comprehension) and each.ifs:
            return True
        if isinstance(each, ast.Call):
            name = full_name(each.func, imports)
            if name.partition(".")[0] in _HOSTS or name in ("torch.load", "torch.save") or name_of(each.func) == "open":
                return True
            if any(keyword.arg is None for keyword in each.keywords):
                return True
    return False


_ASKS = {"is_scripting", "is_tracing", "_IgnoreContextManager"}


def _functions(node: ast.AST, owner: str = "") -> list[tuple[_Function, str]]:
    """The functions of a tree, those in classes with the class's name before their own. They are statements alone."""
    found: list[tuple[_Function, str]] = []
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, block, ()):
            if isinstance(each, _Function):
                found.append((each, f"{owner}.{each.name}" if owner else each.name))
                found += _functions(each)
            else:
                found += _functions(each, each.name if isinstance(each, ast.ClassDef) else owner)
    return found


def scripted_functions(tree: ast.AST, scripted: frozenset[str]) -> list[_Function]:
    """The functions of a tree that are among the scripted ones."""
    names = _jit_names(nodes_of(tree))
    return [
        function
        for function, name in _functions(tree)
        if name in scripted and not {names.get(_dotted(each)) for each in function.decorator_list} & _LEFT_OUT
    ]


_SCRIPT_TYPES = re.compile(
    r"(?:torch\.)?(?:Tensor|device|dtype)|(?:typing\.)?(?:Optional|List|Tuple|Dict|Union|list|tuple|dict)|int|float|bool|str"
    r"|None|Final|(?:jit\.|torch\.jit\.)?Final"
)
_TYPE_COMMENT = re.compile(rb"#\s*type:\s*\(.*\)\s*->")


def styled_functions(tree: ast.AST, data: bytes) -> list[_Function]:
    """The functions of a file that are written for TorchScript, whether or not anything in the project scripts them.

    A library's functions are scripted by its users. Such a function has a comment with its types; or it asks
    torch.jit.is_scripting(), and has no types that TorchScript does not know; or all its arguments have types that
    TorchScript knows, and it annotates or calls torch.ops.
    """
    if not (b"torch.ops." in data or b"jit" in data or _TYPE_COMMENT.search(data)):
        return []
    comments = {number for number, line in enumerate(data.splitlines(), 1) if _TYPE_COMMENT.search(line)}
    return [function for function, name in _functions(tree) if _is_styled(function, name, comments)]


def _is_styled(function: _Function, name: str, comments: set[int]) -> bool:
    if comments.intersection(range(function.lineno, function.body[0].lineno + 1)):
        return True
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    arguments = arguments[1:] if "." in name and arguments[:1] and arguments[0].arg == "self" else arguments
    if not arguments or function.args.vararg or function.args.kwarg:
        return False
    if not all(each.annotation is None or _is_script_type(each.annotation) for each in arguments):
        return False
    dotted = [_dotted(each) for each in nodes_of(function) if isinstance(each, ast.Attribute)]
    if any(re.fullmatch(r"(?:torch\.)?jit\.is_scripting", each) for each in dotted):
        return True
    names = re.compile(r"torch\.ops\.(?!aten\.)\w+\.\w|(?:torch\.)?jit\.annotate")
    return all(each.annotation is not None for each in arguments) and any(map(names.match, dotted))


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


def _jit_names(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """The names in torch.jit by the texts under which a file has them, such as "jit.script"."""
    every = (*_COMPILES, *_LEFT_OUT)
    found: dict[str, str] = {}
    for node in nodes:
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
    for node in nodes:  # script = torch.jit.script, or another one where it is not wanted
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for each in _chosen(node.value):
                if _dotted(each) in found:
                    found[node.targets[0].id] = found[_dotted(each)]
    return found


def _chosen(node: ast.expr) -> list[ast.expr]:
    """The functions that an expression may be: `torch.jit.script if fast else same`, `partial(torch.jit.script)`."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return [*_chosen(body), *_chosen(orelse)]
        case ast.Call(func=function, args=[first, *_]) if name_of(function) == "partial":
            return [first]
    return [node]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        below = _dotted(node.value)
        return f"{below}.{node.attr}" if below else ""
    return node.id if isinstance(node, ast.Name) else ""


def imports_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The full names of what the nodes of a file import, by its own names for them."""
    found: dict[str, str] = {}
    for node in nodes:
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


def _meant(node: ast.AST, imports: Mapping[str, str]) -> str:
    """The name of a function or class: in full where it is imported; "" for an attribute of something else."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return imports.get(node.id, node.id)
    return full_name(node, imports) if isinstance(node, ast.Attribute) else ""


def _called(call: ast.Call, imports: Mapping[str, str]) -> str:
    """The name of what is called: in full where it is imported; "" for a method of some object."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
        case ast.Attribute(value=inner, attr=name) if _dotted(inner).startswith("self."):
            return f"self.*.{name}"
    return _meant(call.func, imports)


def _argument(node: ast.expr, values: Mapping[str, list[ast.expr]], imports: Mapping[str, str], depth: int) -> set[str]:
    """Return what is compiled where this is handed to torch.jit.script."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            inner = [each for each in node.args if isinstance(each, ast.Call)]  # Sequential(Net()), Net().to(device)
            below = node.func.value if isinstance(node.func, ast.Attribute) else None
            inner += [below] if isinstance(below, ast.Call) else []
            meant = _meant(node.func, imports)
            found = {meant or name} if (meant or name).rpartition(".")[2][:1].isupper() else set()
            for each in inner:
                found |= _argument(each, values, imports, depth)
            if isinstance(below, ast.Name) and not found and depth:
                return _argument(below, values, imports, depth - 1)  # net.eval()
            return found or {ANY_MODULE}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name in values and depth:
                every = [_argument(each, values, imports, depth - 1) for each in values[name]]
                return set().union(*every)
            meant = _meant(node, imports) or name
            return {meant} if meant.rpartition(".")[2][:1].isupper() else {f"{PERHAPS}{meant}"}
        case ast.IfExp(body=body, orelse=orelse):
            return _argument(body, values, imports, depth) | _argument(orelse, values, imports, depth)
    return {ANY_MODULE}
