"""A condition on CUDA is converted only together with all that it guards.

`"nccl" if torch.cuda.is_available() else "gloo"` works on every machine. With the question converted and "nccl" left it
fails on an NPU, where it was right before. So a question is followed to the code that another answer opens: through
`not`, `and` and `or`, names and attributes it is kept in, functions that return it. Where something there stays CUDA's,
neither the question nor that code is changed, and the question says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from toprope.port.family import AS_CLASS
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.rule import Kind
from toprope.port.scopes import with_defaults

__all__ = ["hold_back"]

QUESTIONS = frozenset({"TR001", "TR001a", "TR016", "TR017", "TR018", "TR024"})
"""Rules whose rewrite lets a question be answered with yes on another accelerator."""

RUNS = frozenset({
    "TR020", "TR069", "TR070", "TR071", "TR072", "TR072a", "TR073", "TR074", "TR075", "TR076", "TR084b", "TR087",
    "TR088", "TR098", "TR098a", "TR099", "TR102", "TR102b",
})  # fmt: skip
"""Rules whose place does no harm on another device when it is left as it is. All others are taken to fail there."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_ENDS = (ast.Return, ast.Continue, ast.Break)
_SHOWN = {"print", "debug", "info", "warning", "warn", "error", "log", "write"}


@dataclass(eq=False)
class _Question:
    """A question that would be converted.

    Attributes:
        finding: its place.
        opened: the code that runs when the answer becomes yes, each with the condition it depends on.
    """

    finding: Finding
    opened: list[tuple[ast.AST, ast.AST]] = field(default_factory=list)


def hold_back(file: File, findings: Sequence[Finding], deselected: Iterable[Finding] = ()) -> None:
    """Hold back the questions whose answer opens code that stays CUDA's, with all of that code.

    Args:
        file: the file.
        findings: what is converted or reported.
        deselected: what the user asked to leave; it stays CUDA's.
    """
    nodes = [(finding, node) for finding, node in file.places]
    wanted, left = set(map(id, findings)), set(map(id, deselected))
    asked = [(f, n) for f, n in nodes if id(f) in wanted and f.converted and f.rule.code in QUESTIONS]
    if not asked:
        return
    stays = [
        (f, n) for f, n in nodes if (id(f) in left or (id(f) in wanted and not f.converted)) and _fails(file, f, n)
    ]
    stays = [(f, n) for f, n in stays if not _behind_cuda(file, n)]
    if not stays:
        return
    questions = [_Question(finding, list(_Opened(file).by(node))) for finding, node in asked]
    questions.sort(key=lambda each: sum(_length(file, part) for part, _ in each.opened))
    held: list[tuple[ast.AST, ast.AST]] = []
    for question in questions:
        found = _reached(file, question, stays, held)
        if found is None:
            continue
        question.finding.held_back = _why(found)
        held += question.opened
        _hold_import(file, nodes, question.finding)
        for part, condition in question.opened:
            whole = condition if isinstance(condition, ast.IfExp) else part
            for finding, node in nodes:
                if id(finding) in wanted and finding.converted and _within(file, node, whole):
                    finding.held_back = f"it stays with the condition in line {question.finding.line}"


def _hold_import(file: File, nodes: list[tuple[Finding, ast.AST]], held: Finding) -> None:
    """Of `from torch.cuda import is_available, synchronize` all names stay, or none does: it is one module."""
    (node,) = (node for finding, node in nodes if finding is held)
    if isinstance(node, ast.alias):
        for finding, other in nodes:
            if isinstance(other, ast.alias) and file.parent(other) is file.parent(node) and finding.converted:
                finding.held_back = f"it stays with the name in line {held.line}"


def _reached(
    file: File, question: _Question, stays: list[tuple[Finding, ast.AST]], held: list[tuple[ast.AST, ast.AST]]
) -> Finding | None:
    """The first place that stays CUDA's and that the question opens, but for those behind a condition that stays."""
    for part, condition in question.opened:
        for finding, node in stays:
            if not _within(file, node, part):
                continue
            inner = (p for p, c in held if c is not condition and _within(file, c, part) and _within(file, node, p))
            if next(inner, None) is None:
                return finding
    return None


def _why(found: Finding) -> str:
    text = " ".join(found.before.split())
    text = text if len(text) <= 40 else text[:37] + "..."
    return f"the condition guards {text} in line {found.line}, which stays CUDA's ({found.rule.code})"


def _fails(file: File, finding: Finding, node: ast.AST) -> bool:
    """Return whether a place that stays as it is may fail on another device."""
    code = finding.rule.code
    if not finding.is_site or code in RUNS or code in QUESTIONS:  # an unconverted question is answered with no
        return False
    if finding.held_back == AS_CLASS:  # nothing is an instance of CUDA's class there
        return False
    own = finding.held_back.endswith("of its own") and "not known" not in finding.held_back
    if own:  # a method of the project, whose own code is ported
        return False
    if isinstance(node, ast.Import | ast.ImportFrom) and finding.rule.kind is not Kind.PRESERVING:
        return not _is_tried(file, node)
    if code == "TR101":
        return not _is_shown(file, node)
    return True


def _is_tried(file: File, node: ast.AST) -> bool:
    """Return whether an import stands in a try that goes on without it."""
    inner = node
    for around in file.ancestors(node):
        if isinstance(around, ast.Try) and inner in around.body and around.handlers:
            return True
        inner = around
    return False


def _is_shown(file: File, node: ast.AST) -> bool:
    """Return whether a text is a key, or only printed."""
    around = file.parent(node)
    if isinstance(around, ast.Subscript | ast.JoinedStr) or (isinstance(around, ast.Dict) and node in around.keys):
        return True
    if not isinstance(around, ast.Call):
        return False
    name = getattr(around.func, "id", None) or getattr(around.func, "attr", None)
    return name in _SHOWN


# Conditions that are about CUDA itself and stay so: what is behind them is not opened by any other answer


def _behind_cuda(file: File, node: ast.AST) -> bool:
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, ast.If | ast.While):
            if inner in outer.body and _needs_cuda(file, outer.test):
                return True
        elif isinstance(outer, ast.IfExp):
            if inner is outer.body and _needs_cuda(file, outer.test):
                return True
        elif isinstance(outer, ast.BoolOp) and isinstance(outer.op, ast.And) and inner in outer.values:
            before = outer.values[: outer.values.index(inner)]
            if any(_needs_cuda(file, each) for each in before):
                return True
        inner = outer
    return False


def _needs_cuda(file: File, test: ast.expr) -> bool:
    """Return whether a condition holds on CUDA alone, converted or not."""
    if isinstance(test, ast.BoolOp):
        parts = [_needs_cuda(file, each) for each in test.values]
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.Compare):
        (first, *_), operator = test.comparators, test.ops[0]
        is_none = isinstance(first, ast.Constant) and first.value is None
        if is_none:
            return isinstance(operator, ast.IsNot | ast.NotEq) and _needs_cuda(file, test.left)
        if isinstance(operator, ast.Gt | ast.GtE):  # (0, 0) elsewhere
            asked = test.left.value if isinstance(test.left, ast.Subscript) else test.left
            return isinstance(asked, ast.Call) and _named(file, asked.func, "torch.cuda", "get_device_capability")
        return False
    if isinstance(test, ast.Call):
        if file.is_builtin(test.func, "bool") and test.args:
            return _needs_cuda(file, test.args[0])
        return _named(file, test.func, "", "version")
    return file.dotted(test) == "torch.version.cuda"


def _named(file: File, node: ast.expr, below: str, name: str) -> bool:
    """Return whether a node is a name of torch.cuda, or of the runtime."""
    full = file.dotted(node)
    return full is not None and (full == f"{below}.{name}" or full == f"{file.runtime}.{name}")


# What another answer opens


class _Opened:
    """Follows the answer of a question to the code that runs because of it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._seen: set[tuple[int, bool | None]] = set()

    def by(self, node: ast.AST, positive: bool | None = True) -> Iterator[tuple[ast.AST, ast.AST]]:
        """The parts that run when this expression becomes true (`positive`), false, or another one (None).

        Each comes with the condition that it depends on.
        """
        if (id(node), positive) in self._seen:
            return
        self._seen.add((id(node), positive))
        if isinstance(node, ast.alias):
            yield from self._imported(node, positive)
            return
        inner = node
        outer = self.file.parent(inner)
        while outer is not None:
            match outer:
                case ast.UnaryOp(op=ast.Not()):
                    positive = None if positive is None else not positive
                case ast.Compare():
                    positive = _compared(outer, inner, positive)
                case ast.BoolOp(op=operator, values=values):
                    goes_on = positive if isinstance(operator, ast.And) else _opposite(positive)
                    if goes_on is not False:
                        for each in values[values.index(inner) + 1 :]:  # type: ignore[arg-type]
                            yield each, outer
                case ast.IfExp(test=test, body=body, orelse=orelse):
                    if inner is test:
                        if positive is not False:
                            yield body, outer
                        if positive is not True:
                            yield orelse, outer
                        answers = [each.value if isinstance(each, ast.Constant) else None for each in (body, orelse)]
                        if answers == [False, True]:
                            positive = _opposite(positive)
                        elif answers != [True, False]:
                            return
                case ast.Call() if inner is outer.func or self._keeps_its_answer(outer):
                    pass
                case ast.Call() | ast.keyword():
                    yield from self._handed_on(inner, outer, positive)
                    return
                case ast.NamedExpr(target=target):
                    yield from self._kept(target, positive)
                case ast.Tuple() | ast.List() if not isinstance(self.file.parent(outer), ast.Assign):
                    pass
                case ast.comprehension():
                    around = self.file.parent(outer)
                    if around is not None and positive is not False:
                        for name in ("key", "value", "elt"):
                            if getattr(around, name, None) is not None:
                                yield getattr(around, name), outer
                    return
                case _:
                    yield from self._in_statement(inner, outer, positive)
                    return
            inner, outer = outer, self.file.parent(outer)

    def _keeps_its_answer(self, call: ast.Call) -> bool:
        return any(self.file.is_builtin(call.func, name) for name in ("bool", "int", "any", "all"))

    def _in_statement(self, inner: ast.AST, outer: ast.AST, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        match outer:
            case ast.If(test=test) | ast.While(test=test) if inner is test:
                if positive is not False:
                    yield from ((each, test) for each in outer.body)
                if positive is not True:
                    yield from ((each, test) for each in outer.orelse)
                    if isinstance(outer, ast.If) and not outer.orelse and isinstance(outer.body[-1], _ENDS):
                        yield from ((each, test) for each in self._behind(outer))
                if positive is not False and outer.orelse and isinstance(outer.orelse[-1], _ENDS):
                    yield from ((each, test) for each in self._behind(outer))
            case ast.Assign(targets=targets):
                for each in targets:
                    yield from self._kept(each, positive)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield from self._kept(target, positive)
            case ast.Return():
                function = next((each for each in self.file.ancestors(outer) if isinstance(each, _FUNCTIONS)), None)
                if function is not None:
                    yield from self._called(function, positive)
            case ast.arguments():
                yield from self._default(outer, inner, positive)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if inner in outer.decorator_list:
                yield from ((each, inner) for each in outer.body)

    def _behind(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements behind one in its block."""
        around = self.file.walk.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(around, name, None)
            if isinstance(block, list) and statement in block:
                return block[block.index(statement) + 1 :]
        return []

    def _handed_on(self, inner: ast.AST, outer: ast.AST, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """An argument: of a decorator, or the default of an option of the command line."""
        call = self.file.parent(outer) if isinstance(outer, ast.keyword) else outer
        if not isinstance(call, ast.Call):
            return
        around = self.file.parent(call)
        if isinstance(around, (*_FUNCTIONS, ast.ClassDef)) and call in around.decorator_list:
            yield from ((each, call) for each in around.body)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            named = self.file.keyword(call, "dest")
            if named is not None and isinstance(named.value, ast.Constant):
                names = [str(named.value.value)]
            for name in names:
                yield from self._attribute(name.lstrip("-").replace("-", "_"), positive)

    def _kept(self, target: ast.expr, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where what is assigned to a name, an attribute or a key is read."""
        if isinstance(target, ast.Name):
            yield from self._read(target.id, [each.node for each in self.file.bindings(target)], positive)
        elif isinstance(target, ast.Attribute):
            yield from self._attribute(target.attr, positive)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            same = ast.dump(target.slice)
            for node in list(self.file.walk.parents):
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.dump(node.slice) == same:
                    yield from self.by(node, positive)

    def _imported(self, alias: ast.alias, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where a name is read that an import binds."""
        statement = self.file.parent(alias)
        if statement is not None:
            yield from self._read(alias.asname or alias.name, [statement], positive)

    def _read(self, name: str, bound_by: list[ast.AST], positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What the answer opens where a name is read that one of these nodes binds."""
        for each in self.file.reads(name, *bound_by):
            yield from self.by(each, positive)

    def _attribute(self, name: str, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        for node in list(self.file.walk.scopes):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                yield from self.by(node, positive)

    def _called(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, positive: bool | None
    ) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Where the answer of a function is used: its name in this file, or the attribute where it is a method."""
        yield from self._read(function.name, [function], positive)
        if isinstance(self.file.parent(function), ast.ClassDef):
            yield from self._attribute(function.name, positive)

    def _default(
        self, arguments: ast.arguments, default: ast.AST, positive: bool | None
    ) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where a parameter is read whose default is the answer."""
        for parameter, value in with_defaults(arguments):
            if value is default:
                yield from self._read(parameter.arg, [parameter], positive)


def _opposite(positive: bool | None) -> bool | None:
    return None if positive is None else not positive


def _compared(node: ast.Compare, inner: ast.AST, positive: bool | None) -> bool | None:
    """The same for a comparison with a constant: `count > 1`, `available is False`."""
    if len(node.ops) != 1 or inner is not node.left or not isinstance(node.comparators[0], ast.Constant):
        return None
    operator, value = node.ops[0], node.comparators[0].value
    if isinstance(operator, ast.Gt | ast.GtE):
        return positive
    if isinstance(operator, ast.Lt | ast.LtE):
        return _opposite(positive)
    if value in (0, False) or value is None:
        return positive if isinstance(operator, ast.NotEq | ast.IsNot) else _opposite(positive)
    return positive if isinstance(operator, ast.Eq | ast.Is) else _opposite(positive)


def _within(file: File, node: ast.AST, part: ast.AST) -> bool:
    return node is part or any(each is part for each in file.ancestors(node))


def _length(file: File, node: ast.AST) -> int:
    start, end = file.source.span(node)
    return end - start
