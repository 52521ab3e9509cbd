"""Code that runs only because a condition on CUDA holds: followed through names, attributes, functions and constants.

Called by `guards`. Tests: tests/port/test_port_conditions.py, tests/port/test_port_across.py,
tests/port/test_port_unseen_fourth.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from toprope.port.file import File, ends_program
from toprope.port.syntax.scopes import with_defaults

__all__ = ["SKIPS", "Opened", "block_behind", "is_negative", "opened_by"]

SKIPS = ("skipif", "skipIf", "skipUnless")
"""Decorators of tests, which pytest and unittest ask for a condition."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ENDS = (ast.Return, ast.Continue, ast.Break)


def opened_by(file: File, question: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """The parts that run because something is on CUDA, each with the condition it depends on.

    A comparison such as `device.type != "cuda"` says the opposite: what it opens runs when it is false.
    """
    return list(Opened(file).by(question, not is_negative(question)))


def is_negative(question: ast.AST) -> bool:
    """Return whether a question is answered with no on CUDA: `device.type != "cuda"`."""
    return isinstance(question, ast.Compare) and isinstance(question.ops[0], ast.NotEq | ast.NotIn)


def block_behind(file: File, statement: ast.stmt) -> list[ast.stmt]:
    """The statements behind one in its block."""
    around = file.walk.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(around, name, None)
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []


class Opened:
    """Follows the answer of a question to the code that runs because of it.

    Args:
        file: the file.
        raises: whether `if not x.is_cuda: raise` opens what is behind it. A program that raises where there is no CUDA
            at all has no other way to go, so that its question is converted with what it can be.

    Attributes:
        file: as given.
        ends: statements that leave the function or the loop, so that what is behind them runs with the other answer.
        required: statements behind an assertion, or an error that is raised or ends the program, which run only where
            the answer is yes; each with the condition. A program that has no other way to go is converted with what it
            can be, so that these count only where they always need CUDA.
        keys: under which other files and cells reach the answer: "use_cuda" for a name of the module, ".use_cuda" for
            an attribute of anything, ".has_cuda()" for a function or method that is called as one.
    """

    def __init__(self, file: File, *, raises: bool = False) -> None:
        self.file = file
        self.ends = (*_ENDS, ast.Raise) if raises else _ENDS
        self.keys: set[str] = set()
        self.required: list[tuple[ast.AST, ast.AST]] = []
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
                case ast.Dict(keys=keys, values=values) if inner in values:
                    yield from self._under(keys[values.index(inner)], positive)
                    return
                case ast.Tuple() | ast.List() if isinstance(statement := self.file.parent(outer), ast.Assign):
                    for each in _targets(statement, outer, inner):
                        yield from self._kept(each, positive)
                    return
                case ast.Tuple() | ast.List():
                    pass
                case ast.Subscript(value=value) if value is inner:
                    positive = None
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
                yield from self._constants(outer.body, positive)
                yield from self._constants(outer.orelse, _opposite(positive))
                if positive is not False:
                    yield from ((each, test) for each in outer.body)
                if positive is not True:
                    yield from ((each, test) for each in outer.orelse)
                    if isinstance(outer, ast.If) and not outer.orelse and isinstance(outer.body[-1], self.ends):
                        yield from ((each, test) for each in block_behind(self.file, outer))
                        yield from ((each, test) for each in self._other_methods(outer))
                    elif isinstance(outer, ast.If) and not outer.orelse and ends_program(outer.body[-1]):
                        self.required += ((each, test) for each in block_behind(self.file, outer))
                    elif ast.Raise in self.ends and isinstance(outer, ast.If) and _moves(outer.body):
                        yield from ((each, test) for each in (*outer.body, *block_behind(self.file, outer)))
                if positive is not False and outer.orelse:
                    if isinstance(outer.orelse[-1], self.ends):
                        yield from ((each, test) for each in block_behind(self.file, outer))
                    elif ends_program(outer.orelse[-1]):
                        self.required += ((each, test) for each in block_behind(self.file, outer))
            case ast.Assert(test=test) if inner is test and positive is not False:
                self.required += ((each, test) for each in block_behind(self.file, outer))
            case ast.Assign(targets=targets):
                for each in targets:
                    yield from self._kept(each, positive)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield from self._kept(target, positive)
            case ast.Return():
                yield from self._returned(outer, positive)
            case ast.arguments():
                yield from self._default(outer, inner, positive)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if inner in outer.decorator_list:
                yield from ((each, inner) for each in outer.body)

    def _other_methods(self, condition: ast.If) -> list[ast.stmt]:
        """The methods of a class whose __init__ sets attributes and returns early: they go by these attributes."""
        function, sets = self.file.parent(condition), [each for each in condition.body if isinstance(each, ast.Assign)]
        if not isinstance(function, ast.FunctionDef) or function.name != "__init__" or not sets:
            return []
        around = self.file.parent(function)
        return [each for each in around.body if each is not function] if isinstance(around, ast.ClassDef) else []

    def _constants(self, block: list[ast.stmt], positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Follow the True or False that a block returns or assigns: it is the answer in other words."""
        for each in block:
            match each:
                case ast.Return(value=ast.Constant(value=bool(said))):
                    yield from self._returned(each, positive if said else _opposite(positive))
                case ast.Assign(targets=targets, value=ast.Constant(value=bool(said))):
                    for target in targets:
                        yield from self._kept(target, positive if said else _opposite(positive))

    def _returned(self, statement: ast.Return, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        function = self.file.function(statement)
        if function is not None:
            yield from self._called(function, positive)

    def _handed_on(self, inner: ast.AST, outer: ast.AST, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """An argument: of a decorator, or the default of an option of the command line."""
        call = self.file.parent(outer) if isinstance(outer, ast.keyword) else outer
        if not isinstance(call, ast.Call):
            return
        around = self.file.parent(call)
        if isinstance(around, (*_FUNCTIONS, ast.ClassDef)) and call in around.decorator_list:
            yield from ((each, call) for each in around.body)
        elif isinstance(around, ast.Assign) and getattr(call.func, "attr", "") in SKIPS:
            for target in around.targets:
                if isinstance(target, ast.Name) and target.id == "pytestmark":  # pytest's name: all tests of the file
                    yield from ((each, call) for each in block_behind(self.file, around))
                else:
                    yield from self._kept(target, positive)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
            named = self.file.keyword(call, "dest")
            if named is not None and isinstance(named.value, ast.Constant):
                names = [str(named.value.value)]
            for name in (each.lstrip("-").replace("-", "_") for each in names):
                self.keys.add(f".{name}")
                yield from self._attribute(name, positive)

    def _kept(self, target: ast.expr, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where what is assigned to a name, an attribute or a key is read."""
        self._note(target)
        if isinstance(target, ast.Name):
            yield from self._read(target.id, [each.node for each in self.file.bindings(target)], positive)
        elif isinstance(target, ast.Attribute):
            yield from self._attribute(target.attr, positive)
        elif isinstance(target, ast.Subscript):
            yield from self._under(target.slice, positive)

    def _under(self, key: ast.expr | None, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where a key of a table is read, whatever the table: `options["use_cuda"]`."""
        if not isinstance(key, ast.Constant):
            return
        if isinstance(key.value, str):
            self.keys.add(f"[{key.value}]")
        same = ast.dump(key)
        for node in list(self.file.walk.parents):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.dump(node.slice) == same:
                yield from self.by(node, positive)

    def _note(self, target: ast.expr) -> None:
        """Note how others reach what is assigned."""
        if isinstance(target, ast.Attribute):
            self.keys.add(f".{target.attr}")
        elif isinstance(target, ast.Name):
            scope = self.file.scope(target)
            if scope.parent is None or target.id in scope.module_names:
                self.keys |= {target.id, f".{target.id}"}
            elif scope.is_class:
                self.keys.add(f".{target.id}")

    def _imported(self, alias: ast.alias, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return where a name is read that an import binds."""
        statement = self.file.parent(alias)
        if statement is not None:
            yield from self._read(alias.asname or alias.name, [statement], positive)

    def _read(self, name: str, bound_by: list[ast.AST], positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Follow the answer to the reads of a name that one of these nodes binds."""
        for each in self.file.reads(name, *bound_by):
            yield from self.by(each, positive)

    def _attribute(self, name: str, positive: bool | None) -> Iterator[tuple[ast.AST, ast.AST]]:
        for node in list(self.file.walk.scopes):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                yield from self.by(node, positive)

    def _called(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, positive: bool | None
    ) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Follow the answer of a function to its uses: by its name in this file, or by the attribute of a method."""
        around = self.file.walk.parents[function]
        if isinstance(around, ast.ClassDef):
            self.keys |= {f".{function.name}", f".{function.name}()"}
        elif isinstance(around, ast.Module):
            self.keys |= {function.name, f".{function.name}()"}
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


def _targets(statement: ast.Assign, values: ast.Tuple | ast.List, value: ast.AST) -> Iterator[ast.expr]:
    """The targets that get one value of several: `use_cuda, device = torch.cuda.is_available(), 0`."""
    place = next(number for number, each in enumerate(values.elts) if each is value)
    for target in statement.targets:
        if not isinstance(target, ast.Tuple | ast.List):
            yield target
            continue
        for at in (place, place - len(values.elts)):  # from the front, or from the end behind a star
            among = slice(None, place) if at >= 0 else slice(at + 1 or len(values.elts), None)
            starred = any(isinstance(each, ast.Starred) for part in (values.elts, target.elts) for each in part[among])
            if not starred and -len(target.elts) <= at < len(target.elts):
                yield target.elts[at]
                break
        else:
            yield from target.elts


def _moves(body: list[ast.stmt]) -> bool:
    """Return whether a block does nothing but move tensors: `if not x.is_cuda: x = x.cuda()`."""
    values = [each.value if isinstance(each, ast.Assign) else None for each in body]
    return all(isinstance(each, ast.Call) and getattr(each.func, "attr", "") in ("cuda", "to") for each in values)


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
