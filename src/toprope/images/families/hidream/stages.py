"""Base and edit weights of one model: editing uses the edit weights, refining the base's.

Outside of `refining` a model has its edit weights. In that context it has the base's weights; afterwards the edit
weights are restored, also after an error. No weight is ever overwritten, so that neither set can be lost:

* `SwappedWeights`, if at most half of the weights differ: one transformer, in which each weight that differs has two
  parameters, the edit value and the base value, which swap names for refining. The LoRA of the edit weights is in
  additional modules that are switched off. So the memory is the model and one more copy of the weights that differ.
* `SeparateTransformers`, if more differ, as in E1.1: the base is a second transformer, the pipeline's `refiner`. If it
  was left on the host, the two change places while it is needed.
* `EditWeightsOnly`, if the model's folder has no base: there is nothing to refine with.

Made by `loading` with `make_stages`; `pipeline` enters `refining`, and `images.lora` asks `shares_weights`. The values
of `kind` are in records, so they stay; that a half decides is free. Held tensor by tensor. Tests:
tests/images/test_images_hidream.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from toprope import device as devices
from toprope.errors import UsageError, WeightsError
from toprope.images.families.hidream.checkpoint import EditWeights
from toprope.images.families.hidream.layout import BASE

__all__ = [
    "CheckpointLora", "EditWeightsOnly", "LoraSwitch", "SeparateTransformers", "Stages", "SwappedWeights",
    "make_stages",
]  # fmt: skip

_OTHER = "_of_the_other_stage"
"""Suffix of the parameter that has a weight's value for the stage that is not in use."""


class Stages(ABC):
    """Switches a pipeline between its edit weights and the base's weights."""

    kind: str
    """Its name in records, which older records have too."""

    can_refine = True
    """True if there is a base."""

    shares_weights = False
    """True if both stages share some weights: a LoRA fused into these would act in the refine stage too."""

    @abstractmethod
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> AbstractContextManager[nn.Module]:
        """Context with the transformer that refines, on the pipeline's device.

        Args:
            pipeline: the transformer's pipeline.
            edit_weights: refine with the edit weights, without LoRAs, as the authors' scripts do; else with the base's.
        """

    def describe(self) -> dict[str, Any]:
        """Facts about the stages for JSON."""
        return {"kind": self.kind, "refines": self.can_refine}


class EditWeightsOnly(Stages):
    """Edit weights without a base."""

    kind = "alone"
    can_refine = False

    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> AbstractContextManager[nn.Module]:
        """Refine with the edit weights, if these are asked for.

        Raises:
            UsageError: the base is needed.
        """
        if edit_weights:
            return _plain(pipeline.transformer)
        raise UsageError(
            "this model has no base to refine with.",
            looked_at="its folder has the edit weights alone",
            do=f"give refine_strength 0, or put {BASE} next to the folder",
        )


class LoraSwitch:
    """Switch that turns the checkpoint's LoRA on and off."""

    def __init__(self) -> None:
        self.on = True


class CheckpointLora(nn.Module):
    """The checkpoint's LoRA of a linear layer: a module in the layer, whose result a hook adds.

    It is not an adapter of peft, so that a user's LoRAs can be loaded, scaled, fused and unloaded independently.
    """

    def __init__(self, down: torch.Tensor, up: torch.Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(down, requires_grad=False)
        self.up = nn.Parameter(up, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The term to add for the layer's input."""
        return nn.functional.linear(nn.functional.linear(x, self.down), self.up)


def _attach_lora(layer: nn.Module, added: CheckpointLora, switch: LoraSwitch) -> None:
    layer.add_module("added_by_edit", added)

    def hook(_layer: nn.Module, arguments: tuple[torch.Tensor, ...], result: torch.Tensor) -> torch.Tensor:
        return result + added(arguments[0]) if switch.on else result

    layer.register_forward_hook(hook)


class SwappedWeights(Stages):
    """One transformer with two values of each weight that differs: for editing, and the base's for refining.

    Attributes:
        differ: modules and short names of the parameters that have two values.
        added: number of layers with the checkpoint's LoRA.
        switch: switch of that LoRA.
        editing: True while the edit weights are in use.
    """

    kind = "twins"
    shares_weights = True

    def __init__(self) -> None:
        self.differ: list[tuple[nn.Module, str]] = []
        self.added = 0
        self.switch = LoraSwitch()
        self.editing = True

    def add_edit_value(self, owner: nn.Module, short: str, edited: torch.Tensor) -> None:
        """Give a parameter its value for editing, and keep the base's value as a second parameter next to it."""
        base = owner._parameters[short]
        assert base is not None
        owner.register_parameter(short + _OTHER, base)
        owner._parameters[short] = nn.Parameter(edited, requires_grad=False)
        self.differ.append((owner, short))

    def add_lora(self, layer: nn.Module, down: torch.Tensor, up: torch.Tensor) -> None:
        """Add the checkpoint's LoRA to a layer."""
        _attach_lora(layer, CheckpointLora(down, up), self.switch)
        self.added += 1

    @contextmanager
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> Iterator[nn.Module]:
        """The same transformer with the other weights, and without adapters."""
        swapped_now = []
        with _without_adapters(pipeline.transformer):
            try:
                self.editing = self.switch.on = False
                for owner, short in () if edit_weights else self.differ:
                    _swap_values(owner, short)
                    swapped_now.append((owner, short))
                yield pipeline.transformer
            finally:
                for owner, short in swapped_now:
                    _swap_values(owner, short)
                self.editing = self.switch.on = True

    def describe(self) -> dict[str, Any]:
        """Facts about the stages for JSON, with the number of tensors and layers that differ."""
        return super().describe() | {"tensors": len(self.differ), "added": self.added}


def _swap_values(owner: nn.Module, short: str) -> None:
    """Exchange the two values of a weight: the parameters swap names, nothing is copied."""
    other, parameters = short + _OTHER, owner._parameters
    parameters[short], parameters[other] = parameters[other], parameters[short]


class SeparateTransformers(Stages):
    """Two transformers: the pipeline's `transformer` edits, its `refiner` is the base."""

    kind = "pair"

    @contextmanager
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> Iterator[nn.Module]:
        """The refiner; if it is on the host and the pipeline is not, it takes the transformer's place."""
        if edit_weights:
            with _plain(pipeline.transformer) as transformer:
                yield transformer
            return
        place = torch.device(pipeline._execution_device)
        elsewhere = [each.device for each in pipeline.refiner.parameters() if each.device.type != place.type]
        with ExitStack() as stack:
            if elsewhere:
                stack.enter_context(_swapped_onto_device(pipeline.transformer, pipeline.refiner, place))
            yield pipeline.refiner


@contextmanager
def _swapped_onto_device(first: nn.Module, second: nn.Module, place: torch.device) -> Iterator[None]:
    """Context in which the first transformer is on the host and the second one in its place on the device."""
    device = devices.get(place)
    try:
        first.to("cpu")
        device.empty_cache()
        second.to(place)
        yield
    finally:
        second.to("cpu")
        device.empty_cache()
        first.to(place)


@contextmanager
def _plain(transformer: nn.Module) -> Iterator[nn.Module]:
    """Context with a transformer without adapters."""
    with _without_adapters(transformer):
        yield transformer


@contextmanager
def _without_adapters(transformer: nn.Module) -> Iterator[None]:
    """Context in which adapters of peft, such as a user's LoRA, are off."""
    if not getattr(transformer, "_hf_peft_config_loaded", False):
        yield
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [each for each in transformer.modules() if isinstance(each, BaseTunerLayer)]
    were_on = [each for each in layers if not each.disable_adapters]
    for each in were_on:
        each.enable_adapters(False)
    try:
        yield
    finally:
        for each in were_on:
            each.enable_adapters(True)


def make_stages(
    base: nn.Module, weights: EditWeights, dtype: torch.dtype
) -> tuple[Stages, nn.Module, nn.Module | None]:
    """Combine edit weights and a base.

    Args:
        base: the base's transformer with its weights, on the host.
        weights: edit weights that `checkpoint.check` has accepted.
        dtype: dtype of the base.

    Returns:
        The stages, the transformer that edits, and the base's transformer if it is separate.

    Raises:
        WeightsError: the given base has the edit weights already.
    """
    values = base.state_dict()
    differ = {
        name: tensor for name, tensor in weights.load(weights.tensors, dtype) if not torch.equal(tensor, values[name])
    }
    if weights.tensors and not differ:
        raise WeightsError(
            "the transformer of the base has the edit weights already: it cannot serve as the base.",
            looked_at=f"all {len(weights.tensors)} tensors of {weights.path} are equal to its own",
            do=f"give the transformer of {BASE}, as it was downloaded",
        )
    total = sum(each.nbytes for each in values.values())
    if 2 * sum(each.nbytes for each in differ.values()) > total and not weights.lora:
        made = _like(base)
        same = {name: tensor.clone() for name, tensor in values.items() if name not in differ}
        made.load_state_dict(same | differ, strict=True, assign=True)
        return SeparateTransformers(), made.requires_grad_(False).eval(), base
    swapped = SwappedWeights()
    for name, tensor in differ.items():
        owner, _, short = name.rpartition(".")
        swapped.add_edit_value(base.get_submodule(owner), short, tensor)
    for module, down, up in weights.load_lora(dtype):
        swapped.add_lora(base.get_submodule(module), down, up)
    return swapped, base.requires_grad_(False).eval(), None


def _like(transformer: Any) -> Any:
    """Make a transformer with the same configuration, on meta."""
    with torch.device("meta"):
        made = type(transformer).from_config(transformer.config)
    made.max_seq = transformer.max_seq
    return made
