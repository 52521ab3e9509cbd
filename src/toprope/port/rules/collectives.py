"""Row 98a: float64 in collectives that reduce."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("collectives", "Collectives", words=[b"reduce"])

REDUCED = FAMILY.rule(
    "TR098a",
    Kind.REVIEW,
    "all_reduce of a float64 tensor: float32 where the backend reduces no float64",
    why="""HCCL reduces no float64 on most NPUs: the program runs until its first reduction, often the end of an epoch,
    and stops with `HCCL allreduce: Unsupported data type at::kDouble`. A tensor that is made as float64 for a reduction
    is made as float32 there, and stays float64 on CUDA and the CPU. Counts above 16 million lose digits.""",
    source="HCCL's documentation of AllReduce; torch_npu's ProcessGroupHCCL; a public trainer on the simulated card",
    examples=[
        Example(
            """
            import torch
            import torch.distributed as dist

            def synchronize(self):
                t = torch.tensor([self.count, self.total], dtype=torch.float64, device="cuda")
                dist.barrier()
                dist.all_reduce(t)
                return t.tolist()
            """,
            """
            import torch
            import torch.distributed as dist
            from toprope.device import portable

            def synchronize(self):
                t = torch.tensor([self.count, self.total], dtype=portable.reduced_dtype(torch.float64), device=portable.device())
                dist.barrier()
                dist.all_reduce(t)
                return t.tolist()
            """,  # noqa: E501
        ),
        Example(
            """
            import torch.distributed as dist

            loss = total.double()
            dist.reduce(loss, 0)
            """
        ),
        Example(
            """
            import torch
            import torch.distributed as dist

            t = torch.zeros(2, dtype=torch.float32)
            dist.all_reduce(t)
            dist.broadcast(t.double(), 0)
            """,
            reported=False,
        ),
    ],
)
_REDUCES = tuple(
    f"{module}.{name}"
    for module in ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.nn",
                   "torch.distributed.nn.functional")
    for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base",
                 "all_reduce_coalesced")
)  # fmt: skip
_DOUBLE = ("torch.float64", "torch.double")
_CURE = "HCCL reduces no float64: reduce it as float32, with .float() before and .double() behind if need be"


@FAMILY.node(ast.Assign)
def _made(file: File, node: ast.Assign) -> bool:
    target = node.targets[0]
    if not isinstance(target, ast.Name) or not isinstance(node.value, ast.Call):
        return False
    dtype = file.keyword(node.value, "dtype")
    if dtype is None or file.dotted(dtype.value) not in _DOUBLE or not _is_reduced(file, node, target):
        return False
    edits = file.replace(dtype.value, f"{file.portable('reduced_dtype')}(", dtype.value, ")")
    file.report(REDUCED, dtype.value, edits=edits)
    file.done(dtype.value)
    return False


def _is_reduced(file: File, statement: ast.Assign, target: ast.Name) -> bool:
    """Return whether what is assigned is given to a collective that reduces."""
    for read in file.reads(target.id, statement):
        call = file.parent(read)
        call = file.parent(call) if isinstance(call, ast.List | ast.Tuple) else call
        if isinstance(call, ast.Call) and file.dotted(call.func) in _REDUCES:
            return True
    return False


@FAMILY.call(*_REDUCES)
def _reduces(file: File, node: ast.Call) -> bool:
    given = [*node.args[:2], *(each.value for each in node.keywords if each.arg in ("tensor", "output", "input"))]
    for each in given:
        values = [each]
        if isinstance(each, ast.Name):
            values = [binding.value for binding in file.bindings(each) if binding.value is not None]
        if any(_is_double(file, value) for value in values):
            file.report(REDUCED, node, _CURE)
            break
    return False


def _is_double(file: File, node: ast.expr) -> bool:
    """Return whether an expression ends as float64: `x.double()`, `x.to(torch.float64)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "double":
        return not node.args
    given = [*node.args, *(each.value for each in node.keywords)]
    return node.func.attr in ("to", "type") and any(file.dotted(each) in _DOUBLE for each in given)
