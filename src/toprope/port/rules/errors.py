"""Rules TR096 and TR096a: what a program does when the device's memory is full.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("errors", "Errors of the device", words=[b"OutOfMemory", b"out of memory"])

CLASS = FAMILY.rule(
    "TR096",
    Kind.PRESERVING,
    "except torch.cuda.OutOfMemoryError, torch.OutOfMemoryError: every device's",
    why="""It is one class under two names, of which older versions of torch have the one that belongs to CUDA.
    torch_npu raises it in its newest branches alone; up to 7.3.0 a full NPU is a RuntimeError with the text "NPU out of
    memory", which the class does not catch. In an except the runtime's name is the class of the error at hand where
    that says so on an NPU, and torch's class in all other cases.""",
    source="torch_npu: NPUCachingAllocator.cpp of the branches v2.1.0 to v2.12.0",
    examples=[
        Example(
            """
            import torch

            try:
                step()
            except torch.cuda.OutOfMemoryError:
                halve()
            """,
            """
            import torch
            from toprope.device import portable

            try:
                step()
            except portable.OutOfMemoryError:
                halve()
            """,
        ),
        Example(
            """
            import torch

            try:
                step()
            except (torch.OutOfMemoryError, ValueError):
                halve()
            """,
            """
            import torch
            from toprope.device import portable

            try:
                step()
            except (portable.OutOfMemoryError, ValueError):
                halve()
            """,
        ),
        Example("import torch\n\nraise torch.OutOfMemoryError('full')", reported=False),
    ],
)


@FAMILY.node(ast.ExceptHandler)
def _caught(file: File, node: ast.ExceptHandler) -> bool:
    """The class in an except, under each of its names: one that is imported is the class of no error at hand."""
    known = ("torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError", f"{file.runtime}.OutOfMemoryError")
    for each in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
        named = isinstance(each, ast.Name) or file.of_runtime(each) is None
        if each is not None and file.dotted(each) in known and named:
            file.report(CLASS, each, edits=file.replace(each, file.portable("OutOfMemoryError")))
            file.done(each)
    return False


FAMILY.drop_in(CLASS, ["OutOfMemoryError"])

TEXT = FAMILY.rule(
    "TR096a",
    Kind.REVIEW,
    '"CUDA out of memory" in str(error): whatever the device says',
    why="""The text of an NPU is "NPU out of memory.", the CPU has another one; where only CUDA's is known, the
    program fails where it was written to go on.""",
    source="torch_npu's NPUCachingAllocator; torch's CUDACachingAllocator",
    examples=[
        Example(
            """
            try:
                step()
            except RuntimeError as error:
                if "CUDA out of memory" in str(error):
                    halve()
            """,
            """
            from toprope.device import portable
            try:
                step()
            except RuntimeError as error:
                if portable.is_out_of_memory(error):
                    halve()
            """,
        ),
        Example(
            """
            try:
                step()
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
            """,
            """
            from toprope.device import portable
            try:
                step()
            except RuntimeError as error:
                if not portable.is_out_of_memory(error):
                    raise
            """,
        ),
        Example('print("CUDA out of memory, try a smaller batch")', reported=False),
    ],
)


@FAMILY.node(ast.Compare)
def _text(file: File, node: ast.Compare) -> bool:
    left = node.left
    if not isinstance(left, ast.Constant) or not isinstance(left.value, str) or len(node.ops) != 1:
        return False
    if "out of memory" not in left.value.lower() or not isinstance(node.ops[0], ast.In | ast.NotIn):
        return False
    shown = node.comparators[0]
    if isinstance(shown, ast.Call) and isinstance(shown.func, ast.Attribute) and shown.func.attr == "lower":
        shown = shown.func.value
    if not isinstance(shown, ast.Call) or not file.is_builtin(shown.func, "str") or len(shown.args) != 1:
        return False
    before = "not " if isinstance(node.ops[0], ast.NotIn) else ""
    parent = file.parent(node)
    if before and isinstance(parent, ast.Compare | ast.BinOp | ast.Call | ast.Attribute):
        return False
    edits = file.replace(node, f"{before}{file.portable('is_out_of_memory')}(", shown.args[0], ")")
    file.report(TEXT, node, edits=edits)
    return True
