"""Names of devices that get to a question about their text: where it stays CUDA's, so do they.

`dev = device` and `dev == "cuda"` ten lines below, or in another method, file or cell: with the device in use in its
place the answer would be another one on another card. A comparison that is rewritten with what it guards
(`device_texts`) asks for nothing that stays. From every question that does stay the text is followed backwards: through
names, attributes, keys of tables, arguments and results of functions, to the places that would be rewritten.

A place in another file is reached by a key: "?f(0)" and "?f(name)" are arguments of f, "?f()" is its result, "?Net.dev"
an attribute of the objects of a class, "?*.dev" one of options, "?.dev" one of anything, and "?[dev]" what a table
has under "dev". Attributes, keys and functions are matched by name: unknown is pessimistic.

Called by `engine` for each file, and by `scan` for the keys; tests/port/test_port_asked_texts.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from toprope.port.conditions.compared import OTHER_ENGINES
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.project.asked import begins_with_cuda, has_cuda_key
from toprope.port.project.facts import is_options, option_of
from toprope.port.project.scripted import is_outside
from toprope.port.syntax.nodes import name_of, nodes_of
from toprope.port.syntax.scopes import with_defaults

__all__ = ["ASKED", "MAY_ASK", "asked_keys", "hold_asked"]

ASKED = "?"
"""Begins the keys of texts that a question elsewhere is about."""
MAY_ASK = re.compile(
    rb"[!=]=\s*[\"']cuda|[\"']cuda(?::\d+)?[\"']\s*(?:[!=]=|\]|:|(?:not\s+)?in\b)|\bin\s*[\[({][^\])}\n]*[\"']cuda"
    rb"|\bcase\s+[\"']cuda|(?:match|search|startswith|find|index|removeprefix|[eE]quals?)\([^)\n]*[\"']\^?cuda"
    rb"|getattr\([^)\n]*dev|import_module\([^)\n]*dev|(?:globals|locals|vars)\(\)\[[^\]\n]*dev"
    rb"|(?:import|from)\s+(?:" + "|".join(sorted(OTHER_ENGINES)).encode() + rb")\b"
)
"""Bytes of a file that may ask for the text of a device."""

_NAMES = {"devices", "device_types", "numbers", "defaults", "attributes"}
"""Families of rules that put the device in use in the place of a text or a torch.device."""
_QUESTIONS = ("TR017", "TR017a", "TR018", "TR065")
_ASSERTS = re.compile(r"assert_?\w*?_?(?:Not|List|Tuple|Set|Count)?(?:Equals?|In|NotIn|Is|IsNot|equals?|is|in)")
_PATTERNS = {"re.match", "re.fullmatch", "re.search", "re.compile"}
_OF_TEXTS = {"startswith", "endswith", "find", "index", "count", "removeprefix", "replace"}
_SAME = {"lower", "upper", "strip", "split", "partition", "rpartition", "removeprefix", "replace", "casefold", "group"}
_BY_NAME = {"getattr", "hasattr", "import_module"}
_SPACES = {"globals", "locals", "vars"}
_DEVICES = re.compile(r"(?:cuda|cpu|mps|npu|xpu)(?::\d+)?|\w+ExecutionProvider")
_OF_THE_RUN = {"autocast", "GradScaler", "print", "info", "debug", "warning", "synchronize", "empty_cache"}
"""Calls that only switch something on for CUDA: no tensor is on another device without them."""
_DTYPE = re.compile(r"dtype|\.(?:b?float|half|double|int|long|u?int)\d*$")
_ASKING = (ast.Compare, ast.Call, ast.Subscript, ast.Match)
_OPTIONS = "*"
_OF_OPTIONS = re.compile(r"conf|cfg|arg|opt|setting|param|namespace|flag", re.IGNORECASE)
_Of = Mapping[type[ast.AST], Sequence[Any]]
"""The nodes of a file by their type."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST_BEFORE = 4
"""Arguments by place of a class of another package that may be its device."""
_MOST = 2000
"""Expressions that are followed in a file; behind them every text is taken to be asked about."""


def hold_asked(file: File, findings: Iterable[Finding], elsewhere: Mapping[str, str] | None = None) -> None:
    """Hold back the names of devices that get to a question which stays, in this file or another one.

    Args:
        file: the file.
        findings: what is converted or reported.
        elsewhere: keys of texts that other files ask about, with the place.
    """
    wanted = set(map(id, findings))
    keys = {key: place for key, place in (elsewhere or {}).items() if key.startswith(ASKED)}
    names = [
        (f, n) for f, n in file.places
        if id(f) in wanted and f.converted and (f.rule.family in _NAMES or f.rule.code == "TR019")
    ]  # fmt: skip
    if not names or not (keys or MAY_ASK.search(file.source.data)):
        return
    reached = _Reached(file, wanted, keys)
    for finding, node in names:
        if where := reached.why(finding, node):
            finding.held_back = f"its text is asked for {where}: the name of another card is another text"


def asked_keys(file: File, findings: Iterable[Finding]) -> dict[str, str]:
    """Return the keys of texts of other files that this file asks about, each with the place."""
    if not MAY_ASK.search(file.source.data):
        return {}
    return _Reached(file, set(map(id, findings)), {}).keys


class _Reached:
    """Everything in a file whose text gets to a question that stays.

    Args:
        file: the file.
        wanted: the findings that are not left out, by id.
        elsewhere: keys of texts that other files ask about, with the place.

    Attributes:
        keys: what this file asks about beyond itself, with the place.
    """

    def __init__(self, file: File, wanted: Collection[int], elsewhere: Mapping[str, str]) -> None:
        self._file = file
        self._nodes: dict[ast.AST, str] = {}
        self._ahead: list[tuple[ast.expr, str]] = []
        self.keys: dict[str, str] = {}
        answered = {n for f, n in file.places if id(f) in wanted and f.converted and f.rule.code in _QUESTIONS}
        self._tables = {
            name for name, bindings in file.walk.module.bindings.items() for each in bindings
            if each.value is not None and has_cuda_key(each.value)
        }  # fmt: skip
        self._of: dict[type[ast.AST], list[Any]] = {}
        for node in file.walk.parents:
            self._of.setdefault(node.__class__, []).append(node)
        for key, place in elsewhere.items():
            self._give(key, place)
        self._ask_engines()
        for node in (each for kind in _ASKING for each in self._of.get(kind, ()) if each not in answered):
            for asked in self._asked_by(node):
                self._ahead.append((asked, f"in line {node.lineno}"))
        while self._ahead:
            node, where = self._ahead.pop()
            if node not in self._nodes and len(self._nodes) < _MOST:
                self._nodes[node] = where
                self._follow(node, where)

    def why(self, finding: Finding, node: ast.AST) -> str:
        """Return the question that a place gets to, "in line 3"; "" where none is seen.

        A default that is resolved where it is read stays where it is asked for.
        """
        if len(self._nodes) == _MOST:
            return "in more places than are followed"
        if finding.rule.family == "defaults" and finding.edits[0].start < finding.edits[0].end:
            read = {(each.start, each.end) for each in finding.edits}
            spans = ((self._file.source.span(each), each) for each in self._nodes if isinstance(each, ast.Name))
            return next((self._nodes[each] for span, each in spans if span in read), "")
        return self._nodes.get(node, "")

    # Questions

    def _asked_by(self, node: ast.AST) -> Iterator[ast.expr]:
        """The expressions whose text a node asks for, where it is not seen to be rewritten."""
        match node:
            case ast.Compare(left=left, comparators=others) if _decides(self._file, node):
                sides = [left, *others]
                for each in sides:
                    if not self._is_cuda(each) and any(self._is_cuda(other) for other in sides if other is not each):
                        yield each
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments) if name in _OF_TEXTS:
                if any(map(self._is_cuda, arguments)) and (name != "startswith" or _decides(self._file, node)):
                    yield value
                elif name == "index" and self._is_cuda(value):
                    yield from arguments
            case ast.Call(func=ast.Attribute(value=table, attr="get" | "pop"), args=[key, *_]) if self._is_cuda(table):
                yield key
            case ast.Call(func=function) if self._is_engine(function):
                yield from (*node.args, *(each.value for each in node.keywords))
            case ast.Call(func=function, args=[pattern, text, *_]) if self._file.dotted(function) in _PATTERNS:
                if self._is_cuda(pattern):
                    yield text
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments):
                if _ASSERTS.fullmatch(name) and any(map(self._is_cuda, arguments)):
                    yield from (each for each in arguments if not self._is_cuda(each))
                elif name in _BY_NAME and arguments:
                    yield from arguments[-2:][:1] if name == "import_module" else arguments[1:2]
            case ast.Subscript(value=value, slice=key) if not isinstance(key, ast.Constant | ast.Slice):
                is_space = isinstance(value, ast.Call) and name_of(value.func) in _SPACES
                if is_space or self._is_cuda(value):
                    yield key
            case ast.Match(subject=subject, cases=cases):
                if any(map(begins_with_cuda, (each for case in cases for each in nodes_of(case.pattern)))):
                    yield subject

    def _is_engine(self, function: ast.expr) -> bool:
        """Return whether a call is one of a package that computes by itself, or of a class that inherits from one."""
        file = self._file
        match function:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                owner = _class_around(file, function)
                return owner is not None and _has_engine(file, owner)
            case ast.Name():
                made = [each.node for each in file.bindings(function)]
                if any(isinstance(each, ast.ClassDef) and _has_engine(file, each) for each in made):
                    return True
        return _of_engine(file, function)

    def _ask_engines(self) -> None:
        """Note the classes that other files make, and whose text of a device goes to a package of its own."""
        for each in self._of.get(ast.ClassDef, ()):
            if _has_engine(self._file, each):
                for argument in ("device", *range(_MOST_BEFORE)):
                    self._ask(f"{ASKED}{each.name}({argument})", f"in line {each.lineno}")

    def _is_cuda(self, node: ast.expr) -> bool:
        """Return whether it is a name of CUDA's, several with one among them, or a table with one among its keys."""
        match node:
            case ast.Constant():
                return begins_with_cuda(node)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return any(map(begins_with_cuda, parts))
            case ast.Dict() | ast.Call(func=ast.Name(id="dict")):
                return has_cuda_key(node)
            case ast.Call(func=ast.Attribute(value=value, attr="keys")):
                return self._is_cuda(value)
            case ast.Name(id=name):
                values = [each.value for each in self._file.bindings(node)]
                own = any(
                    isinstance(each, ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Call)
                    and self._is_cuda(each)
                    for each in values
                )
                if len(values) == 1 and isinstance(values[0], ast.Name) and values[0].id != name:
                    return values[0].id in self._tables or self._is_cuda(values[0])
                is_constant = name.isupper() or not any(isinstance(each, ast.Constant) for each in values)
                imported = any(each.imported for each in self._file.bindings(node))
                return (own and is_constant) or (imported and name in self._file.project.tables)
            case ast.Attribute(attr=name):
                return name in self._file.project.tables
        return False

    # Where a text comes from

    def _follow(self, node: ast.expr, where: str) -> None:
        """Go from an expression to those that it has its text from."""
        match node:
            case ast.Name():
                self._follow_name(node, where)
            case ast.Attribute(value=value, attr="type" | "device_type"):
                if isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and _is_holder(value.value)):
                    self._ahead.append((value, where))
            case ast.Attribute(value=value, attr=name):
                self._follow_attribute(value, name, node, where)
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
                self._ask(f"{ASKED}[{key}]", where)
            case ast.Subscript(value=value):
                self._ahead.append((value, where))
            case ast.Call():
                self._follow_call(node, where)
            case ast.IfExp(body=body, orelse=orelse):
                self._ahead += [(body, where), (orelse, where)]
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                self._ahead += [(each, where) for each in parts]
            case ast.NamedExpr(value=value) | ast.FormattedValue(value=value) | ast.Await(value=value):
                self._ahead.append((value, where))
            case ast.Starred(value=value):
                self._ahead.append((value, where))
            case ast.JoinedStr(values=parts):
                self._ahead += [(each, where) for each in parts]
            case ast.BinOp(left=left, right=right):
                self._ahead += [(left, where), (right, where)]

    def _follow_name(self, node: ast.Name, where: str) -> None:
        bindings = self._file.bindings(node)
        if not bindings:
            self._ask(f"{ASKED}.{node.id}", where)
        for each in bindings:
            if each.value is not None:
                self._ahead.append((each.value, where))
            elif each.imported is not None:
                if not is_outside(each.imported, self._file.project.modules):
                    self._ask(f"{ASKED}.{each.imported.rpartition('.')[2]}", where)
            elif isinstance(each.node, ast.arg):
                self._follow_parameter(each.node, where)
            elif isinstance(each.node, ast.expr):
                self._ahead += [(given, where) for given in _unpacked(self._file, each.node)]

    def _follow_parameter(self, parameter: ast.arg, where: str) -> None:
        arguments = self._file.parent(parameter)
        function = self._file.parent(arguments) if isinstance(arguments, ast.arguments) else None
        if not isinstance(arguments, ast.arguments) or function is None:
            return
        self._ahead += [(value, where) for each, value in with_defaults(arguments) if each is parameter]
        if not isinstance(function, _FUNCTIONS):
            return
        owner = self._file.parent(function)
        is_method = isinstance(owner, ast.ClassDef)
        is_static = any(name_of(each) == "staticmethod" for each in function.decorator_list)
        called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
        self._ask(f"{ASKED}{called}({parameter.arg})", where)
        positional = [*arguments.posonlyargs, *arguments.args][is_method and not is_static :]
        if parameter in positional:
            self._ask(f"{ASKED}{called}({positional.index(parameter)})", where)
        for each in function.decorator_list:
            if isinstance(each, ast.Call) and name_of(each.func) == "parametrize" and len(each.args) > 1:
                names = each.args[0]
                if isinstance(names, ast.Constant) and parameter.arg in str(names.value).replace(" ", "").split(","):
                    self._ahead += [(one, where) for one in nodes_of(each.args[1]) if isinstance(one, ast.Constant)]

    def _follow_attribute(self, holder: ast.expr, name: str, node: ast.Attribute, where: str) -> None:
        is_own = isinstance(holder, ast.Name) and holder.id in ("self", "cls")
        owner = _class_around(self._file, node) if is_own else None
        called = owner.name if owner is not None else _OPTIONS if is_options(holder) else ""
        self._ask(f"{ASKED}{called}.{name}", where)
        for each in owner.body if owner is not None else ():
            if isinstance(each, _FUNCTIONS) and each.name == name:
                self._give(f"{ASKED}{name}()", where)

    def _follow_call(self, call: ast.Call, where: str) -> None:
        file, function = self._file, call.func
        if isinstance(function, ast.Attribute) and function.attr in _SAME:
            self._ahead.append((function.value, where))
            return
        if (
            file.is_builtin(function, "str") or file.dotted(function) == "torch.device"
            or file.calls_runtime(call, "resolve", "resolve_kind", "device", "name", "kind")
        ):  # fmt: skip
            self._ahead += [(each, where) for each in call.args[:1]]
            return
        if isinstance(function, ast.Attribute) and function.attr == "get" and call.args:
            key = call.args[0]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._ask(f"{ASKED}[{key.value}]", where)
                self._ahead += [(each, where) for each in call.args[1:2]]
                return
        if name_of(function) == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            self._ask(f"{ASKED}.{call.args[1].value!s}", where)
            self._ahead += [(each, where) for each in call.args[2:3]]
            return
        full = file.dotted(function) or ""
        if name_of(function) and not is_outside(full, file.project.modules):
            self._ask(f"{ASKED}{name_of(function)}()", where)

    # Keys

    def _ask(self, key: str, where: str) -> None:
        """Note that a text of this name is asked about, here and in other files."""
        if key not in self.keys:
            self.keys[key] = where
            self._give(key, where)

    def _give(self, key: str, where: str) -> None:
        """Go to whatever in the file gives a text of this name its value."""
        self._ahead += [(each, where) for each in self._given(key.removeprefix(ASKED))]

    def _given(self, key: str) -> Iterator[ast.expr]:
        if key.startswith("["):
            yield from _in_tables(self._of, key[1:-1])
        elif key.endswith("()"):
            yield from _returned(self._file, self._of, key.removesuffix("()"))
        elif key.endswith(")"):
            called, _, argument = key[:-1].partition("(")
            yield from _arguments(self._file, self._of, called, int(argument) if argument.isdigit() else argument)
        else:
            owner, _, name = key.rpartition(".")
            yield from _attributes(self._file, self._of, owner, name)


def _of_engine(file: File, node: ast.AST) -> bool:
    return (file.dotted(node) or "").partition(".")[0] in OTHER_ENGINES


def _has_engine(file: File, owner: ast.ClassDef) -> bool:
    """Return whether a class inherits from one of a package that computes by itself."""
    return any(_of_engine(file, each) for each in owner.bases)


def _is_holder(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and (node.id in ("self", "cls") or is_options(node))


def _class_around(file: File, node: ast.AST) -> ast.ClassDef | None:
    return next((each for each in file.ancestors(node) if isinstance(each, ast.ClassDef)), None)


def _unpacked(file: File, target: ast.expr) -> Iterator[ast.expr]:
    """The values that a name may get without a plain assignment: of a loop, or of a tuple that is unpacked."""
    around, place = file.parent(target), None
    if isinstance(around, ast.Tuple | ast.List) and target in around.elts:
        place, around = around.elts.index(target), file.parent(around)
    match around:
        case ast.Assign(value=value):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            yield parts[place] if place is not None and place < len(parts) else value
        case ast.For(iter=values) | ast.comprehension(iter=values):
            for each in values.elts if isinstance(values, ast.Tuple | ast.List | ast.Set) else [values]:
                inner = each.elts if isinstance(each, ast.Tuple | ast.List) else []
                yield inner[place] if place is not None and place < len(inner) else each


def _in_tables(of: _Of, key: str) -> Iterator[ast.expr]:
    """Find what a table is given under a key: in `{"device": x}`, `dict(device=x)`, `options["device"] = x`."""
    for table in of.get(ast.Dict, ()):
        for name, value in zip(table.keys, table.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                yield value
    for node in of.get(ast.Assign, ()):
        match node.targets:
            case [ast.Subscript(slice=ast.Constant(value=name))] if name == key:
                yield node.value
    for call in of.get(ast.Call, ()):
        if name_of(call.func) in ("dict", "update"):
            yield from (each.value for each in call.keywords if each.arg == key)


def _returned(file: File, of: _Of, name: str) -> Iterator[ast.expr]:
    for each in of.get(ast.Return, ()):
        function = file.function(each) if each.value is not None else None
        if function is not None and function.name == name:
            yield each.value


def _arguments(file: File, of: _Of, called: str, argument: int | str) -> Iterator[ast.expr]:
    """Find what calls of a function by its name give for an argument, also by `partial` and `Process(target=...)`."""
    for call in of.get(ast.Call, ()):
        function, given = call.func, list(call.args)
        if name_of(function) == "partial" and given:
            function, given = given[0], given[1:]
        for each in call.keywords:
            if each.arg == "target" and name_of(each.value) == called:
                tuples = [one.value for one in call.keywords if one.arg == "args"]
                function, given = each.value, [one for two in tuples for one in getattr(two, "elts", ())]
        if name_of(function) != called or is_outside(file.dotted(function) or "", file.project.modules):
            continue
        if isinstance(argument, int):
            yield from given[argument : argument + 1]
            continue
        yield from (each.value for each in call.keywords if each.arg == argument)
        for each in (each.value for each in call.keywords if each.arg is None):
            tables = [one.value for one in file.bindings(each)] if isinstance(each, ast.Name) else [each]
            yield from _in_tables({kind: [one for one in tables if isinstance(one, kind)]
                                   for kind in (ast.Dict, ast.Call)}, argument)  # fmt: skip


def _attributes(file: File, of: _Of, owner: str, name: str) -> Iterator[ast.expr]:
    """Find what an attribute is given, of a class and those around it, or of anything where no class is named."""
    for node in (*of.get(ast.Assign, ()), *of.get(ast.AnnAssign, ())):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None and any(_stores(file, each, owner, name, node) for each in targets):
            yield node.value
    for call in of.get(ast.Call, ()):
        made = name_of(call.func)
        known = file.project.classes.get(made)
        if known is not None and "__init__" not in known.members and (not owner or _related(file, made, owner)):
            yield from (each.value for each in call.keywords if each.arg == name)
        if owner in ("", _OPTIONS) and made == "add_argument" and option_of(call) == name:
            yield from (each.value for each in call.keywords if each.arg == "default")
        if made == "setattr" and len(call.args) == 3:
            yield from call.args[2:] if getattr(call.args[1], "value", None) == name else ()


def _stores(file: File, target: ast.expr, owner: str, name: str, statement: ast.stmt) -> bool:
    """Return whether a statement stores an attribute: of an object, of a class in its body, of the module."""
    if isinstance(target, ast.Attribute) and target.attr == name:
        is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
        around = _class_around(file, target) if is_own else None
        return not owner or around is None or _related(file, around.name, owner)
    if isinstance(target, ast.Name) and target.id == name:
        outer = file.parent(statement)
        if isinstance(outer, ast.ClassDef):
            return not owner or _related(file, outer.name, owner)
        return outer is None and owner in ("", _OPTIONS)
    return False


def _related(file: File, one: str, other: str) -> bool:
    """Return whether one of two classes inherits from the other, or they are one; of options by the class's name."""
    if other == _OPTIONS:
        return _OF_OPTIONS.search(one) is not None
    return one == other or file.project.descends(one, other) or file.project.descends(other, one)


# What a comparison decides


def _decides(file: File, test: ast.expr, depth: int = 2) -> bool:
    """Return whether a comparison says where tensors are, or leaves no way for other devices.

    What other devices have the CPU's way for is right on them, too.
    """
    inner: ast.AST = test
    outer = file.parent(test)
    while isinstance(outer, ast.BoolOp | ast.UnaryOp):
        inner, outer = outer, file.parent(outer)
    match outer:
        case ast.Assert():
            return True
        case ast.IfExp(test=asked, body=body, orelse=orelse) if asked is inner:
            return _places(body) or _places(orelse)
        case ast.Assign(targets=[ast.Name(id=name) as target]) if depth:
            return any(_decides(file, each, depth - 1) for each in file.reads(name, outer, target))
        case ast.If(test=asked) if asked is inner:
            return _branches_decide(outer, test)
    return False


def _branches_decide(statement: ast.If, test: ast.expr) -> bool:
    is_equal = not isinstance(test, ast.Compare) or isinstance(test.ops[0], ast.Eq | ast.In)
    others: list[ast.stmt] = statement.orelse if is_equal else statement.body
    asked = {ast.unparse(each) for each in nodes_of(test) if isinstance(each, ast.Name | ast.Attribute)}
    statements = [each for each in (*statement.body, *statement.orelse) if not _sets(each, asked)]
    if any(map(_places, statements)) or any(map(_refuses, others)):
        return True
    last = statement
    while len(last.orelse) == 1 and isinstance(last.orelse[0], ast.If):
        last = last.orelse[0]
    is_bound = any(isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) for each in statement.body)
    return not last.orelse and last is not statement and is_bound


def _sets(statement: ast.stmt, asked: Collection[str]) -> bool:
    """Return whether a statement gives the name itself another text: `if d == "cuda" and ...: d = "cpu"`."""
    return isinstance(statement, ast.Assign) and any(ast.unparse(each) in asked for each in statement.targets)


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
