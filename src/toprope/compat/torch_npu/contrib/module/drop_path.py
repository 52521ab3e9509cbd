"""Drop path (stochastic depth) whose random numbers are drawn before the model runs.

Programs import `NpuDropPath` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/drop_path.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from ..._error_codes import ErrCode, ops_error
from ._operators import npu

__all__ = ["NpuDropPath"]


class _DropPathTask:
    """Numbers that inputs of one shape ask for in a forward pass."""

    def __init__(self, shape: Any, device: Any, dtype: Any, ndim: int, drop_prob: float) -> None:
        self.shape = shape
        self.device = device
        self.dtype = dtype
        self.ndim = ndim
        self.drop_prob = drop_prob
        self.request_count = 0
        self.rand_queue: list[torch.Tensor] = []


class NpuDropPath(nn.Module):
    """Drop whole samples in training. Shapes must not change.

    The first forward pass only counts what is asked for: it drops nothing, and neither does a pass without
    `enable_droppath_ensemble`.

    Args:
        drop_prob: probability that a sample is dropped.
    """

    task_dict: ClassVar[dict[Any, _DropPathTask]] = {}
    droppath_stream: ClassVar[Any] = None

    def __init__(self, drop_prob: Any = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob
        self.keep_prob = 1 - drop_prob

    def forward(self, x: Any) -> Any:
        """Drop samples of a tensor [N, ...].

        Raises:
            RuntimeError: it is no tensor.
        """
        if self.drop_prob == 0.0 or not self.training:
            return x
        if not isinstance(x, torch.Tensor):
            raise RuntimeError("input type error!" + ops_error(ErrCode.TYPE))
        key = (x.shape, x.device, x.dtype, x.ndim)
        task = NpuDropPath.task_dict.get(key)
        if task is None:
            task = NpuDropPath.task_dict[key] = _DropPathTask(x.shape, x.device, x.dtype, x.ndim, self.drop_prob)
        if not task.rand_queue:
            task.request_count += 1
            return x
        return x.div(self.keep_prob) * (task.rand_queue.pop(0) + self.keep_prob).floor()

    @classmethod
    def enable_droppath_ensemble(cls, model: nn.Module) -> None:
        """Draw the numbers on a stream of its own before each forward pass of a model."""
        if cls.droppath_stream is None:
            cls.droppath_stream = npu().Stream()

        def wait(module: nn.Module, inputs: Any) -> None:
            npu().current_stream().wait_stream(cls.droppath_stream)

        def draw(module: nn.Module, inputs: Any) -> None:
            with npu().stream(cls.droppath_stream), torch.no_grad():
                for task in cls.task_dict.values():
                    shape = (task.shape[0],) + (1,) * (task.ndim - 1)
                    for _ in range(task.request_count - len(task.rand_queue)):
                        task.rand_queue.append(torch.rand(shape, dtype=task.dtype, device=task.device))

        model.register_forward_pre_hook(wait)
        model.register_forward_pre_hook(draw)
