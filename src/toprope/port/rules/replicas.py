"""Rules TR069 and TR069a: torch's DataParallel and its parts, which copy between the GPUs of one process.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen_fifth.py.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import is_asked_about
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import last_name, option_of
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family(
    "replicas",
    "Several GPUs in one process",
    words=[
        b"nn.parallel",
        b"DataParallel",
        b"data_parallel",
        b"nn import parallel",
        b"cuda.comm",
        b"import comm",
        b'"dp"',
        b"'dp'",
    ],
)

PARTS = FAMILY.rule(
    "TR069a",
    Kind.NOT_CONVERTIBLE,
    "torch.nn.parallel._functions, replicate, scatter, gather, torch.cuda.comm: copies between GPUs of one process",
    why="""They call torch's functions for CUDA (ReduceAddCoalesced, Broadcast, comm.gather), which have no counterpart
    elsewhere. Synchronised batch normalisation that is built on them is in torch itself:
    torch.nn.SyncBatchNorm, with DistributedDataParallel and one process a device.""",
    source="torch/nn/parallel/_functions.py and torch/nn/parallel/comm.py in torch's source; torch.nn.SyncBatchNorm",
    examples=[
        Example(
            """
            try:
                from torch.nn.parallel._functions import ReduceAddCoalesced, Broadcast
            except ImportError:
                ReduceAddCoalesced = Broadcast = None

            def reduce(parts):
                return ReduceAddCoalesced.apply(0, 2, *parts)
            """
        ),
        Example("import torch\n\nparts = torch.nn.parallel.scatter(batch, [0, 1])"),
        Example("from torch.cuda import comm\n\nparts = comm.broadcast_coalesced(tensors, [0, 1])"),
        Example("from torch.nn.parallel.scatter_gather import gather\n\nwhole = gather(parts, 0)"),
        Example("from torch.nn.parallel import DistributedDataParallel", reported=False),
    ],
)
_PARTS = ("replicate", "scatter", "gather", "parallel_apply", "scatter_kwargs", "comm")
_MODULES = ("_functions", "comm", "replicate", "scatter_gather", "parallel_apply")


@FAMILY.reference(
    *(f"torch.nn.parallel.{name}" for name in _PARTS), *(f"torch.nn.parallel.{name}.*" for name in _MODULES),
    "torch.cuda.comm", "torch.cuda.comm.*",
)  # fmt: skip
def _used(file: File, node: ast.expr) -> bool:
    file.report(PARTS, node)
    return True


@FAMILY.node(ast.ImportFrom)
def _imported(file: File, node: ast.ImportFrom) -> bool:
    module = node.module or ""
    if not node.level and module in {f"torch.nn.parallel.{name}" for name in _MODULES} | {"torch.cuda.comm"}:
        file.report(PARTS, node)
    return False


PARALLEL = FAMILY.rule(
    "TR069",
    Kind.NOT_CONVERTIBLE,
    "nn.DataParallel: one process for several GPUs",
    why="""It is for CUDA (torch_npu does not support it), and passes through on the CPU. DistributedDataParallel, one
    process a device, works everywhere and is faster. A condition on CUDA in front of it stays. The class may be asked
    about: no model is of it elsewhere. A class of the project that inherits from it is one, too, and so is Lightning's
    strategy "dp".""",
    source="PyTorch's own advice; torch_npu's documentation",
    once=True,
    examples=[
        Example("import torch\n\nif torch.cuda.device_count() > 1:\n    model = torch.nn.DataParallel(model)"),
        Example("from torch_geometric.nn import DataParallel\n\nmodel = DataParallel(model)"),
        Example("from torch import nn\n\nif isinstance(model, (nn.DataParallel, Other)):\n    run()", reported=False),
        Example(
            """
            import torch

            class Replicas(torch.nn.DataParallel):
                def gather(self, outputs, output_device):
                    return outputs

            if torch.cuda.is_available():
                model = Replicas(model)
            """
        ),
        Example(
            """
            import pytorch_lightning as pl
            import torch

            trainer = pl.Trainer(strategy="dp" if torch.cuda.is_available() else None)
            """
        ),
    ],
)
_OF_MMCV = {
    f"mmcv.parallel.{module}{name}": f"mmcv.device.npu.{own} takes its place (mmcv 1.7 and newer)"
    for module, name, own in (
        ("", "MMDataParallel", "NPUDataParallel"), ("data_parallel.", "MMDataParallel", "NPUDataParallel"),
        ("", "MMDistributedDataParallel", "NPUDistributedDataParallel"),
        ("distributed.", "MMDistributedDataParallel", "NPUDistributedDataParallel"),
    )
}  # fmt: skip


@FAMILY.reference(
    "torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel",
    "torch_geometric.nn.DataParallel", "torch_geometric.nn.data_parallel.DataParallel",
    *_OF_MMCV,
)  # fmt: skip
def _parallel(file: File, node: ast.expr) -> bool:
    if not is_asked_about(file, node):
        own = _OF_MMCV.get(file.dotted(node) or "", "")
        file.report(PARALLEL, node, f"mmcv's class copies to GPUs of CUDA: {own}" if own else "")
    return True


@FAMILY.node(ast.Call)
def _own_class(file: File, node: ast.Call) -> bool:
    """A class of the project that inherits from one of them, in any file."""
    name, known = last_name(node.func), file.project.classes
    bases = file.project.ancestors(name) - known.keys() if name in known else ()
    if any(each.rpartition(".")[2] in _CLASSES for each in bases):
        file.report(PARALLEL, node.func, f"{name} inherits from DataParallel: one process for several GPUs")
    return False


_CLASSES = ("DataParallel", "MMDataParallel")
_ARGUMENTS = ("strategy", "distributed_backend", "accelerator")


@FAMILY.string("dp")
def _strategy(file: File, node: ast.Constant) -> bool:
    """Lightning's `strategy="dp"`, given to a trainer, kept under that name, or an option's default."""
    inner: ast.AST = node
    around = file.parent(inner)
    while isinstance(around, ast.IfExp | ast.BoolOp):
        inner, around = around, file.parent(around)
    names: list[str] = []
    match around:
        case ast.keyword(arg="default"):
            call = file.parent(around)
            names = [option_of(call)] if isinstance(call, ast.Call) else []
        case ast.keyword(arg=str(name)):
            names = [name]
        case ast.Assign(targets=targets):
            names = list(map(_last, targets))
        case ast.AnnAssign(target=target):
            names = [_last(target)]
        case ast.Dict(keys=keys, values=values) if inner in values:
            key = keys[values.index(inner)]
            names = [str(key.value)] if isinstance(key, ast.Constant) else []
    if "lightning" in file.source.text.lower() and any(each in _ARGUMENTS for each in names):
        file.report(PARALLEL, node, 'Lightning\'s "dp" is nn.DataParallel: one process for several GPUs')
    return False


def _last(target: ast.expr) -> str:
    """The name under which something is kept: `strategy`, `self.strategy`, `options["strategy"]`."""
    if isinstance(target, ast.Subscript):
        return str(target.slice.value) if isinstance(target.slice, ast.Constant) else ""
    return last_name(target)
