"""Load a module's weights outside its run, to read or change them: `with handle.weights(module):`.

For users, by `Handle.weights`. Weights that were changed are written back to their homes at the end; where torch counts
no versions (`weight.data`), their bytes are compared. Tests: tests/tiers/test_tiers_absent.py,
tests/tiers/test_tiers_complaints.py.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import nn

from toprope.errors import TierCapacityError, UsageError
from toprope.sizes import gibibytes
from toprope.tiers.engine.model.model_groups import Weight
from toprope.tiers.engine.runtime import Engine, Needs
from toprope.tiers.store.memory import Memory

__all__ = ["Visit"]


class Visit:
    """Context in which the weights of a module and its submodules have their values.

    When it ends, also after an error, changed weights are written back to their homes.

    Args:
        engine: the model's engine.
        model: the model.
        module: the model or a module in it.

    Raises:
        UsageError: the module is not of this model.
    """

    def __init__(self, engine: Engine, model: nn.Module, module: nn.Module) -> None:
        name = next((name for name, each in model.named_modules() if each is module), None)
        if name is None:
            raise UsageError(
                f"this {type(module).__name__} is no module of the attached model.",
                do="name a module of it: with handle.weights(model.layers[0]): ...",
            )
        mine = {id(each) for each in module.parameters()}
        weights = [
            each
            for each in engine.model.weights.values()
            if any(id(parameter) in mine for parameter in each.parameters)
        ]
        self.engine, self._needs = engine, Needs(name, weights)
        self._versions: dict[Weight, int] = {}

    def __enter__(self) -> None:
        engine, needs = self.engine, self._needs
        in_pieces = [each for each in needs.weights if engine.pieces is not None and each in engine.pieces.tiers]
        if in_pieces:
            raise TierCapacityError(
                f"{in_pieces[0].name} is computed in pieces: the device has no room for it.",
                do="give the device a larger budget; or change what state_dict() gives, and load_state_dict() that",
            )
        units = dict.fromkeys(engine.unit_of[each] for each in needs.weights if each in engine.unit_of)
        slots = engine.slot_sizes
        if len(units) > len(slots):
            size = sum(each.nbytes for each in units)
            raise TierCapacityError(
                f"the weights of {needs.name or 'the model'} are not on the device all at once: they are in "
                f"{len(units)} groups, and there are {len(slots)} slots.",
                looked_at=f"{gibibytes(size)} come and go; the slots have {gibibytes(sum(slots))}",
                do="take smaller modules, one after another; or a larger budget for the device",
            )
        needs.units = list(units)
        engine.visit(needs)
        self._versions = {each: each.parameters[0]._version for unit in units for each in unit.weights}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for weight, version in self._versions.items():
                self._write_back(weight, version)
        finally:
            self._versions = {}
            self.engine.leave(self._needs)

    def _write_back(self, weight: Weight, version: int) -> None:
        """Write a weight back if it has changed. `weight.data` counts no versions, so the bytes are compared."""
        if weight.home is None:
            return
        if weight.parameters[0]._version == version:
            with torch.no_grad():
                known = Memory.of(self.engine.migration.values(weight))
                if torch.equal(known.tensor, Memory.of(weight.parameters[0].detach().cpu()).tensor):
                    return
        self.engine.write_back(weight)
