"""A condition on CUDA is converted only together with all that it guards.

`"nccl" if torch.cuda.is_available() else "gloo"` works on every machine. With the question converted and "nccl" left it
fails on an NPU, where it was right before. So a question is followed to the code that another answer opens: through
`not`, `and` and `or`, names and attributes it is kept in, functions that return it. Where something there stays CUDA's,
neither the question nor that code is changed, and the question says why.

Called by `engine`. The modules `answers`, `compared`, `compiled` and `across` say which places may not change, `opened`
follows a condition. Any doubt keeps the code as it is; QUESTIONS and SAME_CONDITION are read by others, all else is
free. Tests: tests/port/test_port_conditions.py, tests/port/test_port_answers.py, tests/port/test_port_unseen.py,
tests/port/test_port_unseen_fourth.py, tests/port/test_port_unseen_eighth.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from toprope.port.analysis.places import device_name
from toprope.port.conditions.across import DECIDES, answers_in
from toprope.port.conditions.answers import is_given
from toprope.port.conditions.asked_texts import ASKED
from toprope.port.conditions.compared import COMPARED, LOOKED_UP, OTHER_ENGINES, is_only_text
from toprope.port.conditions.compiled import asks_for_package, compiled_uses, functions_of_kernels
from toprope.port.conditions.evidence import why_unknown
from toprope.port.conditions.opened import Opened, block_behind, is_negative, opened_by
from toprope.port.family import AS_CLASS
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.project.asked import OTHERS
from toprope.port.project.scripted import is_outside
from toprope.port.rule import Kind
from toprope.port.syntax.nodes import name_of, nodes_of
from toprope.port.syntax.scopes import with_defaults

__all__ = ["QUESTIONS", "SAME_CONDITION", "foreign_answers", "guards", "hold_back"]

QUESTIONS = frozenset({"TR001", "TR001a", "TR016", "TR017", "TR017a", "TR018", "TR024", "TR065"})
"""Rules whose rewrite lets a question be answered with yes on another accelerator."""

RUNS = frozenset({
    "TR045", "TR070", "TR071", "TR072", "TR072a", "TR073", "TR074", "TR075", "TR076", "TR084b", "TR088",
    "TR091a", "TR102", "TR102b",
})  # fmt: skip
"""Rules whose place does no harm on another device when it is left as it is. All others are taken to fail there."""

_OF_THE_MACHINE = {"TR001", "TR001a", "TR024"}
"""Questions whose answer is one for the whole program. Where one stays, all that decide where tensors are do."""
_CHOICE = "TR003"
_NEVER = {"TR043", "TR045", "TR076a"}
_NEVER_ASKED = {"torch.cuda.get_arch_list", "torch.version.cuda", "torch.backends.cuda.is_built"}
"""Questions of how torch was built for CUDA, which no rule rewrites where they decide."""
_PLACES = {"devices", "moves", "numbers", "tensors"}
_ALSO = "decides where tensors are, as"

_BUILD = re.compile(r"[\"'](?:[\w.]*-(?:gpu|cpu|macos|cuda\d+x?|cu\d+)(?=[<>=!~\"'\[])|cu1[0-3]\d[\"'])")
_BUILDS_OF_TORCH = ("torch.version.cuda", "torch.version.hip")
_ENGINES = "TR084"
_ENGINE_NAMES = {"tensorrt", "torch2trt", "torch_tensorrt", "pycuda"}
"""Packages of NVIDIA's that no other device has by any name: what follows their import runs on CUDA alone."""
_PICKLES = ("pickle", "dill", "joblib")
_UNPICKLES = {f"{package}.{name}" for package in (*_PICKLES, "cloudpickle") for name in ("load", "loads")}
"""They make tensors where they were; a program that asks for CUDA in front of them means CUDA."""
_READS_STORAGES = "_load_from_bytes"
_GRAPHS = re.compile(r"cuda_?graph", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
SAME_CONDITION = 'the same condition asks for "cuda" by name'
"""The reason why a question stays that is asked together with the text of a device."""
_HELD = "the condition "
_SHOWN = {"print", "debug", "info", "warning", "warn", "error", "log", "write"}


@dataclass(eq=False)
class _Question:
    """A question that would be converted.

    Attributes:
        finding: its place.
        opened: the code that runs when the answer becomes yes, each with the condition it depends on.
        required: the code that runs only then, since an assertion or an error is in front of it.
        keys: how other files and cells reach the answer.
        about: why it is about CUDA itself, whatever it opens; "" where it is not.
    """

    finding: Finding
    opened: list[tuple[ast.AST, ast.AST]]
    required: list[tuple[ast.AST, ast.AST]]
    keys: set[str]
    about: str = ""


@dataclass(frozen=True)
class _Stays:
    """A place that is right on CUDA alone.

    Attributes:
        node: the place.
        why: the reason, behind "the condition ".
        only_cuda: whether nothing but CUDA can have it.
    """

    node: ast.AST
    why: str
    only_cuda: bool = False


def hold_back(
    file: File,
    findings: Sequence[Finding],
    deselected: Iterable[Finding] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Hold back the questions whose answer opens code that stays CUDA's, with all of that code.

    Args:
        file: the file.
        findings: what is converted or reported.
        deselected: what the user asked to leave; it stays CUDA's.
        elsewhere: keys of answers (`Opened.keys`) that must not change for the sake of another file or cell, with the
            reason.
    """
    deselected = list(deselected)
    _hold_behind_cuda(file, findings, deselected, elsewhere or {})
    nodes = [(finding, node) for finding, node in file.places]
    wanted, left = set(map(id, findings)), set(map(id, deselected))
    asked = [(f, n) for f, n in nodes if id(f) in wanted and f.converted and f.rule.code in QUESTIONS]
    other_file = _decided_elsewhere(file, elsewhere or {})
    anchor = other_file or _choice_that_stays(file, nodes, wanted) or _placed_by_another(file, nodes, elsewhere or {})
    if not asked and not anchor:
        return
    stays = list(_staying(file, [(f, n) for f, n in nodes if id(f) in wanted or id(f) in left], left))
    codes = {finding.rule.code for finding, _ in asked}
    about = {id(finding): _about_cuda(file, node) for finding, node in asked}
    if not stays and not elsewhere and not anchor and not any(about.values()) and not _OF_THE_MACHINE & codes:
        return
    questions = []
    for finding, node in asked:
        followed = Opened(file, raises=finding.rule.code not in _OF_THE_MACHINE)
        opened = list(followed.by(node, not is_negative(node)))
        questions.append(_Question(finding, opened, followed.required, followed.keys, about[id(finding)]))
    questions.sort(key=lambda each: sum(_length(file, part) for part, _ in each.opened))
    held: list[tuple[ast.AST, ast.AST]] = []
    behind: list[tuple[ast.AST, ast.AST]] = []
    for finding, node in nodes:
        if finding.rule.code in QUESTIONS and finding.held_back.startswith(_HELD):  # in an earlier round
            followed = Opened(file)
            held += followed.by(node, not is_negative(node))
            if finding.rule.code in _OF_THE_MACHINE and _places_tensors(file, held, nodes):
                anchor = anchor or f"line {finding.line}"
            behind += followed.required
    held += behind
    changed = True
    while changed:
        changed = False
        for question in [each for each in questions if each.finding.converted]:
            places = question.finding.rule.code in _OF_THE_MACHINE and _places_tensors(file, question.opened, nodes)
            why = question.about or _reached(file, question, stays, held) or _used_elsewhere(question, elsewhere or {})
            if not why and anchor and (places or other_file):
                why = f"{_ALSO} {anchor} does, which stays"
            if not why and question.finding.rule.code in _OF_THE_MACHINE:
                done = [n for f, n in nodes if f is not question.finding and _is_fine(f, wanted, left)]
                why = why_unknown(file, [part for part, _ in question.opened], done)
            needed = "" if why else _needed(file, question, stays)
            if needed:
                why, question.opened = needed, [*question.opened, *question.required]
            if not why:
                continue
            changed = True
            anchor = anchor or (f"line {question.finding.line}" if places else "")
            question.finding.held_back = f"{_HELD}{why}"
            held += question.opened
            stays += _set_there_alone(file, question)
            for part, condition in question.opened:
                whole = condition if isinstance(condition, ast.IfExp) else part
                for finding, node in nodes:
                    if id(finding) in wanted and finding.converted and _within(file, node, whole):
                        finding.held_back = f"it stays with the condition in line {question.finding.line}"
    parts = [part for each in questions if each.finding.converted for part, _ in (*each.opened, *each.required)]
    for finding, node in nodes if anchor else ():
        is_free = not any(_within(file, node, part) for part in parts)  # it runs whatever the program asked
        places = finding.rule.code == _CHOICE or (finding.rule.family in _PLACES and is_free)
        if places and finding.converted and id(finding) in wanted:
            finding.held_back = f"it {_ALSO} {anchor} does, which stays"


def _placed_by_another(file: File, nodes: Sequence[tuple[Finding, ast.AST]], elsewhere: Mapping[str, str]) -> str:
    """Return an answer of another file that stays, and by which this one chooses the device; "" without one."""
    for key, node, place in _answers_that_stay(file, elsewhere):
        choices = [part for part, outer in opened_by(file, node) if isinstance(outer, ast.IfExp)]
        if _places_tensors(file, [(each, each) for each in choices], nodes):
            return f"{key.strip('.()')} of {place}"
    return ""


def _answers_that_stay(file: File, elsewhere: Mapping[str, str]) -> Iterator[tuple[str, ast.expr, str]]:
    """Find the reads of answers of other files that stay, each with its key and the file that needs it."""
    answers = {key: place.partition(",")[0] for key, place in elsewhere.items() if not key.startswith((ASKED, DECIDES))}
    text = file.source.text
    read = {key: place for key, place in answers.items() if key.strip(".()[]") in text}
    places = {name: place for key, place in read.items() for name in _names_of(key)}
    tree = file.walk.module.node
    if places and isinstance(tree, ast.Module):
        for key, node in foreign_answers(file, places.keys() - _own_answers(tree)):
            yield key, node, places[key]


@lru_cache(maxsize=4)
def _own_answers(tree: ast.Module) -> frozenset[str]:
    """The same as `answers_in`, for the rounds in which conditions of one file are held back."""
    return frozenset(answers_in(tree))


def _is_fine(finding: Finding, wanted: Collection[int], left: Collection[int]) -> bool:
    """Return whether a place is converted, or a person said in a comment that it is right as it is."""
    return finding.converted if id(finding) in wanted else id(finding) not in left


def _choice_that_stays(file: File, nodes: Iterable[tuple[Finding, ast.AST]], wanted: Collection[int]) -> str:
    """Return the line of a choice between CUDA and the CPU that stays for the sake of its text; "" without one."""
    for finding, node in nodes:
        is_text = finding.rule.code == _CHOICE and finding.held_back.startswith(LOOKED_UP) and id(finding) in wanted
        if is_text and not is_only_text(file, node, finding.held_back):
            return f"line {finding.line}"
    return ""


def _decided_elsewhere(file: File, elsewhere: Mapping[str, str]) -> str:
    """Return a function of another file that gives the device, whose question stays, and that the file calls."""
    if DECIDES in elsewhere:
        return elsewhere[DECIDES]
    given = {key.removeprefix(DECIDES): place for key, place in elsewhere.items() if key.startswith(DECIDES)}
    for node in file.walk.scopes if given else ():
        if isinstance(node, ast.Call):
            full = file.dotted(node.func) or ""
            by_star = not full and isinstance(node.func, ast.Name) and not file.bindings(node.func)
            name = node.func.id if by_star else full.rpartition(".")[2]  # type: ignore[attr-defined]
            if name in given and not is_outside(full, file.project.modules):
                return f"{name}() of {given[name]}"
    return ""


def _about_cuda(file: File, question: ast.AST) -> str:
    """Return why a question is about CUDA itself: it is asked with CUDA's graphs, or chooses how storages are read."""
    answer: ast.AST = question
    outer = file.parent(answer)
    while isinstance(outer, ast.UnaryOp | ast.BoolOp | ast.Compare) or getattr(outer, "func", None) is question:
        for each in outer.values if isinstance(outer, ast.BoolOp) else ():
            name = next((name for name in map(name_of, nodes_of(each)) if _GRAPHS.search(name)), "")
            if name:
                return f"asks for CUDA's graphs by {name}"
        assert outer is not None
        answer, outer = outer, file.parent(outer)
        if name := _asked_of(file, outer, answer):
            return f'is asked with a comparison of {name} with "cuda", which stays'
    if name := _sent_to_cpu(file, answer, outer):
        return f"takes the CPU for {name}, which may be CUDA's: give portable.resolve({name})"
    if engine := _engine(file, answer, outer):
        return f"is given to {engine}, which knows CUDA and the CPU"
    if _READS_STORAGES in file.source.text:
        for part, _ in Opened(file).by(question, is_negative(question)):
            for inner in nodes_of(part):
                if name_of(inner) == _READS_STORAGES:
                    return f"chooses how storages of CUDA are read in line {getattr(inner, 'lineno', 0)}"
    return ""


def _asked_of(file: File, condition: ast.AST | None, question: ast.AST) -> str:
    """Return the parameter that is compared with "cuda" next to a question, where that comparison stays."""
    converted = [node for finding, node in file.places if finding.converted and finding.rule.code in QUESTIONS]
    for each in condition.values if isinstance(condition, ast.BoolOp) else ():
        name = next((one.id for one in nodes_of(each) if isinstance(one, ast.Name) and _is_parameter(file, one)), "")
        says = any(isinstance(one, ast.Constant) and one.value == "cuda" for one in nodes_of(each))
        if each is not question and name and says and not any(_within(file, one, each) for one in converted):
            return name
    return ""


def _sent_to_cpu(file: File, answer: ast.AST, outer: ast.AST | None) -> str:
    """Return the parameter for which the CPU is taken without CUDA: `name if torch.cuda.is_available() else "cpu"`.

    Where it is given "cuda", that is not the device in use. One whose default is "cuda" is resolved above.
    """
    found: list[ast.expr] = []
    match outer:
        case ast.IfExp(test=test, body=body, orelse=orelse) if test is answer:
            found = [one for one, other in ((body, orelse), (orelse, body)) if _is_cpu(other)]
        case ast.If(test=test, body=body, orelse=orelse) if test is answer:
            for each in (*body, *orelse):
                if isinstance(each, ast.Assign) and _is_cpu(each.value):
                    found += each.targets
    return next((each.id for each in found if isinstance(each, ast.Name) and _is_parameter(file, each)), "")


def _is_cpu(node: ast.expr) -> bool:
    text = node.args[0] if isinstance(node, ast.Call) and node.args and name_of(node.func) == "device" else node
    return isinstance(text, ast.Constant) and text.value == "cpu"


def _is_parameter(file: File, node: ast.Name) -> bool:
    """Return whether a name is a parameter; not one whose default is CUDA's device, which is resolved above."""
    for each in (each.node for each in file.bindings(node)):
        arguments = file.parent(each) if isinstance(each, ast.arg) else None
        if isinstance(arguments, ast.arguments):
            default = next((value for one, value in with_defaults(arguments) if one is each), None)
            is_cuda = isinstance(default, ast.Constant) and str(default.value).startswith("cuda")
            return not (is_cuda and device_name(node.id))
    return False


def _engine(file: File, answer: ast.AST, outer: ast.AST | None) -> str:
    """Return the package that is given an answer, itself or by a name, and that computes by itself; "" without one."""
    given = [answer]
    if isinstance(outer, ast.Assign):
        for target in outer.targets:
            given += file.reads(target.id, outer, target) if isinstance(target, ast.Name) else []
    for each in given:
        call = file.parent(each)
        call = file.parent(call) if isinstance(call, ast.keyword) else call
        package = (file.dotted(call.func) or "").partition(".")[0] if isinstance(call, ast.Call) else ""
        if package in OTHER_ENGINES:
            return package
    return ""


def _places_tensors(
    file: File, opened: Iterable[tuple[ast.AST, ast.AST]], nodes: Sequence[tuple[Finding, ast.AST]]
) -> bool:
    """Return whether code that a question opens says on which device tensors are."""
    places = [
        node for found, node in nodes if found.rule.family in _PLACES and found.rule.code not in ("TR101", "TR103")
    ]
    return any(_within(file, node, part) for part, _ in opened for node in places)


def guards(
    file: File, findings: Sequence[Finding], deselected: Iterable[Finding], keys: Collection[str]
) -> dict[str, str]:
    """Find what the file guards by answers of other files, where it stays CUDA's: the reason by the answer's key."""
    wanted, left = set(map(id, findings)), set(map(id, deselected))
    stays = list(_staying(file, [(f, n) for f, n in file.places if id(f) in wanted or id(f) in left], left))
    found: dict[str, str] = {}
    for key, node in foreign_answers(file, keys) if stays else ():
        for part, _ in Opened(file).by(node, None):
            why = next((each.why for each in stays if _within(file, each.node, part)), "")
            if why:
                found.setdefault(key, why)
    return found


def foreign_answers(file: File, keys: Collection[str]) -> Iterator[tuple[str, ast.expr]]:
    """Find where answers of other files are read: by an imported name, or as an attribute of anything."""
    for node in file.walk.scopes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            around = file.parent(node)
            called = "()" if isinstance(around, ast.Call) and around.func is node else ""
            key = f".{node.attr}{called}"
            if key in keys and not (file.dotted(node) or "").startswith("torch."):
                yield key, node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            match file.parent(node):
                case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) as read if value is node:
                    if f"[{name}]" in keys:
                        yield f"[{name}]", read
            bindings = file.bindings(node)
            imported = {(each.imported or "").rpartition(".")[2] for each in bindings} or {node.id}
            for key in imported & set(keys):
                yield key, node


def _staying(file: File, places: Iterable[tuple[Finding, ast.AST]], left: set[int]) -> Iterator[_Stays]:
    """Find the places that stay CUDA's and may fail elsewhere, and the answers that other devices do not give."""
    for finding, node in places:
        converted = finding.converted and id(finding) not in left
        if _behind_cuda(file, node):
            continue
        if converted:
            if not is_given(file, finding.rule.code, node):
                yield _Stays(node, f"guards {_short(finding)}, which other devices do not answer ({finding.rule.code})")
        elif _fails(file, finding, node):
            why = f"guards {_short(finding)}, which stays CUDA's ({finding.rule.code})"
            yield _Stays(node, why, finding.rule.kind is Kind.NOT_CONVERTIBLE)
            yield from (_Stays(each, why) for each in _reads_of(file, node))
            if finding.rule.kind is Kind.NOT_CONVERTIBLE:
                yield from (_Stays(each, why, True) for each in _calls_around(file, node))
    for node in file.walk.scopes if any(each in file.source.text for each in _PICKLES) else ():
        if isinstance(node, ast.Call) and file.dotted(node.func) in _UNPICKLES:
            yield _Stays(node, f"chooses how storages of CUDA are unpickled in line {node.lineno}")
    for node in file.walk.parents if file.context.loading else ():
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if module.rpartition(".")[2] in file.context.loading and not file.is_tried(node):
            yield _Stays(node, f"guards the import of {module} in line {getattr(node, 'lineno', 0)}, an extension's")
    for node in _names_of_builds(file):
        yield _Stays(node, f"chooses a package's build in line {node.lineno}")
    for use in compiled_uses(file):
        if _behind_cuda(file, use):
            continue
        why = f"in line {use.lineno}, which only CUDA has"
        yield _Stays(use, f"guards {file.text(use)} {why}", True)
        call = next((each for each in file.ancestors(use) if not isinstance(each, ast.Attribute)), None)
        for given in [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else ():
            if isinstance(given, ast.IfExp) and _within(file, use, call.func):  # type: ignore[union-attr]
                yield from (_Stays(each, f"chooses what is given to {file.text(use)} {why}")
                            for each in (given.body, given.orelse))  # fmt: skip


def _calls_around(file: File, node: ast.AST) -> list[ast.Name]:
    """Find where the function is used that a place is in, if it reaches the place whenever it is called."""
    function = file.function(node)
    for each in function.body if function is not None and file.parent(function) is None else ():
        if _within(file, node, each):
            return file.reads(function.name, function) if function and _always_runs(file, node, each) else []
        if any(isinstance(inner, _LEAVES) for inner in nodes_of(each)):
            return []
    return []


def _reads_of(file: File, node: ast.AST) -> Sequence[ast.expr]:
    """Find where the name of a device is read that stays the text it is."""
    match file.parent(node):
        case ast.Assign(targets=[ast.Name(id=name) as target], value=ast.Constant()) as statement:
            return [*file.reads(name, statement, target), *_attributes_of(file, statement, name)]
        case ast.AnnAssign(target=ast.Name(id=name)) as statement:
            return _attributes_of(file, statement, name)
    return []


def _attributes_of(file: File, statement: ast.stmt, name: str) -> list[ast.Attribute]:
    """Find where the attribute is read that a statement in a class gives its objects."""
    if not isinstance(file.parent(statement), ast.ClassDef):
        return []
    reads = (each for each in file.walk.scopes if isinstance(each, ast.Attribute) and each.attr == name)
    return [each for each in reads if isinstance(each.ctx, ast.Load)]


def _names_of_builds(file: File) -> Iterator[ast.expr]:
    """Find choices between builds of a package: `"onnxruntime-gpu" if cuda else "onnxruntime"`, `-cpu`, `cu118`."""
    if not _BUILD.search(file.source.text):
        return
    for node in file.walk.parents:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _BUILD.search(f'"{node.value}"'):
            yield node
            around = file.parent(node)
            while isinstance(around, ast.IfExp) and node is not around.test:
                yield from (around.body, around.orelse)
                around = file.parent(around)


def _reached(file: File, question: _Question, stays: Iterable[_Stays], held: list[tuple[ast.AST, ast.AST]]) -> str:
    """Name the first place that stays CUDA's and that the question opens; not those behind a condition that stays."""
    for part, condition in question.opened:
        for each in stays:
            if not _within(file, each.node, part):
                continue
            inner = (
                p for p, c in held if c is not condition and _within(file, c, part) and _within(file, each.node, p)
            )
            if next(inner, None) is None:
                return each.why
    return ""


def _needed(file: File, question: _Question, stays: Iterable[_Stays]) -> str:
    """Name the first place that only CUDA has and that always runs behind an assertion or an error."""
    for part, _ in question.required:
        for each in stays:
            if each.only_cuda and _within(file, each.node, part) and _always_runs(file, each.node, part):
                return each.why
    return ""


def _always_runs(file: File, node: ast.AST, part: ast.AST) -> bool:
    """Return whether a place is reached whenever a statement runs that it is in."""
    inner = node
    while inner is not part:
        outer = file.parent(inner)
        match outer:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if inner is not test:
                return False
            case ast.BoolOp(values=[first, *_]) if inner is not first:
                return False
            case None | ast.Lambda() | ast.match_case() | ast.ExceptHandler():
                return False
            case ast.FunctionDef(decorator_list=above) | ast.AsyncFunctionDef(decorator_list=above):
                if inner not in above:
                    return False
        inner = outer
    return True


def _used_elsewhere(question: _Question, elsewhere: Mapping[str, str]) -> str:
    return next((f"is used in {elsewhere[key]}" for key in sorted(question.keys) if key in elsewhere), "")


def _short(found: Finding) -> str:
    text = " ".join(found.before.split())
    text = text if len(text) <= 40 else text[:37] + "..."
    return f"{text} in line {found.line}"


def _set_there_alone(file: File, question: _Question) -> Iterator[_Stays]:
    """Find the reads of what is set only behind a question that stays: it is missing, or None, on other devices."""
    parts = [part for part, _ in question.opened]
    stores: dict[str, list[ast.Attribute]] = {}
    loads: dict[str, list[ast.Attribute]] = {}
    for node in file.walk.scopes:
        if isinstance(node, ast.Attribute):
            kept = stores if isinstance(node.ctx, ast.Store) else loads
            kept.setdefault(node.attr, []).append(node)
    for name, nodes in stores.items():
        inside = [each for each in nodes if any(_within(file, each, part) for part in parts)]
        if not inside or not all(each in inside or _is_set_to_none(file, each) for each in nodes):
            continue
        for each in loads.get(name, ()):
            around = file.parent(each)
            if not any(_within(file, each, part) for part in parts) and not isinstance(around, ast.Compare):
                line = question.finding.line
                yield _Stays(each, f"guards the use of {name}, which is set behind the condition in line {line} alone")


def _is_set_to_none(file: File, target: ast.Attribute) -> bool:
    match file.parent(target):
        case ast.Assign(value=ast.Constant(value=None)) | ast.AnnAssign(value=ast.Constant(value=None) | None):
            return True
    return False


# Code that runs on CUDA alone, since the question in front of it stays


def _hold_behind_cuda(
    file: File, findings: Sequence[Finding], deselected: Iterable[Finding], elsewhere: Mapping[str, str]
) -> None:
    """Leave what runs only behind a question that asks for CUDA itself: a rewrite there changes nothing."""
    wanted = set(map(id, findings))
    seen = wanted.union(map(id, deselected))
    regions: list[tuple[ast.AST, str]] = []
    for _, answer, place in _answers_that_stay(file, elsewhere):
        why = f"it stays with {file.text(answer)}, an answer about CUDA alone for the sake of {place}"
        regions += [(part, why) for part, _ in opened_by(file, answer)]
    for finding, node in file.places:
        if id(finding) in wanted and not finding.converted and _asks_for_cuda(file, finding, node):
            why = f"it stays with the condition in line {finding.line}"
            is_side = isinstance(node, ast.Constant) or finding.held_back == COMPARED
            question = file.parent(node) if is_side else node
            if question is not None:
                regions += [(part, why) for part, _ in opened_by(file, question)]
                regions += [(part, why) for part in _asked_with(file, question)]
        elif (value := _by_device(file, node)) is not None and finding.rule.code == "TR101":
            regions.append((value, f"it stays with the key in line {finding.line}"))
        elif _is_left(file, finding, node, wanted, seen):
            opened = opened_by(file, node)
            regions += [(part, f"it stays with the condition in line {finding.line}") for part, _ in opened]
    for node in file.walk.scopes:
        whole = file.parent(node)
        if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.And) and file.dotted(node) in _BUILDS_OF_TORCH:
            regions.append((whole, f"it is asked together with {file.text(node)}, which is for one make of GPU alone"))
            why = f"it stays with the condition in line {whole.lineno}"
            regions += [(part, why) for part, _ in opened_by(file, node)]
    regions += [(each, f"it is part of what builds an extension in line {line}") for each, line in _builders(file)]
    kernels = functions_of_kernels(file)
    regions += [(each, f"it is for {name} in line {line}, which only CUDA has") for each, name, line in kernels]
    for finding, node in file.places:
        if finding.rule.code == _ENGINES and isinstance(node, ast.Import | ast.ImportFrom) and not file.is_tried(node):
            names = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
            if any(name.partition(".")[0] in _ENGINE_NAMES for name in names):
                why = f"it stays with the import in line {finding.line}: only CUDA has that package"
                regions += [(each, why) for each in block_behind(file, node)]
    if not regions:
        return
    regions += _called_there_alone(file, regions)
    for finding, node in file.places:
        if id(finding) in wanted and finding.converted and not isinstance(node, ast.alias):
            why = next((why for part, why in regions if _within(file, node, part)), "")
            is_beside = finding.rule.code in QUESTIONS and why.endswith(f" condition in line {finding.line}")
            finding.held_back = SAME_CONDITION if is_beside else why


def _by_device(file: File, key: ast.AST) -> ast.expr | None:
    """Return the value under a key of a table by kinds of device: `{"cuda": torch.cuda.synchronize, "cpu": None}`."""
    table = file.parent(key)
    if not isinstance(table, ast.Dict) or key not in table.keys:
        return None
    names = {each.value for each in table.keys if isinstance(each, ast.Constant)}
    is_of_devices = "cpu" in names and len(names) == len(table.keys) and names <= {"cpu", "cuda", *OTHERS}
    return table.values[table.keys.index(key)] if is_of_devices else None


def _names_of(key: str) -> Iterator[str]:
    """All keys under which other files reach an answer that one of them reaches by this key."""
    yield key
    if name := "" if key.startswith(("[", DECIDES)) else key.strip(".()"):
        yield from (name, f".{name}", f".{name}()")


def _is_left(file: File, finding: Finding, node: ast.AST, wanted: Collection[int], seen: Collection[int]) -> bool:
    """Return whether a place is a question of CUDA's that no rule rewrites, or that a person keeps by a comment."""
    if id(finding) in wanted:
        return finding.rule.code in _NEVER and not finding.edits and (file.dotted(node) or "") in _NEVER_ASKED
    return id(finding) not in seen and finding.rule.code in _OF_THE_MACHINE


def _asks_for_cuda(file: File, finding: Finding, node: ast.AST) -> bool:
    """Return whether a place is a question that the rules leave: of a kernel, of one of several kinds of device."""
    if finding.rule.code == "TR101" or finding.held_back == COMPARED:  # device == "cuda", == torch.device("cuda")
        around = file.parent(node)
        if not isinstance(around, ast.Compare) or len(around.ops) != 1:
            return False
        is_in = isinstance(around.ops[0], ast.In | ast.NotIn) and around.left is node
        if not is_in and not isinstance(around.ops[0], ast.Eq | ast.NotEq):
            return False
        other = around.comparators[0] if around.left is node else around.left
        if isinstance(other, ast.Call) and file.calls_runtime(other, "resolve") and other.args:
            other = other.args[0]  # of an earlier run
        name = name_of(other)
        return device_name(name)
    return finding.rule.code in ("TR016", "TR017", "TR017a", "TR018") and not finding.edits


def _asked_with(file: File, question: ast.AST) -> Iterator[ast.expr]:
    """Find what is asked with a comparison, in front of it: `not torch.cuda.is_available() and d == "cuda"`."""
    outer = file.parent(question) if isinstance(question, ast.Compare) else None
    while isinstance(outer, ast.BoolOp | ast.UnaryOp):
        if isinstance(outer, ast.BoolOp):
            yield from outer.values
        outer = file.parent(outer)


def _builders(file: File) -> Iterator[tuple[ast.AST, int]]:
    """Find the functions that build extensions when they are called."""
    for node in file.walk.scopes:
        call = file.parent(node)
        if not isinstance(call, ast.Call) or call.func is not node:
            continue
        if file.dotted(node) in ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline"):
            function = file.function(call)
            if function is not None:
                yield function, call.lineno


def _called_there_alone(file: File, regions: list[tuple[ast.AST, str]]) -> list[tuple[ast.AST, str]]:
    """Find the private functions and classes of the file that nothing outside of these parts uses."""
    own = [
        each for each in (*file.walk.module.node.body, *(part for part, _ in regions))  # type: ignore[attr-defined]
        if isinstance(each, (*_FUNCTIONS, ast.ClassDef)) and each.name.startswith("_")
    ]  # fmt: skip
    found: list[tuple[ast.AST, str]] = []
    changed = True
    while changed:
        changed = False
        for each in own:
            if any(each is part for part, _ in found):
                continue
            uses = [use for use in file.reads(each.name, each) if not _within(file, use, each)]
            reasons = [next((why for part, why in (*regions, *found) if _within(file, use, part)), "") for use in uses]
            if reasons and all(reasons):
                found.append((each, reasons[0]))
                changed = True
    return found


def _fails(file: File, finding: Finding, node: ast.AST) -> bool:
    """Return whether a place that stays as it is may fail on another device."""
    code = finding.rule.code
    if not finding.is_site or code in QUESTIONS:  # an unconverted question is answered with no
        return False
    if code in RUNS:
        return _is_read(file, node) or (code == "TR076" and (file.dotted(node) or "").endswith("sdp_kernel"))
    if finding.held_back == AS_CLASS:  # nothing is an instance of CUDA's class there
        return False
    own = finding.held_back.endswith("of its own") and "not known" not in finding.held_back
    if own:  # a method of the project, whose own code is ported
        return False
    loads = isinstance(node, ast.Import | ast.ImportFrom) or (code == "TR121" and isinstance(node, ast.Call))
    if loads and finding.rule.kind is not Kind.PRESERVING:
        return not file.is_tried(node)
    if code == "TR101":
        return not _is_shown(file, node)
    return True


def _is_read(file: File, node: ast.AST) -> bool:
    """Return whether it is a variable that must be set: `os.environ["CUDA_HOME"]`, read."""
    around = file.parent(node)
    return isinstance(around, ast.Subscript) and around.slice is node and isinstance(around.ctx, ast.Load)


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
        if isinstance(inner, ast.stmt) and _left_without(file, outer, inner):
            return True
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


def _left_without(file: File, around: ast.AST, statement: ast.stmt) -> bool:
    """Return whether a block is left in front of a statement where a package is missing: `if apex is None: return`."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(around, name, None)
        if not isinstance(block, list) or statement not in block:
            continue
        for each in block[: block.index(statement)]:
            ends = isinstance(each, ast.If) and isinstance(each.body[-1], _LEAVES)
            if ends and _asks_whether_missing(file, each.test):
                return True
    return False


def _asks_whether_missing(file: File, test: ast.expr) -> bool:
    """Return whether a condition holds wherever a package for CUDA is missing: `apex is None`, `not HAS_APEX`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return asks_for_package(file, operand)
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None) as none]):
            return asks_for_package(file, ast.Compare(left, [ast.IsNot()], [none]))
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_asks_whether_missing(file, each) for each in values)
    return False


def _needs_cuda(file: File, test: ast.expr) -> bool:
    """Return whether a condition holds on CUDA alone, converted or not."""
    if asks_for_package(file, test):
        return True
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


def _within(file: File, node: ast.AST, part: ast.AST) -> bool:
    return node is part or any(each is part for each in file.ancestors(node))


def _length(file: File, node: ast.AST) -> int:
    start, end = file.source.span(node)
    return end - start
