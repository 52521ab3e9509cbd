"""Compute with weights that are larger than the device's budget, piece by piece; for inference only.

Pieces are rows of linear layers and embeddings, and single experts of a tensor that has all experts of a layer.
`attach` chooses such weights and hands them to `engine.runtime`; the modules' calls of `linear` and `embedding` come
here.

Each row of a linear layer's weight gives one output column, a sum of its own; a row of an embedding is copied. It is up
to the library that multiplies whether a product with some rows has the same bits as the product with all of them. So
this is tried on the device, and rows are cut at multiples of `ROWS`. Pieces have two slots of their own: one is
computed from while the other is loaded. A module that takes its experts by number, `weights[number]`, gets one expert
as a view of a slot, with the same alignment as in the whole tensor. The result has the bits of the whole, or there is
an error; sizes of pieces are free. Tests: tests/tiers/test_tiers_pieces.py.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from toprope.device import Device
from toprope.errors import TierAbsentError
from toprope.tiers.engine.model.model_groups import Model, Weight
from toprope.tiers.engine.prefetch.prefetch_buffer import Holder, Ring, Unit, outside_transforms
from toprope.tiers.engine.prefetch.trace import Order
from toprope.tiers.plan.model import Tier, aligned
from toprope.tiers.store.absent import Absence, refuse
from toprope.tiers.store.backing import Home
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.transfer import Chunk, Transfers

__all__ = ["ROWS", "SLOTS", "RowPieces", "divisible", "fused_experts", "same_bits", "slot_bytes"]

ROWS = 64
"""Pieces have a multiple of this number of rows: with others, fp32 results differed in some bits for 1 to 3 inputs."""

SLOTS = 2
"""Slots for pieces: one piece is computed from while the next one is loaded."""

_INPUTS = (1, 2, 3, 4, 7, 8, 16, 17, 33, 64, 128)
"""Numbers of activation rows with which `same_bits` compares products."""

_LINE = 64
"""Alignment of torch's tensors on a CPU, in bytes; with another alignment products may take another code path."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def divisible(model: Model) -> list[Weight]:
    """List the weights that can be computed in pieces, the largest first.

    These are tables that only linear layers and embeddings use, and experts.
    """
    users: dict[str, list[tuple[str, nn.Module]]] = {}
    for prefix, module, names in model.owners:
        for name in names:
            users.setdefault(name, []).append((prefix, module))
    whole = {name for some in model.read.values() for name in some}
    found = [
        weight
        for name, weight in model.weights.items()
        if name not in whole
        and weight.like.dim() in (2, 3)
        and weight.like.is_contiguous()
        and weight.like.dtype in _DTYPES
        and weight.like.shape[0] >= (2 if _has_experts(weight) else 2 * ROWS)
        and weight.kind == "weight"
        and all(
            _takes_pieces(module, weight) and model.atoms[prefix] == prefix for prefix, module in users.get(name, ())
        )
    ]
    return sorted(found, key=lambda each: -each.nbytes)


def fused_experts(model: Model) -> list[str]:
    """Names of weights with all experts of a layer that cannot be loaded one by one: their modules use all at once."""
    return [
        name
        for _, module, names in model.owners
        for name in names
        if _has_experts(model.weights[name])
        and hasattr(getattr(module, "config", None), "_experts_implementation")
        and not _takes_experts(module, name.rpartition(".")[2])
    ]


def _has_experts(weight: Weight) -> bool:
    return weight.like.dim() == 3


def _takes_pieces(module: nn.Module, weight: Weight) -> bool:
    if _has_experts(weight):
        return all(_takes_experts(module, name.rpartition(".")[2]) for name in weight.names)
    return weight.like.dim() == 2 and _takes_rows(module)


def _takes_experts(module: nn.Module, name: str) -> bool:
    """Tell if a module of transformers takes experts by their numbers, one after another."""
    kind: Any = type(module)
    eager = getattr(getattr(module, "config", None), "_experts_implementation", None) == "eager"
    return eager and _takes_by_number(inspect.unwrap(kind.forward), name)


@cache
def _takes_by_number(function: Hashable, name: str) -> bool:
    """Tell if the code of a method uses an attribute of its object only as `self.name[variable]`."""
    code: Any = function
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return False
    uses, taken = 0, 0
    for each in ast.walk(tree):
        uses += isinstance(each, ast.Attribute) and each.attr == name
        taken += (
            isinstance(each, ast.Subscript)
            and isinstance(each.slice, ast.Name)
            and isinstance(each.value, ast.Attribute)
            and each.value.attr == name
        )
    return 0 < uses == taken


def _takes_rows(module: nn.Module) -> bool:
    if type(module) is nn.Embedding:
        return module.max_norm is None
    return type(module) is nn.Linear


def slot_bytes(weights: Sequence[Weight], wanted: int) -> int:
    """Bytes of a slot of about the wanted size; the piece at the end of a weight may have up to `ROWS` more rows."""
    return max(
        aligned(_row_bytes(each) + _LINE)
        if _has_experts(each)
        else aligned((max(1, wanted // _row_bytes(each) // ROWS) + 1) * ROWS * _row_bytes(each))
        for each in weights
    )


def _row_bytes(weight: Weight) -> int:
    """Bytes of one row of a table, or of one expert."""
    return weight.nbytes // int(weight.like.shape[0])


def _stretches(total: int, weight: Weight, size: int) -> list[tuple[int, int]]:
    """Begin and end of each piece: rows of a table, the last few joined to the piece before; or single experts."""
    if _has_experts(weight):
        return [(number, number + 1) for number in range(total)]
    rows = (size // _row_bytes(weight) // ROWS - 1) * ROWS
    starts = list(range(0, total, rows))
    if len(starts) > 1 and total - starts[-1] < ROWS:
        starts.pop()
    return list(zip(starts, [*starts[1:], total], strict=True))


def same_bits(weight: Weight, size: int, device: Device) -> bool:
    """True if, on this device, products with pieces of a weight have the same bits as products with more of its rows.

    Two pieces of the usual size and the last one are tried. Experts are separate products anyway.
    """
    if _has_experts(weight):
        return True
    total, columns, dtype = int(weight.like.shape[0]), int(weight.like.shape[1]), weight.like.dtype
    sizes = [stop - start for start, stop in _stretches(total, weight, size)]
    sizes = [*sizes[:2], *sizes[-1:]] if len(sizes) > 2 else sizes
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device.torch_device)

    try:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.kind, enabled=False):
            whole = random(sum(sizes), columns)
            for count in _INPUTS:
                x = random(count, columns)
                parts = [functional.linear(x, each.clone()) for each in torch.split(whole, sizes)]
                if not torch.equal(torch.cat(parts, -1), functional.linear(x, whole)):
                    return False
    except (RuntimeError, NotImplementedError):  # no such product here
        return False
    return True


@dataclass(frozen=True)
class _PartHome(Home):
    """The bytes of some rows in the current home of their weight."""

    weight: Weight
    start: int
    size: int

    @property
    def nbytes(self) -> int:
        return self.size

    @property
    def _whole(self) -> Home:
        assert self.weight.home is not None
        return self.weight.home

    @property
    def tier(self) -> Literal["host", "disk"]:
        return self._whole.tier

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        return self._whole.chunks(target, self.start + start)

    def check(self) -> None:
        self._whole.check()

    def release(self) -> None:
        """Do nothing: the home belongs to the weight."""


@dataclass
class _Piece:
    """Some rows of a weight, loaded as one unit."""

    first: int
    last: int
    unit: Unit


class RowPieces:
    """The weights of a model that are computed in pieces.

    Args:
        device: the device that computes.
        transfers: the threads that copy.
        tiers: the tier of each weight.
        size: bytes of a slot.
        poison, limit: as for `Ring`.
    """

    def __init__(
        self, device: Device, transfers: Transfers, tiers: dict[Weight, Tier], size: int, *, poison: bool, limit: float
    ) -> None:
        self.tiers, self.size = tiers, size
        self._pieces: dict[Weight, list[_Piece]] = {}
        self._dtypes = {weight: weight.like.dtype for weight in tiers}
        self._holders = threading.local()
        for weight in tiers:
            stretches = _stretches(int(weight.like.shape[0]), weight, size)
            self._pieces[weight] = [self._piece(weight, *each, _row_bytes(weight)) for each in stretches]
            weight.absence = self._absence(weight)
        units = list(self._in_order())
        memories = (
            [Memory.on(device, size) for _ in range(SLOTS)]
            if device.capabilities.separate_memory
            else Memory.several([size] * SLOTS)
        )
        order = Order([each.name for each in units])
        self.ring = Ring(memories, device, transfers, order, poison=poison, limit=limit)
        self.ring.add(units)

    @staticmethod
    def _piece(weight: Weight, first: int, last: int, width: int) -> _Piece:
        expert = _has_experts(weight)
        like = weight.like[first] if expert else weight.like[first:last]
        part = Weight(
            f"{weight.name} ({f'expert {first}' if expert else f'{first} to {last}'})", [], [], like, "weight"
        )
        part.home = _PartHome(weight, first * width, (last - first) * width)
        offset = first * width % _LINE if expert else 0
        return _Piece(first, last, Unit(part.name, [part], [offset], offset + part.nbytes))

    def _in_order(self) -> Iterator[Unit]:
        """All pieces in order; the pieces of one expert follow each other."""
        modules: dict[str, list[list[Unit]]] = {}
        for weight, pieces in self._pieces.items():
            owner = weight.name.rpartition(".")[0] if _has_experts(weight) else weight.name
            modules.setdefault(owner, []).append([each.unit for each in pieces])
        for lists in modules.values():
            yield from (each for some in zip_longest(*lists) for each in some if each is not None)

    def _absence(self, whole: Weight) -> Absence:
        def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return self.linear(whole, input, bias)

        def embedding(input: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return self.embedding(whole, input)

        def expert(tensor: torch.Tensor, number: Any) -> torch.Tensor:
            return self.expert(whole, number)

        instead: dict[str, Callable[..., torch.Tensor]] = {"linear": linear, "embedding": embedding}
        return Absence(
            whole.name,
            f"it is computed in {_pieces_of(whole)}, as the device has no room for it",
            "give the device a larger budget; or to have all weights back: handle.detach()",
            {"__getitem__": expert} if _has_experts(whole) else instead,
        )

    def expert(self, weight: Weight, number: Any) -> torch.Tensor:
        """Return one expert, which stays on the device as long as the tensor is kept.

        Raises:
            IndexError: a number that no expert has.
            TierAbsentError: the call records gradients, or asks for several experts at once.
            TierError: it cannot be loaded.
        """
        self._check(weight, weight.like, None)
        one = isinstance(number, int) or (isinstance(number, torch.Tensor) and number.dim() == 0)
        if not one or isinstance(number, bool):
            refuse(weight.parameters[0], "an index of several experts")
        place = int(number)
        total = len(self._pieces[weight])
        if not -total <= place < total:
            raise IndexError(f"index {place} is out of range of {weight.name} with {total} experts")
        unit = self._pieces[weight][place].unit
        with _Held(self, unit) as whole, torch.inference_mode(False), torch.no_grad():
            assert unit.slot is not None
            return unit.slot.at(unit.offsets[0], whole.dtype, whole.shape, whole.stride())

    def linear(self, weight: Weight, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`torch.nn.functional.linear` with a weight in pieces.

        Raises:
            TierAbsentError: the call records gradients.
            TierError: a piece cannot be loaded.
        """
        self._check(weight, x, bias)
        parts = []
        for piece in self._pieces[weight]:
            some = None if bias is None else bias[piece.first : piece.last]
            with _Held(self, piece.unit) as rows:
                parts.append(functional.linear(x, rows, some))
        return torch.cat(parts, -1)

    def embedding(self, weight: Weight, indices: torch.Tensor) -> torch.Tensor:
        """`torch.nn.functional.embedding` with a table in pieces.

        Raises:
            IndexError: an index that the table does not have.
            TierAbsentError: the call records gradients.
            TierError: a piece cannot be loaded.
        """
        self._check(weight, indices, None)
        found: torch.Tensor | None = None
        low, high = (int(each) for each in torch.aminmax(indices)) if indices.numel() else (0, 0)
        total = int(weight.like.shape[0])
        if low < 0 or high >= total:
            raise IndexError(f"index {low if low < 0 else high} is out of range of {weight.name} with {total} rows")
        for piece in self._pieces[weight]:
            if found is not None and (piece.last <= low or piece.first > high):
                continue
            with _Held(self, piece.unit) as rows:
                here = functional.embedding((indices - piece.first).clamp(0, piece.last - piece.first - 1), rows)
                mine = ((indices >= piece.first) & (indices < piece.last)).unsqueeze(-1)
                found = here if found is None else torch.where(mine, here, found)
        assert found is not None
        return found

    def _check(self, weight: Weight, x: torch.Tensor, bias: torch.Tensor | None) -> None:
        wanted = [x, *([] if bias is None else [bias]), *weight.parameters]
        if torch.is_grad_enabled() and any(each.requires_grad for each in wanted):
            raise TierAbsentError(
                f"{weight.name} is computed in {_pieces_of(weight)}, as the device has no room for it, and has no "
                "gradients.",
                looked_at="a call that records gradients",
                do="call the model in torch.no_grad(); or give the device room for it: attach(..., training=True) says "
                "how much",
            )
        if weight.like.dtype != self._dtypes[weight]:
            raise TierAbsentError(
                f"{weight.name} is computed in {_pieces_of(weight)}, and has another dtype than when it was attached.",
                looked_at=f"{weight.like.dtype} now, {self._dtypes[weight]} then",
                do="detach the model, cast it and attach it again",
            )

    def holder(self) -> Holder:
        """The holder of this thread's pieces."""
        found: Holder | None = getattr(self._holders, "mine", None)
        if found is None:
            found = self._holders.mine = Holder()
        return found

    def clear(self) -> None:
        """Empty the slots, as weights have moved or changed."""
        self.ring.clear()

    def close(self) -> None:
        """Release the slots."""
        self.ring.slots.clear()


def _pieces_of(weight: Weight) -> str:
    return "pieces, expert by expert" if _has_experts(weight) else "pieces of rows"


class _Held:
    """Context in which a piece is on the device."""

    def __init__(self, pieces: RowPieces, unit: Unit) -> None:
        self.pieces, self.unit, self.who = pieces, unit, pieces.holder()

    def __enter__(self) -> torch.Tensor:
        with outside_transforms():
            slot = self.pieces.ring.hold(self.unit, self.who)
            return slot.view(self.unit)[0]

    def __exit__(self, *_: Any) -> None:
        ring = self.pieces.ring
        ring.release(self.unit, self.who)
        with outside_transforms():
            ring.prefetch()
