"""Options with the name of a device that the file itself sets, asks or declares as numbers of cards.

Called by `rules.arguments` and `rules.devices`; tests/port/test_port_needless.py,
tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

import ast
import re

from toprope.port.file import File
from toprope.port.project.facts import is_options, last_name, option_of
from toprope.port.syntax.nodes import nodes_of

__all__ = [
    "is_of_another_program", "is_only_asked", "is_set_to_device", "is_used_as_tensor", "names_option",
    "only_numbers", "takes_numbers",
]  # fmt: skip

_NUMBERS = re.compile(r"\s*(?:\d+(?:\s*,\s*\d+)*)?\s*")
_HELP_OF_NUMBERS = re.compile(r"\b0\s*,\s*1\b|\bi\.?e\.?\s+0\b")


def takes_numbers(file: File, option: str) -> bool:
    """Return whether the file's own parser takes numbers of cards for an option: "", "0", "0,1,2,3 or cpu".

    What reads it makes a device of the numbers, and refuses a device's name.
    """
    return any(
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "add_argument"
        and option_of(node) == option
        and _of_numbers(file, node)
        for node in file.walk.scopes
    )


def _of_numbers(file: File, node: ast.Call) -> bool:
    default, text = file.keyword(node, "default"), file.keyword(node, "help")
    value = getattr(default.value, "value", None) if default is not None else None
    is_number = isinstance(value, str) and _NUMBERS.fullmatch(value) is not None
    said = getattr(text.value, "value", "") if text is not None else ""
    return is_number and isinstance(said, str) and _HELP_OF_NUMBERS.search(said) is not None


def is_set_to_device(file: File, node: ast.Attribute) -> bool:
    """Return whether the program gives an option a device before the function that reads it is called.

    `args.device = torch.device(...)` in another function, or on top of the file, whatever happens there.
    """
    reader = file.function(node)
    if reader is None:
        return False
    text = ast.unparse(node)
    stores = [
        each for each in file.walk.scopes
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and each.attr == node.attr
        and ast.unparse(each) == text
    ]  # fmt: skip
    return bool(stores) and all(_always_sets(file, each, reader) for each in stores)


def _always_sets(file: File, target: ast.Attribute, reader: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a statement that always runs gives a device, in front of all calls of the reader around it."""
    statement = file.statement(target)
    around = file.parent(statement)
    is_main = isinstance(around, ast.If) and "__name__" in file.text(around.test)
    if not (around is None or is_main or isinstance(around, ast.FunctionDef)) or around is reader:
        return False
    if not isinstance(statement, ast.Assign) or not _makes_device(file, statement.value):
        return False
    scope = file.scope(target)
    calls = [
        each for each, where in file.walk.scopes.items()
        if isinstance(each, ast.Call) and last_name(each.func) == reader.name and where is scope
    ]  # fmt: skip
    return bool(calls) and all(each.lineno > statement.lineno for each in calls)


def _makes_device(file: File, value: ast.expr) -> bool:
    for each in nodes_of(value):
        if isinstance(each, ast.Call):
            full = file.dotted(each.func) or ""
            if full == "torch.device" or file.calls_runtime(each, "device", "name", "resolve", "resolve_device"):
                return True
    return False


def only_numbers(file: File, option: str) -> bool:
    """Return whether of an option's texts nothing but the number behind ":" is used: `devices[rank].split(":")[-1]`."""
    entries = [
        each for each in file.walk.scopes
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load) and last_name(each.value) == option
    ]  # fmt: skip
    return bool(entries) and all(_is_number_of(file, each) for each in entries)


def _is_number_of(file: File, node: ast.expr) -> bool:
    method = file.parent(node)
    call = file.parent(method) if isinstance(method, ast.Attribute) and method.attr in ("split", "rsplit") else None
    if not isinstance(call, ast.Call) or not call.args:
        return False
    part, separator = file.parent(call), call.args[0]
    if not isinstance(part, ast.Subscript) or not isinstance(separator, ast.Constant) or separator.value != ":":
        return False
    return ast.unparse(part.slice) in ("-1", "1")


def is_only_asked(file: File, node: ast.expr) -> bool:
    """Return whether it is only asked whether an option is given: `args.device is None`, `if not args.device:`."""
    inner: ast.AST = node
    around = file.parent(node)
    if isinstance(around, ast.Compare):
        return isinstance(around.ops[0], ast.Is | ast.IsNot)
    while (isinstance(around, ast.UnaryOp) and isinstance(around.op, ast.Not)) or isinstance(around, ast.BoolOp):
        inner, around = around, file.parent(around)
    if isinstance(inner, ast.UnaryOp):
        return True
    return isinstance(around, ast.If | ast.While | ast.IfExp | ast.Assert) and inner is around.test


def is_of_another_program(file: File, node: ast.Attribute) -> bool:
    """Return whether a file without torch gives its own option, which has no default, to an argument of another name.

    `executor.update_parameters(slurm_constraint=args.device)` of a script that hands in a job.
    """
    around = file.parent(node)
    if not isinstance(around, ast.keyword) or "device" in (around.arg or "device"):
        return False
    own = [
        each for each in file.walk.scopes
        if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "add_argument"
        and option_of(each) == node.attr
    ]  # fmt: skip
    has_torch = any(
        (each.imported or "").partition(".")[0] == "torch"
        for bindings in file.walk.module.bindings.values() for each in bindings
    )  # fmt: skip
    return bool(own) and not has_torch and not any(file.keyword(each, "default") for each in own)


_OF_TENSORS = {"data", "shape", "size", "dtype", "grad", "detach", "view", "dim", "numel", "requires_grad"}


def is_used_as_tensor(file: File, node: ast.Name) -> bool:
    """Return whether the function around a name also uses it as a tensor: `torch.tensor(h.data, device=h.device)`."""
    around = file.function(node)
    return around is not None and any(
        isinstance(each, ast.Attribute) and each.attr in _OF_TENSORS
        and isinstance(each.value, ast.Name) and each.value.id == node.id
        for each in nodes_of(around)
    )  # fmt: skip


_GETS = {"getattr", "hasattr", "setattr", "delattr"}
_DECLARES = {"add_argument", "add_option", "option", "argument"}
_KEPT = {"get", "pop", "setdefault"}


def names_option(file: File, node: ast.Constant) -> bool:
    """Return whether a text is the name of an option or of a flag, and no device: `getattr(args, "cuda")`.

    Of `vars(args)["cuda"]` and `config["cuda"]` only where the file declares a flag of this name.
    """
    around = file.parent(node)
    if isinstance(around, ast.Subscript) and around.slice is node:
        return _holds_options(around.value) and _declares_flag(file, str(node.value))
    if not isinstance(around, ast.Call) or node not in around.args:
        return False
    name, position = last_name(around.func), around.args.index(node)
    if name in _GETS and position == 1:
        return is_options(around.args[0])
    if isinstance(around.func, ast.Attribute) and name in _KEPT and position == 0:
        return _holds_options(around.func.value) and _declares_flag(file, str(node.value))
    return position == 0 and (name in _DECLARES or name.startswith("DEFINE_"))


def _holds_options(node: ast.expr) -> bool:
    """Return whether it is a table of options: `vars(args)`, `args.__dict__`, `config`."""
    match node:
        case ast.Call(func=ast.Name(id="vars"), args=[holder]) | ast.Attribute(value=holder, attr="__dict__"):
            return is_options(holder)
    return is_options(node)


def _declares_flag(file: File, name: str) -> bool:
    """Return whether the file declares an option that is true or false, such as `--cuda`."""
    for node in file.walk.scopes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument" and option_of(node) == name:
            action, kind = file.keyword(node, "action"), file.keyword(node, "type")
            is_switch = action is not None and str(getattr(action.value, "value", "")).startswith("store_")
            if is_switch or (kind is not None and "bool" in ast.unparse(kind.value)):
                return True
    return False
