"""The rungs of the memory ladder as placements: a class for each rung below "none".

`images.pipeline_manager` makes one by its name (`make`) and puts another in its place when memory runs out, so `undo`
must restore all that `place` has changed. `fallback` lists the rungs with their effect and cost. The VAE's switches
are diffusers'. Tests: tests/images/simulated/test_images_memory.py, which measures the peak of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from toprope.images.memory import fallback
from toprope.images.memory.offload import OffloadedModule, StreamedModule, WholeModule, bytes_of
from toprope.images.memory.placement import Loaded, OnDevice, Placement, pin_device

__all__ = ["make"]


class _Vae:
    """Slicing and tiling of a pipeline's VAE: switches them on, and restores their settings."""

    NAMES = ("slicing", "tiling")

    def __init__(self) -> None:
        self._were: dict[str, bool] = {}

    def on(self, loaded: Loaded) -> None:
        """Process one picture at a time, large ones in tiles."""
        vae = getattr(loaded.pipeline, "vae", None)
        for name in self.NAMES:
            if hasattr(vae, f"enable_{name}") and hasattr(vae, f"use_{name}") and name not in self._were:
                self._were[name] = bool(getattr(vae, f"use_{name}"))
                getattr(vae, f"enable_{name}")()

    def off(self, loaded: Loaded) -> None:
        """Restore the settings."""
        for name, was in self._were.items():
            if not was:
                getattr(loaded.pipeline.vae, f"disable_{name}")()
        self._were.clear()

    def describe(self) -> dict[str, Any]:
        """The settings that are on, for JSON."""
        return {f"vae_{name}": True for name in self._were}


class Tiled(OnDevice):
    """All parts on the device, the VAE with slicing and tiling."""

    rung = "vae"

    def __init__(self) -> None:
        self._vae = _Vae()

    def place(self, loaded: Loaded) -> None:
        """Switch both on, and move the parts."""
        self._vae.on(loaded)
        super().place(loaded)

    def undo(self, loaded: Loaded) -> None:
        """Restore both settings, and move the parts back."""
        self._vae.off(loaded)
        super().undo(loaded)

    def describe(self) -> dict[str, Any]:
        """The settings that are on, for JSON."""
        return self._vae.describe()


class FourBit(Tiled):
    """Like `Tiled`, with text encoders in 4.5 bits per value. `undo` restores their layers, which stay on the host."""

    rung = "encoders-4bit"
    keeps = False
    FORMAT = "nvfp4"

    def __init__(self) -> None:
        super().__init__()
        self._own: list[tuple[nn.Module, str, nn.Module]] = []
        self._described: dict[str, Any] = {}

    def place(self, loaded: Loaded) -> None:
        """Quantise linear layers, and move the parts."""
        for name, encoder in _parts(loaded, encoders=True).items():
            before = bytes_of(encoder)
            count = self._encode(encoder)
            self._described[name] = {"layers": count, "bytes": bytes_of(encoder), "bytes_before": before}
        super().place(loaded)

    def _encode(self, encoder: nn.Module) -> int:
        """Replace linear layers by quantised ones, and return their number.

        Layers with a LoRA, layers that share their weight with an embedding, and layers that transformers keeps in
        float32 and whose dtype it inspects while they run (T5's "wo"), stay.
        """
        from toprope.tiers.pages import QuantisedLinear

        if getattr(encoder, "peft_config", None):
            return 0
        kept = set(getattr(encoder, "_keep_in_fp32_modules", None) or ())
        owners = Counter(
            id(each) for owner in encoder.modules() for each in owner._parameters.values() if each is not None
        )
        found = [
            (owner, short, layer)
            for owner in encoder.modules()
            for short, layer in owner.named_children()
            if type(layer) is nn.Linear and short not in kept and owners[id(layer.weight)] == 1
        ]
        for owner, short, layer in found:
            setattr(owner, short, QuantisedLinear.from_linear(layer, self.FORMAT))
            self._own.append((owner, short, layer))
        return len(found)

    def undo(self, loaded: Loaded) -> None:
        """Restore the original layers, and move all parts to the host."""
        super().undo(loaded)
        while self._own:
            owner, short, layer = self._own.pop()
            setattr(owner, short, layer.to("cpu"))
        self._described.clear()

    def describe(self) -> dict[str, Any]:
        """The settings that are on, and the sizes of the quantised encoders, for JSON."""
        return super().describe() | {"format": self.FORMAT, "encoders": dict(self._described)}


class SequentialOffload(Placement):
    """Parts are moved to the device when they are needed: each text encoder alone, and then all the others.

    A refiner stays on the host: the model's stages move it.
    """

    rung = "encoders"

    def __init__(self) -> None:
        self._vae = _Vae()
        self._encoders: dict[str, OffloadedModule] = {}
        self._rest: dict[str, OffloadedModule] = {}

    def place(self, loaded: Loaded) -> None:
        """Prepare the parts; none is moved yet."""
        pin_device(loaded)
        self._vae.on(loaded)
        self._encoders = self._offloaded(loaded, encoders=True)
        self._rest = self._offloaded(loaded, encoders=False)

    def _offloaded(self, loaded: Loaded, *, encoders: bool) -> dict[str, OffloadedModule]:
        parts = _parts(loaded, encoders=encoders)
        return {name: WholeModule(part, loaded.device) for name, part in parts.items() if name != "refiner"}

    def undo(self, loaded: Loaded) -> None:
        """Move all parts back to the host."""
        self._offload_all(loaded)
        self._vae.off(loaded)
        self._encoders, self._rest = {}, {}

    def _offload_all(self, loaded: Loaded) -> None:
        for each in (*self._encoders.values(), *self._rest.values()):
            each.offload()
        loaded.device.empty_cache()

    @contextmanager
    def encoding(self, loaded: Loaded) -> Iterator[None]:
        """Context in which each encoder is on the device while it runs."""
        self._offload_all(loaded)
        hooks = []
        try:
            for each in self._encoders.values():
                if not isinstance(each, StreamedModule):
                    hooks += _load_around_forward(each)
            self._load(loaded, [each for each in self._encoders.values() if isinstance(each, StreamedModule)])
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._offload_all(loaded)

    @contextmanager
    def running(self, loaded: Loaded) -> Iterator[None]:
        """Context with the other parts on the device; they stay until a text has to be encoded."""
        rest = list(self._rest.values())
        # whole parts are moved first: the streamed ones share the memory that is left
        self._load(loaded, [each for each in rest if not isinstance(each, StreamedModule)])
        self._load(loaded, [each for each in rest if isinstance(each, StreamedModule)])
        yield

    def _load(self, loaded: Loaded, modules: list[OffloadedModule]) -> None:
        for each in modules:
            each.load()

    def describe(self) -> dict[str, Any]:
        """The settings that are on, for JSON."""
        return self._vae.describe()


def _load_around_forward(offloaded: OffloadedModule) -> list[Any]:
    """Register hooks that move a module to the device before it runs and back afterwards, also when it fails.

    A pipeline may put the inputs where the module is at that moment, so these are moved too.
    """
    place = offloaded.device.torch_device

    def before(_module: nn.Module, arguments: Any, named: Any) -> tuple[Any, Any]:
        offloaded.load()
        return tuple(_moved(each, place) for each in arguments), {key: _moved(named[key], place) for key in named}

    def after(_module: nn.Module, _arguments: Any, _result: Any) -> None:
        offloaded.offload()

    return [
        offloaded.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
        offloaded.module.register_forward_hook(after, always_call=True),
    ]


def _moved(value: Any, place: Any) -> Any:
    return value.to(place) if hasattr(value, "device") and hasattr(value, "to") else value


class TieredOffload(SequentialOffload):
    """Weights of text encoders, denoiser and refiner are loaded when their layer runs.

    Args:
        least: give weights as little memory as possible; else half of the memory that is free when they are attached.
    """

    def __init__(self, *, least: bool = False) -> None:
        super().__init__()
        self._least = least
        self.rung = "tiers-least" if least else "tiers"
        self._described: dict[str, Any] = {}
        self._budget = 0

    def _offloaded(self, loaded: Loaded, *, encoders: bool) -> dict[str, OffloadedModule]:
        """Streamed modules for encoders, denoiser and refiner; whole ones for the other parts."""
        modules: dict[str, OffloadedModule] = {}
        for name, part in _parts(loaded, encoders=encoders).items():
            if encoders or name in (loaded.family.denoiser, "refiner"):
                modules[name] = StreamedModule(part, loaded.device, None if self._least else lambda: self._budget)
            else:
                modules[name] = WholeModule(part, loaded.device)
        return modules

    def _load(self, loaded: Loaded, modules: list[OffloadedModule]) -> None:
        """Load modules; the budgets of streamed ones share half of the free memory."""
        coming = sum(not each.on_device for each in modules)
        if coming and not self._least:
            self._budget = _free(loaded) // 2 // coming
        super()._load(loaded, modules)

    @contextmanager
    def encoding(self, loaded: Loaded) -> Iterator[None]:
        """Like `SequentialOffload.encoding`; the encoders' plans are recorded, as they are detached afterwards."""
        with super().encoding(loaded):
            self._describe_parts()
            yield

    @contextmanager
    def running(self, loaded: Loaded) -> Iterator[None]:
        """Like `SequentialOffload.running`; the parts' plans are recorded."""
        with super().running(loaded):
            self._describe_parts()
            yield

    def _describe_parts(self) -> None:
        for name, each in (*self._encoders.items(), *self._rest.items()):
            if each.on_device:
                self._described[name] = each.describe()

    def describe(self) -> dict[str, Any]:
        """The settings that are on, and the last plan of each part, for JSON."""
        return super().describe() | {"parts": dict(self._described)}


def _parts(loaded: Loaded, *, encoders: bool) -> dict[str, nn.Module]:
    """The pipeline's modules: its text encoders, or the others."""
    return {
        name: part
        for name, part in loaded.pipeline.components.items()
        if isinstance(part, nn.Module) and (name in loaded.family.encoders) is encoders
    }


def _free(loaded: Loaded) -> int:
    """Free bytes of the device."""
    loaded.device.empty_cache()
    memory = loaded.device.memory()
    if memory.free is not None:
        return memory.free
    return max(0, (memory.total or 0) - (memory.reserved or memory.allocated or 0))


def make(name: str) -> Placement:
    """The placement of a rung.

    Raises:
        UsageError: there is no such rung.
    """
    rung = fallback.rung(name).name
    kinds: dict[str, Any] = {
        "none": OnDevice, "vae": Tiled, "encoders-4bit": FourBit, "encoders": SequentialOffload, "tiers": TieredOffload,
        "tiers-least": lambda: TieredOffload(least=True),
    }  # fmt: skip
    made: Placement = kinds[rung]()
    return made
