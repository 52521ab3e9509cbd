"""Rules TR006, TR006a, TR007 and TR008: `.cuda()` on tensors, modules and whatever else has it.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import is_card, is_storage, said
from toprope.port.analysis.receivers import why_left
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.edits import Edit

__all__ = ["FAMILY"]

FAMILY = Family("moves", "Moving to the device", words=[b"cuda"])

_WHY = """`.cuda()` fails where there is no GPU. `.to(...)` does the same for tensors and modules everywhere; the number
and non_blocking stay as the program computes them. A class of the program may have a `cuda` of its own, or a module a
`to`: what is called on such an object, or on one that is not known while any file that is ported has such a class, is
left."""
_SOURCE = "tried: Tensor.cuda and Module.cuda in a torch without CUDA"

MOVE = FAMILY.rule(
    "TR006", Kind.PRESERVING, "x.cuda(), x.cuda(i, non_blocking=True): x.to the device in use",
    why=_WHY, source=_SOURCE,
    examples=[
        Example(
            """
            import torch

            x = x.cuda()
            y = batch["image"].cuda(non_blocking=True)
            z = f(x).cuda(1, True)
            w = x.cuda(device=torch.cuda.current_device(), non_blocking=True)
            v = x.cuda("cuda:1")
            """,
            """
            import torch
            from toprope.device import portable

            x = x.to(portable.device())
            y = batch["image"].to(portable.device(), non_blocking=True)
            z = f(x).to(portable.device(1), non_blocking=True)
            w = x.to(device=portable.device(portable.current_device()), non_blocking=True)
            v = x.to(portable.device(1))
            """,
        ),
        Example(
            """
            class Graph:
                def cuda(self):
                    return self

            graph = Graph().cuda()
            """,
        ),
        Example(
            """
            import torch

            class Batch:
                def cuda(self, device=None):
                    return self

            def run(data, image: torch.Tensor):
                data = data.cuda().as_dict()
                x = torch.stack(data["parts"])
                return x.cuda(), image.cuda(), torch.nn.Linear(2, 2).cuda()
            """,
            """
            import torch
            from toprope.device import portable

            class Batch:
                def cuda(self, device=None):
                    return self

            def run(data, image: torch.Tensor):
                data = data.cuda().as_dict()
                x = torch.stack(data["parts"])
                return x.to(portable.device()), image.to(portable.device()), torch.nn.Linear(2, 2).to(portable.device())
            """,
        ),
        Example("options.cuda = True", reported=False),
    ],
)  # fmt: skip
STATEMENT = FAMILY.rule(
    "TR007", Kind.PRESERVING, "model.cuda() as a statement: model.to the device in use",
    why=_WHY + " A module is moved in place; for a tensor the statement had no effect before and has none after.",
    source=_SOURCE,
    examples=[
        Example(
            """
            import torch

            model = torch.nn.Linear(1, 1)
            model.cuda()
            """,
            """
            import torch
            from toprope.device import portable

            model = torch.nn.Linear(1, 1)
            model.to(portable.device())
            """,
        ),
    ],
)  # fmt: skip
OVERRIDE = FAMILY.rule(
    "TR006a", Kind.REVIEW, "def cuda(self), def to(self) of a class of the program: calls of it are left",
    why="""The method moves what the class holds, perhaps more than torch would. Its body is ported as any other; where
    something in it is left, finish it by hand, so that `x.cuda()` moves to the device in use. Calls on objects that are
    not known are left, since they may be of this class.""",
    source="tried: a module whose cuda() moves plain tensors leaves them on the CPU when to() is called instead",
    examples=[
        Example(
            """
            import torch

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.anchors = torch.zeros(4)

                def cuda(self, device=None):
                    self.anchors = self.anchors.cuda(device)
                    return super().cuda(device)

            def build():
                return Net()

            net = build().cuda()
            """,
            """
            import torch
            from toprope.device import portable

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.anchors = torch.zeros(4)

                def cuda(self, device=None):
                    self.anchors = self.anchors.to(portable.device(device))
                    return super().to(portable.device(device))

            def build():
                return Net()

            net = build().cuda()
            """,
        ),
        Example("def cuda():\n    return 1", reported=False),
    ],
)  # fmt: skip
FUNCTION = FAMILY.rule(
    "TR008", Kind.REVIEW, "torch.Tensor.cuda as a function: a function that moves to the device in use",
    why="""A method that is handed on, for example to map, has no counterpart that knows the device; a small function
    takes its place, which has no other arguments.""",
    source=_SOURCE,
    examples=[
        Example(
            """
            import torch

            moved = list(map(torch.Tensor.cuda, tensors))
            """,
            """
            import torch
            from toprope.device import portable

            moved = list(map(lambda tensor: tensor.to(portable.device()), tensors))
            """,
        ),
    ],
)  # fmt: skip


@FAMILY.method("cuda")
def _cuda(file: File, call: ast.Call) -> bool:
    function = call.func
    assert isinstance(function, ast.Attribute)
    name = file.dotted(function) or ""
    if name.partition(".")[0] in ("torch", "numba", "cupy", "jax", "pycuda", "taichi"):
        return False
    rule = STATEMENT if isinstance(file.parent(call), ast.Expr) else MOVE
    own = why_left(file, function.value, "cuda", "to")
    if own:
        file.report(rule, call, held_back=own)
    elif is_storage(file, function.value):
        file.report(rule, call, held_back="a storage has no such method: torch.serialization.default_restore_location")
    elif any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        file.report(rule, call, held_back="its arguments are not known here")
    elif len(call.args) > 2:
        file.report(rule, call, held_back="it is no call of torch's method: it has too many arguments")
    else:
        file.report(rule, call, edits=_edits(file, call, function))
    file.pass_over(function)
    return False


@FAMILY.node(ast.ClassDef)
def _override(file: File, node: ast.ClassDef) -> bool:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and (
            each.name == "cuda" or (each.name == "to" and file.project.may_be_module(node.name))
        ):
            file.report(OVERRIDE, each, f"{node.name} has a method {each.name} of its own: calls of it are left")
    return False


def _edits(file: File, call: ast.Call, function: ast.Attribute) -> list[Edit]:
    _, end = file.source.span(function)
    edits = [Edit(end - len("cuda"), end, ("to",))]
    device = file.argument(call, 0, "device")
    if device is None:
        open_at = file.source.text.index("(", end) + 1
        rest = file.source.text[open_at:]
        others = ", " if call.keywords else ""
        others = "," if others and rest.lstrip(" ")[:1] in ("\r", "\n", "#", "\\") else others
        edits.append(Edit(open_at, open_at, (f"{file.portable('device')}(){others}",)))
    else:
        named = said(file, device)
        kept = device if named is None or named.chosen else named.index
        pieces = (f"{file.portable('device')}(", *([] if kept is None else [kept]), ")")
        edits.append(file.replace(device, *pieces))
        if named is not None and isinstance(named.index, ast.expr) and not named.chosen:
            file.done_but(device, named.index)
        elif named is not None and not named.chosen:
            file.done(device)
        elif is_card(file, device):
            file.pass_over(device)
    if len(call.args) > 1:
        edits.append(file.before(call.args[1], "non_blocking="))
    return edits


@FAMILY.reference("torch.Tensor.cuda", "torch.nn.Module.cuda")
def _function(file: File, node: ast.expr) -> bool:
    parent = file.parent(node)
    text = f"lambda tensor: tensor.to({file.portable('device')}())"
    bare = isinstance(parent, ast.Call | ast.keyword | ast.Assign) and getattr(parent, "func", None) is not node
    file.report(FUNCTION, node, edits=file.replace(node, text if bare else f"({text})"))
    return True
