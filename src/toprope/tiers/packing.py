"""Weights that autograd saves for backward: kept as references to where in which weight, fetched when backward asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from toprope.tiers.groups import Weight
    from toprope.tiers.ring import Slot

__all__ = ["Packing", "Reference"]


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
        otherwise: packs what is no weight that comes and goes, and its counterpart.
    """

    def __init__(self, fetch: Callable[[Reference], torch.Tensor]) -> None:
        self.fetch = fetch
        self.slots: dict[int, Slot] = {}
        """By their storage."""
        self.otherwise: tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]] | None = None

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps of a tensor that it saves."""
        found = self.reference(tensor)
        if found is not None:
            return found
        return tensor if self.otherwise is None else self.otherwise[0](tensor)

    def reference(self, tensor: torch.Tensor) -> Reference | None:
        """Where a tensor is in which weight that comes and goes; None where it is of none."""
        if type(tensor) in _PLAIN and tensor.layout is torch.strided and tensor.device.type != "meta":
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
            version = packed.weight.parameters[0]._version
            if version != packed.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"the weight {packed.weight.name} is at version {version}; expected version {packed.version} "
                    "instead."
                )
            return self.fetch(packed)
        if self.otherwise is None:
            assert isinstance(packed, torch.Tensor)
            return packed
        return self.otherwise[1](packed)


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
