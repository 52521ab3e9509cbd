"""Rules TR005, TR005a, TR005b and TR021: numbers in the place of devices, which mean CUDA to torch.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import FACTORIES, Use, device_name, index_name, is_card, is_index, use
from toprope.port.analysis.receivers import why_left
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind, Rule
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import with_defaults

__all__ = ["FAMILY"]

FAMILY = Family(
    "numbers",
    "Numbers of devices",
    words=[
        b"cuda",
        b".to(0",
        b".to(rank",
        b".to(local_rank",
        b"device=0",
        b"torch.device(",
        b"rank",
        b"gpu",
        b".to(int(",
        b".to(1",
        b"device=1",
        b".get_device()",
    ],
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


CURRENT = FAMILY.rule(
    "TR005a", _P, "x.to(torch.cuda.current_device()): the number becomes that device of the kind in use",
    why="""torch.cuda.current_device() is a number, which torch takes for a CUDA device where it wants a device. The
    rewrite makes a device of it.""",
    source="tried: RuntimeError for a number in a torch without an accelerator",
    examples=[
        Example(
            """
            import torch

            x = torch.ones(2).to(torch.cuda.current_device())
            y = torch.zeros(3, device=torch.cuda.current_device())
            z = y.to(torch.cuda.device_count() - 1)
            here = torch.device(torch.cuda.current_device())
            """,
            """
            import torch
            from toprope.device import portable

            x = torch.ones(2).to(portable.device(portable.current_device()))
            y = torch.zeros(3, device=portable.device(portable.current_device()))
            z = y.to(portable.device(portable.device_count() - 1))
            here = portable.device(portable.current_device())
            """,
        ),
        Example(
            """
            import torch

            index = torch.cuda.current_device()
            torch.cuda.set_device(torch.cuda.current_device())
            """,
            """
            import torch
            from toprope.device import portable

            index = portable.current_device()
            portable.set_device(portable.current_device())
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
KEPT = FAMILY.rule(
    "TR005b", Kind.REVIEW, "device = torch.cuda.current_device(): what is kept as a device becomes one",
    why="""The program keeps a number under a device's name, or hands it on. It becomes a torch.device, which on CUDA
    is taken wherever the number was. Where the program counts with it, formats it or puts it into a list, it stays a
    number: hand it on as portable.device(n) where torch is given it.""",
    source="seen in public code: a default argument that reaches .to()",
    examples=[
        Example(
            """
            import torch

            class Encoder:
                def __init__(self, device=torch.cuda.current_device()):
                    self.device = device

            device = torch.cuda.current_device()
            model = build(device=torch.cuda.current_device())
            """,
            """
            import torch
            from toprope.device import portable

            class Encoder:
                def __init__(self, device=portable.device(portable.current_device())):
                    self.device = device

            device = portable.device(portable.current_device())
            model = build(device=portable.device(portable.current_device()))
            """,
        ),
        Example(
            """
            import torch

            device = torch.cuda.current_device()
            print(f"cuda:{device}", x.to(device))
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.current_device()
            print(f"cuda:{device}", x.to(portable.device(device)))
            """,
        ),
    ],
)  # fmt: skip


def _rule(file: File, node: ast.expr) -> Rule | None:
    if not is_index(file, node):
        return None
    if isinstance(node, ast.Constant):
        return NUMBER
    of_tensor = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_device"
    return VARIABLE if of_tensor or not isinstance(node, ast.Call | ast.BinOp) else CURRENT


def _wrap(file: File, node: ast.expr | None, held_back: str = "") -> None:
    """Hand a number on to the runtime's function."""
    rule = None if node is None else _rule(file, node)
    if rule is None or node is None:
        return
    if isinstance(node, ast.Name) and _becomes_device(file, node):
        return
    file.report(rule, node, edits=file.replace(node, *_device(file, node)), held_back=held_back)
    if isinstance(node, ast.Constant | ast.Name | ast.Attribute):
        file.done(node)
    else:
        file.pass_over(node)  # what is in it may be torch.cuda's


def _device(file: File, node: ast.expr) -> tuple[str | ast.AST, ...]:
    return f"{file.portable('device')}(", node, ")"


@FAMILY.call("torch.device")
def _torch_device(file: File, call: ast.Call) -> bool:
    if len(call.args) == 1 and not call.keywords:
        rule = _rule(file, call.args[0])
        if rule is not None:
            file.report(rule, call, edits=file.replace(call, *_device(file, call.args[0])))
            file.done(call.func)
            file.pass_over(call.args[0])
    return False


@FAMILY.method("to")
def _to(file: File, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    device = file.argument(call, 0, "device")
    if device is not None and is_index(file, device):
        _wrap(file, device, why_left(file, call.func.value, "to"))
    return False


@FAMILY.keyword("device")
def _keyword(file: File, keyword: ast.keyword) -> bool:
    call = file.parent(keyword)
    assert isinstance(call, ast.Call)
    name = file.dotted(call.func) or ""
    is_torchs = name.startswith("torch.") and not name.startswith("torch.cuda.") and name != "torch.device"
    if is_torchs or (isinstance(call.func, ast.Attribute) and call.func.attr in FACTORIES):
        _wrap(file, keyword.value)
    return False


@FAMILY.call("torch.cuda.current_device")
def _current(file: File, call: ast.Call) -> bool:
    how = use(file, call)
    if how is Use.DEVICE:
        _wrap(file, call)
    elif how is Use.TEXT and (name := _name_of(file, call)) and not index_name(file, ast.Name(name)):
        if _is_counted(file, name):
            file.report(KEPT, call, "it stays a number: hand it on as portable.device(n) where torch is given it")
        else:
            file.report(KEPT, call, edits=file.replace(call, *_device(file, call)))
    return False


def _name_of(file: File, node: ast.expr) -> str:
    """The name that a value is given by an assignment, a default or a keyword; "" where it has none of these."""
    match file.parent(node):
        case ast.keyword(arg=str(name)) | ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return name
        case ast.arguments() as arguments:
            return next((parameter.arg for parameter, default in with_defaults(arguments) if default is node), "")
    return ""


def _is_counted(file: File, name: str) -> bool:
    """Return whether the file computes with this name, formats it or puts it into a list: it must stay a number."""
    for node in nodes_of(file.walk.module.node):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if (node.id if isinstance(node, ast.Name) else node.attr) != name:
            continue
        match file.parent(node):
            case ast.BinOp() | ast.FormattedValue() | ast.List() | ast.Compare() | ast.Subscript():
                return True
            case ast.Assign(targets=[ast.Subscript()]):  # an element of an array of numbers
                return True
            case ast.Call(func=ast.Name(id="str" | "int" | "range")) | ast.Call(func=ast.Attribute(attr="format")):
                return True
    return False


def _becomes_device(file: File, node: ast.Name) -> bool:
    """Return whether the name is given torch.cuda.current_device() under a device's name, and that becomes a device."""
    values = [each.value for each in file.bindings(node)]
    current = [each for each in values if isinstance(each, ast.Call) and is_card(file, each)]
    return bool(current) and device_name(node.id) and not index_name(file, node) and not _is_counted(file, node.id)
