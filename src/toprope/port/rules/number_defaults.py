"""Rules TR021a and TR021b: numbers as the defaults of devices.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import FACTORIES, device_name, index_name, index_name_of
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.scopes import with_defaults

__all__ = ["FAMILY"]

FAMILY = Family(
    "number_defaults",
    "Numbers as defaults",
    words=[b"device=0", b"device: ", b"gpu=0", b"gpu: ", b"device_id", b"rank"],
)

NUMBER = FAMILY.rule(
    "TR021a", Kind.REVIEW, "def f(device=0): a number as the default of a device",
    why="""torch takes a bare number for a CUDA device, and the value may travel far before it reaches `.to(...)` or a
    library. It is reported where it begins; it may be the number of a camera or a sound card as well.""",
    source="https://github.com/Ascend/pytorch/issues/16",
    examples=[
        Example(
            """
            import torch

            class Expander:
                def __init__(self, name, device=0):
                    self.device = device
            """
        ),
        Example(
            """
            import cv2

            def capture(device=0):
                return cv2.VideoCapture(device)
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
RANK = FAMILY.rule(
    "TR021b", Kind.REVIEW, "f(device=local_rank): a number that is handed on as a device: reported",
    why="""The function is the program's or a library's: what it does with the number is not seen here. torch takes a
    bare number for a CUDA device; a text is made of it ("cuda:" + str(device)), or it is compared.
    portable.device(local_rank) is that device of the kind in use, where a device is meant. Each number is reported once
    a file.""",
    source="https://github.com/Ascend/pytorch/issues/16; seen in public code",
    examples=[
        Example(
            """
            import torch

            class Loss:
                def __init__(self, device):
                    self.device = device

            def build(local_rank, x):
                return Loss(device=local_rank), Loss(local_rank), torch.zeros(2).to(x)
            """
        ),
        Example(
            """
            import torch

            def build(rank, device):
                return make(device=device), make(rank=rank), make(device="cpu")
            """,
            reported=False,
        ),
    ],
)  # fmt: skip


@FAMILY.node(ast.Call)
def _rank(file: File, node: ast.Call) -> bool:
    """A number by its name, that is given to a parameter named as a device."""
    given = [each.value for each in node.keywords if each.arg is not None and _is_device(each.arg)]
    if isinstance(node.func, ast.Name):
        for position, name in enumerate(_parameters(file, node.func)):
            if _is_device(name) and position < len(node.args):
                given.append(node.args[position])
    for each in given:
        text = file.text(each)
        if any(other.rule is RANK and other.before == text for other in file.findings):
            continue
        if index_name(file, each) and _has_torch(file) and not _is_torchs(file, node):
            file.report(RANK, each, f"{text} is handed on as a device (said once a file): portable.device({text})")
    return False


def _is_device(name: str) -> bool:
    return device_name(name) and not index_name_of(name)


def _parameters(file: File, called: ast.Name) -> list[str]:
    """The names of the parameters that a function or class of the file takes by position."""
    for each in file.bindings(called):
        made: ast.AST | None = each.node
        if isinstance(made, ast.ClassDef):
            made = next((f for f in made.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [parameter.arg for parameter in (*made.args.posonlyargs, *made.args.args)]
            return names[isinstance(each.node, ast.ClassDef) :]
    return []


def _is_torchs(file: File, call: ast.Call) -> bool:
    """Return whether another rule looks at the number: torch takes it, or a method that makes or moves tensors."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = file.dotted(call.func) or ""
    return method in ("to", "cuda", *FACTORIES) or name.startswith("torch.") or file.of_runtime(call.func) is not None


@FAMILY.node(ast.FunctionDef, ast.AsyncFunctionDef)
def _numbers(file: File, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for parameter, value in with_defaults(node.args):
        number = isinstance(value, ast.Constant) and type(value.value) is int
        if number and parameter.arg in ("device", "gpu", "device_id") and _has_torch(file):
            file.report(NUMBER, value, "a number is a CUDA device to torch: portable.device(...) where it is used")
    return False


def _has_torch(file: File) -> bool:
    packages = ("torch", "transformers", "diffusers", "accelerate")
    return any(
        (each.imported or "").partition(".")[0] in packages
        for bindings in file.walk.module.bindings.values()
        for each in bindings
    )
