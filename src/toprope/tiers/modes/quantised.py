"""An effect of modes: quantise torch's linear layers in place while a mode is enabled, and restore them.

A layer's class is exchanged. Its weight stays the same parameter, without memory; the plain values are kept on the
disk, or in the host's memory, for `state_dict`, moves, copies and training: their bits come back. Quantised weights are
not trained: before a call that would give the weight a gradient, the layer gets its plain weight back. `modes.models`
decides which models are quantised; codes and products are those of `tiers.quant`. Tests:
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from toprope.device import Device
from toprope.tiers.modes.outputs import transforming
from toprope.tiers.quant.codec import decode, encode
from toprope.tiers.quant.formats import FORMATS
from toprope.tiers.quant.matmul import multiply
from toprope.tiers.quant.tensor import QuantisedTensor
from toprope.tiers.store.absent import Absence, is_absent, set_data, withdraw
from toprope.tiers.store.memory import placeholder
from toprope.tiers.store.spill import SpillStore
from toprope.tiers.store.transfer import Transfers

__all__ = ["Origins", "QuantisedInPlace", "candidates", "figures", "page_bytes", "quantise", "restore", "restored"]

_SMALLEST = 2**14
"""Weights with fewer values are not quantised, as the call costs more than the product."""


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class _Origin:
    """The kept values of a plain weight, in memory or in the store."""

    like: torch.Tensor
    tensor: torch.Tensor | None
    origins: Origins
    key: str

    def values(self) -> torch.Tensor:
        if self.tensor is not None:
            return self.tensor.to(self.like.device, copy=self.tensor.device != self.like.device)
        store = self.origins.store
        assert store is not None
        made = torch.empty_strided(self.like.shape, self.like.stride(), dtype=self.like.dtype)
        flat = made.as_strided((made.numel(),), (1,))
        store.read(self.key, flat).wait()
        return made


class Origins:
    """Keeps plain weights while layers are quantised: on the disk, or in the host's memory.

    Args:
        device: the device that computes.
        folder: folder for a file; None keeps weights in the host's memory.
        capacity: limit of that file in bytes.
    """

    def __init__(self, device: Device, folder: Path | None, capacity: int) -> None:
        self.device, self.folder, self.capacity = device, folder, capacity
        self.store: SpillStore | None = None
        self._transfers: Transfers | None = None
        self._count = 0

    @property
    def on_disk(self) -> bool:
        """True if plain weights are kept on the disk."""
        return self.folder is not None and not self.device.capabilities.separate_memory

    def keep(self, weight: torch.Tensor) -> _Origin:
        """Keep a copy of a weight.

        Raises:
            TierError: it cannot be written.
            TierCapacityError: the disk has no room.
        """
        values = weight.detach()
        like = placeholder(torch.empty_like(values, device="meta"), self.device)
        self._count += 1
        key = f"weight/{self._count}"
        if not self.on_disk:
            kept = values if values.device.type == "cpu" else values.cpu()
            return _Origin(like, kept, self, key)
        if self.store is None:
            assert self.folder is not None
            self.folder.mkdir(parents=True, exist_ok=True)
            self._transfers = Transfers(None, threads=1)
            self.store = SpillStore(self.folder, self.capacity, self._transfers)
        store = self.store
        store.put(key, values.as_strided((values.numel(),), (1,), values.storage_offset()))
        store.flush()  # only then may the values go
        origin = _Origin(like, None, self, key)
        weakref.finalize(origin, _drop_if_alive, weakref.ref(store), key).atexit = False
        return origin

    def close(self) -> None:
        """Delete the file."""
        if self.store is not None:
            self.store.close()
            self.store = None
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None


def _drop_if_alive(store: weakref.ref[SpillStore], key: str) -> None:
    there = store()
    if there is not None and there.contains(key):
        there.drop(key)


@dataclass(frozen=True, eq=False)
class _QuantisedState:
    page: QuantisedTensor
    origin: _Origin
    error: float
    weight: nn.Parameter


class QuantisedInPlace(nn.Linear):
    """torch's Linear with a quantised weight. Made by `quantise`; copies and pickles of it are plain layers."""

    _kept: _QuantisedState

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input @ weight.T + bias."""
        if self.weight is not self._kept.weight:  # torch.func.functional_call has replaced it
            return nn.Linear.forward(self, input)
        if transforming():
            return functional.linear(input, decode(self._kept.page, input.dtype), self.bias)
        if torch.is_grad_enabled() and self.weight.requires_grad and not torch.compiler.is_compiling():
            restore(self)  # gradients were enabled inside a call that began without
            return nn.Linear.forward(self, input)
        return multiply(input, self._kept.page, self.bias)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        restore(self)
        return nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination, prefix, keep_vars):  # type: ignore[no-untyped-def]
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self._kept.origin.values()

    def _load_from_state_dict(self, state_dict, prefix, *others):  # type: ignore[no-untyped-def]
        if prefix + "weight" in state_dict:
            restore(self)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *others)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = dict(vars(self))
        kept: _QuantisedState = state.pop("_kept")
        own = state["_parameters"]["weight"]
        plain = nn.Parameter(kept.origin.values().clone(), requires_grad=own.requires_grad)
        state["_parameters"] = {**state["_parameters"], "weight": plain}
        return _new_plain_linear, (), state

    def extra_repr(self) -> str:
        """The layer's text in `repr`."""
        return f"{super().extra_repr()}, weight in {self._kept.page.format.name}"


def _new_plain_linear() -> nn.Linear:
    return nn.Linear.__new__(nn.Linear)


def candidates(model: nn.Module) -> list[nn.Linear]:
    """Linear layers that can be quantised: of torch's own class, not too small, and not tied."""
    users: Counter[int] = Counter()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter.device.type != "meta" and not is_absent(parameter):
                users[parameter.untyped_storage()._cdata] += 1
    return [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and (weight := module._parameters.get("weight")) is not None
        and type(weight.data) is torch.Tensor
        and weight.dtype in _DTYPES
        and weight.device.type != "meta"
        and not is_absent(weight)
        and weight.numel() >= _SMALLEST
        and module.in_features % 2 == 0
        and weight.is_contiguous()
        and users[weight.untyped_storage()._cdata] == 1
    ]


def page_bytes(layer: nn.Linear, format: str) -> int:
    """Bytes of a layer's quantised weight."""
    form = FORMATS[format]
    values = layer.in_features * layer.out_features
    codes = -(-values // 2) if form.bits == 4 else values
    scales = layer.out_features * form.blocks(layer.in_features) * form.scale_dtype.itemsize
    return int(codes + scales + (4 if form.has_global else 0))


def quantise(layer: nn.Linear, format: str, origins: Origins) -> QuantisedInPlace:
    """Quantise a layer's weight in place.

    Raises:
        TierError, TierCapacityError: the plain values cannot be kept; the layer is unchanged.
    """
    weight: Any = layer.weight
    device = weight.device
    page = encode(weight.detach(), format).to(device)
    difference = decode(page, torch.float32) - weight.detach().float()
    error = float(difference.norm() / weight.detach().float().norm().clamp_min(1e-30))
    origin = origins.keep(weight)
    set_data(weight, origin.like)
    withdraw(weight, origin.like, _absence(page))
    layer.__class__ = QuantisedInPlace
    made: Any = layer
    vars(made)["_kept"] = _QuantisedState(page, origin, error, weight)
    return made  # type: ignore[no-any-return]


def _absence(page: QuantisedTensor) -> Absence:
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply by the quantised weight: torch looked up `forward` before a hook quantised the layer."""
        return multiply(input, page, bias)

    remedy = "toprope.tiers.modes.disable(); or use its state_dict()"
    return Absence("of a quantised layer", "a mode keeps it in few bits", remedy, {"linear": linear})


_restored = 0


def restored() -> int:
    """Number of layers restored so far in this process; while it is the same, no layer was restored."""
    return _restored


def restore(layer: QuantisedInPlace) -> nn.Linear:
    """Restore a layer's plain weight."""
    global _restored
    _restored += 1
    kept = vars(layer).pop("_kept")
    plain: Any = layer
    plain.__class__ = nn.Linear
    set_data(plain.weight, kept.origin.values())
    return plain  # type: ignore[no-any-return]


def figures(layers: Iterator[nn.Module]) -> tuple[int, int, int, int, float]:
    """Figures of the quantised layers.

    Returns:
        Their number, the bytes of their quantised weights, of their plain weights, and of the plain weights in the
        host's memory; and the largest relative error of a weight.
    """
    mine = [each for each in layers if isinstance(each, QuantisedInPlace)]
    small = sum(each._kept.page.nbytes for each in mine)
    plain = sum(each._kept.origin.like.nbytes for each in mine)
    kept = sum(each._kept.origin.like.nbytes for each in mine if each._kept.origin.tensor is not None)
    return len(mine), small, plain, kept, max((each._kept.error for each in mine), default=0.0)
