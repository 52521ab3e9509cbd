"""Check of a matrix product by its row sums: torch_npu.matmul_checksum.

A plain function of the torch_npu facade, no operator in torch.ops. Name, arguments, threshold and result are
torch_npu's: torch_npu-matmul_checksum.md of Ascend/op-plugin and torch_npu/asd/checksum.py of Ascend/pytorch. Tests:
tests/sim/simulated/test_npu_matmul.py.
"""

from __future__ import annotations

import math

import torch

from .._error_codes import ErrCode, pta_error

__all__ = ["matmul_checksum"]

_BFLOAT16_STEP = 2**-8
_MARGIN = 5
_SMALLEST = _MARGIN * 1e-20


def matmul_checksum(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Test whether a matrix product on the card is wrong, as hardware faults make it.

    The row sums of c are compared with a @ (row sums of b), with a limit that grows with the values of c. Where a row
    is beyond it, the product is computed again into c and compared with the former.

    Args:
        a: first matrix, on the card; bfloat16.
        b: second matrix.
        c: their product; written where it seems to be wrong.

    Returns:
        a bool without dimensions, on the card: True for a fault.

    Raises:
        TypeError: an argument is not a tensor on the card.
    """
    for tensor in (a, b, c):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "npu":
            text = "tensor should be torch.Tensor, and device type should be npu"
            raise TypeError(text + pta_error(ErrCode.PARAM))
    sums = c.sum(dim=-1, dtype=torch.float32)
    expected = torch.matmul(a.to(torch.float32), b.sum(dim=-1, keepdim=True, dtype=torch.float32)).squeeze(-1)
    largest, mean = c.abs().amax(dim=-1), c.abs().mean(dim=-1)
    columns = b.shape[-1]
    if (largest / mean).min() > _MARGIN:
        limit = largest * _BFLOAT16_STEP * math.sqrt(columns)
    else:
        limit = mean * _BFLOAT16_STEP * columns
    wrong = ((sums - expected).abs() - _MARGIN * limit.to(torch.float32) > _SMALLEST).any()
    if not wrong:
        return wrong
    torch.matmul(a, b, out=c)
    return (mean != c.abs().mean(dim=-1)).any()
