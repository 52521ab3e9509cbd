"""Where a pipeline's parts lie while it works: the seam between the engine and the rungs of the memory ladder.

The engine asks a `Placement` for everything about memory. Here is the plain one, "none": all of it on the device. The
others are in `toprope.images.memory.offload_policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.images.families.base import Family

if TYPE_CHECKING:
    import torch

    from toprope.device import Device

__all__ = ["Loaded", "OnDevice", "Placement", "move_parts", "pin_device"]


@dataclass
class Loaded:
    """A pipeline and what it was loaded with: what a placement, a LoRA or a guard works on.

    Attributes:
        family: knows its components' names.
        folder: it came from.
        pipeline: itself, loaded on the host.
        device: where it computes.
        dtype: of its weights.
    """

    family: Family
    folder: Path
    pipeline: Any
    device: Device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype without "torch."."""
        return str(self.dtype).removeprefix("torch.")


class Placement(ABC):
    """One way to have a pipeline compute on a device."""

    rung: str
    """Its name on the ladder."""

    keeps: bool = False
    """Whether modules and weights stay the objects that they are, so that LoRAs can come and go while it is placed."""

    @abstractmethod
    def place(self, loaded: Loaded) -> None:
        """Make it ready: called once, the device being the thread's current one. May raise out of memory."""

    @abstractmethod
    def undo(self, loaded: Loaded) -> None:
        """Leave nothing on the device, and the pipeline whole on the host, so that another placement can follow."""

    def encoding(self, loaded: Loaded) -> AbstractContextManager[Any]:
        """A context in which the text encoders can run."""
        return nullcontext()

    def running(self, loaded: Loaded) -> AbstractContextManager[Any]:
        """A context in which everything else can run."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """What there is to say about it beside its name, ready for JSON."""
        return {}


class OnDevice(Placement):
    """All parts on the device, for as long as the engine is open."""

    rung = "none"
    keeps = True

    def place(self, loaded: Loaded) -> None:
        """Move them."""
        pin_device(loaded)
        move_parts(loaded, loaded.device.torch_device)

    def undo(self, loaded: Loaded) -> None:
        """Move them back."""
        move_parts(loaded, "cpu")
        loaded.device.empty_cache()


def move_parts(loaded: Loaded, to: torch.device | str, names: Iterable[str] | None = None) -> None:
    """Move a pipeline's modules, all of them or those of these names; what it does not have is passed over."""
    import torch

    parts = loaded.pipeline.components
    for name in parts if names is None else names:
        if isinstance(parts.get(name), torch.nn.Module):
            parts[name].to(to)


def pin_device(loaded: Loaded) -> None:
    """Have a pipeline of diffusers compute on the device wherever its parts lie; it would go where its first one is."""
    cls: Any = type(loaded.pipeline)
    place = loaded.device.torch_device
    if getattr(cls, "toprope_pinned", None) == place:
        return
    base = cls.__base__ if hasattr(cls, "toprope_pinned") else cls
    pinned = {"_execution_device": property(lambda self: place), "toprope_pinned": place, "__module__": base.__module__}
    loaded.pipeline.__class__ = type(base.__name__, (base,), pinned)
