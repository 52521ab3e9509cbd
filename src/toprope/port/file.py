"""A file as rules see it: meaning of names, the code around a node, and functions to report and rewrite a place.

Made by `engine`; the first argument of every rule. What rules may ask is here, so it may grow; it decides nothing.
Tests: tests/port/test_port_engine.py, tests/port/test_port_receivers.py.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from toprope.port.finding import Finding
from toprope.port.project.context import Context
from toprope.port.project.facts import Project
from toprope.port.project.reexports import full_name
from toprope.port.project.scripted import fingerprint, scripted_functions, styled_functions
from toprope.port.rule import Rule
from toprope.port.syntax.edits import Edit
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import Binding, Scope, Walk
from toprope.port.syntax.source import Source, UnreadableError, parse

__all__ = ["ALIASES", "RUNTIME", "VENDORED", "File", "ends_program", "is_runtime", "is_vendored_runtime"]

RUNTIME = "toprope.device.portable"
"""The module that ported code calls, where it is not the one file of `--vendor`."""

VENDORED = "toprope_portable"
"""The name of the one file of `--vendor`, without its suffix."""

ALIASES = ("portable", "portable_device", "_portable", "_portable_device", "_toprope_portable")
"""Names under which a file gets the runtime module: the first that it does not use itself."""


def is_runtime(module: str) -> bool:
    """Return whether a module is the one that ported code calls: toprope's, or a vendored one in any package."""
    return module == RUNTIME or is_vendored_runtime(module)


def is_vendored_runtime(module: str) -> bool:
    """Return whether this is a name of the one file of `--vendor`."""
    return module.rpartition(".")[2] == VENDORED


class File:
    """A parsed file.

    Args:
        source: its text.
        walk: the pass over its tree.
        runtime: the module that ported code calls.
        project: what is known of all the files that are ported.
        context: what is known of the project's folder and of the card.

    Attributes:
        source, walk, runtime, project, context: as given.
        findings: what the rules reported so far.
        places: the same, each with the node that it is about.
        operators: number of calls of torch's operators, as `Ported` has them.
        alias: the name under which this file has the runtime module.
        imports_runtime: whether it has it already.
    """

    def __init__(
        self,
        source: Source,
        walk: Walk,
        runtime: str = RUNTIME,
        project: Project | None = None,
        context: Context | None = None,
    ) -> None:
        self.source = source
        self.walk = walk
        self.runtime = runtime
        self.project = project or Project()
        self.context = Context() if context is None else context
        self.operators: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.places: list[tuple[Finding, ast.AST]] = []
        self._done: set[ast.AST] = set()
        self._passed: set[ast.AST] = set()
        self._scripted = self._find_scripted()
        self.alias, self.imports_runtime = self._find_alias()

    def _find_alias(self) -> tuple[str, bool]:
        found = {
            name: str(bindings[0].imported)
            for name, bindings in self.walk.module.bindings.items()
            if len({each.imported for each in bindings}) == 1
        }
        for is_it in (self.runtime.__eq__, is_runtime):
            for name, imported in found.items():
                if is_it(imported):
                    return name, True
        return next(name for name in ALIASES if name not in self.walk.names), False

    def _find_scripted(self) -> list[tuple[int, int]]:
        """Return where the functions begin and end that TorchScript compiles."""
        tree, scripted = self.walk.module.node, self.project.scripted
        if scripted:
            scripted = self.project.scripted_in.get(fingerprint(tree), scripted)
        found = scripted_functions(tree, scripted) if scripted else []
        found += styled_functions(tree, self.source.data)
        return [self.source.span(each) for each in found]

    # What it means

    def dotted(self, node: ast.AST | None) -> str | None:
        """The full name of what a name or attribute means: "torch.cuda" for `c` after `from torch import cuda as c`.

        None where it is no import, or one of several: an object, a parameter, a name that is assigned elsewhere.
        """
        name = None if node is None else self.walk.dotted(node)
        return name if name is None or not self.project.exports else full_name(name, self.project.exports)

    def by_star(self, node: ast.AST) -> bool:
        """Return whether a name is one that only a star import binds, so that no import of it can be rewritten."""
        return isinstance(node, ast.Name) and not self.bindings(node)

    def of_runtime(self, node: ast.AST | None) -> str | None:
        """The runtime module's name for what a name or attribute means, whatever module of it the file imports.

        "device_ids" for `portable.device_ids`, also where that is the one file of `--vendor`; None for all else.
        """
        module, _, name = (self.dotted(node) or "").rpartition(".")
        return name if module == self.runtime or is_runtime(module) else None

    def calls_runtime(self, node: ast.AST | None, *names: str) -> bool:
        """Return whether a node is a call of one of these functions of the runtime module."""
        return isinstance(node, ast.Call) and self.of_runtime(node.func) in names

    def is_builtin(self, node: ast.AST, name: str) -> bool:
        """Return whether a node is Python's own function or class of this name, such as `str`, and not the file's."""
        return isinstance(node, ast.Name) and node.id == name and not self.scope(node).find(name)

    def scope(self, node: ast.AST) -> Scope:
        """The scope of a node."""
        at: ast.AST | None = node
        while at is not None:
            found = self.walk.scopes.get(at)
            if found is not None:
                return found
            at = self.walk.parents.get(at)
        return self.walk.module

    def is_scripted(self, node: ast.AST) -> bool:
        """Return whether a node is in a function that TorchScript compiles, or may compile."""
        if not self._scripted:
            return False
        at, _ = self.source.span(node)
        return any(start <= at < end for start, end in self._scripted)

    def bindings(self, node: ast.Name) -> list[Binding]:
        """Every place of the file where this name gets a value."""
        return self.scope(node).find(node.id)

    def reads(self, name: str, *bound_by: ast.AST) -> list[ast.Name]:
        """Return where a name is read that one of these statements, parameters or names binds."""
        read = self.walk.read.get(name, ())
        return [node for node, scope in read if any(each.node in bound_by for each in scope.find(name))]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node; None for the file's own statements."""
        found = self.walk.parents.get(node)
        return None if isinstance(found, ast.Module) else found

    def ancestors(self, node: ast.AST) -> Iterable[ast.AST]:
        """The nodes around a node, the nearest first."""
        at = self.parent(node)
        while at is not None:
            yield at
            at = self.parent(at)

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function around a node."""
        kinds = ast.FunctionDef, ast.AsyncFunctionDef
        return next((each for each in self.ancestors(node) if isinstance(each, kinds)), None)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is part of."""
        return next(each for each in (node, *self.ancestors(node)) if isinstance(each, ast.stmt))

    def assigned_above(self, node: ast.Attribute) -> list[ast.Attribute]:
        """Return the places of the same scope before this one that give an attribute another value.

        A place in a branch that need not run counts for the rest of the branch alone.
        """
        text, scope, around = ast.unparse(node), self.scope(node), {None, *self.ancestors(node)}
        return [
            each for each, where in self.walk.scopes.items()
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and where is scope
            and each.attr == node.attr and (self.statement(each).end_lineno or 0) < node.lineno
            and ast.unparse(each) == text and self.parent(self.statement(each)) in around
        ]  # fmt: skip

    def is_tried(self, node: ast.AST) -> bool:
        """Return whether an import is in a try that goes on without it, and does not end the program."""
        inner = node
        for around in self.ancestors(node):
            if isinstance(around, ast.Try) and inner in around.body:
                handlers = [each for each in around.handlers if _catches_import(each)]
                if handlers and not any(ends_program(each.body[-1]) for each in handlers):
                    return True
            inner = around
        return False

    def at_import(self, node: ast.AST) -> bool:
        """Return whether an expression is evaluated when the module is imported."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, kinds) and not isinstance(inner, ast.arguments):
                return inner in getattr(outer, "decorator_list", ())
            inner = outer
        return True

    def decides(self, node: ast.AST) -> bool:
        """Return whether a value is taken for true or false: it is a condition, or is behind `not` or in skipif."""
        inner, outer = node, self.parent(node)
        while isinstance(outer, ast.BoolOp) or (isinstance(outer, ast.UnaryOp) and isinstance(outer.op, ast.Not)):
            inner, outer = outer, self.parent(outer)
        if inner is not node:
            return True
        if isinstance(outer, ast.Call) and outer.args[:1] == [inner]:
            return getattr(outer.func, "attr", "") in ("skipif", "skipIf", "skipUnless")
        return isinstance(outer, ast.If | ast.IfExp | ast.While | ast.Assert) and outer.test is inner

    def in_fstring(self, node: ast.AST) -> bool:
        """Return whether a node is inside the braces of an f-string; Python 3.11 does not give its exact place then."""
        return any(isinstance(each, ast.JoinedStr) for each in self.ancestors(node))

    def text(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.source.span(node)
        return self.source.text[start:end]

    @staticmethod
    def keyword(call: ast.Call, name: str) -> ast.keyword | None:
        """The keyword of a call; None where it has none of that name."""
        return next((each for each in call.keywords if each.arg == name), None)

    @staticmethod
    def argument(call: ast.Call, position: int | None, name: str | None) -> ast.expr | None:
        """The argument that a call gives at a position or by a name; None where it gives none, or through a star."""
        for each in call.keywords:
            if name is not None and each.arg == name:
                return each.value
        if position is None or any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
            return None
        return call.args[position] if position < len(call.args) else None

    # What is done about it

    def done(self, node: ast.AST) -> None:
        """Note that a node and all in it is dealt with: no other rule is asked about it."""
        self._done.add(node)

    def done_but(self, node: ast.expr, kept: ast.expr) -> None:
        """Note that an expression is dealt with, but for a part that stays and may hold more for other rules."""
        # expressions alone: all nodes of a tree share one Load
        inside = {each for each in nodes_of(kept) if isinstance(each, ast.expr)}
        for each in nodes_of(node):
            if not isinstance(each, ast.expr) or each in inside:
                continue
            if each is node or inside & set(nodes_of(each)):
                self.pass_over(each)
            else:
                self.done(each)

    def is_done(self, node: ast.AST) -> bool:
        """Return whether a rule has dealt with this node itself."""
        return node in self._done

    def pass_over(self, node: ast.AST) -> None:
        """Note that a node itself is dealt with; what is in it is still looked at."""
        self._passed.add(node)

    def is_passed_over(self, node: ast.AST) -> bool:
        """Return whether a rule has dealt with this node, but not with what is in it."""
        return node in self._passed

    def portable(self, name: str) -> str:
        """Name of a member of the runtime module in ported code: "portable.device"."""
        return f"{self.alias}.{name}"

    def report(
        self, rule: Rule, node: ast.AST, message: str = "", edits: Sequence[Edit] | Edit = (), held_back: str = ""
    ) -> Finding:
        """Report a place, with the edits that rewrite it; without edits it is only reported.

        Args:
            rule: what it is a case of.
            node: the place.
            message: what a person should know about this very place; left out, the rule's title.
            edits: what is done, from `replace` and its like.
            held_back: why nothing is done although the rule has a rewrite.
        """
        start, end = self.source.span(node)
        line, column = self.source.place(start)
        end_line, end_column = self.source.place(end)
        edits = (edits,) if isinstance(edits, Edit) else tuple(edits)
        if isinstance(node, ast.IfExp) and any(
            (each.start, each.end) == (start, end) and each.is_call for each in edits
        ):
            edits += self._without_parentheses(node, start, end)
        if edits and not held_back and self.in_fstring(node) and not self.has_exact_place(node):
            held_back = "its place inside the f-string is not known exactly"
        if edits and isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            held_back = held_back or "it is assigned to"
        if self.is_scripted(node):
            held_back = held_back or "TorchScript compiles it, or may: it knows torch's own names alone"
        finding = Finding(
            rule, line, column, end_line, end_column, self.source.text[start:end], edits, message, held_back=held_back
        )
        self.findings.append(finding)
        self.places.append((finding, node))
        return finding

    def _without_parentheses(self, node: ast.AST, start: int, end: int) -> tuple[Edit, ...]:
        """Take the parentheses around a choice away, where they are neither a call's nor a tuple's."""
        text, low, high = self.source.text, start, end
        while low > 0 and text[low - 1].isspace():
            low -= 1
        while high < len(text) and text[high].isspace():
            high += 1
        if text[low - 1 : low] != "(" or text[high : high + 1] != ")" or self.in_fstring(node):
            return ()
        before = text[: low - 1].rstrip(" \t")
        word = re.search(r"\w*\Z", before)
        is_keyword = word is not None and keyword.iskeyword(word[0]) and len(before) < low - 1
        if not is_keyword and re.search(r"[\w)\]}\"'\\]\Z", before):
            return ()
        return Edit(low - 1, start, ()), Edit(end, high + 1, ())

    def has_exact_place(self, node: ast.AST) -> bool:
        """Return whether the text at the place of a node is that node; inside f-strings the place may be wrong."""
        try:
            body = parse(f"({self.text(node)})").body
        except UnreadableError:
            return False
        return len(body) == 1 and isinstance(body[0], ast.Expr) and ast.dump(body[0].value) == ast.dump(node)

    def replace(self, node: ast.AST, *pieces: str | ast.AST) -> Edit:
        """Put pieces in the place of a node. Pieces that are nodes inside it stay, with their own edits.

        Give every kept node once, in the order in which the program evaluates them.
        """
        return Edit.of(self.source, *self.source.span(node), pieces)

    def replace_between(self, first: ast.AST, last: ast.AST, *pieces: str | ast.AST) -> Edit:
        """Replace everything from one node to another one by pieces."""
        return Edit.of(self.source, self.source.span(first)[0], self.source.span(last)[1], pieces)

    def rename(self, call: ast.Call, name: str) -> Edit:
        """Let a call go to a function of the runtime module, with all its arguments as they are."""
        return self.replace(call.func, self.portable(name))

    def before(self, node: ast.AST, text: str) -> Edit:
        """Insert text in front of a node."""
        start, _ = self.source.span(node)
        return Edit(start, start, (text,))

    def after(self, node: ast.AST, text: str) -> Edit:
        """Insert text behind a node."""
        _, end = self.source.span(node)
        return Edit(end, end, (text,))

    def add_argument(self, call: ast.Call, text: str) -> Edit:
        """Add an argument such as "device_type='npu'" behind the others of a call."""
        given = sorted((*call.args, *call.keywords), key=lambda each: self.source.span(each))
        if given:
            last = given[-1]
            start, end = self.source.span(last)
            if end == self.source.span(call)[1]:  # f(x for x in y) needs parentheses for its argument now
                return Edit(start + 1, end - 1, ("(", (start + 1, end - 1), f"), {text}"))
            end = self._behind(self.source.span(last)[1], self.source.span(call)[1] - 1)
            return Edit(end, end, (f", {text}",))
        end = self.source.span(call)[1] - 1
        return Edit(end, end, (text,))

    def _behind(self, start: int, limit: int) -> int:
        """The end of an argument that is in parentheses of its own: behind them."""
        text = self.source.text
        end = start
        for index in range(start, limit):
            if text[index] == ")":
                end = index + 1
            elif not text[index].isspace():
                break
        return end

    def remove_argument(self, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit:
        """Take an argument out of a call, with its comma."""
        given = sorted((*call.args, *call.keywords), key=lambda each: self.source.span(each))
        index = given.index(argument)
        start, end = self.source.span(argument)
        if index + 1 < len(given):
            return Edit(start, self.source.span(given[index + 1])[0], ())
        if index:
            return Edit(self._behind(self.source.span(given[index - 1])[1], start), end, ())
        text, close = self.source.text, self.source.span(call)[1] - 1
        rest = text[end:close]
        comma = rest.find(",")
        return Edit(start, end + comma + 1 if comma >= 0 and not rest[:comma].strip() else end, ())


def _catches_import(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler is for errors of an import."""
    if handler.type is None:
        return True
    names = {each.id for each in nodes_of(handler.type) if isinstance(each, ast.Name)}
    caught = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", "OSError", "RuntimeError"}
    return bool(names & caught)


def ends_program(statement: ast.stmt) -> bool:
    """Return whether a statement raises, or ends the program or the test: `raise`, `sys.exit()`, `pytest.skip()`."""
    if isinstance(statement, ast.Raise):
        return True
    called = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("exit", "quit", "_exit", "abort", "skip", "xfail", "skipTest")
