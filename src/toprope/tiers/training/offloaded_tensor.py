"""A tensor whose values lie in a store: gradients and optimizer states that were moved out, still usable by any code.

An operation on it brings its values to the device for as long as the operation takes, and takes them back where they
were changed. Lists of them (`torch._foreach_*`, GradScaler) are gone through one by one, so that no more than one is
on the device at a time.
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
    """Shape, dtype and device of a tensor, whose values are in `blocks`; or a view of one, through `views`."""

    blocks: Blocks
    views: tuple[_View, ...]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, blocks: Blocks, views: tuple[_View, ...] = (), like: torch.Tensor | None = None) -> StoredTensor:
        """A tensor that stands for `blocks`, or for a view of it with the shape of `like`."""
        shape, stride = (blocks.shape, blocks.stride) if like is None else (like.shape, like.stride())
        dtype = blocks.dtype if like is None else like.dtype
        made: StoredTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, dtype=dtype, device=blocks.device
        )
        made.blocks, made.views = blocks, views
        return made

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Nothing: `__new__` made it."""

    def values(self) -> torch.Tensor:
        """Its values on the device, as a tensor of their own."""
        _, value = _brought(self, {})
        return value

    def on(self, device: torch.device) -> torch.Tensor:
        """Its values in memory of that device, or of the host for meta, as a tensor of their own."""
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
            return _zeroed(args[0])
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
        """A copy of its values."""
        return self.values().numpy(force=force)

    def tolist(self) -> Any:
        """Its values."""
        return self.values().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.values()


def store_tensor(store: Store, label: str, values: torch.Tensor, cut: Sequence[Tile]) -> StoredTensor:
    """Put a tensor's values into a store, and stand for them."""
    blocks = Blocks(store, label, values, cut)
    blocks.write(values.detach())
    return StoredTensor(blocks)


def _zeroed(tensor: StoredTensor) -> StoredTensor:
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
"""Operations that change each element for itself, in place."""


def _by_tiles(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Change a stored tensor tile by tile, each as it would be changed in the whole; False where that cannot be."""
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
    """What a view of a stored tensor is: stored as well, so that what is written through it is not lost."""
    tensor: StoredTensor = args[0]
    like = func(without_values(tensor), *args[1:], **kwargs)
    if not isinstance(like, torch.Tensor):
        raise UsageError(
            f"{func} of a tensor that lies in a store gives several views.",
            do="take its values first: tensor.clone()",
        )
    return StoredTensor(tensor.blocks, (*tensor.views, (func, args[1:], kwargs)), like)


def _brought(tensor: StoredTensor, bases: dict[int, tuple[Blocks, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of the whole and of this view of it, on the device."""
    blocks = tensor.blocks
    _, base = bases.setdefault(id(blocks), (blocks, blocks.read()))
    value = base
    for func, args, kwargs in tensor.views:
        value = func(value, *args, **kwargs)
    return base, value


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values, and take back what it changed."""
    bases: dict[int, tuple[Blocks, torch.Tensor]] = {}
    stands_for: dict[int, StoredTensor] = {}
    values: list[torch.Tensor] = []  # kept alive, so that an id stands for one tensor

    def bring(each: Any) -> Any:
        if not isinstance(each, StoredTensor):
            return each
        value = _brought(each, bases)[1]
        values.append(value)
        stands_for[id(value)] = each
        return value

    result = func(*tree_map(bring, args), **tree_map(bring, kwargs))
    for blocks in _changed(func, args, kwargs):
        blocks.write(bases[id(blocks)][1])
    return tree_map(lambda each: stands_for.get(id(each), each), result)


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Blocks]:
    """What an operation writes to, by its schema."""
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
    """Run an operation on lists for one element of them after another."""
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
