"""Rule TR018a: a version in torch that is taken on the CPU alone, with CUDA's kernel for all other devices.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.conditions.compiled import compiled_uses
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "fallbacks", "Versions in torch",
    words=[b'== "cpu"', b"== 'cpu'", b'!= "cpu"', b"!= 'cpu'"],
)  # fmt: skip

FALLBACK = FAMILY.rule(
    "TR018a",
    Kind.REVIEW,
    'if x.device.type == "cpu": plain(x) else: kernel(x): another accelerator takes the plain version too',
    why="""What is written in torch runs on every device, the kernel on CUDA alone. The question for the CPU sends NPUs
    to the kernel: ask for CUDA itself (`!= "cuda"`).""",
    source="seen in public code",
    examples=[
        Example(
            """
            from torch.utils.cpp_extension import load

            fused = load("fused", ["fused.cpp", "fused.cu"])

            def act(x):
                if x.device.type == "cpu":
                    return x.relu()
                return fused.act(x)
            """
        ),
        Example(
            """
            import act_cuda

            def act(x):
                return act_cuda.forward(x) if x.device.type != "cpu" else x.relu()
            """
        ),
        Example(
            """
            import act_cuda

            def act(x):
                return x.relu() if x.device.type == "cpu" else x.tanh()

            def other(x):
                if x.device.type == "cuda":
                    return act_cuda.forward(x)
                return x.relu()
            """,
            reported=False,
        ),
    ],
)


@FAMILY.node(ast.Compare)
def _compare(file: File, node: ast.Compare) -> bool:
    match node:
        case ast.Compare(
            left=ast.Attribute(attr="type"), ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value="cpu")]
        ):
            uses = {id(each) for each in compiled_uses(file)}
            other = _other_branch(file, node) if uses else []
            if any(id(inner) in uses for part in other for inner in nodes_of(part)):
                asked = "!=" if isinstance(node.ops[0], ast.Eq) else "=="
                file.report(
                    FALLBACK,
                    node,
                    f'other devices than the CPU take CUDA\'s kernel: .type {asked} "cuda" is the question',
                )
    return False


def _other_branch(file: File, node: ast.Compare) -> list[ast.AST]:
    """The code for all devices but the CPU."""
    is_cpu = isinstance(node.ops[0], ast.Eq)
    around = file.parent(node)
    match around:
        case ast.IfExp(test=test, body=body, orelse=orelse) if test is node:
            return [orelse if is_cpu else body]
        case ast.If(test=test, body=body, orelse=orelse) if test is node:
            return list(orelse or _behind(file, around)) if is_cpu else list(body)
    return []


def _behind(file: File, statement: ast.If) -> list[ast.stmt]:
    """Statements behind a condition whose branch returns."""
    if not isinstance(statement.body[-1], ast.Return):
        return []
    block = getattr(file.walk.parents[statement], "body", [])
    return block[block.index(statement) + 1 :] if statement in block else []
