"""Rewriting of a module of torch for CUDA to the card's names: other names, the same statements on the same lines.

trees.py applies it to torch's graph trees. Tests: tests/sim/test_graph_tree_renaming.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

__all__ = ["Renaming", "renamed"]

_OF_TORCH = re.compile(r"torch\._inductor\.config[\w.]*")
_NAMES = (("CUDA", "NPU"), ("cuda", "npu"), ("Cuda", "Npu"))


@dataclass(frozen=True)
class Renaming:
    """Rules of renaming besides that for "cuda".

    Attributes:
        package: of the module, for its relative imports.
        compiled: functions of torch._C that the card has its own of, by their new names; they are looked up in
            `torch_npu._C`.
        modules: modules that are imported in place of others.
        names: other names, also as strings.
        texts: other texts of messages.
        fewer: classes that take fewer arguments here, with the number of the last ones that calls leave out.
        foreign: objects whose attributes are torch's, and keep their names.
    """

    package: str
    compiled: Container[str]
    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    fewer: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()


def renamed(file: Path, renaming: Renaming) -> CodeType:
    """Compile a module of torch with the card's names. Errors in it show torch's file and lines.

    An assertion that fails is a RuntimeError, as in torch_npu.
    """
    source = file.read_text(encoding="utf-8")
    tree = _Renamer(source, renaming).visit(ast.parse(source))
    return compile(ast.fix_missing_locations(tree), str(file), "exec", dont_inherit=True)


def _name_of_card(name: str) -> str:
    for old, new in _NAMES:
        name = name.replace(old, new)
    return name


def _dotted(node: ast.expr) -> str:
    """Name of an attribute with all that is before it; "" where a call or the like is in it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


class _Renamer(ast.NodeTransformer):
    def __init__(self, source: str, renaming: Renaming) -> None:
        self._source, self._renaming = source, renaming

    def _new(self, name: str) -> str:
        return self._renaming.names.get(name) or _name_of_card(name)

    def _text(self, text: str) -> str:
        if text in self._renaming.texts:
            return self._renaming.texts[text]
        parts, place = [], 0
        for kept in _OF_TORCH.finditer(text):
            parts += [_name_of_card(text[place : kept.start()]), kept.group()]
            place = kept.end()
        return "".join((*parts, _name_of_card(text[place:])))

    # ---- names

    def visit_Name(self, node: ast.Name) -> ast.Name:  # ast's names
        node.id = self._new(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._new(node.arg)
        self.generic_visit(node)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        node.arg = node.arg and self._new(node.arg)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = self._new(node.name)
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name = self._new(node.name)
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        owner = _dotted(node.value)
        if owner == "torch._C":
            if (name := self._new(node.attr)) in self._renaming.compiled:
                package = ast.Name("torch_npu", ast.Load())
                node.value, node.attr = ast.Attribute(package, "_C", ast.Load()), name
        elif not any(f"{owner}.".startswith(f"{name}.") for name in self._renaming.foreign):
            node.attr = self._new(node.attr)
            self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and (count := self._renaming.fewer.get(node.func.id)):
            del node.args[-count:]
        return node

    # ---- imports: others' names stay, and are bound under the card's

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level:
            node.module = ".".join(filter(None, (self._renaming.package, node.module)))
            node.level = 0
        moved = self._renaming.modules.get(node.module or "")
        for alias in node.names:
            bound = self._new(alias.asname or alias.name)
            alias.name = bound if moved else alias.name
            alias.asname = bound if bound != alias.name else None
        node.module = moved or node.module
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Call) and _dotted(node.test.func) == "torch.backends.cuda.is_built":
            return None
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        self.generic_visit(node)
        return node

    # ---- texts and checks

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            if node.value in self._renaming.names:
                node.value = self._renaming.names[node.value]
            elif " " in node.value:  # a text; words are keys and labels of torch's
                node.value = self._text(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.If:
        said = ast.get_source_segment(self._source, node.test) or ""
        self.generic_visit(node)
        text = node.msg or ast.Constant(f"check {' '.join(_name_of_card(said).split())} fail")
        error = ast.Call(ast.Name("RuntimeError", ast.Load()), [text], [])
        raising = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error, None)], [])
        return ast.copy_location(raising, node)
