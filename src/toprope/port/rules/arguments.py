"""Rows 19 and 20: command lines that name CUDA."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("arguments", "Command lines", words=[b"cuda", b"nccl"])

DEFAULT = FAMILY.rule(
    "TR019",
    Kind.REVIEW,
    'add_argument("--device", default="cuda"): the default stays, and is resolved when the command line is read',
    why="""The option keeps its name, its default and what it takes: "cuda" means the device in use, whether it is
    the default or was given. It is resolved when the arguments are parsed, not when the parser is made. Where the
    option has choices, the device's name must be one of them.""",
    source="argparse: a default that is a text is converted by `type`; click",
    examples=[
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", help="where to run")
            parser.add_argument("--backend", type=str, default="nccl")
            """,
            """
            from toprope.device import portable
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", help="where to run", type=portable.resolve)
            parser.add_argument("--backend", type=portable.resolve, default="nccl")
            """,
        ),
        Example(
            """
            import argparse
            import torch

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", type=torch.device)
            """,
            """
            import argparse
            import torch
            from toprope.device import portable

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", type=portable.device)
            """,
        ),
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
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
    default, choices = file.keyword(node, "default"), file.keyword(node, "choices")
    value = default.value if default is not None else None
    if not isinstance(value, ast.Constant) or str(value.value).partition(":")[0] not in ("cuda", "nccl"):
        return False
    file.done(value)
    if choices is None:
        _resolve(file, node, value)
        return False
    for each in ast.walk(choices.value):
        file.done(each)
    file.report(DEFAULT, value, "the choices name CUDA: add the other devices' names, then type=portable.resolve")
    return False


def _resolve(file: File, node: ast.Call, value: ast.Constant) -> None:
    """Let the option's `type` resolve it."""
    made, action = file.keyword(node, "type"), file.keyword(node, "action")
    resolve = file.portable("resolve")
    if made is None:
        stores = action is None or (isinstance(action.value, ast.Constant) and action.value.value == "store")
        splits = any(each.arg is None or each.arg == "nargs" for each in node.keywords)
        edits = [] if splits or not stores else [file.add_argument(node, f"type={resolve}")]
        file.report(
            DEFAULT, value, "" if edits else "resolve it where it is read: portable.resolve(args.device)", edits=edits
        )
    elif file.is_builtin(made.value, "str"):
        file.report(DEFAULT, value, edits=file.replace(made.value, resolve))
    elif file.dotted(made.value) == "torch.device" and value.value != "nccl":
        file.report(DEFAULT, value, edits=file.replace(made.value, file.portable("device")))
    elif not (file.dotted(made.value) or "").endswith(("portable.resolve", "portable.device")):
        file.report(DEFAULT, value, "its type is a function of the program: resolve the value in it")
