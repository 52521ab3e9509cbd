"""Rules TR017a and TR018: questions about a device's name as a text, and the rewrite of all questions about a device.

Asked by `rules.tests`, which looks at comparisons. The examples of the rule are its test
(tests/port/test_port_rules.py), and make its page; tests/port/test_port_asked_texts.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from toprope.port.analysis.places import is_constant_cuda
from toprope.port.conditions.compared import OTHER_ENGINES
from toprope.port.conditions.compiled import why_asked_as_it_is
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.asked import OTHERS, is_one_device
from toprope.port.project.facts import is_options
from toprope.port.rule import Example, Kind, Rule
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = [
    "FAMILY",
    "NAMED",
    "ask_in_text",
    "asked_names",
    "device_of",
    "is_cuda_text",
    "is_rewritten",
    "report_question",
]

FAMILY = Family("device_texts", "Questions about a device's name", words=[b"cuda"])

NAMED: Rule = FAMILY.rule(
    "TR017a",
    Kind.REVIEW,
    'device == "cuda": whether it is that device, by the name of the accelerator in use',
    why="""The name of another card is another text, so that the branch for the CPU is taken there.
    portable.is_named(device, "cuda") is the same comparison on CUDA and on the CPU; on another accelerator its own name
    stands for CUDA's as well. Where the program tells several kinds of device apart, or the branch needs CUDA, the
    comparison stays, and so does every text that is seen to get there.""",
    source="seen in public code",
    examples=[
        Example(
            """
            def pick(device):
                if device == "cuda":
                    work()
                return device != "cuda:1"
            """,
            """
            from toprope.device import portable
            def pick(device):
                if portable.is_named(device, "cuda"):
                    work()
                return not portable.is_named(device, "cuda:1")
            """,
        ),
        Example(
            """
            def pick(device):
                assert device in ("cuda", "cpu")
                kind = device.split(":")[0]
                return kind == "cuda"
            """,
            """
            from toprope.device import portable
            def pick(device):
                assert portable.is_named(device, "cuda", "cpu")
                kind = device.split(":")[0]
                return portable.is_named(kind, "cuda")
            """,
        ),
        Example(
            """
            def pick(device):
                if device == "cuda":
                    work()
                elif device == "mps":
                    other()
            """
        ),
        Example('if backend == "cudagraphs":\n    pass', reported=False),
    ],
)

TEXT = FAMILY.rule(
    "TR018",
    Kind.REVIEW,
    '"cuda" in str(device), str(device).startswith("cuda"): whether it is an accelerator',
    why="""The text of another card's device begins otherwise. The question itself can be asked.""",
    source="seen in public code",
    examples=[
        Example(
            """
            if "cuda" in str(device):
                work()
            half = str(self.device).startswith("cuda")
            """,
            """
            from toprope.device import portable
            if portable.is_accelerator(device):
                work()
            half = portable.is_accelerator(self.device)
            """,
        ),
        Example(
            """
            if "cuda" in device:
                work()
            """,
            """
            from toprope.device import portable
            if portable.is_accelerator(device):
                work()
            """,
        ),
        Example('if "cuda" in str(path):\n    pass', reported=False),
    ],
)

_NAME = re.compile(r"cuda(?::\d+)?")
_CUT = {"lower", "strip", "split", "partition"}
_ALIASES = 4


def asked_names(file: File, node: ast.Compare) -> tuple[ast.expr, list[ast.expr]] | None:
    """Return the device whose name is compared, and the names that it is compared with; None for other comparisons.

    Args:
        file: the file.
        node: a comparison with one operator.
    """
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        names = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
    elif isinstance(node.ops[0], ast.Eq | ast.NotEq):
        left, right = (right, left) if isinstance(left, ast.Constant) else (left, right)
        names = [right]
    else:
        return None
    texts = [each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if len(texts) < len(names) or not any(map(_NAME.fullmatch, texts)) or not _holds_device(file, left):
        return None
    return left, names


def is_rewritten(file: File, node: ast.AST | None) -> bool:
    """Return whether a comparison of a device's name is rewritten, unless a condition holds it back."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    asked = asked_names(file, node)
    device = asked[0] if asked is not None else None
    if isinstance(node.ops[0], ast.In | ast.NotIn) and is_cuda_text(file, node.left):
        device = device_of(file, node.comparators[0])
    return (
        device is not None
        and file.context.has_torch
        and not _tells_apart(file, node)
        and not why_asked_as_it_is(file, node, device)
    )


def _holds_device(file: File, node: ast.expr, depth: int = _ALIASES) -> bool:
    """Return whether an expression is seen to be a device's name: by its own name, or by its origin's."""
    match node:
        case ast.Call(func=ast.Name(id="str") as function, args=[inner], keywords=[]):
            return file.is_builtin(function, "str") and _holds_device(file, inner, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _CUT:
            return _holds_device(file, inner, depth)
        case ast.Call(args=[inner, *_]) if file.calls_runtime(node, "resolve", "resolve_kind"):
            return _holds_device(file, inner, depth)
        case ast.Call(func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *_]):
            return is_one_device(name) or (name == "type" and _holds_device(file, inner, depth))
        case ast.Call(func=function):
            return is_one_device(name_of(function))
        case ast.Subscript(value=inner, slice=ast.Constant(value=0)):
            return isinstance(inner, ast.Call) and _holds_device(file, inner, depth)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return is_one_device(name)
        case ast.Attribute(value=inner, attr="type" | "device_type"):
            return _holds_device(file, inner, depth)
        case ast.Attribute(value=holder, attr=name):
            return is_one_device(name) and not _is_of_engine(file, holder)
        case ast.Name(id=name):
            if is_one_device(name):
                return True
            given = [_unpacked(file, each.node) if each.value is None else each.value for each in file.bindings(node)]
            known = [each is not None and _holds_device(file, each, depth - 1) for each in given] if depth else []
            return bool(known) and all(known)
    return False


def _is_of_engine(file: File, holder: ast.expr) -> bool:
    """Return whether an object may be one of a package that the file imports, which knows CUDA and the CPU."""
    if name_of(holder) in ("self", "cls") or is_options(holder):
        return False
    imported = (each.imported or "" for bindings in file.walk.module.bindings.values() for each in bindings)
    return any(each.partition(".")[0] in OTHER_ENGINES for each in imported)


def _unpacked(file: File, target: ast.AST) -> ast.expr | None:
    """The text whose parts are unpacked, where a name gets the first: `kind, _, index = device.partition(":")`."""
    around = file.parent(target)
    match around:
        case ast.Tuple(elts=[first, *_]) | ast.List(elts=[first, *_]) if first is target:
            statement = file.parent(around)
            return statement.value if isinstance(statement, ast.Assign) else None
    return None


def report_question(
    file: File, node: ast.expr, device: ast.expr, is_not: bool, rule: Rule, names: Sequence[ast.expr] = ()
) -> None:
    """Report a question. What is asked is still looked at: it may be an option that is resolved itself."""
    parent = file.parent(node)
    if not file.context.has_torch:
        file.report(rule, node, "the program does not import torch: the device is another package's")
    elif _tells_apart(file, node):
        file.report(rule, node, "the code tells several kinds of device apart: is this one NVIDIA's?")
    elif why := why_asked_as_it_is(file, node, device):
        file.report(rule, node, why)
    elif is_not and isinstance(parent, ast.BinOp | ast.Attribute | ast.Compare | ast.Await | ast.Starred):
        file.report(rule, node)
    else:
        start, asks = "not " if is_not else "", file.portable("is_named" if names else "is_accelerator")
        texts = "".join(f", {file.text(each)}" for each in names)
        file.report(rule, node, edits=file.replace(node, f"{start}{asks}(", device, f"{texts})"))
    for each in nodes_of(node):
        if isinstance(each, ast.Constant) or (isinstance(each, ast.expr) and is_cuda_text(file, each)):
            file.done(each)


def _tells_apart(file: File, node: ast.AST) -> bool:
    """Return whether the function around a place, or the file, asks for another kind of accelerator too.

    So does an option of the command line that can be given another kind.
    """
    if any(isinstance(each, ast.Attribute) and each.attr in file.project.kinds for each in nodes_of(node)):
        return True
    around = file.function(node) or file.walk.module.node
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.partition(":")[0] in OTHERS
        for each in nodes_of(around)
    )


def is_cuda_text(file: File, node: ast.expr) -> bool:
    """Return whether it is "cuda", or `torch.device("cuda").type`."""
    if isinstance(node, ast.Attribute) and node.attr == "type" and isinstance(node.value, ast.Call):
        call = node.value
        return file.dotted(call.func) == "torch.device" and len(call.args) == 1 and is_constant_cuda(call)
    return isinstance(node, ast.Constant) and node.value == "cuda"


def device_of(file: File, node: ast.expr) -> ast.expr | None:
    """The device whose text a node is; None where it is not seen to be one."""
    value = node
    while isinstance(value, ast.Call):  # str(device), portable.resolve(args.device) of an earlier run
        resolves = file.calls_runtime(value, "resolve", "resolve_kind")
        if not (resolves or file.is_builtin(value.func, "str")) or len(value.args) != 1 or value.keywords:
            return None
        value = value.args[0]
    value = value.value if isinstance(value, ast.Attribute) and value.attr == "type" else value
    name = name_of(value)
    return value if is_one_device(name.lower()) else None


def ask_in_text(file: File, node: ast.Compare, text: ast.expr, is_not: bool) -> bool:
    """Report `"cuda" in str(device)`; return whether it is that."""
    if (device := device_of(file, text)) is not None:
        report_question(file, node, device, is_not, TEXT)
    return device is not None


@FAMILY.method("startswith")
def _starts(file: File, node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    if len(node.args) != 1 or not is_cuda_text(file, node.args[0]):
        return False
    if (device := device_of(file, node.func.value)) is not None:
        report_question(file, node, device, False, TEXT)
    return False
