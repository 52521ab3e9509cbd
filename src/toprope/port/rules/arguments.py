"""Rows 19 and 20: command lines that name CUDA."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.places import Use, resolver_for, use
from toprope.port.project import is_options, option_of
from toprope.port.rule import Example, Kind
from toprope.port.rules.defaults import resolve_in
from toprope.port.scopes import arguments_of

__all__ = ["FAMILY"]

FAMILY = Family("arguments", "Command lines", words=[b"cuda", b"nccl"])

DEFAULT = FAMILY.rule(
    "TR019",
    Kind.REVIEW,
    'add_argument("--device", default="cuda"): the default stays, and is resolved where the option is read',
    why="""The option keeps its name, its default, its type and its choices: "cuda" means the device in use, whether it
    is the default or was given. `args.device` is resolved where it is read, in each file, and not when the command line
    is parsed: programs set CUDA_VISIBLE_DEVICES from their options, and a question about devices before that freezes
    it. What vars(args) hands on is the text: resolve it where it arrives.""",
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
        Example('parser.add_argument("--suffix", default="_cuda")', reported=False),
    ],
)

FLAG = FAMILY.rule(
    "TR020",
    Kind.REVIEW,
    "--no-cuda, --cuda, --use_cuda: the option keeps its name",
    why="""Scripts and people call the program with it. Where it is read, `torch.cuda.is_available()` beside it becomes
    the question for any accelerator, so that it switches whatever device is in use.""",
    source="seen in public code: renamed flags break the scripts that give them",
    examples=[
        Example('parser.add_argument("--no-cuda", action="store_true")'),
        Example('parser.add_argument("--use_cuda", type=bool, default=True)'),
        Example('parser.add_argument("--barracuda")', reported=False),
    ],
)
_FLAGS = (
    "cuda",
    "no-cuda",
    "no_cuda",
    "use-cuda",
    "use_cuda",
    "disable-cuda",
    "disable_cuda",
    "enable-cuda",
    "gpu-cuda",
)


@FAMILY.method("add_argument", "option", "argument")
def _argument(file: File, node: ast.Call) -> bool:
    names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    for name in names:
        if name.startswith("-") and name.lstrip("-") in _FLAGS:
            file.report(FLAG, node)
    default = file.keyword(node, "default")
    value = default.value if default is not None else None
    if not isinstance(value, ast.Constant) or str(value.value).partition(":")[0] not in ("cuda", "nccl"):
        return False
    file.done(value)
    choices = file.keyword(node, "choices")
    for each in ast.walk(choices.value) if choices is not None else ():
        file.done(each)
    around = file.parent(node)
    if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef) and node in around.decorator_list:
        parameter = next((each for each in arguments_of(around) if each.arg == option_of(node)), None)
        if parameter is not None:
            resolve_in(file, around, parameter, value, DEFAULT)
    elif file.keyword(node, "nargs") is not None or not option_of(node) or option_of(node) in file.project.unread:
        file.report(DEFAULT, value, "resolve it where it is read: portable.resolve(args.device)")
    elif any(_is_to_resolve(file, each) for each in file.walk.scopes if getattr(each, "attr", "") == option_of(node)):
        file.report(DEFAULT, value, "it stays, and is resolved where it is read")
    return False


@FAMILY.node(ast.Attribute)
def _read(file: File, node: ast.Attribute) -> bool:
    """`args.device` of an option whose default is a device, in any file of the project."""
    if _is_to_resolve(file, node):
        resolver = file.portable("kind" if use(file, node) is Use.KIND else resolver_for(node.attr))
        file.report(DEFAULT, node, "resolved where it is read", edits=file.replace(node, f"{resolver}(", node, ")"))
        file.pass_over(node)
    return False


def _is_to_resolve(file: File, node: ast.AST) -> bool:
    """Return whether an option whose default is a device is read here, and not resolved yet."""
    if not isinstance(node, ast.Attribute) or node.attr not in file.project.options:
        return False
    if not isinstance(node.ctx, ast.Load) or not _is_parsed(file, node.value):
        return False
    resolved = file.calls_runtime(file.parent(node), "resolve", "resolve_kind", "device", "name", "kind")
    return not resolved and not _is_replaced(file, node)


@FAMILY.node(ast.Call)
def _handed_on(file: File, node: ast.Call) -> bool:
    """`vars(args)`: all options as texts."""
    if file.project.options and file.is_builtin(node.func, "vars") and len(node.args) == 1:
        given = node.args[0]
        values = [each.value for each in file.bindings(given)] if isinstance(given, ast.Name) else [given]
        is_own = any(each is not None and _parses(each) for each in values)
        if _declares(file) if is_own else is_options(given):
            names = ", ".join(sorted(file.project.options))
            file.report(DEFAULT, node, f"it hands {names} on as texts: resolve them where they arrive")
    return False


def _declares(file: File) -> bool:
    """Return whether the file itself makes an option whose default is a device."""
    return any(
        isinstance(each, ast.Call)
        and getattr(each.func, "attr", "") == "add_argument"
        and option_of(each) in file.project.options
        for each in file.walk.scopes
    )


def _is_parsed(file: File, node: ast.expr) -> bool:
    """Return whether something holds the parsed options: by its name, or since parse_args gave it."""
    if is_options(node):
        return True
    return isinstance(node, ast.Name) and any(
        each.value is not None and _parses(each.value) for each in file.bindings(node)
    )


def _parses(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("parse_args", "parse_known_args", "parse_intermixed_args")
    )


def _is_replaced(file: File, node: ast.Attribute) -> bool:
    """Return whether a statement of the same scope before this one has given the option another value."""
    text, scope = ast.unparse(node), file.scope(node)
    return any(
        isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and where is scope
        and each.attr == node.attr
        and (file.statement(each).end_lineno or 0) < node.lineno
        and ast.unparse(each) == text
        for each, where in file.walk.scopes.items()
    )
