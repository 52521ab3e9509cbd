"""Rows 5 and 21: numbers in the place of devices, which mean CUDA to torch."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.places import index_name
from toprope.port.rule import Example, Kind, Rule

__all__ = ["FAMILY"]

FAMILY = Family(
    "numbers",
    "Numbers of devices",
    words=[b"cuda", b".to(0", b".to(rank", b".to(local_rank", b"device=0", b"torch.device("],
)

_P = Kind.PRESERVING

NUMBER = FAMILY.rule(
    "TR005", _P, "torch.device(0), x.to(0), torch.ones(2, device=0): that device of the kind in use",
    why="""A bare number means a CUDA device to torch; it fails on the CPU and, with older versions, on an NPU.""",
    source="https://github.com/Ascend/pytorch/issues/16",
    examples=[
        Example(
            """
            import torch

            device = torch.device(0)
            x = torch.ones(2, device=1).to(0)
            y = x.to(next(numbers))
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.device(0)
            x = torch.ones(2, device=portable.device(1)).to(portable.device(0))
            y = x.to(next(numbers))
            """,
        ),
    ],
)  # fmt: skip
VARIABLE = FAMILY.rule(
    "TR021", _P, "torch.device(args.gpu), x.to(rank): that device of the kind in use",
    why="""A variable whose name says that it is the number of a device. What it holds is handed on as it is: a number,
    a text or a device.""",
    source="https://github.com/Ascend/pytorch/issues/16",
    examples=[
        Example(
            """
            import torch

            device = torch.device(args.gpu)
            model.to(local_rank)
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.device(args.gpu)
            model.to(portable.device(local_rank))
            """,
        ),
    ],
)  # fmt: skip


def _rule(file: File, node: ast.expr) -> Rule | None:
    if isinstance(node, ast.Constant):
        return NUMBER if type(node.value) is int else None
    return VARIABLE if index_name(file, node) else None


def _wrap(file: File, node: ast.expr | None) -> None:
    """Hand a number on to the runtime's function."""
    rule = None if node is None else _rule(file, node)
    if rule is not None and node is not None:
        file.report(rule, node, edits=file.replace(node, f"{file.portable('device')}(", node, ")"))
        file.done(node)


@FAMILY.call("torch.device")
def _torch_device(file: File, call: ast.Call) -> bool:
    if len(call.args) == 1 and not call.keywords:
        rule = _rule(file, call.args[0])
        if rule is not None:
            file.report(rule, call, edits=file.replace(call, f"{file.portable('device')}(", call.args[0], ")"))
            return True
    return False


@FAMILY.method("to")
def _to(file: File, call: ast.Call) -> bool:
    _wrap(file, file.argument(call, 0, "device"))
    return False


@FAMILY.keyword("device")
def _keyword(file: File, keyword: ast.keyword) -> bool:
    call = file.parent(keyword)
    name = file.dotted(call.func) if isinstance(call, ast.Call) else None
    if name is not None and name.startswith("torch.") and not name.startswith("torch.cuda.") and name != "torch.device":
        _wrap(file, keyword.value)
    return False
