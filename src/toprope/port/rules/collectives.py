"""Rule TR098a: float64 in collectives that reduce.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_needless.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from toprope.port.analysis.tensor_facts import dtype_of
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import last_name
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("collectives", "Collectives", words=[b"reduce"])

REDUCED = FAMILY.rule(
    "TR098a",
    Kind.REVIEW,
    "all_reduce of a float64 tensor: float32 where the backend reduces no float64",
    why="""HCCL reduces no float64 on most NPUs: the program runs until its first reduction, often the end of an epoch,
    and stops with `HCCL allreduce: Unsupported data type at::kDouble`. A tensor that is made as float64 for a reduction
    is made as float32 there, and stays float64 on CUDA and the CPU. Counts above 16 million and long sums lose
    digits.""",
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
            import torch
            import torch.distributed as dist

            def synchronize(self):
                self.sums = torch.zeros(2, dtype=torch.double).cuda()
                dist.all_reduce(self.sums)
            """,
            """
            import torch
            import torch.distributed as dist
            from toprope.device import portable

            def synchronize(self):
                self.sums = torch.zeros(2, dtype=portable.reduced_dtype(torch.double)).to(portable.device())
                dist.all_reduce(self.sums)
            """,
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
_CURE = "HCCL reduces no float64: reduce it as float32, with .float() before and .double() behind if need be"
_MOVES = ("cuda", "npu", "to", "clone", "contiguous", "detach", "reshape", "view", "flatten", "squeeze", "unsqueeze")
_DEPTH = 4


@FAMILY.keyword("dtype")
def _made(file: File, node: ast.keyword) -> bool:
    """A tensor that is made as float64 and reaches a collective that reduces."""
    call = file.parent(node)
    if not isinstance(call, ast.Call) or not _is_float64(file, node.value):
        return False
    if not any(call is origin for each in _reducing(file) for origin in _given(file, each)):
        return False
    edits = file.replace(node.value, f"{file.portable('reduced_dtype')}(", node.value, ")")
    file.report(REDUCED, node.value, edits=edits)
    file.done(node.value)
    return False


@FAMILY.call(*_REDUCES)
def _reduces(file: File, node: ast.Call) -> bool:
    for origin in _given(file, node):
        made = file.keyword(origin, "dtype") if isinstance(origin, ast.Call) else None
        if made is None and dtype_of(file, origin) == "float64":
            file.report(REDUCED, node, _CURE)
            break
        if any(dtype_of(file, each) == "float64" for each in _handed(file, origin)):
            file.report(REDUCED, node, _CURE)
            break
    return False


def _handed(file: File, origin: ast.expr) -> Iterator[ast.expr]:
    """Find what calls in the file give a parameter: `reduce_tensor(x)` for `def reduce_tensor(inp)`."""
    parameters = [each.node for each in file.bindings(origin)] if isinstance(origin, ast.Name) else []
    function = file.function(parameters[0]) if len(parameters) == 1 and isinstance(parameters[0], ast.arg) else None
    if function is None or parameters[0] not in function.args.args:
        return
    at = function.args.args.index(parameters[0])
    for call in file.walk.scopes:
        if isinstance(call, ast.Call) and last_name(call.func) == function.name:
            place = at - (isinstance(call.func, ast.Attribute) and function.args.args[0].arg == "self")
            if 0 <= place < len(call.args):
                yield call.args[place]


def _is_float64(file: File, node: ast.expr) -> bool:
    return file.dotted(node) in ("torch.float64", "torch.double")


def _reducing(file: File) -> Iterator[ast.Call]:
    """Find the calls of collectives that reduce."""
    for node in file.walk.scopes:
        call = file.parent(node)
        if isinstance(call, ast.Call) and call.func is node and file.dotted(node) in _REDUCES:
            yield call


def _given(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """Find the expressions that make the tensors given to a collective."""
    given = [*call.args[:2], *(each.value for each in call.keywords if each.arg in ("tensor", "output", "input"))]
    for each in given:
        for part in each.elts if isinstance(each, ast.List | ast.Tuple) else [each]:
            yield from _origins(file, part, _DEPTH, set())


def _origins(file: File, node: ast.expr, depth: int, followed: set[ast.expr]) -> Iterator[ast.expr]:
    """Follow a tensor through names, attributes and calls that keep its dtype to what makes it, each value once."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
        if any(file.dotted(each) for each in (*node.args, *(keyword.value for keyword in node.keywords))):
            break  # x.to(torch.float64)
        node = node.func.value
    values: list[ast.expr] = []
    if isinstance(node, ast.Name):
        values = [value for each in file.bindings(node) if (value := _assigned(each.node, each.value)) is not None]
    elif isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        kept = [
            each for each in file.walk.scopes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        ]
        kept = [each for each in kept if each.attr == node.attr and ast.unparse(each) == text]
        values = [value for each in kept if (value := _assigned(file.parent(each), None)) is not None]
    if not values:
        yield node
    elif depth:
        new = [each for each in values if each not in followed]
        followed.update(new)
        for value in new:
            yield from _origins(file, value, depth - 1, followed)


def _assigned(statement: ast.AST | None, value: ast.expr | None) -> ast.expr | None:
    return statement.value if value is None and isinstance(statement, ast.Assign | ast.AnnAssign) else value
