"""Rewrites of class P that a person should read, since a text or a kernel elsewhere may not fit another device.

`if torch.cuda.is_available(): print("CUDA is used")` is converted, and says what is false on an NPU. A test in a
project with its own operators for CUDA moves its tensors to the device in use, where such an operator has no kernel.
The port makes both edits and reports them as R, with the reason.

Called by `engine`. Tests: tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from toprope.port.conditions.guards import QUESTIONS
from toprope.port.conditions.in_tests import is_test
from toprope.port.conditions.opened import Opened, is_negative, opened_by
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.rule import Kind
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = ["doubt_rewrites"]

_FIGURES = {"cards", "memory"}
"""Families of rules for what a program shows of a card."""
_NAMES = {"TR002", "TR002a", "TR003", "TR019d"}
"""Rules whose rewrite may give the name of the device in use."""
_TEXTS = {"TR017", "TR017a", "TR018"}
"""Rules that ask for a device by its text."""
_KIND = "TR002b"
_BACKEND = "TR064"
_IMPORTS = "TR102"
_OPERATORS = "the project builds operators for CUDA: look whether this needs one of them"
_CUDA = re.compile(r"(?<![\w-])(?:cuda|nvidia|geforce)", re.IGNORECASE)
_CARD = re.compile(rf"{_CUDA.pattern}|\bGPUs?\b", re.IGNORECASE)
_SHOWS = re.compile(
    r"(?:\w*_)?(?:c?print\d*|log|debug|info|warn|warning|error|critical|exception|write|echo|secho|success)(?:_\w+)?",
    re.IGNORECASE,
)
"""Functions that show a text to a person, by name."""
_DEVICE = re.compile(r"cuda(?::\d+)?")
"""A device that is given to a function; the runtime's function takes it for the device in use."""
_LONGEST = 50


def doubt_rewrites(file: File, findings: Iterable[Finding], path: str) -> None:
    """Note the rewrites of class P that a person should read.

    Args:
        file: the file, after all that stays is held back.
        findings: what is converted or reported.
        path: its name.
    """
    wanted = {
        id(each) for each in findings
        if each.converted and each.rule.kind is Kind.PRESERVING and each.rule.code != _IMPORTS
    }  # fmt: skip
    places = [(finding, node) for finding, node in file.places if id(finding) in wanted]
    if places and file.context.has_operators_for(file.source.text) and is_test(file, path):
        for finding, _ in places:
            finding.doubt = _OPERATORS
        return
    for gloo in (each for each, _ in file.places if each.rule.code == _BACKEND and each.before.strip("\"'") == "gloo"):
        for finding, _ in places:
            finding.doubt = f'"gloo" in line {gloo.line} takes tensors of no accelerator but CUDA'
    for finding, node in places:
        if finding.rule.code == _KIND and isinstance(node, ast.Constant) and _is_for_autocast(file, node):
            finding.doubt = "autocast for CUDA is off on the CPU, and this one is on"
    if waits := _waits_for_a_text(file):
        for finding, _ in places:
            if finding.rule.code in _NAMES and any(edit.says(".name(") for edit in finding.edits):
                finding.doubt = f"line {waits} waits for the device only where its text is as CUDA's"
    if not _CARD.search(file.source.text):
        return
    rewritten = {each for finding, node in file.places if finding.converted for each in nodes_of(node)}
    for finding, node in places:
        asks = finding.rule.code in QUESTIONS
        if not asks and finding.rule.family not in _FIGURES:
            continue
        text = _shown_with(file, node, rewritten) or (_said_after(file, node, rewritten) if asks else None)
        if text is not None:
            said = " ".join(str(text.value).split())
            shown = said if len(said) <= _LONGEST else f"{said[: _LONGEST - 3]}..."
            finding.doubt = f'"{shown}" in line {text.lineno} is said on other devices too'


def _is_for_autocast(file: File, node: ast.AST) -> bool:
    call = next((each for each in file.ancestors(node) if isinstance(each, ast.Call)), None)
    return call is not None and file.dotted(call.func) in ("torch.autocast", "torch.amp.autocast")


def _waits_for_a_text(file: File) -> int:
    """Return the line that waits for a device, behind a comparison of its text with "cuda" that stays; 0 without one.

    What is measured there is wrong on a device that has another name.
    """
    for test in (node for finding, node in file.places if finding.rule.code in _TEXTS and not finding.converted):
        for part, _ in opened_by(file, test):
            for each in nodes_of(part):
                if isinstance(each, ast.Attribute | ast.Name) and name_of(each) == "synchronize":
                    return each.lineno
    return 0


def _shown_with(file: File, node: ast.AST, rewritten: Collection[ast.AST]) -> ast.Constant | None:
    """Return the text about CUDA that is shown together with an answer or a figure: `print("CUDA:", ...)`."""
    found = None
    for each in file.ancestors(node):
        if isinstance(each, ast.stmt):
            break
        if isinstance(each, ast.JoinedStr) or _is_shown(each):
            found = found or _text_in(each, _CARD, rewritten)
    return found


def _said_after(file: File, question: ast.AST, rewritten: Collection[ast.AST]) -> ast.Constant | None:
    """Return the text about CUDA that is shown, or chosen, where a question is answered with yes."""
    parts = [part for part, _ in Opened(file).by(question, not is_negative(question))]
    for part in parts:
        words = _CARD if isinstance(part, ast.Expr) and _is_shown(part.value) else _CUDA
        if isinstance(part, ast.Constant | ast.JoinedStr) and (text := _text_in(part, _CARD, rewritten)):
            return text
        for each in nodes_of(part):
            if _is_shown(each) and (text := _text_in(each, words, rewritten)):
                return text
    return None


def _is_shown(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _SHOWS.fullmatch(name_of(node.func)) is not None


def _text_in(node: ast.AST, words: re.Pattern[str], rewritten: Collection[ast.AST]) -> ast.Constant | None:
    """Return the first text in a node that has one of these words, and is neither rewritten nor a device's name."""
    texts = [each for each in nodes_of(node) if isinstance(each, ast.Constant) and each not in rewritten]
    for each in texts:
        text = each.value if isinstance(each.value, str) else ""
        if words.search(text) and not _DEVICE.fullmatch(text):
            return each
    return None
