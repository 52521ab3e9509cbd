"""state_dict, load_state_dict and .to() of a model with offloaded weights.

`attach` installs these hooks, so that a program saves, loads and converts an attached model as any other: results are
torch's, whatever the place of a weight. Values are read and written where the weights are, by `migrate`. Relies on
`Module._apply` being what every conversion calls. Tests: tests/tiers/test_tiers_attach.py,
tests/tiers/test_tiers_ring.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from toprope.errors import UsageError
from toprope.tiers.engine.hooks import Hooks
from toprope.tiers.engine.migrate import Migration
from toprope.tiers.engine.model.model_groups import Model, Weight
from toprope.tiers.store.absent import set_data
from toprope.tiers.store.memory import without_values

__all__ = ["State"]


class State:
    """Hooks that make state_dict, load_state_dict and .to() work on an attached model.

    Args:
        model: the model's weights.
        migration: reads and writes the weights in their tiers.
        quiet: called before weights change; it empties the slots.
        resized: called after weights have changed their size.
    """

    def __init__(
        self, model: Model, migration: Migration, quiet: Callable[[], None], resized: Callable[[], None]
    ) -> None:
        self.model, self.migration, self.quiet, self.resized = model, migration, quiet, resized

    def install(self, module: nn.Module, hooks: Hooks) -> None:
        """Register the hooks on the modules that own weights, and on the model."""
        for _, owner, names in self.model.owners:
            weights = [self.model.weights[name] for name in names]
            shorts = [short for short, each in owner._parameters.items() if self._weight(each, weights) is not None]
            self._on_state_dict(owner, weights, hooks)
            self._on_load(owner, dict(zip(shorts, weights, strict=True)), hooks)
            self._on_apply(owner, weights, hooks)
        hooks.add(module._register_load_state_dict_pre_hook(self._check_tied).remove)  # type: ignore[no-untyped-call]
        if not any(owner is module for _, owner, _ in self.model.owners):
            self._on_apply(module, [], hooks)

    @staticmethod
    def _weight(parameter: torch.Tensor | None, weights: list[Weight]) -> Weight | None:
        return next((each for each in weights if any(parameter is one for one in each.parameters)), None)

    # state_dict

    def _on_state_dict(self, owner: nn.Module, weights: list[Weight], hooks: Hooks) -> None:
        def fill(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
            for short, parameter in module._parameters.items():
                weight = self._weight(parameter, weights)
                if weight is not None and weight.home is not None and prefix + short in state:
                    state[prefix + short] = self.migration.values(weight)

        hooks.add(owner._register_state_dict_hook(fill).remove)  # type: ignore[no-untyped-call]

    # load_state_dict

    def _on_load(self, owner: nn.Module, by_short: dict[str, Weight], hooks: Hooks) -> None:
        loading: list[str] = []

        def before(state: dict[str, Any], prefix: str, *_: Any) -> None:
            loading.clear()
            for short, weight in by_short.items():
                given = state.get(prefix + short)
                if weight.home is None or not isinstance(given, torch.Tensor) or given.shape != weight.like.shape:
                    continue
                if not loading:
                    self.quiet()
                loading.append(short)
                parameter = owner._parameters[short]
                assert parameter is not None
                room = torch.empty_strided(
                    weight.like.shape, weight.like.stride(), dtype=weight.like.dtype, device=parameter.device
                )
                set_data(parameter, room)

        def after(module: nn.Module, _incompatible: Any) -> None:
            for short, weight in by_short.items():
                parameter = module._parameters[short]
                assert parameter is not None
                new = not any(parameter is each for each in weight.parameters)  # assign=True
                if new:
                    self._adopt(weight, parameter)
                if short in loading:
                    self._take(weight, parameter)
                elif new:
                    weight.like = without_values(parameter)
            loading.clear()

        hooks.add(owner._register_load_state_dict_pre_hook(before).remove)  # type: ignore[no-untyped-call]
        hooks.add(owner.register_load_state_dict_post_hook(after).remove)  # type: ignore[no-untyped-call]

    def _adopt(self, weight: Weight, parameter: nn.Parameter) -> None:
        """Take over a module's new parameter for a weight, and forget parameters that no module has any more."""
        had = {id(each) for _, owner, _ in self.model.owners for each in owner._parameters.values()}
        weight.parameters = [each for each in weight.parameters if id(each) in had]
        weight.parameters.append(parameter)

    def _check_tied(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
        """Refuse to replace tied parameters by different tensors; called before anything is loaded."""
        for weight in self.model.weights.values():
            given = [state[prefix + name] for name in weight.names if prefix + name in state]
            if metadata.get("assign_to_params_buffers") and any(not torch.equal(given[0], each) for each in given[1:]):
                raise UsageError(
                    f"{weight.name} is one tensor under several names, and there it is several.",
                    looked_at=", ".join(weight.names),
                    do="detach the model, load the weights and attach it again",
                )

    def _take(self, weight: Weight, parameter: nn.Parameter) -> None:
        """Move the values that were loaded into a parameter to the home of its weight."""
        dtype = weight.like.dtype
        self.migration.replace(weight, parameter.data)
        assert weight.placeholder is not None
        for each in weight.parameters:
            set_data(each, weight.placeholder)
        weight.withdraw()
        if weight.like.dtype != dtype:
            self.resized()

    # .to()

    def _on_apply(self, owner: nn.Module, weights: list[Weight], hooks: Hooks) -> None:
        state = self

        def apply(fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
            device = state.migration.device.torch_device
            probe = fn(torch.zeros(1, device=device))
            if probe.device != device:
                raise UsageError(
                    f"a model whose weights come and go cannot move from {device} to {probe.device}.",
                    do="detach it first: handle.detach()",
                )
            every = dict(owner._parameters)
            away = {
                short: weight
                for short, each in every.items()
                if (weight := state._weight(each, weights)) is not None and weight.home is not None
            }
            if away:
                state.quiet()
            for short in away:
                del owner._parameters[short]
            try:
                type(owner)._apply(owner, fn, recurse)  # type: ignore[no-untyped-call]
            finally:
                found = dict(owner._parameters)
                owner._parameters.clear()
                owner._parameters.update({short: found.get(short, every[short]) for short in every})
            for weight in away.values():
                state._convert(weight, fn)
            for weight in weights:  # torch has given weights that stay new memory, and perhaps another dtype
                if weight.home is None:
                    now = weight.parameters[0]
                    if now.dtype != weight.like.dtype:
                        weight.like = without_values(now)
                        state.resized()
            return owner

        vars(owner)["_apply"] = apply
        hooks.add(lambda: vars(owner).pop("_apply", None))

    def _convert(self, weight: Weight, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        like = torch.zeros((1,) * weight.like.dim(), dtype=weight.like.dtype, device=self.migration.device.torch_device)
        dtype = fn(like).dtype
        if dtype == weight.like.dtype:
            return
        gradients = [(each, each.grad) for each in weight.parameters if each.grad is not None]
        for parameter, _ in gradients:
            parameter.grad = None
        self.migration.cast(weight, dtype)
        for parameter, gradient in gradients:
            parameter.grad = fn(gradient)
        self.resized()
