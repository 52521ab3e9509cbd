"""The port of one file: bytes in, findings and bytes out. No file is read or written here.

A file with none of the words that rules look for is not parsed; any other is parsed and walked once, and every node
goes to the functions that are registered for it. The edits change the bytes they must and no others.

An answer is what a question about CUDA gives: `torch.cuda.is_available()`, and every name, attribute or function that
has its value, in this file or another one.

Called by `scan` for files and by `notebook` for cells. Rules are added in `port.rules`, never here;
tests/port/test_port_engine.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial

from toprope.port.conditions import guards
from toprope.port.conditions.asked_texts import MAY_ASK, asked_keys, hold_asked
from toprope.port.conditions.compared import hold_compared
from toprope.port.conditions.doubted import doubt_rewrites
from toprope.port.conditions.in_tests import asked_in_tests, hold_in_tests, hold_patched
from toprope.port.conditions.recorded import hold_figures
from toprope.port.conditions.scaled import scale_for_one
from toprope.port.family import Handler
from toprope.port.file import RUNTIME, File
from toprope.port.finding import Finding, Ported, folded
from toprope.port.ignore import ignored_lines, is_ignored
from toprope.port.project.context import Context
from toprope.port.project.facts import WORDS, Project, facts_of, project_of
from toprope.port.project.reexports import star_names
from toprope.port.registry import Table, table
from toprope.port.runtime.imports import runtime_import
from toprope.port.runtime.no_import import why_no_import
from toprope.port.syntax.edits import Edit, OverlapError, drops_a_comment, render
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import Walk
from toprope.port.syntax.source import Source, UnreadableError, parse

__all__ = ["MOST_BYTES", "concerns", "port"]

MOST_BYTES = 2_000_000
"""Files larger than this are taken for generated ones, and skipped."""


def port(
    data: bytes,
    path: str = "",
    *,
    runtime: str = RUNTIME,
    project: Project | None = None,
    leave: Callable[[Finding], bool] | None = None,
    assumed: dict[str, str] | None = None,
    rules: Table | None = None,
    context: Context | None = None,
    elsewhere: Mapping[str, str] | None = None,
    foreign: Collection[str] = (),
) -> Ported:
    """The port of one Python file.

    Args:
        data: its bytes.
        path: its name, for the report.
        runtime: the module that ported code calls.
        project: facts of all the files that are ported; left out, those of this file alone.
        leave: gives True for findings to drop: they are neither reported nor rewritten, only counted. Called twice.
        assumed: names that are bound although the file does not import them, with their full names.
        rules: the rules; all of them where left out.
        context: what is known of the project and of the card.
        elsewhere: answers of this file that must stay because another file or cell depends on them, each with the
            reason, as in `guards.hold_back`.
        foreign: answers of other files that this file may use as conditions; `Ported.guards` lists what they guard.

    Returns:
        The file afterwards. One that cannot be read or parsed says so in `skipped` and stays as it is.
    """
    rules = table() if rules is None else rules
    ported = Ported(path, data, data)
    if len(data) > MOST_BYTES:
        ported.skipped = f"it has {len(data) / 1e6:.1f} MB: taken for a generated file"
        return ported
    ported.lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    if not concerns(data, rules, project, context):
        return ported
    try:
        source = Source(data)
        file = _look(source, rules, runtime, project, assumed or {}, context)
        ignored = ignored_lines(source)
        looked_at = [finding for finding in file.findings if not is_ignored(finding, ignored)]
        wanted = [finding for finding in looked_at if leave is None or not leave(finding)]
        deselected = [finding for finding in looked_at if leave is not None and leave(finding)]
        ported.ignored = len(file.findings) - len(wanted)
        ported.operators = file.operators
        _settle(file, wanted, path)
        text = _written(file, wanted, deselected, elsewhere, path)
        doubt_rewrites(file, wanted, path)
        if elsewhere is None:  # looked at for the sake of other files
            ported.asked = asked_keys(file, wanted)
        if foreign:
            ported.guards = guards.guards(file, wanted, deselected, foreign) | asked_in_tests(file, path, foreign)
        ported.after = data if text == source.text else source.encode(text)
    except UnreadableError as error:
        ported.skipped, ported.lines, ported.findings = str(error), 0, []
        return ported
    except RecursionError:
        ported.skipped, ported.lines = "names that are given to each other lead too deep", 0
        return ported
    wanted = [each for each in wanted if not _is_replaced(file, each, wanted) and not _is_needed_import(each)]
    ported.findings = folded(sorted(wanted, key=lambda each: (each.line, each.column, each.rule.code)), _said_once)
    return ported


def _is_replaced(file: File, finding: Finding, findings: list[Finding]) -> bool:
    """Return whether a place is gone with a text that another rule replaces, or says what another line says.

    `"cuda"` in a comparison is the reason why a question next to it stays, which is said there.
    """
    if finding.converted:
        return False
    if finding.rule.code in ("TR101", "TR017a") and any(
        each.line == finding.line and each is not finding
        and each.held_back and each.held_back in (guards.SAME_CONDITION, finding.held_back) for each in findings
    ):  # fmt: skip
        return True
    start = file.source.starts[finding.line - 1] + finding.column - 1
    end = file.source.starts[finding.end_line - 1] + finding.end_column - 1
    for edit in (edit for other in findings if other.converted for edit in other.edits):
        kept = [each for each in edit.pieces if not isinstance(each, str)]
        if edit.start <= start < end <= edit.end and not any(low < end and start < high for low, high in kept):
            return not edit.says(finding.before)
    return False


_NEEDED = "what stays needs it"


def _is_needed_import(finding: Finding) -> bool:
    """Return whether it is `import torch.cuda`, which stays for what stays, and which every machine can import."""
    return finding.held_back == _NEEDED and finding.before.startswith("torch.cuda")


def _said_once(finding: Finding) -> tuple[str, str] | None:
    """Return what places have in common that are one line of the report, for the rules that want it."""
    is_said = finding.rule.once and not finding.edits and not finding.held_back
    return (finding.rule.code, finding.said) if is_said else None


def concerns(data: bytes, rules: Table, project: Project | None, context: Context | None) -> bool:
    """Return whether a file can have a place of any rule, by its bytes; others are not parsed."""
    return bool(
        rules.words.search(data)
        or MAY_ASK.search(data)
        or (context is not None and context.mentions_extension(data))
        or (project is not None and project.mentions_option(data))
    )


def _look(
    source: Source,
    rules: Table,
    runtime: str,
    project: Project | None,
    assumed: dict[str, str],
    context: Context | None,
) -> File:
    """The file with what the rules say about it."""
    tree = source.parse()
    try:
        walk = Walk(tree, rules.types, assumed)
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    if project is None and WORDS.search(source.data):
        project = project_of([facts_of(tree)])
    if b"import" in source.data and b"*" in source.data:
        exports, modules = ({}, frozenset()) if project is None else (project.exports, project.modules)
        walk.assume(*star_names(tree, exports, modules))
    file = File(source, walk, runtime, project, context)
    index = 0
    while index < len(walk.nodes):
        node, end = walk.nodes[index]
        index += 1
        if file.is_passed_over(node):
            continue
        if file.is_done(node) or any(handler(file, node) for handler in _asked(file, rules, node)):
            index = end
    return file


def _asked(file: File, rules: Table, node: ast.AST) -> Collection[Handler]:
    """The functions that look at a node, in their order. Written for speed: it is asked about every node."""
    found: list[Handler] = list(rules.nodes.get(node.__class__, ()))
    if isinstance(node, ast.Call):
        name = file.dotted(node.func)
        if name is not None:
            found += rules.calls.get(name, ())
        if isinstance(node.func, ast.Attribute):
            found += rules.methods.get(node.func.attr, ())
        for each in node.keywords:
            found += [partial(_keyword, handler, each) for handler in rules.keywords.get(each.arg or "", ())]
    elif isinstance(node, ast.Attribute | ast.Name):
        name = file.dotted(node)
        if name is not None:
            found += rules.references.get(name, ())
            found += [handler for prefix, handler in rules.below if name.startswith(prefix)]
        if isinstance(node, ast.Attribute):
            found += rules.attributes.get(node.attr, ())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            found += rules.strings.get(node.value, ())
            found += [handler for prefix, handler in rules.prefixes if node.value.startswith(prefix)]
    elif isinstance(node, ast.Import):
        for name in {alias.name.partition(".")[0] for alias in node.names} - file.project.at_top:
            found += rules.modules.get(name, ())
    elif isinstance(node, ast.ImportFrom) and not node.level:
        name = (node.module or "").partition(".")[0]
        found += rules.modules.get(name, ()) if name not in file.project.at_top else ()
    return found


def _keyword(handler: Handler, node: ast.keyword, file: File, _: ast.Call) -> bool:
    """Ask about a keyword; its call goes on to be looked at, whatever the answer."""
    if not file.is_done(node) and not file.is_done(node.value) and handler(file, node):
        file.done(node.value)
    return False


def _settle(file: File, findings: list[Finding], path: str) -> None:
    """Hold back edits that would take a comment away, or cross another one's."""
    scale_for_one(file, findings, path)
    hold_compared(file, findings)
    hold_patched(file, findings, path)
    for finding in findings:
        if finding.converted and any(drops_a_comment(file.source, edit) for edit in finding.edits):
            finding.held_back = "a comment is in the middle of it"
    why = why_no_import(file) if findings and not file.imports_runtime else ""
    for finding in findings if why else ():
        if any(edit.says(f"{file.alias}.") or edit.says(file.runtime) for edit in finding.edits):
            finding.held_back = finding.held_back or why
    converted = [finding for finding in findings if finding.converted]
    if _fits(file, [edit for finding in converted for edit in finding.edits]):
        return
    kept: list[Edit] = []
    for finding in converted:
        if _fits(file, kept + list(finding.edits)):
            kept += finding.edits
        else:
            finding.held_back = "another rule changes a part of it"


def _fits(file: File, edits: list[Edit]) -> bool:
    try:
        render(file.source.text, edits)
    except OverlapError:
        return False
    return True


def _hold_back(
    file: File, findings: list[Finding], deselected: list[Finding], elsewhere: Mapping[str, str] | None, path: str
) -> None:
    """Hold back what must be converted together: conditions with what they guard, and parts of one edit."""
    wanted = set(map(id, findings))
    changed = True
    while changed:
        before = [finding.converted for finding in findings]
        guards.hold_back(file, findings, deselected, elsewhere)
        hold_asked(file, findings, elsewhere)
        left = [finding for finding in file.findings if id(finding) not in wanted or not finding.converted]
        stays = {id(edit): finding for finding in left for edit in finding.edits}
        for finding in findings:
            other = next((stays[id(edit)] for edit in finding.edits if id(edit) in stays), None)
            if finding.converted and other is not None:
                finding.held_back = f"it stays with the name in line {other.line}"
        hold_in_tests(file, findings, path, elsewhere)
        hold_figures(findings)
        changed = before != [finding.converted for finding in findings]


def _written(
    file: File, findings: list[Finding], deselected: list[Finding], elsewhere: Mapping[str, str] | None, path: str
) -> str:
    """The text after the edits; sets `after` of each converted finding, too."""
    text = file.source.text
    _hold_back(file, findings, deselected, elsewhere, path)
    steps = iter((_in_fstrings, _all))
    while True:
        edits = [edit for finding in findings if finding.converted for edit in finding.edits]
        if not edits:
            return text
        used = [edit.start for edit in edits if edit.says(f"{file.alias}.")]
        if used and not file.imports_runtime:
            edits.append(runtime_import(file, min(used)))
        result = render(text, edits)
        try:
            tree = parse(result)
            lost = _lost(file, tree)
        except UnreadableError:
            next(steps)(findings)
            _hold_back(file, findings, deselected, elsewhere, path)
            continue
        taken = [finding for finding in findings if finding.converted and finding.rule.code == "TR102"]
        if not lost and _names_cuda(tree):
            taken = [finding for finding in taken if re.fullmatch(r"torch\.cuda[\w.]*", finding.before)]
            lost = {finding.before for finding in taken}
        if lost and taken:
            for finding in taken:
                finding.held_back = _NEEDED
            _hold_back(file, findings, deselected, elsewhere, path)
            continue
        for finding in findings:
            if finding.converted:
                start = file.source.starts[finding.line - 1] + finding.column - 1
                end = file.source.starts[finding.end_line - 1] + finding.end_column - 1
                inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
                finding.after = render(text, inside, start, end)
        return result


def _lost(file: File, tree: ast.Module) -> set[str]:
    """The names that the file imported, and that are used afterwards although nothing binds them any more."""
    nodes = nodes_of(tree)
    bound = {each.asname or each.name.partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    bound |= {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    used = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    imported = {name for name, bindings in file.walk.module.bindings.items() if any(each.imported for each in bindings)}
    return (imported - bound) & used


def _names_cuda(tree: ast.Module) -> bool:
    """Return whether something of torch.cuda stays, so that `import torch.cuda` does too."""
    return any(
        isinstance(each, ast.Attribute) and each.attr == "cuda" and isinstance(each.value, ast.Name)
        and each.value.id == "torch"
        for each in nodes_of(tree)
    )  # fmt: skip


def _in_fstrings(findings: list[Finding]) -> None:
    # before Python 3.12 the text in the braces must not have the quotes of the string around it
    for finding in findings:
        if finding.converted and ('"' in finding.before or "'" in finding.before):
            finding.held_back = "the file would no longer be Python"


def _all(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.converted:
            finding.held_back = "the file would no longer be Python"
