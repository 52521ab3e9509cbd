"""Rule TR019: options of the command line whose default names CUDA.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_names.py, tests/port/test_port_needless.py,
tests/port/test_port_unseen_silent.py.
"""

from __future__ import annotations

import ast
import re

from toprope.port.analysis.own_options import (
    is_of_another_program,
    is_only_asked,
    is_set_to_device,
    is_used_as_tensor,
    only_numbers,
    takes_numbers,
)
from toprope.port.analysis.places import Use, resolver_for, use
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import chooses_device, is_options, last_name, option_of
from toprope.port.rule import Example, Kind
from toprope.port.rules.defaults import resolve_in
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import arguments_of

__all__ = ["FAMILY"]

FAMILY = Family("arguments", "Command lines", words=[b"cuda", b"nccl"])

DEFAULT = FAMILY.rule(
    "TR019",
    Kind.REVIEW,
    'add_argument("--device", default="cuda"): the default stays, and is resolved where the option is read',
    why="""The option keeps its name, its default, its type and its choices: "cuda" means the device in use, whether it
    is the default or was given, also where it is only one of the choices or named in the help. `args.device` is
    resolved where it is read, in each file, and not when the command line is parsed: programs set CUDA_VISIBLE_DEVICES
    from their options, and a question about devices before that freezes it. What vars(args) hands on is the text:
    resolve it where it arrives.""",
    source="argparse; click; PyTorch's documentation of CUDA semantics",
    examples=[
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", help="where to run", choices=["cuda", "cpu"])
            parser.add_argument("--backend", type=str, default="nccl")
            args = parser.parse_args()
            run(args.device, args.backend, args.other)
            """,
            """
            from toprope.device import portable
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", help="where to run", choices=["cuda", "cpu"])
            parser.add_argument("--backend", type=str, default="nccl")
            args = parser.parse_args()
            run(portable.resolve(args.device), portable.resolve(args.backend), args.other)
            """,
        ),
        Example(
            """
            import argparse
            import torch

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", type=torch.device)

            def main(args):
                x = torch.ones(2).to(args.device)
                args.device = torch.device("cpu")
                return x.to(args.device)
            """,
            """
            import argparse
            import torch
            from toprope.device import portable

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", type=torch.device)

            def main(args):
                x = torch.ones(2).to(portable.resolve(args.device))
                args.device = torch.device("cpu")
                return x.to(args.device)
            """,
        ),
        Example(
            """
            import click

            @click.command()
            @click.option("--device", default="cuda")
            def main(device):
                run(device)
            """,
            """
            from toprope.device import portable
            import click

            @click.command()
            @click.option("--device", default="cuda")
            def main(device):
                device = portable.resolve(device)
                run(device)
            """,
        ),
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda")
            run(**vars(parser.parse_args()))
            """
        ),
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
            model.to(parser.parse_args().device)
            args = parser.parse_args()
            x = x.to(args.device)
            """,
            """
            from toprope.device import portable
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
            model.to(portable.resolve(parser.parse_args().device))
            args = parser.parse_args()
            x = x.to(portable.resolve(args.device))
            """,
        ),
        Example('parser.add_argument("--suffix", default="_cuda")', reported=False),
    ],
)


@FAMILY.method("add_argument", "option", "argument")
def _argument(file: File, node: ast.Call) -> bool:
    default = file.keyword(node, "default")
    value = default.value if default is not None else None
    choices = file.keyword(node, "choices")
    if isinstance(value, ast.List | ast.Tuple) and only_numbers(file, option_of(node)):
        for entry in value.elts:
            if isinstance(entry, ast.Constant) and re.fullmatch(r"cuda:\d+", str(entry.value)):
                file.done(entry)
    if not isinstance(value, ast.Constant) or str(value.value).partition(":")[0] not in ("cuda", "nccl"):
        if not chooses_device(node):
            return False
        value = choices.value if choices is not None else node
        kind = file.keyword(node, "type")
        if kind is not None:  # click.Choice(["cpu", "cuda"])
            file.done(kind.value)
    file.done(value)
    for each in nodes_of(choices.value) if choices is not None else ():
        file.done(each)
    around = file.parent(node)
    if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef) and node in around.decorator_list:
        parameter = next((each for each in arguments_of(around) if each.arg == option_of(node)), None)
        if parameter is not None:
            resolve_in(file, around, parameter, value, DEFAULT)
    elif file.keyword(node, "nargs") is not None or not option_of(node) or option_of(node) in file.project.unread:
        read = f"args.{option_of(node) or 'device'}"
        unseen = "resolve it where it is read" if "." in read[5:] else f"no file is seen to read {read}"
        file.report(DEFAULT, value, f"{unseen}: portable.resolve({read})")
    return False


@FAMILY.string("cuda", "cuda:*", "nccl")
def _set(file: File, node: ast.Constant) -> bool:
    """`_C.MODEL.DEVICE = "cuda"` of a module whose settings others read: resolved there, as an option is."""
    statement = file.parent(node)
    match statement:
        case ast.Assign(targets=[ast.Attribute() as target], value=value) if value is node:
            if file.project.sets(file.walk.module.node, target):
                file.report(
                    DEFAULT, node, "the text stays, and is resolved where it is read: the import asks for nothing"
                )
                return True
    return False


@FAMILY.node(ast.Attribute)
def _read(file: File, node: ast.Attribute) -> bool:
    """`args.device` of an option whose default is a device, in any file of the project."""
    if _is_to_resolve(file, node):
        resolver = file.portable("kind" if use(file, node) is Use.KIND else resolver_for(node.attr))
        edits = file.replace(node, f"{resolver}(", node, ")")
        file.report(DEFAULT, node, "resolved where it is read", edits=edits)
        file.pass_over(node)
    return False


def _is_to_resolve(file: File, node: ast.AST) -> bool:
    """Return whether an option whose default is a device is read here, and not resolved yet."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    is_option = node.attr in file.project.options and _is_parsed(file, node.value)
    if is_option and (
        takes_numbers(file, node.attr) or is_set_to_device(file, node) or is_only_asked(file, node)
        or is_of_another_program(file, node)
    ):  # fmt: skip
        return False
    if not is_option and not file.project.names_setting(node):
        return False
    resolved = file.calls_runtime(file.parent(node), "resolve", "resolve_kind", "device", "name", "kind")
    return not resolved and not file.assigned_above(node) and not _stays_compared(file, node)


def _stays_compared(file: File, node: ast.expr) -> bool:
    """Return whether the option is compared with names of devices, and the comparison stays.

    Resolved, it would be "cuda" on CUDA alone. A program that asks for "npu" itself has a way of its own there.
    """
    inner: ast.AST = node
    outer = file.parent(node)
    while outer is not None and not isinstance(outer, ast.Compare):
        is_text = isinstance(outer, ast.Call) and (file.is_builtin(outer.func, "str") or outer.func is inner)
        if not is_text and not (isinstance(outer, ast.Attribute) and outer.attr in ("type", "lower", "startswith")):
            return False
        if isinstance(outer, ast.Attribute) and outer.attr == "startswith":
            outer = file.parent(outer)
            break
        inner, outer = outer, file.parent(outer)
    if outer is None or re.search(rb"\bnpu\b", file.source.data):
        return False
    others = [outer.left, *outer.comparators] if isinstance(outer, ast.Compare) else getattr(outer, "args", [])
    texts = [
        each for other in others if other is not inner for each in nodes_of(other) if isinstance(each, ast.Constant)
    ]
    named = bool(texts) and all(isinstance(each.value, str) for each in texts)
    return named and not any(each.edits for each, place in file.places if place is outer)


@FAMILY.node(ast.Call)
def _handed_on(file: File, node: ast.Call) -> bool:
    """`vars(args)`: all options as texts."""
    if file.project.options and file.is_builtin(node.func, "vars") and len(node.args) == 1:
        given = node.args[0]
        values = [each.value for each in file.bindings(given)] if isinstance(given, ast.Name) else [given]
        is_own = any(each is not None and _parses(each) for each in values)
        if not _is_shown(file, node) and (
            _declares(file) or (not (is_own or _parses_own(file)) and _holds_options(given))
        ):
            names = ", ".join(sorted(file.project.options))
            file.report(DEFAULT, node, f"it hands {names} on as texts: resolve them where they arrive")
    return False


_SHOWS = {
    "print", "pprint", "debug", "info", "warning", "log", "write", "dump", "dumps", "safe_dump", "add_hparams",
    "add_text", "save_hyperparameters", "log_hyperparams", "log_params", "join",
}  # fmt: skip
_PUTS_TOGETHER = {
    "str", "repr", "len", "sorted", "items", "keys", "getattr", "format", "append", "ljust", "vars", "max",
}  # fmt: skip


def _is_shown(file: File, node: ast.Call) -> bool:
    """Return whether options are printed, logged or written to a file alone: what a program prints runs on nothing."""
    for around in file.ancestors(node):
        if isinstance(around, ast.Call) and around is not node:
            name = last_name(around.func)
            if name in _SHOWS or (file.dotted(around.func) or "").startswith("wandb."):
                return True
            if name not in _PUTS_TOGETHER:
                return False
        elif isinstance(around, ast.For) and node in nodes_of(around.iter):
            inside = [each for part in around.body for each in nodes_of(part)]
            called = {last_name(each.func) for each in inside if isinstance(each, ast.Call)}
            return bool(called & (_SHOWS | {"append"})) and called <= _SHOWS | _PUTS_TOGETHER
        elif isinstance(around, ast.stmt):
            return False
    return False


def _declares(file: File) -> bool:
    """Return whether the file itself makes an option whose default is a device."""
    return any(
        isinstance(each, ast.Call)
        and getattr(each.func, "attr", "") == "add_argument"
        and option_of(each) in file.project.options
        for each in file.walk.scopes
    )


def _holds_options(node: ast.expr) -> bool:
    """Return whether something holds the options of the command line by its name; a `config` may be a model's."""
    return is_options(node) and not re.search(r"conf|cfg", ast.unparse(node), re.IGNORECASE)


def _parses_own(file: File) -> bool:
    """Return whether the file is a program with options of its own, which are not those of another one."""
    return any(
        isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "add_argument" for each in file.walk.parents
    )


def _is_parsed(file: File, node: ast.expr) -> bool:
    """Return whether something holds the parsed options: by its name, or since parse_args gave it."""
    values = [each.value for each in file.bindings(node)] if isinstance(node, ast.Name) else []
    if _parses(node) or any(each is not None and _parses(each) for each in values):
        return True
    computed = any(isinstance(each, ast.BinOp | ast.Subscript | ast.Constant) for each in values)  # a tensor named A
    return is_options(node) and not computed and not _is_other(file, node)


_MAKES_OPTIONS = re.compile(r"arg|opt|conf|cfg|dict|param|namespace|parse|load|setting|flag", re.IGNORECASE)


def _is_other(file: File, node: ast.expr) -> bool:
    """Return whether a name of one letter is a loop's, or gets what is no options: `p = next(model.parameters())`."""
    if not isinstance(node, ast.Name) or len(node.id) > 1:
        return False
    if is_used_as_tensor(file, node):
        return True
    for each in file.bindings(node):
        call = each.value
        if isinstance(call, ast.Call) and not _MAKES_OPTIONS.search(last_name(call.func)):
            return True
        if isinstance(file.parent(each.node), ast.For | ast.comprehension):
            return True
    return False


def _parses(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("parse_args", "parse_known_args", "parse_intermixed_args")
    )
