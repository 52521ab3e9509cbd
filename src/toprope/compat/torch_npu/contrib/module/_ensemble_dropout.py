"""Dropout whose masks are cut from one large mask for each probability.

Programs import `NpuPreGenDropout` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/_ensemble_dropout.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the
values.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from ..._error_codes import ErrCode, ops_error
from ._operators import npu, operator
from .ensemble_dropout import described

__all__: list[str] = []

_MEBIBIT = 1024 * 1024


class _PreGenDropoutTask:
    """Mask for one probability.

    Attributes:
        device: where it is.
        p: the probability.
        mask: its bits, in bytes.
        idx: first byte that is not used yet.
        max_mb: its size in Mibit.
    """

    def __init__(self, device: Any, p: float) -> None:
        self.device = device
        self.p = p
        self.mask: Any = None
        self.idx = 0
        self.max_mb = 16

    def draw(self) -> None:
        """Draw a new mask."""
        size = [self.max_mb, 1024, 1024]
        self.mask = operator("npu_dropout_gen_mask")(size, p=self.p, dtype=torch.float32, device=self.device)


class NpuPreGenDropout(nn.Dropout):
    """Dropout with masks that `enable_dropout_ensemble` and each forward pass of its model draw at once.

    Args:
        p: probability that an element is set to 0.
        module_name: name of the model; without effect.
    """

    prob: ClassVar[set[float]] = set()
    task_dict: ClassVar[dict[float, _PreGenDropoutTask]] = {}
    dropout_stream: ClassVar[Any] = None

    def __init__(self, p: float, module_name: str | None = None) -> None:
        super().__init__(p)
        self.module_name = module_name
        NpuPreGenDropout.prob.add(p)

    def forward(self, x: Any) -> Any:
        """Drop elements of a tensor.

        Args:
            x: a tensor, or a list [shape, dtype, device].

        Returns:
            the tensor after dropout; for a list the mask.

        Raises:
            RuntimeError: `x` is neither, or there is no mask of this probability.
        """
        shape, _, _ = described(x)
        given = x if isinstance(x, torch.Tensor) else None
        if self.p == 0:
            return given
        tasks = NpuPreGenDropout.task_dict
        if self.p not in tasks:
            known = f"NpuPreGenDropout input prob error! You Only Register prob:{tasks.keys()}"
            raise RuntimeError(known + ops_error(ErrCode.VALUE))
        task = tasks[self.p]
        length = -(-math.prod(shape) // 128) * 128 // 8
        end = task.idx + length
        mask = task.mask[task.idx : end]
        if given is None:
            return mask
        task.idx = end
        if end > len(task.mask):
            task.max_mb = max(end * 8 // _MEBIBIT + 1, task.max_mb)
            mask = task.mask[:length]
        return operator("npu_dropout_do_mask")(given, mask, self.p)[0]

    @classmethod
    def enable_dropout_ensemble(cls, model: nn.Module) -> None:
        """Draw a mask for each probability now and after each forward pass of a model."""
        if cls.dropout_stream is None:
            cls.dropout_stream = npu().Stream()
        device = f"npu:{npu().current_device()}"
        for p in cls.prob:
            cls.task_dict[p] = _PreGenDropoutTask(device, p)
            cls.task_dict[p].draw()

        def wait(module: nn.Module, inputs: Any) -> None:
            npu().current_stream().wait_stream(cls.dropout_stream)

        def draw(module: nn.Module, inputs: Any, outputs: Any) -> None:
            for task in cls.task_dict.values():
                task.draw()
                task.idx = 0

        model.register_forward_pre_hook(wait)
        model.register_forward_hook(draw)
