"""Rules TR064, TR066 and TR068: process groups and wrappers for several devices.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_names.py, tests/port/test_port_conditions.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from toprope.port.analysis.places import cannot_be, device_name, index_name, is_argument, names_default
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import is_options
from toprope.port.rule import Example, Kind
from toprope.port.rules.nccl import ASKED, is_nccl
from toprope.port.syntax.nodes import name_of
from toprope.port.syntax.scopes import Binding, with_defaults

__all__ = ["FAMILY"]

FAMILY = Family(
    "distributed",
    "Several devices",
    words=[b"nccl", b"NCCL", b"DataParallel", b"device_id", b"init_process_group", b"new_group"],
)

BACKEND = FAMILY.rule(
    "TR064",
    Kind.REVIEW,
    'init_process_group("nccl"): the backend of the device in use',
    why="""NCCL is for NVIDIA's cards. NPUs have hccl, Intel's xccl, the CPU gloo, which lacks some collectives
    (reduce_scatter with lists, all_to_all) and is slower.""",
    source="torch.distributed; torch_npu registers hccl",
    examples=[
        Example(
            """
            import torch.distributed as dist

            dist.init_process_group("nccl", rank=rank, world_size=size)
            """,
            """
            import torch.distributed as dist
            from toprope.device import portable

            dist.init_process_group(portable.dist_backend(), rank=rank, world_size=size)
            """,
        ),
        Example(
            """
            import torch.distributed as dist

            group = dist.new_group(ranks, backend="nccl")
            """,
            """
            import torch.distributed as dist
            from toprope.device import portable

            group = dist.new_group(ranks, backend=portable.dist_backend())
            """,
        ),
        Example(
            """
            import json
            import torch.distributed as dist

            def setup(rank, settings, backend):
                dist.init_process_group(backend=settings["dist_backend"], rank=rank)
                dist.new_group([0], backend=backend)
                dist.init_process_group("gloo", rank=rank)
            """,
            """
            import json
            import torch.distributed as dist
            from toprope.device import portable

            def setup(rank, settings, backend):
                dist.init_process_group(backend=portable.resolve(settings["dist_backend"]), rank=rank)
                dist.new_group([0], backend=portable.resolve(backend))
                dist.init_process_group("gloo", rank=rank)
            """,
        ),
        Example(
            """
            import torch
            import torch.distributed as dist

            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            backend = "gloo" if not torch.cuda.is_available() else "nccl"
            """,
            """
            import torch
            import torch.distributed as dist
            from toprope.device import portable

            dist.init_process_group(portable.dist_backend() if portable.is_available() else "gloo")
            backend = "gloo" if not portable.is_available() else portable.dist_backend()
            """,
        ),
        Example(
            """
            # a configuration that is read as plain values
            log_level = "INFO"
            dist_params = dict(backend="nccl")
            """
        ),
        Example('print("nccl is fast")', reported=False),
    ],
)
_GROUPS = {
    "torch.distributed.init_process_group": 0,
    "torch.distributed.new_group": 2,
    "torch.distributed.init_device_mesh": None,
}


def _there(file: File, node: ast.expr | None) -> None:
    """`"nccl" if dist.is_nccl_available() else "gloo"`: NCCL is asked for on CUDA alone."""
    if isinstance(node, ast.IfExp) and any(True for _ in _backends(node.body)):
        test = node.test
        is_asked = isinstance(test, ast.Call) and file.dotted(test.func) == "torch.distributed.is_nccl_available"
        if isinstance(test, ast.Call) and is_asked and not file.is_done(test.func):
            edits = file.replace(test, f'{file.portable("kind")}() != "cuda" or ', test)
            file.report(ASKED, test, edits=edits)
            file.done(test.func)


def _backends(node: ast.expr | None) -> Iterator[ast.expr]:
    """Every "nccl" that an expression can give: itself, and the branches of a choice."""
    if isinstance(node, ast.IfExp):
        yield from _backends(node.body)
        yield from _backends(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for each in node.values:
            yield from _backends(each)
    elif node is not None and is_nccl(node):
        yield node


def _convert(file: File, node: ast.expr | None) -> None:
    if isinstance(node, ast.Constant) and re.search(r":nccl\b", str(node.value)) and not file.is_done(node):
        advice = 'f"cpu:gloo,{portable.kind()}:{portable.dist_backend()}", "gloo" on the CPU'
        file.report(BACKEND, node, f"a backend for each kind of device: {advice}")
        file.done(node)
    _there(file, node)
    for each in _backends(node):
        if not file.is_done(each):
            file.report(BACKEND, each, edits=file.replace(each, f"{file.portable('dist_backend')}()"))
            file.done(each)


@FAMILY.call(*_GROUPS)
def _group(file: File, node: ast.Call) -> bool:
    backend = file.argument(node, _GROUPS[file.dotted(node.func) or ""], "backend")
    _convert(file, backend)
    if isinstance(backend, ast.Constant) and backend.value == "gloo" and _ON_CARDS.search(file.source.text):
        file.report(BACKEND, backend, _GLOO)
    if backend is not None and _comes_from_elsewhere(file, backend) and not cannot_be(file, backend, "nccl"):
        edits = file.replace(backend, f"{file.portable('resolve')}(", backend, ")")
        file.report(
            BACKEND, backend, 'it may be "nccl" from a file or an argument: resolved where it is used', edits=edits
        )
    device = file.argument(node, None, "device_id")
    if device is not None and not _is_own(file, device):
        text = f" if {file.portable('is_available')}() else None"
        wrapped = (device,) if file.dotted(getattr(device, "func", None)) == "torch.device" else _wrap(file, device)
        file.report(DEVICE_ID, device, edits=file.replace(device, *wrapped, text))
    return False


_ON_CARDS = re.compile(r"\bdevice_ids\s*=\s*(?!None)|\bcuda\.set_device\(")
"""Text of programs whose processes have an accelerator each."""
_GLOO = '"gloo" takes tensors of CUDA and of no other accelerator: portable.dist_backend() for those on the device'


def _comes_from_elsewhere(file: File, node: ast.expr) -> bool:
    """Return whether a backend's name is not in the file: an entry of a configuration, an argument, a variable."""
    match node:
        case ast.Subscript():
            return True
        case ast.Attribute(attr=name):
            is_option = name in file.project.options and is_options(node.value)
            return not is_option and file.dotted(node) is None and not _is_set(file, node)
        case ast.Call(func=function):
            named = file.of_runtime(function) is not None or (file.dotted(function) or "").startswith("torch.")
            return not named
        case ast.Name():
            return any(_is_given(file, each) for each in file.bindings(node)) or not file.bindings(node)
    return False


def _is_set(file: File, node: ast.Attribute) -> bool:
    """Return whether a statement above gives an attribute a backend that is in the file, and is converted there."""
    above = [file.parent(each) for each in file.assigned_above(node)]
    values = [each.value if isinstance(each, ast.Assign) else None for each in above]
    return bool(values) and not any(each is None or _comes_from_elsewhere(file, each) for each in values)


def _is_given(file: File, binding: Binding) -> bool:
    """Return whether a binding is a parameter that its function does not resolve, or holds what is not in the file."""
    if isinstance(binding.node, ast.arg):
        arguments = file.parent(binding.node)
        defaults = dict(with_defaults(arguments)) if isinstance(arguments, ast.arguments) else {}
        default = defaults.get(binding.node)
        return not (default is not None and is_nccl(default) and names_default(binding.node.arg, default))
    value = binding.value
    return value is not None and not isinstance(value, ast.Name) and _comes_from_elsewhere(file, value)


def _wrap(file: File, node: ast.expr) -> tuple[str | ast.AST, ...]:
    return f"{file.portable('device')}(", node, ")"


def _is_own(file: File, node: ast.expr) -> bool:
    """Return whether it is chosen already, or called a device: no number."""
    name = name_of(node)
    return isinstance(node, ast.IfExp | ast.Constant) or (device_name(name) and not index_name(file, node))


@FAMILY.keyword("backend", "dist_backend", "distributed_backend", "process_group_backend")
def _keyword(file: File, node: ast.keyword) -> bool:
    _convert(file, node.value)
    return False


@FAMILY.node(ast.Assign, ast.AnnAssign, ast.NamedExpr)
def _assigned(file: File, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> bool:
    """`backend = "nccl"`, and `backend = "gloo" if ... else "nccl"`."""
    if isinstance(file.parent(node), ast.ClassDef):
        return False  # an attribute of a class, resolved when it is read
    if isinstance(node, ast.Assign) and file.project.sets(file.walk.module.node, node.targets[0]):
        return False  # a setting, resolved where it is read
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        name = name_of(target)
        if name.lower().endswith("backend"):
            _convert(file, node.value)
    return False


@FAMILY.node(ast.Return)
def _returned(file: File, node: ast.Return) -> bool:
    """`return "nccl"` of a function that is named for it."""
    around = next((each for each in file.ancestors(node) if isinstance(each, ast.FunctionDef)), None)
    if around is not None and "backend" in around.name.lower():
        _convert(file, node.value)
    return False


@FAMILY.string("nccl", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cuda:nccl")
def _string(file: File, node: ast.Constant) -> bool:
    statement = file.statement(node)
    if isinstance(statement, ast.Expr) and statement.value is node:
        return False
    parent = file.parent(node)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "print":
        return False
    if is_argument(file, node) or file.calls_runtime(parent, "dist_backend"):
        return True
    file.report(BACKEND, node, "a backend by name: elsewhere portable.dist_backend() says which one to use")
    return True


DEVICE_ID = FAMILY.rule(
    "TR066",
    Kind.PRESERVING,
    "init_process_group(device_id=...): a device of the kind in use",
    why="""It binds the group to a device. A number means a GPU, and the CPU has none to bind.""",
    source="torch.distributed.init_process_group",
    examples=[
        Example(
            """
            import torch.distributed as dist

            dist.init_process_group(device_id=local_rank)
            """,
            """
            import torch.distributed as dist
            from toprope.device import portable

            dist.init_process_group(device_id=portable.device(local_rank) if portable.is_available() else None)
            """,
        ),
        Example(
            """
            import torch.distributed as dist

            dist.init_process_group(device_id=None)
            dist.init_process_group(device_id=device)
            """,
            reported=False,
        ),
    ],
)

DDP = FAMILY.rule(
    "TR068",
    Kind.PRESERVING,
    "DistributedDataParallel(device_ids=[r], output_device=r): no ids on the CPU",
    why="""A model on the CPU must be wrapped without device_ids; on every accelerator the numbers are its own.""",
    source="tried: ValueError for a module of the CPU",
    examples=[
        Example(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP

            model = DDP(model, device_ids=[rank], output_device=rank)
            """,
            """
            from torch.nn.parallel import DistributedDataParallel as DDP
            from toprope.device import portable

            model = DDP(model, device_ids=portable.device_ids([rank]), output_device=portable.device_ids(rank))
            """,
        ),
        Example(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP

            model = DDP(model, device_ids=None)
            """,
            reported=False,
        ),
    ],
)
_DDP = "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"


@FAMILY.call(*_DDP)
def _ddp(file: File, node: ast.Call) -> bool:
    for position, name in ((1, "device_ids"), (2, "output_device")):
        value = file.argument(node, position, name)
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            continue
        if file.calls_runtime(value, "device_ids"):
            continue
        file.report(DDP, value, edits=file.replace(value, f"{file.portable('device_ids')}(", value, ")"))
    return False
