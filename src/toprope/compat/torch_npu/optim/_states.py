"""Base of the optimizers of `torch_npu.optim` that keep states, one tensor for each state of a group and dtype.

Used by the modules of this folder, not by programs. The states' names and places in `state_dict` are torch_npu's;
npu_fused_optim_base.py lays them one behind the other. Tests: tests/compat/test_torch_npu_optim.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from .._error_codes import ErrCode, pta_error
from ..operators.storage import get_storage_size
from ..utils.combine_tensors import npu_combine_tensors
from .npu_fused_optim_base import NpuFusedOptimizerBase

__all__ = ["StatefulOptimizer", "in_range", "not_negative", "views"]


def not_negative(**values: float) -> None:
    """Refuse options below 0; the keyword is the option's name in the message, with "__" for a blank.

    Raises:
        ValueError: a value is below 0.
    """
    for name, value in values.items():
        if value < 0.0:
            raise ValueError(f"Invalid {name.replace('__', ' ')}: {value}" + pta_error(ErrCode.VALUE))


def in_range(text: str, value: float, *, closed: bool = False) -> None:
    """Refuse an option outside [0, 1), or [0, 1] if `closed`.

    Raises:
        ValueError: it is.
    """
    if value < 0.0 or value > 1.0 or (value == 1.0 and not closed):
        raise ValueError(f"Invalid {text}: {value}" + pta_error(ErrCode.VALUE))


def views(combined: torch.Tensor, params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The combined tensor as one view for each parameter, of its shape."""
    found, start = [], 0
    for p in params:
        first = start + p.storage_offset()
        found.append(combined[first : first + p.numel()].view(p.shape))
        start += get_storage_size(p)
    return found


class StatefulOptimizer(NpuFusedOptimizerBase):
    """Fused optimizer whose states begin with one value and have the shape of the parameter."""

    _NAMES: ClassVar[tuple[str, ...]] = ()
    """Every state that the optimizer can have."""
    _INSTEAD: ClassVar[str] = ""
    """End of the refusal of sparse gradients."""

    def _wanted(self, group: Mapping[str, Any]) -> Sequence[str]:
        """States that a group has."""
        return self._NAMES

    def _first_value(self, name: str) -> float:
        """Value with which a state begins."""
        return 0.0

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        """Update the combined parameters of one group and dtype.

        Args:
            group: options.
            param: combined parameters, changed in place.
            grad: combined gradients.
            state: combined states by name, changed in place, and "step".
            index: of the group.
        """
        raise NotImplementedError(pta_error(ErrCode.NOT_SUPPORT))

    def _init_state(self, p: torch.Tensor, names: Sequence[str]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            for name in names:
                state[name] = torch.full_like(p, self._first_value(name), memory_format=torch.preserve_format)
            return
        for name in names:
            own = torch.zeros_like(p, memory_format=torch.preserve_format)
            own.copy_(state[name])
            state[name] = own

    def _init_param_state(self, p: torch.Tensor) -> None:
        self._init_state(p, self._NAMES)

    def _init_of_group(self, p: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Give a parameter its states; those that it has, as after load_state_dict, are copied."""
        self._init_state(p, self._wanted(group))

    def _combine_group_param_states(self, group_index: int) -> None:
        group = self.param_groups[group_index]
        names, found = self._wanted(group), []
        for params in self.params_lists_indexed_by_group[group_index]:
            states = []
            for p in params:
                if p.grad is None:
                    continue
                self._refuse_sparse(p.grad)
                self._init_of_group(p, group)
                states.append(self.state[p])
            combined: dict[str, Any] = defaultdict(dict)
            combined["step"] = states[0]["step"] if states else 0
            for name in self._NAMES:
                tensors = [state[name] for state in states] if name in names else []
                combined[name] = npu_combine_tensors(tensors)
            found.append(combined)
        self.combined_param_states_indexed_by_group[group_index] = found

    def _maybe_init_combined_states(self) -> None:
        if self.is_states_combined:
            return
        self.combined_param_states_indexed_by_group = [None] * len(self.param_groups)
        for index in range(len(self.param_groups)):
            self._combine_group_param_states(index)
        self.is_states_combined = any(each is not None for each in self.combined_param_states_indexed_by_group)

    def _group_step(self, group_index: int) -> None:
        group = self.param_groups[group_index]
        self._count(group)
        for param, grad, state in zip(
            self.combined_params_indexed_by_group[group_index],
            self.combined_grads_indexed_by_group[group_index],
            self.combined_param_states_indexed_by_group[group_index],
            strict=True,
        ):
            if param is not None and grad is not None:
                state["step"] += 1
                self._update(group, param, grad, state, group_index)

    def _count(self, group: Mapping[str, Any]) -> None:
        """Count the step of each parameter."""
        for p in group["params"]:
            if p.grad is not None:
                self._refuse_sparse(p.grad)
                self.state[p]["step"] += 1

    def _refuse_sparse(self, grad: torch.Tensor) -> None:
        if grad.is_sparse:
            raise RuntimeError(
                f"{type(self).__name__} does not support sparse gradients{self._INSTEAD}"
                + pta_error(ErrCode.NOT_SUPPORT)
            )
