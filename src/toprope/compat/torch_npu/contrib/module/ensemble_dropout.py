"""Dropout whose masks are drawn after the model has run, for its next pass.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/ensemble_dropout.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from ..._error_codes import ErrCode, ops_error
from ._operators import npu, operator

__all__ = ["NpuCachedDropout", "NpuFairseqDropout"]


class _DropOutTask:
    """Masks that inputs of one shape ask for in a forward pass."""

    def __init__(self, shape: Any, dtype: Any, device: Any, p: float) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.p = p
        self.request_count = 0
        self.mask_queue: list[tuple[Any, Any]] = []


def described(x: Any) -> tuple[Any, Any, Any]:
    """Shape, dtype and device of what a dropout is called with: a tensor, or a list of the three.

    Raises:
        RuntimeError: it is neither.
    """
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype, x.device
    if isinstance(x, list):
        shape, dtype, device = x
        return shape, dtype, device
    raise RuntimeError("input type error!" + ops_error(ErrCode.TYPE))


class NpuCachedDropout(nn.Dropout):
    """Dropout with masks of the pass before. Shapes must not change.

    The first pass only counts what is asked for: it drops nothing.

    Args:
        p: probability that an element is set to 0.
        module_name: name of the model; without effect.
    """

    task_dict: ClassVar[dict[Any, _DropOutTask]] = {}
    dropout_stream: ClassVar[Any] = None

    def __init__(self, p: float, module_name: str | None = None) -> None:
        super().__init__(p)
        self.module_name = module_name

    def forward(self, x: Any) -> Any:
        """Drop elements of a tensor.

        Args:
            x: a tensor, or a list [shape, dtype, device].

        Returns:
            the tensor after dropout; for a list the mask, or None where there is none.

        Raises:
            RuntimeError: `x` is neither.
        """
        shape, dtype, device = described(x)
        given = x if isinstance(x, torch.Tensor) else None
        if self.p == 0:
            return given
        key = (shape, dtype, device, self.p)
        tasks = NpuCachedDropout.task_dict
        if key not in tasks:
            tasks[key] = _DropOutTask(shape, dtype, device, self.p)
        if not tasks[key].mask_queue:
            tasks[key].request_count += 1
            return given
        mask, _ = tasks[key].mask_queue.pop(0)
        return mask if given is None else operator("npu_dropout_do_mask")(given, mask, self.p)[0]

    @classmethod
    def enable_dropout_ensemble(cls, model: nn.Module) -> None:
        """Draw the masks after each forward pass of a model."""
        if cls.dropout_stream is None:
            cls.dropout_stream = npu().Stream()

        def wait(module: nn.Module, inputs: Any) -> None:
            npu().current_stream().wait_stream(cls.dropout_stream)

        def draw(module: nn.Module, inputs: Any, outputs: Any) -> None:
            for task in cls.task_dict.values():
                for _ in range(task.request_count - len(task.mask_queue)):
                    mask = operator("npu_dropout_gen_mask")(task.shape, p=task.p, dtype=task.dtype, device=task.device)
                    task.mask_queue.append((mask, None))

        model.register_forward_pre_hook(wait)
        model.register_forward_hook(draw)


NpuFairseqDropout = NpuCachedDropout
