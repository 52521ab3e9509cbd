"""Placement of a pipeline's parts: interface between the engine and the rungs of the memory ladder.

The engine leaves everything about memory to a `Placement`. This module has the plain one, "none": all parts on the
device. The others are in `toprope.images.memory.offload_policies`.

`images.pipeline_manager` chooses the placement; the engine calls `encoding` and `running` around its work. `undo` must
leave the whole pipeline on the host, as it was loaded. `components` and `_execution_device` are names of diffusers'
pipelines. Tests: tests/images/test_images_engine.py, tests/images/test_images_memory.py,
tests/images/test_images_demo.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.images.families.base import Family
from toprope.images.families.finding import own_defaults

if TYPE_CHECKING:
    import torch

    from toprope.device import Device

__all__ = ["Loaded", "OnDevice", "Placement", "move_parts", "pin_device"]


@dataclass
class Loaded:
    """A loaded pipeline with its family, folder, device and dtype.

    Attributes:
        family: its family.
        folder: the folder that it was loaded from.
        pipeline: the pipeline, loaded on the host.
        device: the device that computes.
        dtype: dtype of its weights.
    """

    family: Family
    folder: Path
    pipeline: Any
    device: Device
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self._own = own_defaults(self.folder, self.family)

    def defaults(self) -> dict[str, Any]:
        """Value of each knob that is left out: the one in the model's folder, else the family's."""
        return {**self.family.defaults(self.pipeline), **self._own}

    @property
    def dtype_name(self) -> str:
        """The dtype without "torch."."""
        return str(self.dtype).removeprefix("torch.")


class Placement(ABC):
    """Places a pipeline's parts so that it computes on a device."""

    rung: str
    """Its name on the ladder."""

    keeps: bool = False
    """True if modules and weights stay the same objects, so that LoRAs can be changed while it is placed."""

    @abstractmethod
    def place(self, loaded: Loaded) -> None:
        """Make the pipeline ready; called once, with the device as the thread's current one. May run out of memory."""

    @abstractmethod
    def undo(self, loaded: Loaded) -> None:
        """Move the whole pipeline back to the host, so that another placement can follow."""

    def encoding(self, loaded: Loaded) -> AbstractContextManager[Any]:
        """Context in which the text encoders can run."""
        return nullcontext()

    def running(self, loaded: Loaded) -> AbstractContextManager[Any]:
        """Context in which all other parts can run."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Facts about it in addition to its name, for JSON."""
        return {}


class OnDevice(Placement):
    """All parts on the device, for as long as the engine is open."""

    rung = "none"
    keeps = True

    def place(self, loaded: Loaded) -> None:
        """Move the parts to the device."""
        pin_device(loaded)
        move_parts(loaded, loaded.device.torch_device)

    def undo(self, loaded: Loaded) -> None:
        """Move the parts back to the host."""
        move_parts(loaded, "cpu")
        loaded.device.empty_cache()


def move_parts(loaded: Loaded, to: torch.device | str, names: Iterable[str] | None = None) -> None:
    """Move a pipeline's modules, all or some by name; unknown names are ignored."""
    import torch

    parts = loaded.pipeline.components
    for name in parts if names is None else names:
        if isinstance(parts.get(name), torch.nn.Module):
            parts[name].to(to)


def pin_device(loaded: Loaded) -> None:
    """Make a pipeline of diffusers compute on the device; by default it would use the device of its first part."""
    cls: Any = type(loaded.pipeline)
    place = loaded.device.torch_device
    if getattr(cls, "toprope_pinned", None) == place:
        return
    base = cls.__base__ if hasattr(cls, "toprope_pinned") else cls
    pinned = {"_execution_device": property(lambda self: place), "toprope_pinned": place, "__module__": base.__module__}
    loaded.pipeline.__class__ = type(base.__name__, (base,), pinned)
