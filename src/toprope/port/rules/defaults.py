"""Rules TR019a, TR019b and TR019d: devices as defaults of parameters and as constants, resolved where they are used.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import (
    Use,
    is_constant_cuda,
    is_text,
    names_default,
    names_kind,
    resolver_for,
    said,
    use,
)
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind, Rule
from toprope.port.rules.device_texts import is_rewritten
from toprope.port.syntax.edits import Edit
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import with_defaults

__all__ = ["FAMILY", "resolve_in"]

FAMILY = Family("defaults", "Defaults", words=[b"cuda", b"nccl"])

_P, _R = Kind.PRESERVING, Kind.REVIEW
_IMPORT_TIME = """A question about devices that is asked at the import of a module freezes CUDA_VISIBLE_DEVICES before
the program sets it, and CUDA that was started before a fork fails in the child."""
_SOURCE = "PyTorch's documentation of CUDA semantics; torch.utils.data on multiprocessing"

PARAMETER = FAMILY.rule(
    "TR019a", _P, 'def f(device="cuda"): the text stays, and is resolved in the function',
    why=f"""{_IMPORT_TIME} So the default stays "cuda", and the first statement makes of it the name of the device in
    use. On CUDA that is the same text; a device, a number, None or another text goes through as it is. Where the
    function asks for the text itself, and that question stays, it is resolved where it is read instead.""",
    source=_SOURCE,
    examples=[
        Example(
            '''
            def run(x, device="cuda"):
                """Run."""
                return x.to(device)
            ''',
            '''
            from toprope.device import portable
            def run(x, device="cuda"):
                """Run."""
                device = portable.resolve(device)
                return x.to(device)
            ''',
        ),
        Example(
            """
            import torch

            class Model:
                def __init__(self, *, device=torch.device("cuda:1"), backend="nccl"):
                    self.device = device
                    self.backend = backend
            """,
            """
            import torch
            from toprope.device import portable

            class Model:
                def __init__(self, *, device=torch.device("cuda:1"), backend="nccl"):
                    device = portable.resolve(device)
                    backend = portable.resolve(backend)
                    self.device = device
                    self.backend = backend
            """,
        ),
        Example(
            """
            move = lambda x, device="cuda": x.to(device)
            def run(x, device="cuda"): return x.to(device)
            """,
            """
            from toprope.device import portable
            move = lambda x, device="cuda": x.to(portable.resolve(device))
            def run(x, device="cuda"): return x.to(portable.resolve(device))
            """,
        ),
        Example(
            """
            def run(x, device="cuda"):
                if device == "cuda" or device == "mps":
                    print("the usual one")
                return x.to(device)
            """,
            """
            from toprope.device import portable
            def run(x, device="cuda"):
                if device == "cuda" or device == "mps":
                    print("the usual one")
                return x.to(portable.resolve(device))
            """,
        ),
        Example(
            """
            class Runner(Protocol):
                def run(self, x, device="cuda"): ...
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
CONSTANT = FAMILY.rule(
    "TR019b", _R, 'DEVICE = "cuda" that only functions of the file use: the text stays, and is resolved in them',
    why=f"""{_IMPORT_TIME} What reads the constant in this file asks for the device in use at that moment. A file that
    imports the constant sees the text: resolve it there too, with portable.resolve(DEVICE).""",
    source=_SOURCE,
    examples=[
        Example(
            """
            DEVICE = "cuda"

            def run(x, device=DEVICE):
                return x.to(device), x.to(DEVICE)
            """,
            """
            from toprope.device import portable
            DEVICE = "cuda"

            def run(x, device=DEVICE):
                device = portable.resolve(device)
                return x.to(device), x.to(portable.resolve(DEVICE))
            """,
        ),
        Example(
            """
            DEVICE = "cuda"
            x = torch.ones(2, device=DEVICE)
            """,
            """
            from toprope.device import portable
            DEVICE = portable.name()
            x = torch.ones(2, device=DEVICE)
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
SHARED = FAMILY.rule(
    "TR019d", _R, 'DEVICE = "cuda" that only other files use: the name of the device in use, asked for at the import',
    why=f"""{_IMPORT_TIME} Who reads the constant is not seen from this file, so the answer must be there when it is
    imported. Look whether the program sets CUDA_VISIBLE_DEVICES or forks after it.""",
    source=_SOURCE,
    examples=[
        Example(
            """
            DEVICE = "cuda"
            SEED = 3
            """,
            """
            from toprope.device import portable
            DEVICE = portable.name()
            SEED = 3
            """,
        ),
    ],
)  # fmt: skip


def _resolved(file: File, node: ast.Name) -> tuple[str | ast.AST, ...]:
    resolver = "kind" if use(file, node) is Use.KIND else resolver_for(node.id)
    return f"{file.portable(resolver)}(", node, ")"


@FAMILY.string("cuda", "cuda:*", "nccl")
def _text(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    if file.calls_runtime(around, "resolve", "resolve_kind", "attribute"):
        return True  # resolved already
    if node.value != "nccl" and said(file, node) is None:
        return False
    return _default(file, node)


@FAMILY.call("torch.device")
def _device(file: File, node: ast.Call) -> bool:
    if not is_constant_cuda(node):
        return False
    if file.calls_runtime(file.parent(node), "attribute"):
        return True
    return _default(file, node)


def _default(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    if isinstance(around, ast.arguments):
        return _parameter(file, around, node)
    if not isinstance(around, ast.Assign | ast.AnnAssign):
        return False
    target = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
    target = around.target if isinstance(around, ast.AnnAssign) else target
    if not isinstance(target, ast.Name) or not names_default(target.id, node):
        return False
    above = file.parent(around)
    return above is None and not is_text(node, "nccl") and _constant(file, target, node)


# Parameters


def _parameter(file: File, arguments: ast.arguments, default: ast.expr, rule: Rule = PARAMETER) -> bool:
    parameter = next(each for each, value in with_defaults(arguments) if value is default)
    if not names_default(parameter.arg, default if rule is PARAMETER else ast.Constant("cuda")):
        return False
    function = file.parent(arguments)
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(function, ast.Lambda):
        _wrap(file, rule, default, file.reads(parameter.arg, parameter))
    else:
        resolve_in(file, function, parameter, default, rule)
    return True


def resolve_in(
    file: File, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: ast.arg, default: ast.expr, rule: Rule
) -> None:
    """Resolve a parameter in the first statement of its function, or where it is read if that has no line of its own.

    Args:
        file: the file.
        function: the function.
        parameter: its parameter.
        default: the place to report.
        rule: what to report.
    """
    body = [each for each in function.body if not _says_nothing(each)]
    if not body or any(_resolves(file, each, parameter.arg) for each in body[:8]):
        return
    reads = file.reads(parameter.arg, parameter)
    compared = [each for each in reads if _is_compared(file, each)]
    if compared:  # the default means what it says there
        others = [each for each in reads if not isinstance(file.parent(each), ast.Compare | ast.FormattedValue)]
        asks = f"line {compared[0].lineno} asks for it as it is"
        _wrap(file, rule, default, others, f"resolved where it is read; {asks}")
        if not others:
            file.report(rule, default, held_back=f"{asks}, and nothing else is done with it")
        return
    first = min((body[0], *getattr(body[0], "decorator_list", ())), key=lambda each: each.lineno)
    start = file.source.starts[first.lineno - 1]
    indent = file.source.text[start : file.source.span(body[0])[0]] if first is body[0] else ""
    if first is not body[0]:
        indent = file.source.text[start : file.source.span(first)[0]].rpartition("@")[0]
    start = _above_comment(file, start, first.lineno, indent)
    if indent.strip():  # on the line of the def, or behind another statement
        _wrap(file, rule, default, file.reads(parameter.arg, parameter))
        return
    resolver = file.portable(resolver_for(parameter.arg))
    line = f"{indent}{parameter.arg} = {resolver}({parameter.arg}){file.source.newline}"
    file.report(rule, default, "resolved in the function", edits=Edit(start, start, (line,)))


def _is_compared(file: File, read: ast.expr) -> bool:
    """Return whether the text of a device is compared with a name of CUDA's, and not for the kind of device alone."""
    around = file.parent(read)
    return isinstance(around, ast.Compare) and not is_rewritten(file, around) and any(
        isinstance(each, ast.Constant) and str(each.value).partition(":")[0] == "cuda"
        for side in (around.left, *around.comparators) for each in nodes_of(side)
    )  # fmt: skip


def _above_comment(file: File, start: int, line: int, indent: str) -> int:
    """Return where the comment right above a statement begins, in the same column; else where its line does."""
    for above in range(line - 2, -1, -1):
        begin = file.source.starts[above]
        text = file.source.text[begin:start].splitlines()[0] if file.source.text[begin:start] else ""
        if not text.startswith(f"{indent}#"):
            break
        start = begin
    return start


def _says_nothing(statement: ast.stmt) -> bool:
    """A docstring, `...`, `pass`, `raise NotImplementedError`: a body of these alone uses no parameter."""
    if isinstance(statement, ast.Raise):
        return "NotImplemented" in ast.unparse(statement)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _resolves(file: File, statement: ast.stmt, name: str) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == name
        and file.calls_runtime(statement.value, "resolve", "resolve_kind", "name", "device", "kind")
    )


def _wrap(file: File, rule: Rule, place: ast.expr, reads: list[ast.Name], message: str = "") -> None:
    """Resolve a name wherever it is read, but for where that is done already."""
    bare = [each for each in reads if not file.calls_runtime(file.parent(each), "resolve", "resolve_kind", "kind")]
    edits = [file.replace(each, *_resolved(file, each)) for each in bare]
    held = (
        "a place inside an f-string is not known exactly"
        if any(not file.has_exact_place(each) for each in bare)
        else ""
    )
    if edits:
        file.report(rule, place, message or "resolved where it is read", edits=edits, held_back=held)


# Constants of a module


def _constant(file: File, target: ast.Name, node: ast.expr) -> bool:
    bindings = file.walk.module.bindings[target.id]
    reads = file.reads(target.id, *(each.node for each in bindings))
    if not reads:
        return _shared(file, target, node)
    defaults = [each for each in reads if isinstance(file.parent(each), ast.arguments)]
    others = [each for each in reads if each not in defaults]
    if any(file.at_import(each) for each in others) or len(bindings) != 1:
        return False  # the module itself uses it: asked for when the program runs, as it was
    for each in defaults:
        around = file.parent(each)
        if isinstance(around, ast.arguments) and not _parameter(file, around, each, CONSTANT):
            return False
    message = "resolved where it is read; a file that imports it must do so too"
    _wrap(file, CONSTANT, node, others, message)
    file.done(node)
    return True


def _shared(file: File, target: ast.Name, node: ast.expr) -> bool:
    """A constant that nothing in the file reads: configuration for others."""
    scripts = {"setuptools", "distutils.core"}
    imported = {each.imported for bindings in file.walk.module.bindings.values() for each in bindings}
    if imported & scripts or any((each or "").startswith("setuptools.") for each in imported):
        return False
    named = said(file, node)
    if named is None:
        return False
    function = "kind" if names_kind(target.id) and named.index is None else "name"
    file.report(SHARED, node, edits=file.replace(node, *named.pieces(file.portable(function))))
    return True
