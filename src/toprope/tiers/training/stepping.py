"""One step of an optimizer, tile by tile, with torch's own code on the tiles.

Called by `training.optimizer`. For each tile: read the weight, the gradient and the states; make the step of an
optimizer of the same class that has the tile as its parameter; write weight and states back. The next tile is read
while one is computed. The bits are those of torch's step of the whole; how many tiles are ahead is free. Tests:
tests/tiers/test_tiers_training_optimizer.py, which compares with torch's own step.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes
from toprope.tiers.plan.model import aligned
from toprope.tiers.store.base import Pending, Store
from toprope.tiers.store.memory import flat
from toprope.tiers.training.blocks import Blocks
from toprope.tiers.training.offloaded_tensor import StoredTensor
from toprope.tiers.training.tiles import Tile
from toprope.tiers.training.weights import Weights

__all__ = ["ParameterStep", "Stepper", "is_elementwise"]

Plain = Callable[[Any], Any]
"""The step function of an optimizer's original class."""

ALIGNMENT = 4096
"""Alignment of tiles in bytes: a page, so that files are read directly into them."""

AHEAD = 4
"""Largest number of tiles on the device at once: one is computed, the others are being read."""


@dataclass(eq=False)
class ParameterStep:
    """One parameter's part in a step.

    Attributes:
        parameter: the parameter, which has a gradient.
        group: the optimizer's group that it is in.
        state: its optimizer state; states in a store are `StoredTensor`s.
        cut: its tiles.
        resident: its values if they stay on the device; None for an offloaded parameter.
        store: the store for its states; None if they stay on the device, then it is stepped as a whole.
        stored: of `state`, what is in a store: it is read and written tile by tile.
        scalars: of `state`, the rest, such as the number of steps: each tile begins with a copy of it.
        made: states that the step creates, as the first one of an optimizer does; they go to the store.
    """

    parameter: torch.Tensor
    group: dict[str, Any]
    state: dict[str, Any]
    cut: Sequence[Tile]
    resident: torch.Tensor | None
    store: Store | None
    stored: dict[str, StoredTensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    made: dict[str, StoredTensor] = field(default_factory=dict)

    @property
    def need(self) -> int:
        """Bytes of the device that one of its tiles takes."""
        count = max(tile.stop - tile.start for tile in self.cut)
        gradient = self.parameter.grad
        each = [count * self.parameter.dtype.itemsize] if self.resident is None else []
        if isinstance(gradient, StoredTensor):
            each.append(count * gradient.dtype.itemsize)
        for state in self.state.values():
            if isinstance(state, StoredTensor):
                largest = max(tile.stop - tile.start for tile in state.blocks.cut)
                each.append(largest * state.dtype.itemsize)
        return sum(aligned(nbytes, ALIGNMENT) for nbytes in each) or ALIGNMENT

    def begin(self) -> None:
        """Record the state before the step, with which each tile begins."""
        self.stored = {name: each for name, each in self.state.items() if isinstance(each, StoredTensor)}
        self.scalars = {name: each for name, each in self.state.items() if name not in self.stored}
        self.made = {}


class _TileOnDevice:
    """Weight, gradient and states of one tile on the device, or being read to it.

    Args:
        work: the parameter.
        number: the tile's number.
        weights: access to the parameter's values.
        memory: bytes on the device that the tile may use.
    """

    def __init__(self, work: ParameterStep, number: int, weights: Weights, memory: torch.Tensor) -> None:
        self.work, self.number, self.tile = work, number, work.cut[number]
        self._memory, self._used = memory, 0
        self._pending: list[Pending] = []
        parameter, (start, stop) = work.parameter, (self.tile.start, self.tile.stop)
        if work.resident is not None:
            self.weight = flat(work.resident)[start:stop]
        else:
            self.weight = self._allocate(stop - start, parameter.dtype)
            self._pending.append(weights.read(parameter, start, stop, self.weight))
        gradient = parameter.grad
        assert gradient is not None
        if isinstance(gradient, StoredTensor):
            self.gradient = self._begin_read(gradient)
        else:
            self.gradient = flat(_ordered(gradient, parameter))[start:stop]
        self.states = {name: self._begin_read(each) for name, each in work.stored.items()}

    def wait(self) -> None:
        """Wait until everything was read."""
        for each in self._pending:
            each.wait()

    def piece(self, values: torch.Tensor, piece: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
        """View of a piece of the tile, flat; of a parameter in a single tile, with the parameter's shape."""
        if len(self.work.cut) == 1:
            return values.as_strided(like.shape, like.stride(), values.storage_offset())
        return values[piece[0] - self.tile.start : piece[1] - self.tile.start]

    def _allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        nbytes = count * dtype.itemsize
        given = self._memory[self._used : self._used + nbytes].view(dtype)
        self._used += aligned(nbytes, ALIGNMENT)
        return given

    def _begin_read(self, stored: StoredTensor) -> torch.Tensor:
        tile = stored.blocks.cut[self.number]
        given = self._allocate(tile.stop - tile.start, stored.dtype)
        self._pending.append(stored.blocks.read_tile(self.number, given))
        return given


class Stepper:
    """Makes the steps of optimizers.

    Args:
        weights: access to the parameters' values.
        room: bytes of the device that a step may use for tiles, of which up to `AHEAD` are there at a time.
    """

    def __init__(self, weights: Weights, room: int) -> None:
        self.weights, self.room = weights, room
        self.peak = 0
        """Peak of the device's bytes for tiles."""

    def whole(self, optimizer: Any, plain: Plain, group: dict[str, Any], works: Sequence[ParameterStep]) -> None:
        """Step parameters that are on the device with their states, like torch; stored gradients are read first."""
        away = [each for each in works if isinstance(each.parameter.grad, StoredTensor)]
        for some in ([each for each in works if each not in away], *([each] for each in away)):
            if not some:
                continue
            inner = _optimizer_of(optimizer, group, [each.parameter for each in some])
            inner.state.update({each.parameter: each.state for each in some})
            gradient = some[0].parameter.grad
            if isinstance(gradient, StoredTensor):
                some[0].parameter.grad = gradient.values()
            try:
                plain(inner)
            finally:
                some[0].parameter.grad = gradient

    def tiles(self, optimizer: Any, plain: Plain, works: Sequence[ParameterStep]) -> None:
        """Step parameters tile by tile."""
        largest = max(works, key=lambda each: each.need)
        room = self.weights.room()
        room = self.room if room is None else room
        rows = max(1, min(AHEAD, room // largest.need))
        if largest.need > room:
            raise TierCapacityError(
                f"a step of {type(optimizer).__name__} has no room for a part of a parameter.",
                looked_at=f"it takes {gibibytes(largest.need)}, the device has {gibibytes(room)} for it; "
                f"the parameter has the shape {tuple(largest.parameter.shape)}",
                do="make the device's budget larger, or use an optimizer that updates each element for itself",
            )
        with self.weights.borrow(largest.need * rows) as memory:
            self.peak = max(self.peak, memory.nbytes)
            self._pipeline(optimizer, plain, works, memory.view(rows, -1))

    def _pipeline(self, optimizer: Any, plain: Plain, works: Sequence[ParameterStep], rows: torch.Tensor) -> None:
        """Compute tile after tile; with several rows of memory, the next tiles are read in the meantime."""
        todo = _tiles_of(works)
        ahead: list[_TileOnDevice] = []
        turn = 0
        while True:
            while len(ahead) < len(rows) and (following := next(todo, None)) is not None:
                ahead.append(_TileOnDevice(*following, self.weights, rows[turn % len(rows)]))
                turn += 1
            if not ahead:
                return
            self._compute(optimizer, plain, ahead.pop(0))

    def _compute(self, optimizer: Any, plain: Plain, on_device: _TileOnDevice) -> None:
        """Make the step of one tile with torch's own code, then write its weight and states back.

        Each piece of the tile is a parameter of its own of a temporary optimizer.
        """
        work = on_device.work
        on_device.wait()
        parts: list[torch.Tensor] = []
        for piece in on_device.tile.pieces:
            part = on_device.piece(on_device.weight, piece, work.parameter)
            part.grad = on_device.piece(on_device.gradient, piece, work.parameter)
            parts.append(part)
        inner = _optimizer_of(optimizer, work.group, parts)
        if work.state:
            for part, piece in zip(parts, on_device.tile.pieces, strict=True):
                inner.state[part] = {name: _copied(each) for name, each in work.scalars.items()} | {
                    name: on_device.piece(on_device.states[name], piece, each) for name, each in work.stored.items()
                }
        plain(inner)
        if work.resident is None:
            self.weights.write(work.parameter, on_device.tile.start, on_device.weight)
        self._write_states(on_device, parts, [inner.state[part] for part in parts])

    def _write_states(
        self, on_device: _TileOnDevice, parts: Sequence[torch.Tensor], states: Sequence[dict[str, Any]]
    ) -> None:
        """Write a tile's states to the store; those of the parameter as a whole are kept after its last tile."""
        work, number = on_device.work, on_device.number
        assert work.store is not None
        for name, stored in work.stored.items():
            if states[0].get(name) is None:
                continue
            values = _joined(states, name)
            stored.blocks.write_tile(number, values)
        for name, value in states[0].items():
            if name not in work.stored and is_elementwise(value, parts[0]):
                if name not in work.made:
                    work.made[name] = StoredTensor(
                        Blocks(work.store, f"state/{name}", work.parameter, work.cut, value.dtype)
                    )
                work.made[name].blocks.write_tile(number, _joined(states, name))
        if number == len(work.cut) - 1:
            known = work.stored.keys() | work.made.keys()
            work.state.update({name: each for name, each in states[-1].items() if name not in known})
            work.state.update(work.made)


def is_elementwise(value: object, parameter: torch.Tensor) -> bool:
    """True if a state has one value for each element of its parameter."""
    return (
        isinstance(value, torch.Tensor)
        and value.numel() > 1
        and value.shape == parameter.shape
        and value.layout is torch.strided
    )


def _joined(states: Sequence[dict[str, Any]], name: str) -> torch.Tensor:
    """Join the state of all pieces of a tile, in the order of memory."""
    each = [flat(state[name]) for state in states]
    return each[0] if len(each) == 1 else torch.cat(each)


def _tiles_of(works: Sequence[ParameterStep]) -> Iterator[tuple[ParameterStep, int]]:
    """All tiles of all parameters, by number, in the order of the step."""
    for work in works:
        work.begin()
        for number in range(len(work.cut)):
            yield work, number


def _optimizer_of(optimizer: Any, group: dict[str, Any], parameters: list[torch.Tensor]) -> Any:
    """Make a temporary optimizer of the same class and with the same options, for other parameters."""
    inner = object.__new__(optimizer.plain_class)
    kept = {name: each for name, each in vars(optimizer).items() if name not in ("step", "state", "param_groups")}
    vars(inner).update(kept, state=defaultdict(dict), param_groups=[{**group, "params": parameters}])
    return inner


def _ordered(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
