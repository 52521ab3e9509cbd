"""Base and edit weights of one model: editing uses the edit weights, refining the base's.

A model rests with its edit weights. `refining` is a context in which it has those of the base; whatever happens in it,
the edit weights are back afterwards. Nothing is ever copied over a weight, so that neither set can be lost:

* Where at most half of the weights differ, both values of those are parameters of their module (`Twins`), and the two
  change names. What a LoRA of the checkpoint adds is a module beside the layer that is switched off. So the memory is
  that of the model and of what differs.
* Where more differ, as in E1.1, the base is a transformer of its own, the pipeline's `refiner` (`Pair`). Where it was
  left on the host, the two change places for as long as it is needed.
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

__all__ = ["Added", "Alone", "Pair", "Stages", "Switch", "Twins", "make_stages"]

_TWIN = "_of_the_other_stage"


class Stages(ABC):
    """How a pipeline gets from its edit weights to those of the base, and back."""

    can_refine = True
    """Whether the base is there."""

    shares_weights = False
    """Whether some weights are those of both stages: what is fused into them would refine, too."""

    @abstractmethod
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> AbstractContextManager[nn.Module]:
        """A context with the transformer that refines, on the pipeline's device.

        Args:
            pipeline: that it is a part of.
            edit_weights: refine with the edit weights, without LoRAs, as the authors' scripts do; else with the base's.
        """

    def describe(self) -> dict[str, Any]:
        """What there is to say about it, ready for JSON."""
        return {"kind": type(self).__name__.lower(), "refines": self.can_refine}


class Alone(Stages):
    """Edit weights without a base."""

    can_refine = False

    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> AbstractContextManager[nn.Module]:
        """Refused, unless it is done with the edit weights.

        Raises:
            UsageError: it needs the base.
        """
        if edit_weights:
            return _plain(pipeline.transformer)
        raise UsageError(
            "this model has no base to refine with.",
            looked_at="its folder has the edit weights alone",
            do=f"give refine_strength 0, or put {BASE} beside the folder",
        )


class Switch:
    """Whether what a LoRA adds is added."""

    def __init__(self) -> None:
        self.on = True


class Added(nn.Module):
    """What a LoRA adds to a linear layer: a module in the layer, added to its result by a hook.

    It is none of peft's adapters: a user's LoRAs are loaded, scaled, fused and unloaded beside it.
    """

    def __init__(self, down: torch.Tensor, up: torch.Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(down, requires_grad=False)
        self.up = nn.Parameter(up, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is added for the layer's input."""
        return nn.functional.linear(nn.functional.linear(x, self.down), self.up)


def _add_to(layer: nn.Module, added: Added, switch: Switch) -> None:
    layer.add_module("added_by_edit", added)

    def hook(_layer: nn.Module, arguments: tuple[torch.Tensor, ...], result: torch.Tensor) -> torch.Tensor:
        return result + added(arguments[0]) if switch.on else result

    layer.register_forward_hook(hook)


class Twins(Stages):
    """Both values of what differs, in one transformer.

    Attributes:
        differ: the modules with the short names of their parameters that have a twin.
        added: how many layers the checkpoint's LoRA adds to.
        switch: of what it adds.
        editing: whether the edit weights are in their places.
    """

    shares_weights = True

    def __init__(self) -> None:
        self.differ: list[tuple[nn.Module, str]] = []
        self.added = 0
        self.switch = Switch()
        self.editing = True

    def give(self, owner: nn.Module, short: str, edited: torch.Tensor) -> None:
        """Let a parameter have its edited value; what it had stays as the twin."""
        base = owner._parameters[short]
        assert base is not None
        owner.register_parameter(short + _TWIN, base)
        owner._parameters[short] = nn.Parameter(edited, requires_grad=False)
        self.differ.append((owner, short))

    def add(self, layer: nn.Module, down: torch.Tensor, up: torch.Tensor) -> None:
        """Add what a LoRA adds."""
        _add_to(layer, Added(down, up), self.switch)
        self.added += 1

    @contextmanager
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> Iterator[nn.Module]:
        """The same transformer with the other weights, and without adapters."""
        turned = []
        with _without_adapters(pipeline.transformer):
            try:
                self.editing = self.switch.on = False
                for owner, short in () if edit_weights else self.differ:
                    _change_names(owner, short)
                    turned.append((owner, short))
                yield pipeline.transformer
            finally:
                for owner, short in turned:
                    _change_names(owner, short)
                self.editing = self.switch.on = True

    def describe(self) -> dict[str, Any]:
        """What differs."""
        return super().describe() | {"tensors": len(self.differ), "added": self.added}


def _change_names(owner: nn.Module, short: str) -> None:
    twin, parameters = short + _TWIN, owner._parameters
    parameters[short], parameters[twin] = parameters[twin], parameters[short]


class Pair(Stages):
    """Two transformers: the pipeline's `transformer` edits, its `refiner` is the base."""

    @contextmanager
    def refining(self, pipeline: Any, *, edit_weights: bool = False) -> Iterator[nn.Module]:
        """The refiner; where it is on the host and computing is elsewhere, it takes the transformer's place."""
        if edit_weights:
            with _plain(pipeline.transformer) as transformer:
                yield transformer
            return
        place = torch.device(pipeline._execution_device)
        away = [each.device for each in pipeline.refiner.parameters() if each.device.type != place.type]
        with ExitStack() as stack:
            if away:
                stack.enter_context(_in_the_place_of(pipeline.transformer, pipeline.refiner, place))
            yield pipeline.refiner


@contextmanager
def _in_the_place_of(first: nn.Module, second: nn.Module, place: torch.device) -> Iterator[None]:
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
    """A context with a transformer without adapters."""
    with _without_adapters(transformer):
        yield transformer


@contextmanager
def _without_adapters(transformer: nn.Module) -> Iterator[None]:
    """A context in which adapters of peft, such as a user's LoRA, are off."""
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
    """Bring edit weights to a base.

    Args:
        base: the base's transformer with its weights, on the host.
        weights: checked with `checkpoint.check`.
        dtype: of the base.

    Returns:
        The stages, the transformer that edits, and that of the base where it is another.

    Raises:
        WeightsError: the base is no base, it has the edit weights already.
    """
    values = base.state_dict()
    differ = {
        name: tensor for name, tensor in weights.load(weights.tensors, dtype) if not torch.equal(tensor, values[name])
    }
    if weights.tensors and not differ:
        raise WeightsError(
            "the transformer of the base has the edit weights already: it is none to edit or to refine with.",
            looked_at=f"all {len(weights.tensors)} tensors of {weights.path} are equal to its own",
            do=f"give the transformer of {BASE}, as it was downloaded",
        )
    total = sum(each.nbytes for each in values.values())
    if 2 * sum(each.nbytes for each in differ.values()) > total and not weights.lora:
        made = _like(base)
        same = {name: tensor.clone() for name, tensor in values.items() if name not in differ}
        made.load_state_dict(same | differ, strict=True, assign=True)
        return Pair(), made.requires_grad_(False).eval(), base
    twins = Twins()
    for name, tensor in differ.items():
        owner, _, short = name.rpartition(".")
        twins.give(base.get_submodule(owner), short, tensor)
    for module, down, up in weights.load_lora(dtype):
        twins.add(base.get_submodule(module), down, up)
    return twins, base.requires_grad_(False).eval(), None


def _like(transformer: Any) -> Any:
    """A transformer of the same making, on meta."""
    with torch.device("meta"):
        made = type(transformer).from_config(transformer.config)
    made.max_seq = transformer.max_seq
    return made
