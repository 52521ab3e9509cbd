"""Keep weights that autograd saves for backward as references, and load them when backward asks.

Without this, autograd would keep every slot of forward alive until backward. `engine.runtime` registers the hooks
(torch.autograd.graph.saved_tensors_hooks) around each module; where others are registered already, such as those of
checkpointing (`modes.recompute`), ours go inside of them (`_Nested`). A weight that was changed in between must raise
torch's error. Tests: tests/tiers/test_tiers_attach.py, tests/tiers/test_tiers_modes.py,
tests/tiers/test_tiers_files.py.
"""

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
"""A pair of hooks that pack and unpack a tensor that autograd saves."""


@dataclass(slots=True)
class Reference:
    """A saved tensor that is a weight, or a view of one.

    Attributes:
        weight: the weight.
        offset: begin of the view in the weight, in bytes.
        dtype, shape, stride: those of the view.
        version: version of the weight when it was saved.
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
        fetch: loads a reference's weight, and returns the view.
        residents: function that returns the weights that stay on the device, by their storage.
    """

    def __init__(self, fetch: Callable[[Reference], torch.Tensor], residents: Callable[[], dict[int, Weight]]) -> None:
        self.fetch, self.residents = fetch, residents
        self.slots: dict[int, Slot] = {}
        """Slots by the address of their storage."""
        self.otherwise: Hooks | None = None
        """Hooks for all tensors that are no offloaded weights."""

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return the object that autograd keeps instead of a tensor that it saves."""
        found = self.reference(tensor)
        if found is not None:
            return found
        return tensor if self.otherwise is None else self.otherwise[0](tensor)

    def reference(self, tensor: torch.Tensor) -> Reference | None:
        """Describe a tensor as a view of an offloaded weight; None if it is no such view."""
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
        """Return the saved tensor for its packed form."""
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
        """The hooks to register; None if they are registered already.

        Args:
            outer: the registered hooks, such as those of `torch.utils.checkpoint`.
        """
        if outer is None:
            return self.pack, self.unpack
        owner = getattr(outer[0], "__self__", None)
        if owner is self or (isinstance(owner, _Nested) and owner.packing is self):
            return None
        nested = _Nested(self, outer)
        return nested.pack, nested.unpack


class _Nested:
    """Our hooks while other hooks are registered around them, such as those of a checkpointed block.

    Offloaded weights are kept as references, all other tensors go to the outer hooks. Weights that stay on the device
    are references too: a block that is computed again must save the same tensors as the first time, even if a new plan
    has offloaded, or brought back, a weight in between.

    Args:
        packing: the hooks of the model.
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
    """True if a tensor may be a view of a weight: a plain tensor with memory, and no wrapper of torch.func."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
