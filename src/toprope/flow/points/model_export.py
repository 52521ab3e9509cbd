"""Export of models for stages that run without the user's Python (optimize_level 2 of `npu_model`).

`npu_models` calls it while a graph is built; the stage loads the file by `model_files`. The file is a program of
torch.export (.pt2), whose API is PyTorch's; CANN's own export by torchair is called only where a real card and torchair
are there. The sizes of samples are free, but for 0 and 1. Tests: tests/flow/test_flow_decorators.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.flow.data_type import TensorDesc
from toprope.flow.exceptions import DATATYPE_INVALID, DfException
from toprope.flow.session import logger

if TYPE_CHECKING:
    import torch

__all__ = ["FILE", "export_model", "samples"]

FILE = "export.pt2"
"""The exported program in the folder of its stage."""

_SIZES = (2, 16, 64, 224)
"""Samples for a negative number of a shape, tried in this order: a model may be too deep for a small one. Never 0
or 1, for which torch.export makes a program of these sizes alone."""


def samples(descs: Sequence[TensorDesc], any_size: int) -> tuple[torch.Tensor, ...]:
    """Tensors of ones of these descriptions.

    Args:
        descs: the descriptions.
        any_size: size in place of negative numbers in their shapes.

    Raises:
        DfException: torch has no such dtype (145022).
    """
    import torch

    made = []
    for each in descs:
        if not each.dtype.torch:
            raise DfException(f"torch has no {each.dtype!r}", DATATYPE_INVALID)
        shape = [any_size if side < 0 else side for side in each.shape]
        made.append(torch.ones(shape, dtype=getattr(torch, each.dtype.torch)))
    return tuple(made)


def export_model(model: Any, descs: Sequence[TensorDesc], folder: Path, outputs: int) -> Path:
    """Export a model into a folder.

    Args:
        model: an nn.Module on the CPU; its `forward` is exported.
        descs: one description for each input; negative numbers of shapes stand for any.
        folder: where the program goes.
        outputs: how many outputs the stage has.

    Returns:
        The file.

    Raises:
        DfException: the model is none, has another number of outputs, or is fixed to one size where any is wanted.
        Whatever torch.export raises.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise DfException(f"optimize_level 2 exports an nn.Module, {type(model).__name__} is none")
    program = _program(model, descs)
    found = len([each for each in program.graph_signature.output_specs if each.kind.name == "USER_OUTPUT"])
    if found != outputs:
        raise DfException(f"{type(model).__name__} has {found} outputs where its method says {outputs}")
    _check_sizes(program, descs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    torch.export.save(program, path)
    _export_air(model, descs, folder)
    return path


def _program(model: Any, descs: Sequence[TensorDesc]) -> Any:
    from torch.export import Dim, export

    dims = tuple({axis: Dim.AUTO if side < 0 else Dim.STATIC for axis, side in enumerate(each.shape)} for each in descs)
    is_dynamic = _is_dynamic(descs)
    problem: Exception | None = None
    for size in _SIZES if is_dynamic else _SIZES[:1]:
        try:
            return export(model, samples(descs, size), dynamic_shapes=(dims,) if _takes_many(model) else dims)
        except DfException:
            raise
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _takes_many(model: Any) -> bool:
    """True if forward has *args, which count as one input."""
    import inspect

    parameters = inspect.signature(model.forward).parameters.values()
    return any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)


def _is_dynamic(descs: Sequence[TensorDesc]) -> bool:
    return any(side < 0 for each in descs for side in each.shape)


def _check_sizes(program: Any, descs: Sequence[TensorDesc]) -> None:
    """Refuse a program that is fixed to the size of its sample where any size is wanted.

    Raises:
        DfException: which input and axis.
    """
    names = program.graph_signature.user_inputs
    found = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for place, (name, desc) in enumerate(zip(names, descs, strict=True)):
        for axis, side in enumerate(desc.shape):
            size = found[name].shape[axis]
            fixed = size if isinstance(size, int) else size.node.maybe_as_int()  # one that was fixed later is of ours
            if side < 0 and fixed is not None:
                raise DfException(
                    f"axis {axis} of input {place} cannot be any: the model is fixed to {fixed} there; say so in "
                    "input_descs, or write the model for any size"
                )


def _export_air(model: Any, descs: Sequence[TensorDesc], folder: Path) -> None:
    """Have a real torchair, if installed, write its own export next to ours (never run on a card by us).

    Its sample has 1 where a shape is negative, as the reference's.
    """
    from toprope import device

    chosen = device.choose(quiet=True).device
    if chosen.kind != "npu" or chosen.capabilities.simulated:
        return
    torchair = sys.modules.get("torchair")
    if torchair is None:
        with contextlib.suppress(ImportError):
            import torchair  # type: ignore[import-not-found, no-redef]
    export = getattr(torchair, "dynamo_export", None)
    if export is None:
        logger.warning("torchair is not installed: the model runs as torch.export has it")
        return
    export(*samples(descs, 1), model=model, export_path=str(folder), dynamic=_is_dynamic(descs))
