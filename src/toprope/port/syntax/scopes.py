"""Meaning of names in a file: one walk finds the scopes, their bindings, and the nodes that rules ask for.

Made by `engine` once a file; read by `file` and the conditions. The rules of scopes are Python's. Tests:
tests/port/test_port_names.py, tests/port/test_port_options.py.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = ["Binding", "Scope", "Walk", "arguments_of", "with_defaults"]

_SKIPPED = {"ctx", "op", "ops", "kind", "type_comment", "type_ignores", "conversion", "level"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAX_ALIASES = 8


@dataclass(frozen=True)
class Binding:
    """One place where a name gets a value.

    Attributes:
        node: the statement or the name.
        imported: the full name of what is imported; None for other bindings.
        value: what is assigned, where it is a plain `name = value`; None for other bindings.
    """

    node: ast.AST
    imported: str | None = None
    value: ast.expr | None = None


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension, and the names that are bound in it."""

    node: ast.AST
    parent: Scope | None
    is_class: bool = False
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    module_names: set[str] = field(default_factory=set)
    """Names that `global` sends to the module."""
    outer_names: set[str] = field(default_factory=set)
    """Names that `nonlocal` sends to the function around this one."""

    def bind(self, name: str, binding: Binding) -> None:
        """Note that the name gets a value here."""
        scope = self
        while name in scope.outer_names and scope.parent is not None:
            scope = scope.parent
        if name in scope.module_names:
            scope = scope.module
        scope.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> list[Binding]:
        """The bindings of what the name means here; none where it is bound nowhere in the file."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.module_names:
                return self.module.bindings.get(name, [])
            # functions inside a class do not see its names
            if (not scope.is_class or scope is self) and name in scope.bindings:
                return scope.bindings[name]
            scope = scope.parent
        return []

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.module


class Walk:
    """One pass over a tree.

    Args:
        tree: the file.
        wanted: types of nodes that rules ask for.
        assumed: names that mean something although the file does not bind them, such as an earlier notebook cell's.

    Attributes:
        module: the scope of the file.
        nodes: the nodes of the wanted types, outer ones first, each with the number after its last inner one.
        parents: the parent of every node.
        scopes: the scope of every node of a wanted type, and of every name and attribute.
        names: every name that is bound or used anywhere.
    """

    def __init__(self, tree: ast.Module, wanted: tuple[type[ast.AST], ...], assumed: dict[str, str]) -> None:
        self.module = Scope(tree, None)
        self.nodes: list[tuple[ast.AST, int]] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self.names: set[str] = set()
        self._telling = set(assumed)  # names that may have a full name: the others need no look
        self._wanted = set(wanted)
        self._fields: dict[type[ast.AST], tuple[str, ...]] = {}
        self._assumed = dict(assumed)
        self._asked: set[int] = set()  # bindings whose meaning is being looked for
        for statement in tree.body:
            self._visit(statement, tree, self.module)

    def assume(self, names: dict[str, str], all_of: str = "") -> None:
        """Let names mean something that the file binds only by a star import.

        Args:
            names: full names by name.
            all_of: the module from which all others come that nothing binds; "" where there is none.
        """
        self._assumed = names | self._assumed
        if all_of:
            unbound = {name for name in self.names if not hasattr(builtins, name)}
            self._assumed = {name: f"{all_of}.{name}" for name in unbound} | self._assumed
        self._telling |= set(self._assumed)

    @cached_property
    def read(self) -> dict[str, list[tuple[ast.Name, Scope]]]:
        """The places where each name is read, with the scope."""
        found: dict[str, list[tuple[ast.Name, Scope]]] = {}
        for node, scope in self.scopes.items():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append((node, scope))
        return found

    def dotted(self, node: ast.AST, depth: int = 0) -> str | None:
        """The full name of what a name or attribute means, such as "torch.cuda.amp.autocast" for `amp.autocast`.

        None where that cannot be said: an object, a parameter, a name with several meanings.
        """
        if isinstance(node, ast.Attribute):
            below = self.dotted(node.value, depth)
            return None if below is None else f"{below}.{node.attr}"
        if isinstance(node, ast.Name):
            return (
                None
                if node.id not in self._telling
                else self._meaning(node.id, self.scopes.get(node, self.module), depth)
            )
        if isinstance(node, ast.Call):  # getattr(torch, "cuda")
            match node:
                case ast.Call(func=ast.Name(id="getattr"), args=[base, ast.Constant(value=str(name))], keywords=[]):
                    below = self.dotted(base, depth)
                    return None if below is None else f"{below}.{name}"
        return None

    def _meaning(self, name: str, scope: Scope, depth: int) -> str | None:
        bindings = scope.find(name)
        if not bindings:
            return self._assumed.get(name)
        asked = id(bindings)
        if asked in self._asked:  # `x = x.part`, more than once: what it means is not what it meant
            return None
        self._asked.add(asked)
        try:
            return self._one_meaning(bindings, depth)
        finally:
            self._asked.discard(asked)

    def _one_meaning(self, bindings: Sequence[Binding], depth: int) -> str | None:
        """Return what all bindings of a name mean; None where they differ, as soon as that is seen."""
        found: str | None = None
        for each in bindings:
            if each.imported is not None:
                meaning: str | None = each.imported
            elif isinstance(each.value, ast.Constant) and each.value.value is None and len(bindings) > 1:
                continue  # `except ImportError: amp = None`
            elif isinstance(each.value, ast.Name | ast.Attribute | ast.Call) and depth < _MAX_ALIASES:
                meaning = self.dotted(each.value, depth + 1)
            else:
                return None
            if meaning is None or (found is not None and meaning != found):
                return None
            found = meaning
        return found

    def _visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parents[node] = parent
        cls = node.__class__
        wanted = cls in self._wanted
        if wanted:
            index = len(self.nodes)
            self.nodes.append((node, 0))
            self.scopes[node] = scope
        if cls is ast.Name:
            name: ast.Name = node  # type: ignore[assignment]
            self.scopes[node] = scope
            self.names.add(name.id)
            if name.ctx.__class__ is not ast.Load:
                self._bind_name(name, parent, scope)
        elif cls is ast.Constant:
            pass
        elif cls in _SPECIAL:
            _SPECIAL[cls](self, node, scope)
        else:
            self._children(node, scope)
        if wanted:
            self.nodes[index] = (node, len(self.nodes))

    def _children(self, node: ast.AST, scope: Scope) -> None:
        cls = node.__class__
        fields = self._fields.get(cls)
        if fields is None:
            fields = self._fields[cls] = tuple(name for name in cls._fields if name not in _SKIPPED)
        for field_name in fields:
            value = getattr(node, field_name)
            if value.__class__ is list:
                for each in value:
                    if isinstance(each, ast.AST):
                        self._visit(each, node, scope)
            elif isinstance(value, ast.AST):
                self._visit(value, node, scope)

    def _bind_name(self, node: ast.Name, parent: ast.AST, scope: Scope) -> None:
        value = None
        if (isinstance(parent, ast.Assign) and node in parent.targets) or isinstance(
            parent, ast.AnnAssign | ast.NamedExpr
        ):
            value = parent.value
        if isinstance(value, ast.Name | ast.Attribute | ast.Call):
            self._telling.add(node.id)
        if isinstance(parent, ast.NamedExpr):
            while isinstance(scope.node, _COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent
        scope.bind(node.id, Binding(parent if value is not None else node, value=value))

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name, full = (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            self.names.add(name)
            self._telling.add(name)
            scope.bind(name, Binding(node, imported=full))
            self.parents[alias] = node

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            self.parents[alias] = node
            if alias.name != "*":
                self.names.add(alias.asname or alias.name)
                self._telling.add(alias.asname or alias.name)
                full = f"{base}{'' if base.endswith('.') else '.'}{alias.name}"
                scope.bind(alias.asname or alias.name, Binding(node, imported=full))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> None:
        inner = Scope(node, scope)
        if not isinstance(node, ast.Lambda):
            self.names.add(node.name)
            scope.bind(node.name, Binding(node))
            for each in node.decorator_list:
                self._visit(each, node, scope)
            if node.returns is not None:
                self._visit(node.returns, node, scope)
        arguments = node.args
        self.parents[arguments] = node
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self._visit(default, arguments, scope)
        for argument in (
            *arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg
        ):  # fmt: skip
            if argument is not None:
                self.parents[argument] = arguments
                self.names.add(argument.arg)
                inner.bind(argument.arg, Binding(argument))
                if argument.annotation is not None:
                    self._visit(argument.annotation, argument, scope)
        for statement in node.body if isinstance(node.body, list) else [node.body]:
            self._visit(statement, node, inner)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        self.names.add(node.name)
        scope.bind(node.name, Binding(node))
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self._visit(each, node, scope)
        inner = Scope(node, scope, is_class=True)
        for statement in node.body:
            self._visit(statement, node, inner)

    def _comprehension(self, node: ast.AST, scope: Scope) -> None:
        inner = Scope(node, scope)
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        for number, each in enumerate(generators):
            self.parents[each] = node
            self._visit(each.iter, each, inner if number else scope)
            self._visit(each.target, each, inner)
            for condition in each.ifs:
                self._visit(condition, each, inner)
        for name in ("key", "value", "elt"):
            part = getattr(node, name, None)
            if part is not None:
                self._visit(part, node, inner)

    def _global(self, node: ast.Global, scope: Scope) -> None:
        scope.module_names.update(node.names)

    def _nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.outer_names.update(node.names)

    def _other_name(self, node: ast.AST, scope: Scope) -> None:
        """An except clause or a pattern that binds a name which is no node of its own."""
        name: str | None = getattr(node, "rest", None) or getattr(node, "name", None)
        if name:
            self.names.add(name)
            scope.bind(name, Binding(node))
        self._children(node, scope)


_SPECIAL: dict[type[ast.AST], Any] = {
    ast.Import: Walk._import,
    ast.ImportFrom: Walk._import_from,
    ast.FunctionDef: Walk._function,
    ast.AsyncFunctionDef: Walk._function,
    ast.Lambda: Walk._function,
    ast.ClassDef: Walk._class,
    **dict.fromkeys(_COMPREHENSIONS, Walk._comprehension),
    ast.Global: Walk._global,
    ast.Nonlocal: Walk._nonlocal,
    ast.ExceptHandler: Walk._other_name,
    ast.MatchAs: Walk._other_name,
    ast.MatchStar: Walk._other_name,
    ast.MatchMapping: Walk._other_name,
}


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    """The parameters that a call may give by their names."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def with_defaults(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr]]:
    """The parameters that have a default, each with it: those by position from the last one, then those by keyword."""
    positional = [*arguments.posonlyargs, *arguments.args]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *((parameter, default) for parameter, default in keywords if default is not None),
    ]
