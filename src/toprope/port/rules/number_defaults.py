"""Row 21a: numbers as the defaults of devices."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.scopes import with_defaults

__all__ = ["FAMILY"]

FAMILY = Family(
    "number_defaults", "Numbers as defaults", words=[b"device=0", b"device: ", b"gpu=0", b"gpu: ", b"device_id"]
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
