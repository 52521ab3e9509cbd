"""DTensor calls of torch_npu's operators that torch's sharding rules cannot express: lists of tensors, given results.

Importing it registers them with DTensor, which torch_npu.distributed.tensor (the facade) does; rules of all other
operators are in _rules.py. Tests: tests/compat/test_torch_npu_dtensor.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.utils._pytree import tree_leaves, tree_map

__all__: list[str] = []

_npu = torch.ops.npu


def _call(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a function called for operators on DTensors, with the operator, its arguments and those by name."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            DTensor._op_dispatcher._custom_op_handlers[operator] = function
        return function

    return wrap


def _parts(value: Any, placements: Sequence[Placement]) -> Any:
    """This process's parts of DTensors, in lists, too, once they are placed."""
    return tree_map(
        lambda each: each.redistribute(placements=placements).to_local() if isinstance(each, DTensor) else each, value
    )


def _refuse_plain(operator: Any, tensors: Any) -> None:
    """Refuse tensors that are no DTensors, since their split is unknown."""
    if any(isinstance(each, torch.Tensor) and not isinstance(each, DTensor) for each in tree_leaves(tensors)):
        raise RuntimeError(f"{operator}: got plain tensors next to DTensors; do: make all of them DTensors")


@_call(_npu.npu_grouped_matmul.default, _npu.npu_grouped_matmul.List)
def _grouped_matmul(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[DTensor]:
    """Split the columns of all weights, or their rows with the columns of x, or nothing, by how the weights lie."""
    _refuse_plain(operator, (args, kwargs))
    x, weight = args[:2]
    group_type = kwargs.get("group_type")
    if group_type is not None and group_type > 0:
        raise NotImplementedError(f"npu_grouped_matmul does not support group_type={group_type} now.")
    mesh = next(each.device_mesh for each in tree_leaves((args, kwargs)) if isinstance(each, DTensor))
    others = {
        name: value for name, value in kwargs.items() if name not in ("bias", "group_list") and tree_leaves(value)
    }
    # a scale that a part of the columns has would have to be split as they are
    splits = not any(isinstance(each, torch.Tensor) for each in tree_leaves(others))
    chosen = [_choice(x, weight, kwargs.get("bias"), dim) if splits else (Replicate(),) * 4 for dim in range(mesh.ndim)]
    for_x, for_weight, for_bias, for_y = zip(*chosen, strict=True)
    kwargs = {name: _parts(value, [Replicate()] * mesh.ndim) for name, value in kwargs.items() if name != "bias"} | (
        {"bias": _parts(kwargs["bias"], for_bias)} if kwargs.get("bias") is not None else {}
    )
    results = operator(_parts(x, for_x), _parts(weight, for_weight), *args[2:], **kwargs)
    return [DTensor.from_local(each, mesh, for_y, run_check=False) for each in results]


def _choice(x: Any, weight: Any, bias: Any, mesh_dim: int) -> tuple[Placement, Placement, Placement, Placement]:
    """Placements of x, the weights, biases and results over one dimension of the mesh."""
    columns, rows = weight[0].ndim - 1, weight[0].ndim - 2
    size = weight[0].device_mesh.size(mesh_dim)
    now = {each.placements[mesh_dim] for each in weight}
    if now == {Shard(columns)} and all(each.shape[columns] % size == 0 for each in weight):
        return Replicate(), Shard(columns), Shard(columns - 1), Shard(x[0].ndim - 1)
    of_x = {each.placements[mesh_dim] for each in x}
    is_even = all(each.shape[rows] % size == 0 for each in weight)
    if now == {Shard(rows)} and of_x == {Shard(x[0].ndim - 1)} and not bias and is_even:
        return Shard(x[0].ndim - 1), Shard(rows), Replicate(), Partial()
    return (Replicate(),) * 4


@_call(_npu.npu_apply_adam_w.default, _npu.npu_apply_adam_w.out)
def _apply_adam_w(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Update each process's part: the gradient goes to where the parameters lie."""
    _refuse_plain(operator, (args, kwargs))
    out = kwargs.get("out")
    if out is None or not all(isinstance(each, DTensor) and each.placements == out[0].placements for each in out):
        raise NotImplementedError(
            "npu_apply_adam_w on DTensors takes out=(var, m, v), three DTensors with the same placements"
        )
    operator(*_parts(args, out[0].placements), out=[each.to_local() for each in out])
    return tuple(out)
