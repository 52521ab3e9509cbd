"""Cross entropy with label smoothing over npu_one_hot and npu_softmax_cross_entropy_with_logits.

Programs import `LabelSmoothingCrossEntropy` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/crossentropy.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import torch
from torch import nn

from ._operators import operator

__all__ = ["LabelSmoothingCrossEntropy"]


class LabelSmoothingCrossEntropy(nn.Module):
    """Mean cross entropy against 1 - smooth_factor for the label and smooth_factor / (num_classes - 1) for the others.

    Args:
        num_classes: number of classes that the smoothing is spread over.
        smooth_factor: share of the label that the others get.
    """

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.on_value = 1.0 - smooth_factor
        self.off_value = 1.0 * smooth_factor / (num_classes - 1)

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Give the loss.

        Args:
            pred: logits [N, classes].
            target: labels [N].

        Returns:
            the mean over N, in float32.
        """
        labels = operator("npu_one_hot")(target.int(), -1, pred.size(1), self.on_value, self.off_value)
        loss = operator("npu_softmax_cross_entropy_with_logits")(pred, labels)
        return torch.mean(loss, [0], keepdim=False, dtype=torch.float32)
