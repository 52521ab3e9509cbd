"""Numbers of devices that scale the work for DataParallel: `batch_size *= torch.cuda.device_count()`.

DataParallel stays (rule TR069), and one card would be given the work of all of them; without CUDA the number is 0. So
it stays CUDA's, and at least 1. Called by `engine`; tests/port/test_port_unseen_sixth.py holds it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from toprope.port.file import File
from toprope.port.finding import Finding

__all__ = ["scale_for_one"]

_COUNT, _REPLICAS = "TR024", "TR069"
_KEEPS = ("max", "min", "int", "float")
_PROCESSES = re.compile(r"DistributedDataParallel|init_process_group|\bspawn\(|torchrun")
"""Words of a program that can also start a process for each card, and may count the cards for that."""


def scale_for_one(file: File, findings: Iterable[Finding]) -> None:
    """Let a number of devices in a product or a sum be 1 off CUDA, in a file that has DataParallel."""
    counts = [each for each in findings if each.rule.code == _COUNT and each.converted]
    replicas = next((each for each in file.findings if each.rule.code == _REPLICAS), None) if counts else None
    if replicas is None or _PROCESSES.search(file.source.text):
        return
    wanted, stays = set(map(id, counts)), f"DataParallel in line {replicas.line} stays, and one card does all the work"
    for finding, node in file.places:
        call = file.parent(node)
        if id(finding) in wanted and isinstance(call, ast.Call) and call.func is node and _scales(file, call):
            if _is_positive(file, call):
                finding.held_back = stays
            else:
                finding.edits = (file.replace(call, "max(1, ", call, ")"),)
                finding.before = file.text(call)
                finding.end_line, finding.end_column = file.source.place(file.source.span(call)[1])
                finding.message = f"{file.text(call)}: at least 1, since {stays}"


def _is_positive(file: File, call: ast.Call) -> bool:
    around = file.parent(call)
    return (
        isinstance(around, ast.Call) and file.is_builtin(around.func, "max")
        and any(isinstance(each, ast.Constant) for each in around.args)
    )  # fmt: skip


def _scales(file: File, node: ast.expr) -> bool:
    """Return whether a number is a part of a sum or product."""
    inner: ast.AST = node
    outer = file.parent(inner)
    while isinstance(outer, ast.IfExp | ast.BoolOp) or (
        isinstance(outer, ast.Call) and any(file.is_builtin(outer.func, name) for name in _KEEPS)
    ):
        inner, outer = outer, file.parent(outer)
    return isinstance(outer, ast.BinOp | ast.AugAssign)
