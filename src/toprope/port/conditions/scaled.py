"""Numbers of devices that scale the work for DataParallel: `batch_size *= torch.cuda.device_count()`.

DataParallel stays (rule TR069), in this file or in another one of the program, and one card would be given the work of
all of them; without CUDA the number is 0. So it stays CUDA's, and at least 1.

Called by `engine`; tests/port/test_port_unseen_sixth.py, tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import PurePath

from toprope.port.file import File
from toprope.port.finding import Finding

__all__ = ["scale_for_one"]

_COUNT, _REPLICAS = "TR024", "TR069"
_KEEPS = ("max", "min", "int", "float")
_PROCESSES = re.compile(r"DistributedDataParallel|init_process_group|\bspawn\(|torchrun")
"""Words of a program that can also start a process for each card, and may count the cards for that."""


def scale_for_one(file: File, findings: Iterable[Finding], path: str) -> None:
    """Let a number of devices in a product or a sum be 1 off CUDA, in a program that has DataParallel."""
    counts = [each for each in findings if each.rule.code == _COUNT and each.converted]
    where = _replicas(file, path) if counts else ""
    if not where or _PROCESSES.search(file.source.text):
        return
    wanted, stays = set(map(id, counts)), f"DataParallel in {where} stays, and one card does all the work"
    for finding, node in file.places:
        call = file.parent(node)
        if id(finding) in wanted and isinstance(call, ast.Call) and call.func is node:
            reads = _reads(file, call)
            if not any(_scales(file, each) for each in (call, *reads)):
                continue
            if _is_positive(file, call) or any(_asks_for_none(file, each) for each in reads):
                finding.held_back = stays
            else:
                finding.edits = (file.replace(call, "max(1, ", call, ")"),)
                finding.before = file.text(call)
                finding.end_line, finding.end_column = file.source.place(file.source.span(call)[1])
                finding.message = f"{file.text(call)}: at least 1, since {stays}"


def _replicas(file: File, path: str) -> str:
    """Return where the program has DataParallel: a line of this file, or another file; "" without one."""
    own = next((each for each in file.findings if each.rule.code == _REPLICAS), None)
    if own is not None:
        return f"line {own.line}"
    name = PurePath(path).parent.name if PurePath(path).name == "__init__.py" else PurePath(path).stem
    other = file.project.replicas.get(name, "")
    return f"{other}.py" if other else ""


def _is_positive(file: File, call: ast.Call) -> bool:
    around = file.parent(call)
    return (
        isinstance(around, ast.Call) and file.is_builtin(around.func, "max")
        and any(isinstance(each, ast.Constant) for each in around.args)
    )  # fmt: skip


def _reads(file: File, call: ast.Call) -> list[ast.expr]:
    """Return where a number is read that is kept under a name or as an attribute."""
    statement = file.statement(call)
    found: list[ast.expr] = []
    for target in statement.targets if isinstance(statement, ast.Assign) and statement.value is call else ():
        if isinstance(target, ast.Name):
            found += file.reads(target.id, statement, target)
        elif isinstance(target, ast.Attribute):
            text = ast.unparse(target)
            found += [
                each for each in file.walk.scopes
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)
                and each.attr == target.attr and ast.unparse(each) == text
            ]  # fmt: skip
    return found


def _asks_for_none(file: File, read: ast.expr) -> bool:
    """Return whether a program asks whether a number is 0: there is no card then."""
    around = file.parent(read)
    is_zero = isinstance(around, ast.Compare) and any(
        isinstance(each, ast.Constant) and each.value == 0 for each in (around.left, *around.comparators)
    )
    return is_zero or file.decides(read)


def _scales(file: File, node: ast.expr) -> bool:
    """Return whether a number is a part of a sum or product."""
    inner: ast.AST = node
    outer = file.parent(inner)
    while isinstance(outer, ast.IfExp | ast.BoolOp) or (
        isinstance(outer, ast.Call) and any(file.is_builtin(outer.func, name) for name in _KEEPS)
    ):
        inner, outer = outer, file.parent(outer)
    return isinstance(outer, ast.BinOp | ast.AugAssign)
