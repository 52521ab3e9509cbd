"""Tensors with values in a store: gradients and optimizer states that were moved out but work in any code.

Users meet them as `parameter.grad` and in `optimizer.state`; `training.gradients` and `training.optimizer` make them.
An operation reads the values to the device for its duration, and writes them back if they were changed, which torch's
schema of the operation tells. Operations on lists (`torch._foreach_*`, GradScaler) are done one tensor at a time, so
that only one is on the device. An operation is done by tiles only if it is in `_TILE_BY_TILE`. Tests:
tests/tiers/test_tiers_training_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from toprope.errors import UsageError
from toprope.tiers.store.base import Store
from toprope.tiers.store.memory import flat, without_values
from toprope.tiers.training.blocks import Blocks
from toprope.tiers.training.tiles import Tile

__all__ = ["StoredTensor", "store_tensor"]

_View = tuple[Any, tuple[Any, ...], dict[str, Any]]


class StoredTensor(torch.Tensor):
    """A tensor with shape, dtype and device, whose values are in `blocks`; or a view of one, through `views`."""

    blocks: Blocks
    views: tuple[_View, ...]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, blocks: Blocks, views: tuple[_View, ...] = (), like: torch.Tensor | None = None) -> StoredTensor:
        """Make a tensor with the values in `blocks`, or a view of it with the shape of `like`."""
        shape, stride = (blocks.shape, blocks.stride) if like is None else (like.shape, like.stride())
        dtype = blocks.dtype if like is None else like.dtype
        made: StoredTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, dtype=dtype, device=blocks.device
        )
        made.blocks, made.views = blocks, views
        return made

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Do nothing, as `__new__` has made it."""

    def values(self) -> torch.Tensor:
        """Read its values into a new tensor on its device."""
        _, value = _read_view(self, {})
        return value

    def on(self, device: torch.device) -> torch.Tensor:
        """Read its values into a new tensor on a device, or on the host for meta."""
        if self.views:
            return self.values().to(device)
        on_host = device.type in ("cpu", "meta")
        return self.blocks.read(self.blocks.empty(torch.device("cpu"))) if on_host else self.values().to(device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten.detach.default:
            return StoredTensor(args[0].blocks, args[0].views, without_values(args[0]))
        if func is _aten.zero_.default and not args[0].views:
            return _fill_with_zeros(args[0])
        if func in _TILE_BY_TILE and _by_tiles(func, args, kwargs):
            return args[0]
        if func.is_view and isinstance(args[0], StoredTensor):
            return _view(func, args, kwargs)
        if args and isinstance(args[0], (list, tuple)) and "_foreach_" in func.__name__:
            return _one_by_one(func, args, kwargs)
        return _run(func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"stored({self.values()!r})"

    def numpy(self, *, force: bool = False) -> Any:
        """A copy of its values as an array."""
        return self.values().numpy(force=force)

    def tolist(self) -> Any:
        """Its values as a list."""
        return self.values().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.values()


def store_tensor(store: Store, label: str, values: torch.Tensor, cut: Sequence[Tile]) -> StoredTensor:
    """Write a tensor's values to a store, and return the stored tensor."""
    blocks = Blocks(store, label, values, cut)
    blocks.write(values.detach())
    return StoredTensor(blocks)


def _fill_with_zeros(tensor: StoredTensor) -> StoredTensor:
    blocks = tensor.blocks
    for number, tile in enumerate(blocks.cut):
        blocks.write_tile(number, torch.zeros(tile.stop - tile.start, dtype=blocks.dtype, device=blocks.device))
    return tensor


_aten = torch.ops.aten
_TILE_BY_TILE = frozenset(
    getattr(getattr(_aten, name), overload)
    for name in ("add_", "sub_", "mul_", "div_", "clamp_", "clamp_min_", "clamp_max_", "nan_to_num_")
    for overload in getattr(_aten, name).overloads()
)
"""Elementwise in-place operations."""


def _by_tiles(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Do an in-place operation tile by tile, with the same result as in one piece; False if that is not possible."""
    tensor = args[0]
    if not isinstance(tensor, StoredTensor) or tensor.views:
        return False
    blocks = tensor.blocks
    others = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, torch.Tensor)]
    if any(isinstance(each, StoredTensor) or (each.dim() and each.shape != blocks.shape) for each in others):
        return False
    ordered = {id(each): flat(blocks.ordered(each)) for each in others if each.dim()}
    for number, tile in enumerate(blocks.cut):
        values = torch.empty(tile.stop - tile.start, dtype=blocks.dtype, device=blocks.device)
        blocks.read_tile(number, values).wait()
        for start, stop in tile.pieces:

            def part(each: Any, start: int = start, stop: int = stop) -> Any:
                return ordered[id(each)][start:stop] if id(each) in ordered else each

            piece = values[start - tile.start : stop - tile.start]
            func(piece, *map(part, args[1:]), **{key: part(each) for key, each in kwargs.items()})
        blocks.write_tile(number, values)
    return True


def _view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a view of a stored tensor, which is stored too, so that writes through it reach the store."""
    tensor: StoredTensor = args[0]
    like = func(without_values(tensor), *args[1:], **kwargs)
    if not isinstance(like, torch.Tensor):
        raise UsageError(
            f"{func} of a tensor in a store gives several views.",
            do="take its values first: tensor.clone()",
        )
    return StoredTensor(tensor.blocks, (*tensor.views, (func, args[1:], kwargs)), like)


def _read_view(
    tensor: StoredTensor, bases: dict[int, tuple[Blocks, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the values to the device; return the base tensor and this view of it."""
    blocks = tensor.blocks
    _, base = bases.setdefault(id(blocks), (blocks, blocks.read()))
    value = base
    for func, args, kwargs in tensor.views:
        value = func(value, *args, **kwargs)
    return base, value


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values, and write changed values back."""
    bases: dict[int, tuple[Blocks, torch.Tensor]] = {}
    stands_for: dict[int, StoredTensor] = {}
    values: list[torch.Tensor] = []  # kept alive, so that an id stands for one tensor

    def bring(each: Any) -> Any:
        if not isinstance(each, StoredTensor):
            return each
        value = _read_view(each, bases)[1]
        values.append(value)
        stands_for[id(value)] = each
        return value

    result = func(*tree_map(bring, args), **tree_map(bring, kwargs))
    for blocks in _changed(func, args, kwargs):
        blocks.write(bases[id(blocks)][1])
    return tree_map(lambda each: stands_for.get(id(each), each), result)


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Blocks]:
    """The stored tensors that an operation writes to, by its schema."""
    found: dict[int, Blocks] = {}

    def note(each: Any) -> Any:
        if isinstance(each, StoredTensor):
            found[id(each.blocks)] = each.blocks
        return each

    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tree_map(note, args[number] if number < len(args) else kwargs.get(argument.name))
    return list(found.values())


def _one_by_one(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on lists separately for each element."""
    count = len(args[0])

    def nth(each: Any, number: int) -> Any:
        return [each[number]] if isinstance(each, (list, tuple)) and len(each) == count else each

    results = [
        _run(func, tuple(nth(each, number) for each in args), {key: nth(each, number) for key, each in kwargs.items()})
        for number in range(count)
    ]
    if not all(isinstance(each, (list, tuple)) for each in results):
        return None
    return [part for each in results for part in each]
