"""Devices that are not run on but asked about by their text: compared, looked up in a table, part of a file's name.

`x.device == torch.device("cuda:0")` asks for CUDA: with the device in use in its place it would be true on the CPU. So
it is not rewritten; unknown is pessimistic. `asked_texts` follows a text to where it is compared and looked up.

Called by `engine` and `guards`; tests/port/test_port_compared.py, tests/port/test_port_unseen_fourth.py,
tests/port/test_port_unseen.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from toprope.port.analysis.places import TWO_KINDS, is_argument, texts_of
from toprope.port.file import File
from toprope.port.finding import Finding
from toprope.port.syntax.nodes import name_of, nodes_of
from toprope.port.syntax.scopes import with_defaults

__all__ = ["LOOKED_UP", "OTHER_ENGINES", "hold_compared", "is_only_text"]

COMPARED = "it is compared, not run on: another device in its place may be equal to the CPU"
LOOKED_UP = "its text is "
"""Beginning of the reason why the name of a device stays that the program looks up."""
_SAVED = f"{LOOKED_UP}saved"
_IN_FILE_NAME = f"{LOOKED_UP}part of the name of a file"
_SAVES = {"save", "dump", "dumps", "safe_dump", "save_checkpoint", "savez", "pack", "packb"}

_NAMES = {"devices", "device_types", "numbers", "defaults", "attributes"}
"""Families of rules that put the device in use in the place of a text or a torch.device."""
OTHER_ENGINES = {
    "faster_whisper", "ctranslate2", "whisperx", "torchsummary", "llama_cpp", "paddle", "paddleocr", "tensorflow",
    "cupy", "faiss", "onnxruntime", "spacy", "catboost", "xgboost", "lightgbm",
}  # fmt: skip
"""Packages that compute by themselves, on CUDA or the CPU: they know no device of torch's by its name."""
_QUESTIONS = ("TR017", "TR017a", "TR018", "TR065")
_BINDS = {"io_binding", "bind_input", "bind_output", "bind_ortvalue_input"}
_MASK = "CUDA_VISIBLE_DEVICES"
_ASSERTS = re.compile(r"assert_?(?:\w*_)?(?:Not|List|Tuple|Set|Count)?(?:Equals?|In|NotIn|Is|IsNot|equals?|is|in)")
_FILES = re.compile(r"[/\\]|\.[A-Za-z]\w{0,7}$")
_SHOWN = re.compile(r"print|log|debug|info|warn\w*|error|exception|write|set_description|set_postfix|\w*Error")


def hold_compared(file: File, findings: Iterable[Finding]) -> None:
    """Hold back names of devices that the program compares, or looks up by their text."""
    wanted = set(map(id, findings))
    asked = {  # where a question takes the place of the comparison
        part for finding, node in file.places if finding.rule.code in _QUESTIONS and finding.converted
        and id(finding) in wanted for part in nodes_of(node)
    }  # fmt: skip
    for finding, node in file.places:
        if id(finding) not in wanted or not finding.converted:
            continue
        if finding.rule.family in _NAMES:
            finding.held_back = _why(file, node, asked) or _too_early(file, finding, node)
        elif finding.rule.family == "arguments" and isinstance(node, ast.Attribute):
            finding.held_back = _looked_up_there(file, node)
    bound = next((each for each in file.walk.scopes if isinstance(each, ast.Attribute) and each.attr in _BINDS), None)
    for finding, _ in file.places:
        if bound is not None and id(finding) in wanted and finding.converted and finding.rule.family in _NAMES:
            finding.held_back = f"onnxruntime's binding in line {bound.lineno} is given the device: it knows CUDA"
    _hold_fallbacks(file, [(f, n) for f, n in file.places if id(f) in wanted and f.converted])


def _hold_fallbacks(file: File, places: list[tuple[Finding, ast.AST]]) -> None:
    """Leave `device.type == "cuda" and not torch.cuda.is_available()`, the way out where a device is not there.

    The device may still be CUDA's when another accelerator is in use. Where the file gives it no other text than the
    ones that are converted, it is not.
    """
    asked = [(f, n) for f, n in places if f.rule.code in ("TR001", "TR001a", "TR024")]
    for finding, node in places if asked else ():
        if finding.rule.code not in ("TR017", "TR017a", "TR018") or not isinstance(node, ast.expr):
            continue
        device = node.left if isinstance(node, ast.Compare) else node.func if isinstance(node, ast.Call) else node
        if any(isinstance(each, ast.expr) and texts_of(file, each) in TWO_KINDS for each in nodes_of(device)):
            continue
        is_not = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq | ast.NotIn)
        for other, question in asked:
            top = next((each for each in _conditions(file, question) if each in (node, *file.ancestors(node))), None)
            if top is not None and (_negations(file, node, top) + is_not + _negations(file, question, top)) % 2:
                other.held_back = finding.held_back = _FALLBACK


_FALLBACK = "it is the way out for a device of CUDA's that is not there: give portable.resolve(...) the device first"


def _conditions(file: File, node: ast.AST) -> Iterator[ast.AST]:
    """The conditions that a question is part of, from the inside, up to a whole `and` or `or`."""
    outer = file.parent(node)
    while isinstance(outer, ast.BoolOp | ast.UnaryOp | ast.Call | ast.Compare):
        if isinstance(outer, ast.BoolOp):
            yield outer
        outer = file.parent(outer)


def _negations(file: File, node: ast.AST, top: ast.AST) -> int:
    """The number of times that `not` is in front of a part of a condition."""
    found = 0
    for each in file.ancestors(node):
        if each is top:
            break
        found += isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not)
    return found


def _too_early(file: File, finding: Finding, node: ast.AST) -> str:
    """Return the reason why a text stays that would become a question in front of a mask of CUDA's devices."""
    asks = any(edit.says(f"{file.alias}.{name}(") for edit in finding.edits for name in ("name", "kind", "device"))
    if not asks or not isinstance(node, ast.expr) or _asks_itself(file, node):
        return ""
    if file.at_import(node):
        around = [node, *file.ancestors(node)]
        if any(isinstance(each, ast.arguments) for each in around):
            return "a default is evaluated when the module is imported: resolve the parameter in the function"
        if any(inner in getattr(outer, "decorator_list", ()) for inner, outer in pairwise(around)):
            return "a decorator is evaluated when the module is imported, which would ask for the device"
    scope, line = file.scope(node), node.lineno
    for each in file.walk.parents:
        if isinstance(each, ast.Assign) and each.lineno > line and file.scope(each) is scope:
            for target in each.targets:
                match target:
                    case ast.Subscript(value=value, slice=ast.Constant(value=name)) if name == _MASK:
                        if file.dotted(value) == "os.environ":
                            return f"the device would be asked for in front of line {each.lineno}, which masks devices"
    return ""


def _asks_itself(file: File, node: ast.expr) -> bool:
    """Return whether the program asks CUDA here already: it makes a tensor, or asks what is available."""
    around = (node, *file.ancestors(node))
    inside = (*nodes_of(node), *around)
    if any((file.dotted(each.func) or "").startswith("torch.cuda.") for each in inside if isinstance(each, ast.Call)):
        return True
    call = next((each for each in around if isinstance(each, ast.Call)), None)
    named = "" if call is None else file.dotted(call.func) or ""
    is_to = isinstance(getattr(call, "func", None), ast.Attribute) and call.func.attr in ("to", "cuda")  # type: ignore[union-attr]
    return is_to or (named.startswith("torch.") and named != "torch.device")


def _why(file: File, node: ast.AST, asked: Collection[ast.AST]) -> str:
    if not isinstance(node, ast.expr):
        return ""
    if _is_compared(file, node):
        return COMPARED
    if call := _saved_by(file, node):
        return f"{_SAVED} in line {call.lineno}, which others read as it is"
    line = _looked_up_there(file, node)
    reads = [each for each in _reads(file, node) if isinstance(each, ast.Name)]
    only_compared = bool(reads) and all(_is_compared(file, each) and each not in asked for each in reads)
    return line or (COMPARED if only_compared else "")


def is_only_text(file: File, node: ast.AST, why: str) -> bool:
    """Return whether what stays for this reason is but a text, in the name of a file or in what is saved.

    A name that is also given to something else says where tensors are.
    """
    kept = isinstance(file.parent(node), ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.arguments)
    return why.startswith(_SAVED) or (why.startswith(_IN_FILE_NAME) and not kept)


def _saved_by(file: File, node: ast.expr) -> ast.Call | None:
    """Find the call that saves the table or list which a text is written in; a name for it is saved and not read."""
    inner: ast.AST = node
    outer = file.parent(node)
    while (
        isinstance(outer, ast.Dict | ast.List | ast.Tuple | ast.IfExp)
        or (isinstance(outer, ast.Call) and file.is_builtin(outer.func, "dict"))
        or (isinstance(outer, ast.keyword) and file.is_builtin(getattr(file.parent(outer), "func", outer), "dict"))
    ):
        inner, outer = outer, file.parent(outer)
    if inner is node or isinstance(inner, ast.IfExp):
        return None
    given: list[ast.AST] = [inner]
    if isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Name):
        given = list(file.reads(outer.targets[0].id, outer, outer.targets[0]))
    calls = [file.parent(each) for each in given]
    saves = [each for each in calls if isinstance(each, ast.Call) and _saves(each)]
    return saves[0] if saves and len(saves) == len(calls) else None


def _saves(call: ast.Call) -> bool:
    return name_of(call.func) in _SAVES


def _looked_up_there(file: File, node: ast.expr) -> str:
    """Return how its text is used as one: here, or where the name is read that it is assigned to."""
    return next(filter(None, (_looked_up(file, each) for each in (node, *_reads(file, node)))), "")


def _reads(file: File, node: ast.expr) -> Iterator[ast.expr]:
    """Find where the name or the attribute is read that gets this value, or has it for its default."""
    around = file.parent(node)
    while isinstance(around, ast.BoolOp) or (isinstance(around, ast.IfExp) and around.test is not node):
        node, around = around, file.parent(around)
    match around:
        case ast.Assign(targets=targets, value=value) if value is node:
            for target in targets:
                yield from _reads_of(file, target, around)
        case ast.AnnAssign(target=target, value=value) if value is node:
            yield from _reads_of(file, target, around)
        case ast.arguments():
            for parameter, value in with_defaults(around):
                if value is node:
                    yield from file.reads(parameter.arg, parameter)


def _reads_of(file: File, target: ast.expr, statement: ast.AST) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name):
        yield from file.reads(target.id, statement, target)
    elif isinstance(target, ast.Attribute):
        for node in file.walk.scopes:
            if isinstance(node, ast.Attribute) and node.attr == target.attr and isinstance(node.ctx, ast.Load):
                yield node


def _outer(file: File, node: ast.expr) -> tuple[ast.AST, ast.AST | None]:
    """The expression whose value says the same, and the node around it: `str(d)`, `d.type`, `[d]` of `d`."""
    inner: ast.AST = node
    outer = file.parent(node)
    while True:
        match outer:
            case ast.Tuple() | ast.List() | ast.Set():
                pass
            case ast.IfExp(test=test) if test is not inner:
                pass
            case ast.Attribute(attr="type"):
                pass
            case ast.Call(func=function, args=[_]) if file.is_builtin(function, "str"):
                pass
            case _:
                return inner, outer
        inner, outer = outer, file.parent(outer)


def _is_compared(file: File, node: ast.expr) -> bool:
    """Return whether it is a side of a comparison, of an assertion of equality, or the pattern of a match."""
    inner, outer = _outer(file, node)
    match outer:
        case ast.Compare() | ast.MatchValue():
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments):
            return inner in arguments and bool(_ASSERTS.fullmatch(name))
    return False


def _looked_up(file: File, node: ast.expr) -> str:
    """Return how the text of a device is used as one, where another text fails; "" where it is not."""
    inner, outer = _outer(file, node)
    call = file.parent(outer) if isinstance(outer, ast.keyword) else outer
    if isinstance(call, ast.Call) and call.func is not inner:
        package = (file.dotted(call.func) or "").partition(".")[0]
        if package in OTHER_ENGINES:
            return f"{LOOKED_UP}given to {package} in line {call.lineno}, which knows CUDA and the CPU"
    if is_argument(file, node):
        return f"{LOOKED_UP}an argument of a command line in line {node.lineno}"
    match outer:
        case ast.Assign(targets=[ast.Subscript(value=value)]) if file.dotted(value) == "os.environ":
            return f"{LOOKED_UP}a variable of the environment in line {outer.lineno}, which others read as it is"
        case ast.Call(func=function) if file.dotted(function) in ("os.environ.setdefault", "os.putenv"):
            return f"{LOOKED_UP}a variable of the environment in line {outer.lineno}, which others read as it is"
        case ast.Subscript(value=value, slice=ast.Slice() | ast.Constant(value=int())) if value is inner:
            return f"{LOOKED_UP}cut by position in line {outer.lineno}: the names of other devices are shorter"
        case ast.FormattedValue() | ast.BinOp() | ast.Call():
            return _in_a_command(file, outer) or _in_a_file_name(file, outer)
    return ""


def _in_a_command(file: File, part: ast.AST) -> str:
    """The same for an argument of a command line that is put together: `f"--device={device}"`."""
    whole = file.parent(part) if isinstance(part, ast.FormattedValue) else part
    texts = whole.values if isinstance(whole, ast.JoinedStr) else [whole.left] if isinstance(whole, ast.BinOp) else []
    if any(isinstance(each, ast.Constant) and re.search(r"(?:^|\s)--[\w-]+[= ]$", str(each.value)) for each in texts):
        return f"{LOOKED_UP}an argument of a command line in line {getattr(whole, 'lineno', 0)}"
    return ""


def _in_a_file_name(file: File, part: ast.AST) -> str:
    """The same for a text that is put together and is the name of a file: "model_{device}.pt"."""
    whole = part
    while isinstance(part, ast.FormattedValue | ast.JoinedStr | ast.BinOp):
        whole, part = part, file.parent(part) or part
        if part is whole:
            break
    texts = [each.value for each in nodes_of(whole) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    is_text = isinstance(whole, ast.JoinedStr | ast.BinOp)
    match part:
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(template)), attr="format")):
            texts, is_text, whole = [template], True, part
    if not is_text or not any(_FILES.search(each) and " " not in each.strip() for each in texts):
        return ""
    for around in file.ancestors(whole):
        if isinstance(around, ast.Call):
            name = around.func.attr if isinstance(around.func, ast.Attribute) else getattr(around.func, "id", "")
            if _SHOWN.fullmatch(name):
                return ""
        if isinstance(around, ast.Expr | ast.Raise | ast.stmt):
            break
    return f"{_IN_FILE_NAME} in line {getattr(whole, 'lineno', 0)}"
