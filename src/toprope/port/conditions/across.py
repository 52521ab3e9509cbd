"""Conditions across files and cells: answers that stay CUDA's, since code elsewhere needs them.

`use_cuda = torch.cuda.is_available()` in one file may guard code in another one that stays CUDA's, or in a cell that
cannot be read. Then the question stays. Names are matched as texts: what another file means by a name is not followed.

Called by `guards`, `scan` and `notebook`; tests/port/test_port_across.py, tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from toprope.port.conditions.asked_texts import ASKED, MAY_ASK
from toprope.port.finding import Ported
from toprope.port.project.asked import REST
from toprope.port.project.facts import Project
from toprope.port.syntax.nodes import name_of, nodes_of
from toprope.port.syntax.source import Source, UnreadableError

__all__ = [
    "DECIDES", "SKIPPING", "answers_elsewhere", "answers_in", "devices_elsewhere", "keys_in", "skips_elsewhere",
    "texts_elsewhere",
]  # fmt: skip

_ASKS = re.compile(rb"is_available|device_count")
_QUESTIONS = {"is_available", "device_count"}
_KEY = re.compile(r"(\.\s*)?([A-Za-z_]\w*)(\s*\()?")
_ROUNDS = 3
DECIDES = "@"
"""Before the name of a function that gives a device, among the keys of answers: its own question stays CUDA's."""
_GIVES = re.compile(rb"def\s+\w*device\w*\s*\(", re.IGNORECASE)
SKIPPING = re.compile(r"(?:\w*_)?(?:requires?|needs?|skip|only|unless|if)_?\w*cuda\w*", re.IGNORECASE)
"""Decorators of tests that need CUDA, by name."""
_SKIPS = re.compile(SKIPPING.pattern.encode(), re.IGNORECASE)
_CHOICES = {"TR001", "TR001a", "TR003", "TR024"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def keys_in(text: str) -> set[str]:
    """The keys of answers, as `Opened.keys` has them, that a text may use: one that cannot be parsed."""
    found = set()
    for dot, name, call in _KEY.findall(text):
        found |= {f".{name}{'()' if call else ''}" if dot else name, f"[{name}]"}
    return found


def answers_elsewhere(programs: Mapping[Path, bytes], look: Callable[[Path, frozenset[str]], Ported]) -> dict[str, str]:
    """Find the answers that guard code of another file that stays CUDA's, or that a file uses which cannot be read.

    Args:
        programs: the code of each file.
        look: the port of a file, which is given the keys of answers that come from other files.

    Returns:
        The file by the key of the answer, with what is guarded there.
    """
    own = {path: _answers(data) for path, data in programs.items() if len(programs) > 1 and _ASKS.search(data)}
    every = frozenset[str]().union(*own.values())
    if not every:
        return {}
    names = sorted({re.escape(key.strip(".()[]")).encode() for key in every})
    word = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b")
    found: dict[str, str] = {}
    for path, data in programs.items():
        keys = every - own.get(path, frozenset())
        if not keys or not word.search(data):
            continue
        ported = look(path, keys)
        if ported.skipped:
            used = keys & keys_in(data.decode("utf-8", "replace"))
            found |= dict.fromkeys(used - found.keys(), f"{path.name}, which cannot be read")
        else:
            found |= {key: f"{path.name}, where it {why}" for key, why in ported.guards.items() if key not in found}
    return found


def devices_elsewhere(programs: Mapping[Path, bytes], look: Callable[[Path, frozenset[str]], Ported]) -> dict[str, str]:
    """Find the functions that give a device, such as `get_device`, and whose question about CUDA stays.

    Returns:
        The file by the name of the function, with DECIDES before it.
    """
    found: dict[str, str] = {}
    for path, data in programs.items() if len(programs) > 1 else ():
        if not (_GIVES.search(data) and _ASKS.search(data)):
            continue
        held = [each for each in look(path, frozenset()).findings if each.rule.code in _CHOICES and each.held_back]
        functions = [each for each in nodes_of(Source(data).parse()) if isinstance(each, _Function)] if held else []
        for each in functions:
            inside = any(each.lineno <= finding.line <= (each.end_lineno or 0) for finding in held)
            if inside and "device" in each.name.lower() and any(isinstance(one, ast.Return) for one in nodes_of(each)):
                found.setdefault(f"{DECIDES}{each.name}", path.name)
    return found


def texts_elsewhere(
    programs: Mapping[Path, bytes], look: Callable[[Path, frozenset[str]], Ported], project: Project
) -> dict[str, str]:
    """Find the texts of devices that files ask about, and that may come from another one.

    Returns:
        The place by the key of the text, as `asked_texts` has them; of an argument that is handed on, too.
    """
    found: dict[str, str] = {}
    for path, data in programs.items() if len(programs) > 1 else ():
        if MAY_ASK.search(data):
            for key, where in look(path, frozenset()).asked.items():
                found.setdefault(key, f"{where} of {path.name}")
    ahead = [key for key in found if key.endswith(")")]
    sources: dict[str, list[str]] = {}
    for (function, argument), (called, given) in project.handed if ahead else ():
        sources.setdefault(f"{ASKED}{called}({given})", []).append(f"{ASKED}{function}({argument})")
    while ahead:
        key = ahead.pop()
        called, _, argument = key.partition("(")
        rest = () if argument[0].isdigit() else sources.get(f"{called}({REST})", ())
        more = [*sources.get(key, ()), *(each.replace(REST, argument[:-1]) for each in rest)]
        more = [each for each in more if each not in found]
        found |= dict.fromkeys(more, found[key])
        ahead += more
    return found


def skips_elsewhere(programs: Mapping[Path, bytes], look: Callable[[Path, frozenset[str]], Ported]) -> dict[str, str]:
    """Find the decorators that skip tests without CUDA, such as `requires_cuda`, and whose question stays.

    Returns:
        The file by the keys of the decorator.
    """
    found: dict[str, str] = {}
    for path, data in programs.items() if len(programs) > 1 else ():
        if not (_ASKS.search(data) and _SKIPS.search(data)):
            continue
        ported = look(path, frozenset())
        held = [each.line for each in ported.findings if each.rule.code in _CHOICES and each.held_back]
        for statement in Source(data).parse().body if held and not ported.skipped else ():
            name = statement.name if isinstance(statement, _Function) else ""
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
            inside = any(statement.lineno <= line <= (statement.end_lineno or 0) for line in held)
            if inside and SKIPPING.fullmatch(name):
                found |= dict.fromkeys((name, f".{name}", f".{name}()"), path.name)
    return found


def _answers(data: bytes) -> frozenset[str]:
    try:
        return frozenset(answers_in(Source(data).parse()))
    except (UnreadableError, RecursionError):
        return frozenset()


def answers_in(tree: ast.Module) -> set[str]:
    """The keys under which a file keeps whether there is CUDA: of names, attributes, options and functions."""
    keys: set[str] = set()
    known = set(_QUESTIONS)
    for _ in range(_ROUNDS):  # a name may be assigned to another one
        before = len(known)
        for statement, function, outer in _statements(tree, None, tree):
            for target in _keeps(statement, known):
                name = target if isinstance(target, str) else name_of(target)
                known |= {name} - {""}
                if isinstance(target, ast.Name) and not isinstance(outer, _Function):
                    keys |= {name, f".{name}"} if isinstance(outer, ast.Module) else {f".{name}"}
                elif not isinstance(target, ast.Name) and name:
                    keys.add(f".{name}")
            if function is not None and _returns(statement, known):
                known.add(function.name)
                keys |= {function.name, f".{function.name}", f".{function.name}()"}
        if len(known) == before:
            break
    return keys | set(_kept_in_tables(tree, known))


def _kept_in_tables(tree: ast.Module, known: Iterable[str]) -> Iterator[str]:
    """The keys of tables that hold an answer: `{"use_cuda": torch.cuda.is_available()}`."""
    for node in nodes_of(tree):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        match node:
            case ast.Dict(keys=names, values=values):
                pairs = list(zip(names, values, strict=True))
            case ast.Assign(targets=[ast.Subscript(slice=written)], value=value):
                pairs = [(written, value)]
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and _asks(value, known):
                yield f"[{key.value}]"


def _statements(
    node: ast.AST, function: _Function | None, outer: ast.AST
) -> Iterator[tuple[ast.stmt, _Function | None, ast.AST]]:
    """All statements, each with the function, and with the function, class or module that it is in."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, _Function):
            yield from _statements(each, each, each)
        elif isinstance(each, ast.ClassDef):
            yield from _statements(each, None, each)
        else:
            if isinstance(each, ast.stmt):
                yield each, function, outer
            yield from _statements(each, function, outer)


def _asks(node: ast.AST | None, known: Iterable[str]) -> bool:
    return node is not None and any(
        isinstance(each, ast.Name | ast.Attribute) and name_of(each) in known for each in nodes_of(node)
    )


def _keeps(statement: ast.stmt, known: set[str]) -> Iterator[ast.expr | str]:
    """The targets that a statement gives an answer, or the name of an option."""
    match statement:
        case ast.Assign(targets=targets, value=value) if _asks(value, known):
            for each in targets:
                yield from each.elts if isinstance(each, ast.Tuple | ast.List) else [each]
        case ast.AnnAssign(target=target, value=value) if _asks(value, known):
            yield target
        case ast.If(test=test, body=body, orelse=orelse) if _asks(test, known):
            for inner in (*body, *orelse):
                match inner:
                    case ast.Assign(targets=targets, value=ast.Constant(value=bool())):
                        yield from targets
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="add_argument"), args=given) as call):
            if any(_asks(each.value, known) for each in call.keywords if each.arg == "default"):
                texts = [str(each.value) for each in given if isinstance(each, ast.Constant)]
                texts = [str(each.value.value) for each in call.keywords
                         if each.arg == "dest" and isinstance(each.value, ast.Constant)] or texts  # fmt: skip
                yield from (each.lstrip("-").replace("-", "_") for each in texts)


def _returns(statement: ast.stmt, known: set[str]) -> bool:
    match statement:
        case ast.Return(value=value):
            return _asks(value, known)
        case ast.If(test=test, body=body, orelse=orelse) if _asks(test, known):
            return any(
                isinstance(each, ast.Return)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, bool)
                for each in (*body, *orelse)
            )
    return False
