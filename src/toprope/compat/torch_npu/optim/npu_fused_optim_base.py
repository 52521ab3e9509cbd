"""Base of the fused optimizers: parameters and gradients of one dtype lie one behind the other in one tensor.

Each optimizer of this folder extends it, and programs may; so its attributes, methods and errors are those of
torch_npu/optim/npu_fused_optim_base.py of Ascend/pytorch. The tensors are combined by utils/combine_tensors.py, and a
parameter must stay a view of the whole. Tests: tests/compat/test_torch_npu_optim.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from .._error_codes import ErrCode, pta_error
from ..operators.formats import format_of, npu_format_cast
from ..operators.storage import get_storage_size
from ..utils.combine_tensors import get_part_combined_tensor, npu_combine_tensors

__all__ = ["NpuFusedOptimizerBase"]

_DTYPES = (torch.float32, torch.float16)
_Optional = torch.Tensor | None


class NpuFusedOptimizerBase(Optimizer):
    """Optimizer over combined tensors. Every list by dtype has float32 first and float16 second.

    The parameters must be on the card. They move at the first call of `step`, `zero_grad` or `clip_grad_norm_fused_`
    for which gradients are there, and those without a gradient then are left out from there on.

    Args:
        params: parameters, or dicts that define groups of them.
        default: options of groups that do not have their own.

    Attributes:
        is_fused_optimizer: True.
        is_params_grads_combined: whether the parameters have moved.
        is_states_combined: whether the states have.
        params_all_group_combined: all parameters, by dtype; None where there are none.
        grads_all_group_combined: all gradients, by dtype.
        params_lists_indexed_by_group: parameters of a group, by dtype.
        combined_params_indexed_by_group: combined parameters of a group, by dtype.
        combined_grads_indexed_by_group: combined gradients of a group, by dtype.
        combined_param_states_indexed_by_group: combined states of a group, by dtype.
    """

    def __init__(self, params: Any, default: dict[str, Any]) -> None:
        super().__init__(params, default)
        self.combined_params_indexed_by_group: Any = None
        self.combined_grads_indexed_by_group: Any = None
        self.combined_param_states_indexed_by_group: Any = None
        self.params_lists_indexed_by_group: list[Any] = []
        self.params_all_group: list[list[torch.Tensor]] = [[], []]
        self.params_all_group_combined: list[_Optional] = [None, None]
        self.grads_all_group_combined: list[_Optional] = [None, None]
        self.combined_grads_masks: list[_Optional] = []
        self.is_params_grads_combined = False
        self.is_states_combined = False
        self.is_grads_masks_combined = False
        self.is_fused_optimizer = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Args:
            closure: gives the loss. It runs without gradients, as torch_npu runs it: it cannot call `backward`.

        Returns:
            the loss; None without a closure.
        """
        loss = None if closure is None else closure()
        self._combine_all()
        for index in range(len(self.param_groups)):
            self._group_step(index)
        return loss

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set the gradients to 0. They stay allocated, since they are one tensor.

        Raises:
            ValueError: `set_to_none` is true.
        """
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers" + pta_error(ErrCode.VALUE))
        self._maybe_init_combined_params_and_grads()
        if not self.is_params_grads_combined:
            super().zero_grad(set_to_none)
            return
        for grads in self.grads_all_group_combined:
            if grads is not None:
                grads.zero_()

    def get_combined_params(self) -> list[_Optional]:
        """All parameters, by dtype."""
        return self.params_all_group_combined

    def get_combined_grads(self) -> list[_Optional]:
        """All gradients, by dtype."""
        return self.grads_all_group_combined

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale all gradients so that their common norm is at most `max_norm`.

        Args:
            max_norm: the largest norm.
            norm_type: p of the norm; may be infinity.

        Returns:
            the norm before.
        """
        with torch.no_grad():
            self._maybe_init_combined_params_and_grads()
        if not self.is_grads_masks_combined:
            self._maybe_init_combined_grads_masks()
        return self._clip_grad_norm_fused_(
            self.get_combined_grads(), self._get_combined_grad_masks(), max_norm, norm_type
        )

    def _combine_all(self) -> None:
        self._maybe_init_combined_params_and_grads()
        if not self.is_states_combined:
            self._maybe_init_combined_states()

    def _maybe_init_combined_states(self) -> None:
        raise NotImplementedError(pta_error(ErrCode.NOT_SUPPORT))

    def _group_step(self, group_index: int) -> None:
        raise NotImplementedError(pta_error(ErrCode.NOT_SUPPORT))

    def _maybe_init_combined_params_and_grads(self) -> None:
        if self.is_params_grads_combined:
            return
        by_group = [self._by_dtype(group["params"]) for group in self.param_groups]
        self.params_lists_indexed_by_group = by_group
        self.params_all_group = [[p for group in by_group for p in group[index]] for index in range(len(_DTYPES))]
        grads = [[p.grad for p in params] for params in self.params_all_group]
        self.params_all_group_combined = [npu_combine_tensors(params) for params in self.params_all_group]
        self.grads_all_group_combined = [npu_combine_tensors(each) for each in grads]
        self.combined_params_indexed_by_group = self._parts_by_group(self.params_all_group_combined, _itself)
        self.combined_grads_indexed_by_group = self._parts_by_group(self.grads_all_group_combined, _grad_of)
        self.is_params_grads_combined = any(each is not None for each in self.params_all_group_combined)

    def _by_dtype(self, params: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Parameters that have a gradient, by dtype; the gradient gets the parameter's storage format."""
        found: list[list[torch.Tensor]] = [[] for _ in _DTYPES]
        for p in params:
            if p.grad is None:
                continue
            if p.dtype not in _DTYPES:
                raise TypeError(
                    f"Fused optimizer's parameters must be either float32 or float16, but received {p.dtype}"
                    + pta_error(ErrCode.TYPE)
                )
            if p.device.type == "npu" and format_of(p) != format_of(p.grad):
                p.grad = npu_format_cast(p.grad, format_of(p)).contiguous()
            found[_DTYPES.index(p.dtype)].append(p)
        return found

    def _parts_by_group(
        self, combined: list[_Optional], of: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[list[_Optional]]:
        """Share of each group in the combined tensors, by dtype."""
        starts, found = [0] * len(_DTYPES), []
        for lists in self.params_lists_indexed_by_group:
            parts = []
            for index, params in enumerate(lists):
                size = sum(get_storage_size(of(p)) for p in params)
                parts.append(get_part_combined_tensor(combined[index], starts[index], size))
                starts[index] += size
            found.append(parts)
        return found

    def _combine_grads_mask(self, list_of_params: Sequence[torch.Tensor]) -> _Optional:
        """Ones where a combined gradient has values: formats of the card may leave gaps in it."""
        masks = [torch.ones_like(p.grad, dtype=torch.float32) for p in list_of_params if p.grad is not None]
        return npu_combine_tensors(masks) if list_of_params else None

    def _maybe_init_combined_grads_masks(self) -> None:
        if not self.is_params_grads_combined:
            raise ValueError("Value of param 'is_params_grads_combined' must be True" + pta_error(ErrCode.VALUE))
        with torch.no_grad():
            self.combined_grads_masks = [self._combine_grads_mask(params) for params in self.params_all_group]
        self.is_grads_masks_combined = True

    def _get_combined_grad_masks(self) -> list[_Optional]:
        return self.combined_grads_masks

    def _clip_grad_norm_fused_(
        self,
        combined_grads: Sequence[_Optional],
        combined_grads_masks: Sequence[_Optional],
        max_norm: float,
        norm_type: float,
    ) -> torch.Tensor:
        if len(combined_grads) != len(combined_grads_masks):
            raise ValueError(
                "Length of combined_grads and combined_grads_masks must be equal." + pta_error(ErrCode.VALUE)
            )
        order = float(norm_type)
        sizes = [
            grad.float().abs() * mask if math.isinf(order) else grad.float().abs().pow(order) * mask
            for grad, mask in zip(combined_grads, combined_grads_masks, strict=True)
            if grad is not None and mask is not None
        ]
        if not sizes:
            return torch.tensor(0.0)
        if math.isinf(order):
            total = torch.stack([size.max() for size in sizes]).max()
        else:
            total = torch.stack([size.sum() for size in sizes]).sum().pow(1 / order)
        factor = float(max_norm) / (total + 1e-6)
        if factor < 1:
            for grad in combined_grads:
                if grad is not None:
                    grad.mul_(factor)
        return total


def _itself(p: torch.Tensor) -> torch.Tensor:
    return p


def _grad_of(p: torch.Tensor) -> torch.Tensor:
    assert p.grad is not None
    return p.grad
