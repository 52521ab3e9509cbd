"""Functions print_npugraph_tensor and save_npugraph_tensor: print or save a tensor at its place in a stream.

The torch_npu facade exports them. Outside of a graph they act at once, in a captured graph at each replay. Names,
arguments and the printed form are torch_npu's: torch_npu-print_npugraph_tensor.md and torch_npu-save_npugraph_tensor.md
of Ascend/op-plugin, and torch_npu/npu/graphs.py of Ascend/pytorch. Tests: tests/compat/test_graph_tensors.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.fx.node import has_side_effect

from toprope.sim.npu.graph_capture import at_capture

__all__ = ["print_npugraph_tensor", "register_graph_tensors", "save_npugraph_tensor"]

_PRINT = "print_npugraph_tensor(Tensor input, *, str? tensor_name=None) -> ()"
_SAVE = "save_npugraph_tensor(Tensor input, *, str? save_path=None, bool overwrite=False) -> ()"
_SAVE_LIST = "save_npugraph_tensor.tensor_list(Tensor[] input, *, str? save_path=None, bool overwrite=False) -> ()"

_LIBRARY: Any = torch.library.Library  # it has no annotations
_library = _LIBRARY("npu", "FRAGMENT")
_counts: Counter[str] = Counter()
_chosen: set[str] = set()
"""Paths that a capture has chosen, so that all replays of a graph write one file."""


def print_npugraph_tensor(input: torch.Tensor, tensor_name: str | None = None) -> None:
    """Print a tensor with its shape and dtype, also at each replay of a graph.

    Args:
        input: on the card or the host.
        tensor_name: printed before it as `name=`.
    """
    torch.ops.npu.print_npugraph_tensor(input, tensor_name=tensor_name)


def save_npugraph_tensor(
    input: torch.Tensor | Sequence[torch.Tensor], save_path: str | None = None, overwrite: bool = False
) -> None:
    """Save a tensor, or several in one file, for torch.load; also at each replay of a graph.

    Args:
        input: on one device.
        save_path: file; its name gets the card's number, and a number of its own unless it may be overwritten. None for
            a name from the time, in the current folder.
        overwrite: whether a file of that name is replaced.

    Raises:
        TypeError, ValueError: the input is no tensor or list of them, or the path names no file.
    """
    if isinstance(input, torch.Tensor):
        torch.ops.npu.save_npugraph_tensor(input, save_path=save_path, overwrite=overwrite)
        return
    if not isinstance(input, list | tuple):
        raise TypeError(f"input must be Tensor or TensorList, but got {type(input).__name__}")
    if not input:
        raise ValueError("input tensor list must not be empty")
    if not all(isinstance(each, torch.Tensor) for each in input):
        raise TypeError("all elements in input tensor list must be Tensor")
    if len({each.device for each in input}) > 1:
        raise ValueError("all tensors in input tensor list must be on the same device")
    torch.ops.npu.save_npugraph_tensor.tensor_list(list(input), save_path=save_path, overwrite=overwrite)


def register_graph_tensors() -> None:
    """Define the operators in torch.ops.npu; those that are there already stay."""
    if hasattr(torch.ops.npu, "print_npugraph_tensor"):
        return
    for schema, function in ((_PRINT, _print), (_SAVE, _save), (_SAVE_LIST, _save)):
        name = schema.partition("(")[0]
        _library.define(schema)
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"npu::{name}", _nothing, lib=_library)
    saves = torch.ops.npu.save_npugraph_tensor
    for operator in (torch.ops.npu.print_npugraph_tensor.default, saves.default, saves.tensor_list):
        has_side_effect(operator)
    at_capture[saves.default] = at_capture[saves.tensor_list] = _with_chosen_path


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Give the results that a trace knows: none."""


def _print(input: torch.Tensor, *, tensor_name: str | None = None) -> None:
    text = f"{input.cpu()}, shape={tuple(input.shape)}, dtype={input.dtype}"
    sys.stdout.write(f"{text if tensor_name is None else f'{tensor_name}={text}'}\n")
    sys.stdout.flush()


def _save(input: torch.Tensor | list[torch.Tensor], *, save_path: str | None = None, overwrite: bool = False) -> None:
    values = input.cpu() if isinstance(input, torch.Tensor) else [each.cpu() for each in input]
    torch.save(values, _path(input, save_path, overwrite))


def _with_chosen_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    chosen = _path(args[0], kwargs.get("save_path"), kwargs.get("overwrite", False))
    _chosen.add(chosen)
    return kwargs | {"save_path": chosen}


def _path(input: torch.Tensor | list[torch.Tensor], given: str | None, overwrite: bool) -> str:
    if given in _chosen:
        return str(given)
    path = Path(given if given is not None else f"tensor_{datetime.now():%Y%m%d_%H%M%S_%f}.pt")
    if not path.stem:
        raise ValueError("save_path must include a file name")
    device = (input if isinstance(input, torch.Tensor) else input[0]).device
    stem = path.stem if device.type == "cpu" else f"{path.stem}_device_{device.index}"
    suffix = path.suffix or ".pt"
    if overwrite:
        return str(path.with_name(stem + suffix))
    key = str(path.with_name(stem + suffix))
    number, _counts[key] = _counts[key], _counts[key] + 1
    return str(path.with_name(f"{stem}_{number}{suffix}"))
