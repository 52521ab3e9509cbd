"""Rules TR065, TR067 and TR070: NCCL's own options, questions and variables.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.edits import Edit

__all__ = ["ASKED", "FAMILY", "is_nccl"]

FAMILY = Family("nccl", "NCCL's own", words=[b"nccl", b"NCCL"])

OWN = FAMILY.rule(
    "TR067",
    Kind.NOT_CONVERTIBLE,
    "ProcessGroupNCCL, torch.cuda.nccl: NCCL's own",
    why="""What they set or ask belongs to NCCL. HCCL has options of its own
    (torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options).""",
    source="torch/distributed/distributed_c10d.py",
    examples=[
        Example(
            """
            import torch.distributed as dist

            options = dist.ProcessGroupNCCL.Options()
            """
        ),
        Example(
            """
            import torch

            print(torch.cuda.nccl.version())
            """
        ),
    ],
)


@FAMILY.reference(
    "torch.distributed.ProcessGroupNCCL", "torch.distributed.ProcessGroupNCCL.*",
    "torch.distributed.distributed_c10d.ProcessGroupNCCL", "torch.distributed.distributed_c10d.ProcessGroupNCCL.*",
    "torch.cuda.nccl", "torch.cuda.nccl.*",
)  # fmt: skip
def _own(file: File, node: ast.expr) -> bool:
    file.report(OWN, node)
    return True


VARIABLES = FAMILY.rule(
    "TR070",
    Kind.REVIEW,
    "NCCL_DEBUG and other variables of NCCL: left, they say nothing to others",
    why="""HCCL has variables of its own: HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT, HCCL_BUFFSIZE;
    ASCEND_GLOBAL_LOG_LEVEL for what it logs.""",
    source="CANN's list of environment variables",
    once=True,
    examples=[
        Example(
            """
            import os

            os.environ["NCCL_DEBUG"] = "INFO"
            """
        ),
    ],
)


@FAMILY.string("NCCL_*", "TORCH_NCCL_*")
def _variable(file: File, node: ast.Constant) -> bool:
    file.report(VARIABLES, node)
    return True


def is_nccl(node: ast.expr | None) -> bool:
    """Return whether an expression is the text "nccl"."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() == "nccl"


ASKED = FAMILY.rule(
    "TR065",
    Kind.REVIEW,
    'backend == "nccl": compared with the backend of the device in use',
    why="""Where the group is made with another backend, a test for "nccl" takes the branch for the CPU. On the CPU
    portable.dist_backend("nccl") is "nccl", so that "gloo" is not equal to it; in an assertion it is the backend in
    use. What is compared may still be the text of an option, and is resolved, but for what
    torch.distributed.get_backend() gives.""",
    source="seen in public code: one of the two places rewritten, and not the other",
    examples=[
        Example(
            """
            import torch.distributed as dist

            if dist.get_backend() == "nccl":
                move()
            """,
            """
            import torch.distributed as dist
            from toprope.device import portable

            if dist.get_backend() == portable.dist_backend("nccl"):
                move()
            """,
        ),
        Example(
            """
            if name != 'nccl':
                pass
            """,
            """
            from toprope.device import portable
            if portable.resolve(name) != portable.dist_backend("nccl"):
                pass
            """,
        ),
        Example(
            """
            from torch import distributed as dist

            if dist.get_backend() == dist.Backend.NCCL:
                move()
            names = {dist.Backend.NCCL: 1}
            """,
            """
            from torch import distributed as dist
            from toprope.device import portable

            if dist.get_backend() == portable.dist_backend("nccl"):
                move()
            names = {dist.Backend.NCCL: 1}
            """,
        ),
        Example(
            """
            import torch.distributed as dist

            if dist.is_nccl_available():
                pass
            """
        ),
    ],
)


@FAMILY.node(ast.Compare)
def _compare(file: File, node: ast.Compare) -> bool:
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return False
    for each, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
        if is_nccl(each):
            held = "what it is compared with may be the text that is not resolved" if _stays_nccl(file, other) else ""
            edits = [file.replace(each, _backend(file, node)), *_resolved(file, other)]
            file.report(ASKED, node, edits=edits, held_back=held)
            file.done(each)
    return False


def _backend(file: File, comparison: ast.Compare) -> str:
    """The backend of an accelerator. On the CPU the text stays, which is not the one in use there.

    An assertion, which leaves no other way, is about the backend in use.
    """
    asserts = isinstance(file.parent(comparison), ast.Assert) and isinstance(comparison.ops[0], ast.Eq)
    given = "" if asserts else '"nccl"'
    return f"{file.portable('dist_backend')}({given})"


def _resolved(file: File, node: ast.expr) -> list[Edit]:
    """Resolve what is compared, which may be the text of an option; a group tells its own backend."""
    if isinstance(node, ast.Call | ast.Constant) or (file.dotted(node) or "").startswith("torch."):
        return []
    return [file.replace(node, f"{file.portable('resolve')}(", node, ")")]


def _stays_nccl(file: File, node: ast.expr, depth: int = 2) -> bool:
    """Return whether a value is "nccl" where an option is not given: `getattr(args, "backend", "nccl")`."""
    if isinstance(node, ast.Name) and depth:
        values = [each.value for each in file.bindings(node)]
        return any(each is not None and _stays_nccl(file, each, depth - 1) for each in values)
    return isinstance(node, ast.Call) and file.of_runtime(node.func) is None and any(map(is_nccl, node.args[1:]))


@FAMILY.reference("torch.distributed.Backend.NCCL", "torch.distributed.distributed_c10d.Backend.NCCL")
def _constant(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    if isinstance(around, ast.Compare) and len(around.ops) == 1:
        other = around.comparators[0] if node is around.left else around.left
        file.report(ASKED, node, edits=[file.replace(node, _backend(file, around)), *_resolved(file, other)])
    elif isinstance(around, ast.Call) or (isinstance(around, ast.keyword) and around.arg == "backend"):
        file.report(ASKED, node, edits=file.replace(node, f"{file.portable('dist_backend')}()"))
    else:
        file.report(ASKED, node, 'it is "nccl": another device has another backend')
    return True


@FAMILY.reference("torch.distributed.is_nccl_available")
def _available(file: File, node: ast.expr) -> bool:
    around = file.parent(file.parent(node) or node)
    if isinstance(around, ast.BoolOp) and file.calls_runtime(getattr(around.values[0], "left", None), "kind"):
        return True  # asked on CUDA alone
    file.report(ASKED, node, 'elsewhere it is False; portable.dist_backend() == "nccl" says what is used')
    return True
