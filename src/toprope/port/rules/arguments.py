"""Rows 19 and 20: command lines that name CUDA."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("arguments", "Command lines", words=[b"cuda"])

DEFAULT = FAMILY.rule(
    "TR019",
    Kind.REVIEW,
    'add_argument("--device", default="cuda"): the name of the device in use',
    why="""The option keeps its name and what it takes; only what it is where nobody gives it changes, off CUDA. Where
    the option has choices, the device's name must be one of them.""",
    source="argparse; click",
    examples=[
        Example(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda", help="where to run")
            """,
            """
            from toprope.device import portable
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default=portable.name(), help="where to run")
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
    if not isinstance(value, ast.Constant) or str(value.value).partition(":")[0] != "cuda":
        return False
    file.done(value)
    listed = list(ast.walk(choices.value)) if choices is not None else []
    for each in listed:
        file.done(each)
    if choices is not None:
        file.report(
            DEFAULT, value, "the choices name CUDA: add the other devices' names, and make this portable.name()"
        )
    elif value.value == "cuda":
        file.report(DEFAULT, value, edits=file.replace(value, f"{file.portable('name')}()"))
    else:
        file.report(DEFAULT, value, edits=file.replace(value, f"{file.portable('name')}(", value, ")"))
    return False
