"""Weights that autograd saves for backward: kept as references to where in which weight, fetched when backward asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from toprope.tiers.store.absent import is_absent, refuse

if TYPE_CHECKING:
    from toprope.tiers.engine.model.model_groups import Weight
    from toprope.tiers.engine.prefetch.prefetch_buffer import Slot

__all__ = ["Packing", "Reference"]

Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]
"""That pack and unpack what autograd saves."""


@dataclass(slots=True)
class Reference:
    """A saved tensor that is a weight, or a view of one.

    Attributes:
        weight: the weight.
        offset: where the view begins in it, in bytes.
        dtype, shape, stride: of the view.
        version: of the weight when it was saved.
    """

    weight: Weight
    offset: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    version: int


class Packing:
    """The two hooks for saved tensors.

    Args:
        fetch: brings a weight to the device, and gives the view that a reference is of.
        residents: weights that stay on the device, by their storage.
    """

    def __init__(self, fetch: Callable[[Reference], torch.Tensor], residents: Callable[[], dict[int, Weight]]) -> None:
        self.fetch, self.residents = fetch, residents
        self.slots: dict[int, Slot] = {}
        """By their storage."""
        self.otherwise: Hooks | None = None
        """Packs what is no weight that comes and goes, and its counterpart."""

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps of a tensor that it saves."""
        found = self.reference(tensor)
        if found is not None:
            return found
        return tensor if self.otherwise is None else self.otherwise[0](tensor)

    def reference(self, tensor: torch.Tensor) -> Reference | None:
        """Where a tensor is in which weight that comes and goes; None where it is of none."""
        if _has_memory(tensor):
            slot = self.slots.get(tensor.untyped_storage()._cdata)
            if slot is not None and slot.unit is not None:
                return self._reference(slot, tensor)
        return None

    def _reference(self, slot: Slot, tensor: torch.Tensor) -> Reference | None:
        unit = slot.unit
        assert unit is not None
        itemsize = tensor.dtype.itemsize
        at = int(tensor.storage_offset()) * itemsize - slot.start
        for weight, offset in zip(unit.weights, unit.offsets, strict=True):
            if offset <= at < offset + weight.nbytes:
                return Reference(
                    weight, int(at - offset), tensor.dtype, tensor.shape, tensor.stride(), weight.parameters[0]._version
                )
        return None

    def unpack(self, packed: Any) -> torch.Tensor:
        """The saved tensor."""
        if type(packed) is Reference:
            weight = packed.weight
            if weight.home is None and is_absent(weight.parameters[0]):  # the model was detached without its values
                refuse(weight.parameters[0], "backward")
            version = weight.parameters[0]._version
            if version != packed.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"the weight {weight.name} is at version {version}; expected version {packed.version} "
                    "instead."
                )
            return self.fetch(packed)
        if self.otherwise is None:
            assert isinstance(packed, torch.Tensor)
            return packed
        return self.otherwise[1](packed)

    def hooks(self, outer: Hooks | None) -> Hooks | None:
        """The hooks to put on; None where the ones that are on are these.

        Args:
            outer: the hooks that are on, such as those of `torch.utils.checkpoint`.
        """
        if outer is None:
            return self.pack, self.unpack
        owner = getattr(outer[0], "__self__", None)
        if owner is self or (isinstance(owner, _Within) and owner.packing is self):
            return None
        within = _Within(self, outer)
        return within.pack, within.unpack


class _Within:
    """The hooks inside of others, such as those of a checkpointed block: weights are kept as references, the rest is
    theirs.

    Those that stay on the device are references too: a block that is computed again must save as much as it did the
    first time, also where another plan has come in between.

    Args:
        packing: whose weights.
        outer: the other hooks.
    """

    def __init__(self, packing: Packing, outer: Hooks) -> None:
        self.packing, self.outer = packing, outer
        self.residents = packing.residents()

    def pack(self, tensor: torch.Tensor) -> Any:
        found = self.packing.reference(tensor) or self._resident(tensor)
        return _Outer(self.outer[0](tensor)) if found is None else found

    def _resident(self, tensor: torch.Tensor) -> Reference | None:
        if not _has_memory(tensor):
            return None
        weight = self.residents.get(tensor.untyped_storage()._cdata)
        if weight is None:
            return None
        whole = weight.parameters[0]
        at = tensor.storage_offset() * tensor.dtype.itemsize - whole.storage_offset() * whole.dtype.itemsize
        if not 0 <= at < weight.nbytes:
            return None
        return Reference(weight, int(at), tensor.dtype, tensor.shape, tensor.stride(), whole._version)

    def unpack(self, packed: Any) -> torch.Tensor:
        if type(packed) is _Outer:
            return self.outer[1](packed.packed)
        return self.packing.unpack(packed)


@dataclass(slots=True)
class _Outer:
    """A tensor as other hooks packed it."""

    packed: Any


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _has_memory(tensor: torch.Tensor) -> bool:
    """True if it may be a view of a weight: a plain tensor of this process, and no wrapper of torch.func."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
