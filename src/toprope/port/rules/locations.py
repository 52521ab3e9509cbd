"""Rule TR057a: None as map_location where there is CUDA, "cpu" where there is none.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("locations", "Where what is loaded goes, by a choice", words=[b"map_location"])

CHOSEN = FAMILY.rule(
    "TR057a",
    Kind.PRESERVING,
    'torch.load(f, map_location=None if torch.cuda.is_available() else "cpu"): to the accelerator in use',
    why="""None puts what was saved on a GPU back there, which fails on every other accelerator. On CUDA the runtime's
    function does what None does. It is a function, which torch's loaders of weights take; other functions may want a
    text, so that the choice stays where it is given to one of these, or to torch.jit.load.""",
    source="torch.load; tried: RuntimeError about deserializing an object on a CUDA device",
    examples=[
        Example(
            """
            import torch

            state = torch.load(path, map_location=None if torch.cuda.is_available() else torch.device("cpu"))
            where = "cpu" if not torch.cuda.is_available() or args.cpu else None
            other = torch.hub.load_state_dict_from_url(url, map_location=where)
            """,
            """
            import torch
            from toprope.device import portable

            state = torch.load(path, map_location=portable.map_location)
            where = "cpu" if not portable.is_available() or args.cpu else portable.map_location
            other = torch.hub.load_state_dict_from_url(url, map_location=where)
            """,
        ),
        Example(
            """
            import torch

            script = torch.jit.load(path, map_location=None if torch.cuda.is_available() else "cpu")
            """
        ),
        Example(
            "import torch\n\nstate = torch.load(path, map_location=None if keep else move)\nx = None if keep else 1\n",
            "import torch\nfrom toprope.device import portable\n\n"
            "state = torch.load(path, map_location=portable.map_location if keep else move)\n"
            "x = None if keep else 1\n",
        ),
    ],
)
_LOADERS = {
    "torch.load": 1, "torch.hub.load_state_dict_from_url": 2, "torch.utils.model_zoo.load_url": 2,
    "torchvision.models.utils.load_state_dict_from_url": 2,
}  # fmt: skip
"""Functions that take a function as map_location, at this position."""


@FAMILY.node(ast.IfExp)
def _chosen(file: File, node: ast.IfExp) -> bool:
    """None where there is CUDA, "cpu" where there is none."""
    parts = [each for each in (node.body, node.orelse) if isinstance(each, ast.Constant) and each.value is None]
    used = [node, *_reads(file, node)] if len(parts) == 1 else []
    given = [each for each in used if _is_location(file, each)]
    if not given:
        return False
    if len(given) < max(len(used) - 1, 1) or not all(_is_loaders(file, each) for each in given):
        file.report(CHOSEN, parts[0], held_back="it is given to another function than torch's loaders")
        return False
    test, rest = node.test, node.orelse if parts[0] is node.body else node.body
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    asked = test.operand if isinstance(test, ast.UnaryOp) and is_not else test
    is_asked = isinstance(asked, ast.Call) and file.dotted(asked.func) == "torch.cuda.is_available"
    if isinstance(rest, ast.Call) and file.dotted(rest.func) == "torch.device" and rest.args:
        rest = rest.args[0]
    if is_asked and is_not == (parts[0] is node.orelse) and isinstance(rest, ast.Constant) and rest.value == "cpu":
        file.report(CHOSEN, node, edits=file.replace(node, file.portable("map_location")))
        return True
    file.report(CHOSEN, parts[0], edits=file.replace(parts[0], file.portable("map_location")))
    return False


def _reads(file: File, node: ast.expr) -> list[ast.Name]:
    match file.parent(node):
        case ast.Assign(targets=[ast.Name(id=name) as target]) as statement:
            return file.reads(name, statement, target)
    return []


def _is_location(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    return (isinstance(around, ast.keyword) and around.arg == "map_location") or _is_loaders(file, node)


def _is_loaders(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    call = file.parent(around) if isinstance(around, ast.keyword) else around
    name = file.dotted(call.func) if isinstance(call, ast.Call) else None
    return (
        isinstance(call, ast.Call)
        and file.argument(call, _LOADERS.get(name or ""), "map_location") is node
        and (name in _LOADERS)
    )
