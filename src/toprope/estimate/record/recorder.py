"""Recorder of a model on the meta device: its operators and its memory as a card would have them.

Used by model/workloads.py and estimate.py. torch decides which operators come (TorchDispatchMode) and that a storage is
freed with its last tensor; `_Cache` repeats the rule of toprope/sim/csrc/core/signatures.cpp: change both. Tests:
tests/estimate/test_paper.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toprope.errors import UsageError
from toprope.estimate.record.calls import OperatorCall, Role, TensorShape, item_bits
from toprope.estimate.record.ledger import Block, Ledger
from toprope.estimate.record.meta_attention import FusedAttention, fused_attention
from toprope.estimate.record.quantised import Quantised

__all__ = ["Event", "Experts", "Recorder", "tensors_in"]

Experts = str
"""How a product of many experts runs: "loop", one product after the other, or "grouped", one kernel."""

_WITHOUT_KERNEL = ("aten::empty", "aten::new_empty", "aten::detach", "aten::lift_fresh", "aten::alias")
_HALVES = ("bfloat16", "float16")
_VALUE = "aten::_local_scalar_dense"
_NEEDS_VALUES = (_VALUE, "aten::item", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal")
_ASSUMED = {"all": True, "any": False}
"""Answers about data without padding: all are valid, none is hidden."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the host does.

    Attributes:
        call: an operator that it launches; None for a collective, or where it waits for the card.
        times: how often, one after the other.
        phase: "forward", "backward", "optimizer".
        collective: name, bytes and ranks of a collective.
    """

    call: OperatorCall | None
    times: int = 1
    phase: str = "forward"
    collective: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Schema:
    """Arguments of an operator that may be tensors: position, name, whether they are written."""

    name: str
    arguments: tuple[tuple[int, str, bool], ...]
    writes: bool


@cache
def _schema_of(operator: Any) -> _Schema:
    arguments = []
    for position, argument in enumerate(operator._schema.arguments):
        if "Tensor" in str(argument.type):
            written = argument.alias_info is not None and argument.alias_info.is_write
            arguments.append((position, argument.name, written))
    return _Schema(operator._schema.name, tuple(arguments), any(written for _, _, written in arguments))


def tensors_in(value: Any, *, _seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples, dictionaries, and attributes of other objects such as caches of keys and values."""
    seen = set() if _seen is None else _seen
    if isinstance(value, torch.Tensor):
        yield value
        return
    if value is None or isinstance(value, (str, int, float, torch.dtype, torch.device)) or id(value) in seen:
        return
    seen.add(id(value))
    parts: Iterable[Any]
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        yield from tensors_in(part, _seen=seen)


class _Cache:
    """Blocks of memory that the level-2 cache may hold, by the rule of toprope/sim/csrc/core/signatures.cpp.

    Args:
        size: bytes that it holds; 0 where that is not known, and then nothing is called cold.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._touched = 0
        self._blocks: dict[int, int] = {}

    def touch(self, block: int, size: int) -> bool:
        """Note that an operator touches a block; return True if it is not in the cache any more."""
        before = self._blocks.get(block)
        is_cold = self._size > 0 and (before is None or self._touched - before > self._size)
        self._touched += size
        self._blocks[block] = self._touched
        return is_cold

    def forget(self, block: int) -> None:
        """Forget a block that was released."""
        self._blocks.pop(block, None)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each kernel that a card would launch, and each block of its memory. Nothing is computed.

    Views launch nothing. Attention is one kernel where torch_npu has it so (`meta_attention`). A grouped product of
    experts is what torch composes on a card, a loop over experts whose tokens are counted on the host, or one kernel.

    Args:
        fused: whether the chip has the kernel of fused attention (910B and newer).
        experts: "loop" or "grouped".
        cache: bytes of the level-2 cache; 0 where they are not known.

    Attributes:
        events: what the host did, in order.
        memory: blocks of memory.
        phase: name of the phase that events belong to.
    """

    def __init__(self, *, fused: bool = True, experts: Experts = "loop", cache: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.memory = Ledger()
        self.phase = "forward"
        self._experts = experts
        self._cache = _Cache(cache)
        self._stored: dict[int, Quantised] = {}
        self._blocks: dict[int, tuple[Any, Block]] = {}
        self._attention = FusedAttention(self.note) if fused else None
        self._library: torch.library.Library | None = None

    def __enter__(self) -> Self:
        if self._attention is not None:
            self._library = fused_attention(self._attention)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None

    def emit(self, call: OperatorCall, times: int = 1) -> None:
        """Note a launch."""
        self.events.append(Event(call, times, self.phase))

    def note(self, name: str, tensors: Iterable[tuple[torch.Tensor, Role]], operations: int = 0) -> None:
        """Note a launch of a kernel with these tensors."""
        self.emit(OperatorCall(name, tuple(self._shape(each, role) for each, role in tensors), operations))

    def store(self, weights: Iterable[torch.Tensor], how: Quantised) -> None:
        """Count weights as stored in fewer bits than their dtype has, before they are held."""
        for each in weights:
            self._stored[each.untyped_storage()._cdata] = how

    def hold(self, tensors: Iterable[torch.Tensor], kind: str, label: str = "") -> None:
        """Count the memory of tensors as of this kind, whether it was seen before or not."""
        for tensor in tensors:
            if tensor.device.type != "meta":
                continue
            self._see(tensor, kind, label or f"{_dtype(tensor)} {list(tensor.shape)}")
            self._blocks[tensor.untyped_storage()._cdata][1].kind = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator's shape rules, and note it."""
        kwargs = kwargs or {}
        schema = _schema_of(func)
        if schema.name in _NEEDS_VALUES and any(each.device.type == "meta" for each in tensors_in((args, kwargs))):
            return self._value(schema.name, args[0])
        read = [(each, written) for each, written in _operands(schema, args, kwargs) if each.device.type == "meta"]
        known = {each.untyped_storage()._cdata for each, _ in read}
        result = func(*args, **kwargs)
        made = [each for each in tensors_in(result) if each.device.type == "meta"]
        new = [each for each in made if each.untyped_storage()._cdata not in known]
        if new:
            name = schema.name.rpartition("::")[2]
            for each in new:
                kind = "optimizer temporaries" if self.phase == "optimizer" else "activations"
                self._see(each, kind, f"{name} {_dtype(each)} {list(each.shape)}")
        if (not new and not (schema.writes and read)) or schema.name.startswith(_WITHOUT_KERNEL):
            return result
        tensors = [self._shape(each, "written" if written else "read") for each, written in read]
        tensors += [self._shape(each, "result") for each in new]
        self._quantise_factor(tensors)
        if schema.name == "aten::_grouped_mm":
            self._grouped(tensors)
        else:
            self.emit(OperatorCall(schema.name, tuple(tensors), _operations(schema.name, read, new, args)))
        return result

    def _value(self, name: str, tensor: torch.Tensor) -> bool:
        """The value of a tensor that the host reads, where it can be assumed."""
        _, block = self._blocks.get(tensor.untyped_storage()._cdata, (None, None))
        maker = "" if block is None else block.label.partition(" ")[0]
        if name != _VALUE or tensor.dtype is not torch.bool or maker not in _ASSUMED:
            raise UsageError(
                f"the model reads values of a tensor ({name}), and on paper tensors have none.",
                do="leave out the argument that makes it do so, such as a mask, or estimate a run: toprope run",
            )
        self.events.append(Event(None, 1, self.phase))
        return _ASSUMED[maker]

    def _see(self, tensor: torch.Tensor, kind: str, label: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._blocks:
            return
        block = self.memory.allocate(round(storage.nbytes() * self._share(tensor)), kind, label)
        reference = weakref.ref(storage, lambda _: self._forget(key, block))
        self._blocks[key] = reference, block

    def _forget(self, key: int, block: Block) -> None:
        self.memory.release(block)
        self._blocks.pop(key, None)
        self._cache.forget(key)

    def _share(self, tensor: torch.Tensor) -> float:
        """Share of the bytes of its dtype that a tensor takes."""
        how = self._stored.get(tensor.untyped_storage()._cdata)
        return 1.0 if how is None else how.bits_in_memory / (8 * tensor.element_size())

    def _shape(self, tensor: torch.Tensor, role: Role) -> TensorShape:
        size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        size = round(size * self._share(tensor))
        key = tensor.untyped_storage()._cdata
        cold = self._cache.touch(key, size) and role != "result"
        dtype = self._stored[key].products if key in self._stored else ""
        return TensorShape(dtype or _dtype(tensor), tuple(tensor.shape), role, size, not tensor.is_contiguous(), cold)

    def _quantise_factor(self, tensors: list[TensorShape]) -> None:
        """Quantise the activations of a product in 8 bits, by a kernel of its own."""
        products = next((each.products for each in self._stored.values() if each.products), "")
        if not products or not any(each.dtype == products for each in tensors):
            return
        for place, each in enumerate(tensors):
            if each.role == "read" and each.dtype in _HALVES and len(each.sizes) > 1:
                narrow = TensorShape(products, each.sizes, "result")
                scales = TensorShape("float32", each.sizes[:-1], "result")
                self.emit(OperatorCall("npu::npu_dynamic_quant", (each, narrow, scales)))
                tensors[place] = replace(narrow, role="read")
                return

    def _grouped(self, tensors: list[TensorShape]) -> None:
        """A product of the tokens of each expert; tokens are taken to be distributed evenly.

        torch has no kernel of this for a card (`toprope.support.operators_on_card`) and loops over experts, after the
        host has read how many tokens each has.
        """
        left, right, result = tensors[0], tensors[1], tensors[-1]
        backward = len(right.sizes) == 2  # the gradient of the weights: the depth is what is divided
        groups = result.sizes[0] if backward else right.sizes[0]
        rows = left.sizes[1] if backward else left.sizes[0]
        busy = max(1, min(groups, rows))
        part = -(-rows // busy)
        one: tuple[tuple[int, ...], ...]
        if backward:
            one = (left.sizes[0], part), (part, right.sizes[1]), result.sizes[1:]
        else:
            one = (part, left.sizes[1]), right.sizes[1:], (part, result.sizes[1])
        dtypes = left.dtype, right.dtype, result.dtype
        if self._experts == "loop":
            self.events.append(Event(None, 1, self.phase))
            roles: tuple[Role, ...] = ("read", "read", "written")
            each = tuple(map(TensorShape, dtypes, one, roles))
            self.emit(OperatorCall("aten::mm", _as_stored(each, right)), busy)
            return
        operations = 2 * one[0][0] * one[0][1] * one[1][1] * busy
        used = TensorShape(right.dtype, (busy, *one[1]))
        self.emit(OperatorCall("npu::npu_grouped_matmul", _as_stored((left, used, result), right), operations))


def _operands(schema: _Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, bool]]:
    for position, name, written in schema.arguments:
        value = args[position] if position < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            yield value, written
        elif isinstance(value, (list, tuple)):
            yield from ((each, written) for each in value if isinstance(each, torch.Tensor))


def _as_stored(tensors: tuple[TensorShape, ...], weights: TensorShape) -> tuple[TensorShape, ...]:
    """The tensors of a product whose second factor is a part of these weights, with the bytes that they take."""
    share = 8 * weights.bytes / max(weights.elements * item_bits(weights.dtype), 1)
    left, right, *others = tensors
    return left, replace(right, bytes=round(right.bytes * min(share, 1.0))), *others


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _operations(
    name: str, read: list[tuple[torch.Tensor, bool]], made: list[torch.Tensor], args: tuple[Any, ...]
) -> int:
    """Operations that shapes alone do not say: of convolutions. Each filter makes one element of the larger side."""
    if name == "aten::convolution":
        source, weight, transposed = args[0], args[1], args[6]
        side = source if transposed else made[0]
        return int(2 * side.numel() * (weight.numel() // max(weight.shape[0], 1)))
    if name == "aten::convolution_backward":
        gradient, source, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        side = source if transposed else gradient
        return int((mask[0] + mask[1]) * 2 * side.numel() * (weight.numel() // max(weight.shape[0], 1)))
    return 0
