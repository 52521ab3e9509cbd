"""Rows 6 to 8: `.cuda()` on tensors, modules and whatever else has it."""

from __future__ import annotations

import ast

from toprope.port.edits import Edit
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.places import said
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("moves", "Moving to the device", words=[b"cuda"])

_WHY = """`.cuda()` fails where there is no GPU. `.to(...)` does the same for tensors and modules everywhere; the number
and non_blocking stay as the program computes them."""
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
    own = _own_class(file, function.value)
    if own:
        file.report(rule, call, held_back=f"{own} has a method cuda of its own")
    elif any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        file.report(rule, call, held_back="its arguments are not known here")
    elif len(call.args) > 2:
        file.report(rule, call, held_back="it is no call of torch's method: it has too many arguments")
    else:
        file.report(rule, call, edits=_edits(file, call, function))
    file.pass_over(function)
    return False


def _edits(file: File, call: ast.Call, function: ast.Attribute) -> list[Edit]:
    _, end = file.source.span(function)
    edits = [Edit(end - len("cuda"), end, ("to",))]
    device = file.argument(call, 0, "device")
    if device is None:
        open_at = file.source.text.index("(", end) + 1
        others = ", " if call.keywords else ""
        edits.append(Edit(open_at, open_at, (f"{file.portable('device')}(){others}",)))
    else:
        named = said(file, device)
        kept = device if named is None or named.chosen else named.index
        pieces = (f"{file.portable('device')}(", *([] if kept is None else [kept]), ")")
        edits.append(file.replace(device, *pieces))
        if named is not None and not named.chosen:
            file.done(device)
    if len(call.args) > 1:
        edits.append(file.before(call.args[1], "non_blocking="))
    return edits


def _own_class(file: File, receiver: ast.expr) -> str:
    """The class of the project that the receiver is an object of, if it has a method `cuda` of its own."""
    if not file.own_methods:
        return ""
    made = [receiver]
    if isinstance(receiver, ast.Name):
        if receiver.id == "self":
            around = next((each for each in file.ancestors(receiver) if isinstance(each, ast.ClassDef)), None)
            return around.name if around is not None and around.name in file.own_methods else ""
        made = [binding.value for binding in file.bindings(receiver) if binding.value is not None]
    for each in made:
        if isinstance(each, ast.Call):
            name = ast.unparse(each.func).rpartition(".")[2]
            if name in file.own_methods:
                return name
    return ""


@FAMILY.reference("torch.Tensor.cuda", "torch.nn.Module.cuda")
def _function(file: File, node: ast.expr) -> bool:
    parent = file.parent(node)
    text = f"lambda tensor: tensor.to({file.portable('device')}())"
    bare = isinstance(parent, ast.Call | ast.keyword | ast.Assign) and getattr(parent, "func", None) is not node
    file.report(FUNCTION, node, edits=file.replace(node, text if bare else f"({text})"))
    return True
