"""LSTM in both directions, as two in one direction each.

Programs import `BiLSTM` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/bidirectional_lstm.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the
values.
"""

from __future__ import annotations

import torch
from torch import nn

from ._operators import deprecated

__all__ = ["BiLSTM"]


class BiLSTM(nn.Module):
    """LSTM of one layer in both directions. Deprecated: torch.nn.LSTM has `bidirectional`.

    Args:
        input_size: number of features.
        hidden_size: features of each direction.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        deprecated("BiLSTM")
        self.fw_rnn = nn.LSTM(input_size, hidden_size, bidirectional=False)
        self.bw_rnn = nn.LSTM(input_size, hidden_size, bidirectional=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Give the outputs of both directions.

        Args:
            inputs: [T, B, input_size].

        Returns:
            [T, B, 2 * hidden_size], the forward direction first.
        """
        forward, _ = self.fw_rnn(inputs)
        backward, _ = self.bw_rnn(inputs.flip(0))
        return torch.cat((forward, backward.flip(0)), 2)
