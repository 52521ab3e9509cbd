"""Gradient scaler for FSDP on cards, in the place of torch's, as torch_npu has it.

distributed/registration.py puts it there when torch's FSDP is imported. Tests: tests/sim/test_distributed.py, with
cases of tests/helpers/distributed_training.py.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import sharded_grad_scaler

__all__: list[str] = []


class _ShardedGradScaler(sharded_grad_scaler.ShardedGradScaler):
    """torch's `ShardedGradScaler`, whose device is `npu` where none is named.

    torch's default is `cuda`: without a GPU it warns, and scales nothing from then on.
    Source: Ascend/pytorch, `torch_npu/npu/amp/sharded_grad_scaler.py`.

    Args:
        device: type of the device whose gradients are scaled.
        init_scale, backoff_factor, growth_factor, growth_interval, enabled: as in `torch.amp.GradScaler`.
        process_group: the group whose processes have parts of the parameters.
    """

    def __init__(
        self,
        device: str = "npu",
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: Any = dist.group.WORLD,
    ) -> None:
        super().__init__(device, init_scale, backoff_factor, growth_factor, growth_interval, enabled, process_group)
