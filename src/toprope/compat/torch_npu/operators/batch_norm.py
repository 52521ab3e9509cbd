"""Batch statistics for batch normalisation across cards: batch_norm_reduce and batch_norm_gather_stats_update.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_optimizer_steps.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: the page of batch_norm_reduce and op_plugin/ops/opapi/BatchNorm*KernelNpuOpApi.cpp of Ascend/op-plugin;
experimental/norm/sync_batch_norm_gather_stats/docs of ops-nn.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating
from .registry import operator

__all__ = ["batch_norm_gather_stats_update", "batch_norm_reduce"]


def _channels(input: torch.Tensor) -> int:
    if input.dim() <= 1:
        raise RuntimeError("The dim input tensor [self] must more than 1." + ops_error(ErrCode.PARAM))
    return input.shape[1]


@operator("batch_norm_reduce")
def batch_norm_reduce(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and sum of squares of each channel.

    Args:
        input: [N, C, ...]; float16, bfloat16 or float32.
        eps: without effect.

    Returns:
        the sums over all axes but the second one, [C] in float32.

    Raises:
        RuntimeError: fewer than 2 dimensions, or another dtype.
    """
    _channels(input)
    floating("batch_norm_reduce", input=input)
    wide = input.to(torch.float32)
    axes = [axis for axis in range(input.dim()) if axis != 1]
    return wide.sum(axes), (wide * wide).sum(axes)


@operator("batch_norm_gather_stats_update")
def batch_norm_gather_stats_update(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Common mean and reciprocal standard deviation of batches on several cards.

    With n = sum(counts): mean = sum(sums) / n, var = sum(square sums) / n - mean^2, and 1 / sqrt(var + eps). The
    running mean becomes (1 - momentum) * running + momentum * mean; so does the running variance, with
    var * n / (n - 1).

    Args:
        input: [N, C, ...]; only its number of channels counts.
        mean: the sums of each card [cards, C], as batch_norm_reduce gives them.
        invstd: the sums of squares of each card [cards, C].
        running_mean: [C], changed in place; None for none.
        running_var: [C], changed in place; None for none.
        momentum: share of this batch in the running values.
        eps: added to the variance.
        counts: [cards], the number of values for each channel; whole numbers.

    Returns:
        the mean and the reciprocal standard deviation, [C] in the dtype of `mean`.

    Raises:
        RuntimeError: `input` has fewer than 2 dimensions, or the sums another dtype than the kernel's.
    """
    _channels(input)
    floating("batch_norm_gather_stats_update", sum=mean, square_sum=invstd)
    dtype = compute_dtype(mean)
    count = counts.to(torch.int32).sum().to(dtype)
    average = mean.to(dtype).sum(0) / count
    variance = invstd.to(dtype).sum(0) / count - average * average
    for running, value in ((running_mean, average), (running_var, variance * count / (count - 1))):
        if running is not None:
            running.copy_(running.to(dtype) * (1 - momentum) + value * momentum)
    return average.to(mean.dtype), (1 / (variance + eps).sqrt()).to(mean.dtype)
