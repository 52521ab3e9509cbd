"""Tests of the ported project: what they ask, and the names of torch.cuda that they replace.

A test is skipped where there is no CUDA. What it does behind that question may be for CUDA alone without a word of it
in the file: a kernel of the program, a plug-in. So a question in a test is converted only where something behind it
is, and nothing behind it speaks of CUDA any more; in a project that builds operators for CUDA none is. Moves of
tensors are converted as everywhere. Tests: tests/port/test_port_unseen_fourth.py,
tests/port/test_port_unseen_sixth.py, tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from toprope.port.conditions.across import SKIPPING
from toprope.port.conditions.evidence import NOTHING
from toprope.port.conditions.guards import QUESTIONS, foreign_answers
from toprope.port.conditions.opened import Opened, is_negative
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.project.patched import set_in
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = ["IN_A_TEST", "asked_in_tests", "hold_in_tests", "hold_patched", "is_test"]

IN_A_TEST = "it stays in this test: not all that it is for is seen to be converted"
"""The reason why something stays in a test."""

_QUESTIONS = QUESTIONS - {"TR065"}  # a backend is no device
_ASSERTS = {"assertTrue", "assert_", "assert_true"}
_SETS_UP = {"setUp", "setUpClass", "setup_method", "setup_class", "asyncSetUp"}
_DEVICES = {"TR002", "TR002a", "TR002b", "TR004", "TR010"}
_FOLDERS = {"test", "tests", "testing", "unittests", "unit_tests"}
_FILE = re.compile(r"_?test_\w+|Test[A-Z0-9_]\w*|\w+_tests?|\w+[a-z0-9]Tests?|conftest|_?testing")
_TESTS = re.compile(r"^\s*(?:import|from)\s+(?:pytest|unittest|absl\.testing|hypothesis)\b|^\s*def test|TestCase", re.M)
_IS_TEST = re.compile(r"^\s*(?:import|from)\s+(?:pytest|unittest(?!\.mock)|absl\.testing)\b", re.M)
_LEFT = re.compile(r"cuda|nccl|cudnn|triton", re.IGNORECASE)
_ASKS = re.compile(
    r"(?:\w*_)?(?:use|using|with|has|have|no|on|to|is|test|run|want|if|requires?|needs?|skip|only|without)(?:_\w+)??_?cuda"
    r"|cuda(?:_is)?_available|cuda|gpu|\w*cuda_?(?:device|only|available|enabled|test|tests)s?",
    re.IGNORECASE,
)
"""Names that hold an answer or a device, and say nothing about what runs there."""
_OF_THE_MACHINE = {"torch.cuda.is_available", "torch.cuda.device_count"}
"""Questions that a test answers when it replaces all of torch.cuda."""


def hold_patched(file: File, findings: Iterable[Finding], path: str) -> None:
    """Hold back what calls a name of torch that a test of the project, or the file itself, replaces.

    Else what the test put in its place would not be called, or with other arguments than the test expects. A program
    that no file imports is in no test's process.
    """
    wanted = set(map(id, findings))
    name, replaced = PurePath(path).stem, file.project.patched
    is_imported = PurePath(path).suffix != ".ipynb" and name in file.project.imported
    is_reached = is_test(file, path) or name == "__init__" or is_imported
    is_own = any(place.startswith((f"{name},", "this file,")) for place in replaced.values())
    patched = dict(replaced) if is_reached or is_own else {}
    if re.search(r"torch\.cuda\.\w+\s*=[^=]", file.source.text):
        patched |= {name: f"line {line}" for name, line in set_in(file.walk.parents)}
    stay: list[tuple[ast.AST, Finding]] = []
    for finding, node in file.places if patched else ():
        if id(finding) in wanted and finding.converted and not isinstance(node, ast.alias):
            names = {file.dotted(each) or "" for each in nodes_of(node) if isinstance(each, ast.Name | ast.Attribute)}
            call = file.parent(node.value if isinstance(node, ast.keyword) else node)
            call = file.parent(call) if isinstance(call, ast.keyword) else call
            names |= {file.dotted(call.func) or ""} if isinstance(call, ast.Call) else set()
            name = next((each for each in sorted(names) if each in patched), "")
            if not name and names & _OF_THE_MACHINE:
                name = "torch.cuda" if "torch.cuda" in patched else ""
            if name:
                asks = finding.rule.code in {*_QUESTIONS, "TR003"}
                what = "the condition asks " if asks else ""
                finding.held_back = f"{what}{name}, which is replaced in {patched[name]}"
                stay += [(node, finding)] if finding.rule.code in _QUESTIONS else []
    for question, asked in stay:
        opened = Opened(file)
        parts = [part for part, _ in (*opened.by(question, not is_negative(question)), *opened.required)]
        inside = {each for part in parts for each in nodes_of(part)}
        for finding, node in file.places:
            if id(finding) in wanted and finding.converted and node in inside:
                finding.held_back = f"it stays with the condition in line {asked.line}"


def hold_in_tests(
    file: File, findings: Sequence[Finding], path: str, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Hold back the questions and the bare devices of a test that are not seen to be right on other devices.

    Args:
        file: the file.
        findings: what is converted or reported.
        path: its name.
        elsewhere: answers of other files that stay, as in `guards.hold_back`.
    """
    if not is_test(file, path):
        return
    wanted, has_tests = set(map(id, findings)), bool(_TESTS.search(file.source.text))
    converted = [(f, n) for f, n in file.places if id(f) in wanted and f.converted]
    places = [node for finding, node in converted if finding.rule.code not in _QUESTIONS]
    for finding, _ in file.places:
        if id(finding) in wanted and NOTHING in finding.held_back and has_tests:
            finding.held_back = IN_A_TEST
    own = file.context.has_operators_for(file.source.text)
    for finding, node in converted:
        if finding.rule.code in _QUESTIONS:
            built = own and (has_tests or finding.rule.code in ("TR001", "TR001a"))
            stays = built or (has_tests and not _is_converted_with(file, node, places))
        else:
            stays = finding.rule.code in _DEVICES and isinstance(node, ast.expr) and _is_unused(file, node)
        if stays:
            finding.held_back = IN_A_TEST
    skipped = list(_skipped_without_cuda(file, elsewhere or {})) if has_tests else []
    for finding, node in file.places if skipped else ():
        around = {node, *file.ancestors(node)}
        name = next((name for test, name in skipped if test in around and node not in test.decorator_list), "")  # type: ignore[attr-defined]
        if name and id(finding) in wanted and finding.converted:
            finding.held_back = f"it stays with {name}, which skips it without CUDA"


def asked_in_tests(file: File, path: str, keys: Collection[str]) -> dict[str, str]:
    """Find the answers of other files that a test asks for in a project with its own operators for CUDA.

    Returns:
        What it does with them, by the key of the answer.
    """
    if not is_test(file, path) or not file.context.has_operators_for(file.source.text):
        return {}
    return dict.fromkeys(
        (key for key, _ in foreign_answers(file, keys)), "decides about tests of the project's kernels"
    )


def is_test(file: File, path: str) -> bool:
    """Return whether a file is a test by what it imports, or by its name or folder and by what is in it."""
    if _IS_TEST.search(file.source.text):
        return True
    name, top = PurePath(path), file.context.top
    folders = name.relative_to(top).parts[:-1] if top and name.is_relative_to(top) else ()
    named = _FILE.fullmatch(name.stem) or _FOLDERS & {each.lower() for each in folders}
    own = file.context.has_operators_for(file.source.text)
    return bool(named) and bool(own or _TESTS.search(file.source.text))


def _is_converted_with(file: File, question: ast.AST, converted: list[ast.AST]) -> bool:
    """Return whether something behind a question is converted, and nothing that is left there speaks of CUDA."""
    function = file.function(question)
    if _is_asserted(file, question) and function is not None:
        around = file.parent(function)
        parts: list[ast.AST] = [around if function.name in _SETS_UP and around is not None else function]
    else:
        opened = Opened(file)
        parts = [part for part, _ in opened.by(question, not is_negative(question))]
        parts += [part for part, _ in opened.required]
    inside = {inner for part in parts for inner in nodes_of(part)}
    if not any(each in inside for each in converted) or any(_needs_package(file, each) for each in inside):
        return False
    done = {inner for each in converted for inner in nodes_of(each)} | set(nodes_of(question))
    asked = _condition(file, question)
    for node in (*inside, *nodes_of(asked)):
        if _asks_for_cuda(node):
            return False
        name = next(filter(None, _names(node)), "") if node not in done else ""
        if _LEFT.search(name) and not _ASKS.fullmatch(name) and not (file.dotted(node) or "").startswith("torch.cuda"):
            return False
    return True


def _is_asserted(file: File, question: ast.AST) -> bool:
    """Return whether a test fails where a question is answered with no: `assert`, `self.assertTrue(...)`."""
    statement = file.statement(question) if isinstance(question, ast.expr) else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        return name_of(call.func) in _ASSERTS and bool(call.args) and question in nodes_of(call.args[0])
    return isinstance(statement, ast.Assert)


def _skipped_without_cuda(file: File, elsewhere: Mapping[str, str]) -> Iterator[tuple[ast.AST, str]]:
    """Find the functions and classes that a decorator skips without CUDA, whose question stays, each with its name.

    The decorator is one of another package, or of the project or the file, where its own question stays.
    """
    left = [node for finding, node in file.places if finding.rule.code in _QUESTIONS and not finding.converted]
    for node in file.walk.parents:
        for each in getattr(node, "decorator_list", ()):
            decorator = each.func if isinstance(each, ast.Call) else each
            name = name_of(decorator)
            if not SKIPPING.fullmatch(name):
                continue
            full = file.dotted(decorator)
            if full is None:
                made = [each.node for each in file.bindings(decorator)] if isinstance(decorator, ast.Name) else []
                made = [file.statement(one) for one in made if isinstance(one, ast.expr | ast.stmt)]
                stays = any(inner in left for one in made for inner in nodes_of(one))
            else:
                is_own = full.startswith(".") or not file.project.modules.isdisjoint(full.split(".")[:-1])
                stays = not is_own or not _keys(name).isdisjoint(elsewhere)
            if stays:
                yield node, name


def _keys(name: str) -> set[str]:
    return {name, f".{name}", f".{name}()"}


def _asks_for_cuda(node: ast.AST) -> bool:
    """Return whether a function is asked to run on CUDA, whose code is somewhere else: `self.check(cuda=True)`."""
    return (
        isinstance(node, ast.keyword) and bool(_LEFT.search(node.arg or ""))
        and isinstance(node.value, ast.Constant) and node.value.value is True
    )  # fmt: skip


def _needs_package(file: File, node: ast.AST) -> bool:
    """Return whether a test imports a package of others by itself, which may be one for CUDA."""
    match node:
        case ast.Import(names=names):
            modules = [each.name for each in names]
        case ast.ImportFrom(module=str(module), level=0):
            modules = [module]
        case _:
            return False
    known = {*sys.stdlib_module_names, *file.project.modules, "torch", "numpy", "pytest"}
    return any(each.partition(".")[0] not in known for each in modules)


def _condition(file: File, question: ast.AST) -> ast.AST:
    """The whole condition that a question is part of."""
    outer = file.parent(question)
    while isinstance(outer, ast.BoolOp | ast.UnaryOp | ast.Compare | ast.Call) and isinstance(outer, ast.expr):
        question, outer = outer, file.parent(outer)
    return question


def _names(node: ast.AST) -> Iterator[str]:
    """The name or the short text that a node is."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.arg(arg=name):
            yield name
        case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:/-]+", text):
            yield text


def _is_unused(file: File, device: ast.expr) -> bool:
    """Return whether nothing is seen to go to a device: it is only compared, or assigned and not given to anything.

    Nor to one of several that tests are made for: where there is no card, it must not become the CPU.
    """
    value: ast.AST = device
    around = file.parent(value)
    while isinstance(around, ast.IfExp) or (
        isinstance(around, ast.Call) and file.dotted(around.func) == "torch.device"
    ):
        value, around = around, file.parent(around)
    if isinstance(around, ast.keyword):
        around = file.parent(around)
    match around:
        case ast.Compare():
            return True
        case ast.Call():  # the device of a decorator: the tests are skipped where it is CUDA's and not there
            function = file.parent(around)
            return around in getattr(function, "decorator_list", ())
        case ast.List(elts=parts) | ast.Tuple(elts=parts) if len(parts) > 1:
            texts = {ast.unparse(each) for each in parts if each is not value}
            return any(re.search(r"\bcpu\b", each) for each in texts)
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            reads = _reads(file, target, around)
            return reads is not None and not any(_is_given(file, each) for each in reads)
    return False


def _reads(file: File, target: ast.expr, statement: ast.AST) -> list[ast.expr] | None:
    """Return where a name or an attribute is read; None where other files may read it."""
    if isinstance(target, ast.Name):
        scope = file.scope(target)
        if scope.parent is None or scope.is_class:
            return None
        return list(file.reads(target.id, statement, target))
    if not isinstance(target, ast.Attribute):
        return None
    own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    text = ast.unparse(target)
    return [
        each for each, scope in file.walk.scopes.items()
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and ast.unparse(each) == text
        and (own or scope is file.scope(target))
    ]  # fmt: skip


def _is_given(file: File, read: ast.expr) -> bool:
    """Return whether a device is given to a function, kept elsewhere or returned, and not only compared."""
    outer = file.parent(read)
    if isinstance(outer, ast.Call):
        return read in outer.args and getattr(outer.func, "attr", "") not in _EQUALS
    return isinstance(
        outer, ast.keyword | ast.Assign | ast.Return | ast.Dict | ast.List | ast.Tuple | ast.FormattedValue
    )


_EQUALS = {"assertEqual", "assertNotEqual", "assertIs", "assertIn", "assert_equal"}
