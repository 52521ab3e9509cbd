"""Batch normalisation whose counter of batches is an int32.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/_batchnorm_with_int32_count.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds
the values.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase as _TorchNormBase

from ..._error_codes import ErrCode, ops_error

__all__: list[str] = []


class _NormBase(_TorchNormBase):
    """torch's parameters and buffers, with `num_batches_tracked` as int32."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked = self.num_batches_tracked.int()


class _BatchNorm(_NormBase):
    """Batch normalisation of any number of dimensions."""

    _DIMS: tuple[int, ...] = ()

    def _check_input_dim(self, input1: torch.Tensor) -> None:
        if self._DIMS and input1.dim() not in self._DIMS:
            expected = " or ".join(f"{count}D" for count in self._DIMS)
            raise ValueError(f"expected {expected} input1 (got {input1.dim()}D input1)" + ops_error(ErrCode.VALUE))

    def forward(self, input1: torch.Tensor) -> torch.Tensor:
        """Normalise [N, C, ...].

        Raises:
            ValueError: another number of dimensions.
        """
        self._check_input_dim(input1)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked = self.num_batches_tracked + 1
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        kept = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if kept else (None, None)
        return functional.batch_norm(input1, mean, var, self.weight, self.bias, by_batch, factor, self.eps)


class FastBatchNorm1d(_BatchNorm):
    """torch.nn.BatchNorm1d with an int32 counter."""

    _DIMS = (2, 3)


class FastBatchNorm2d(_BatchNorm):
    """torch.nn.BatchNorm2d with an int32 counter."""

    _DIMS = (4,)


class FastBatchNorm3d(_BatchNorm):
    """torch.nn.BatchNorm3d with an int32 counter."""

    _DIMS = (5,)


class FastSyncBatchNorm(_BatchNorm):
    """Batch normalisation across cards. It cannot be made: torch_npu's own passes arguments its base does not take."""

    def __init__(self, num_features: int, *arguments: Any, **keywords: Any) -> None:
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise TypeError(
            "_BatchNorm.__init__() got an unexpected keyword argument 'device': torch_npu's FastSyncBatchNorm always "
            "fails so; use torch.nn.SyncBatchNorm."
        )

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Give a model with torch.nn.SyncBatchNorm for its layers of batch normalisation.

        Args:
            module: a model.
            process_group: of the new layers.
        """
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        converted: nn.Module = convert(module, process_group)
        return converted
