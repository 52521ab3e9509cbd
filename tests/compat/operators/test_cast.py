"""Casts between dtypes and their gradients.

Holds cast.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

ops = torch.ops.npu


def test_casts_copy(facade):
    x = torch.tensor([1.7, -2.5], requires_grad=True)
    half = ops._npu_dtype_cast(x, torch.float16)
    assert half.dtype == torch.float16
    half.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    same = ops._npu_dtype_cast(x.detach(), torch.float32)
    assert same.equal(x)
    assert same.data_ptr() != x.data_ptr()
    assert ops._npu_dtype_cast_backward(half.detach(), torch.float32).dtype == torch.float32
    assert ops.npu_dtype_cast_backward(half.detach(), torch.float32).dtype == torch.float32
    assert ops.npu_dtype_cast_backward(half.detach(), torch.float32, 5, 15).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"cannot be read as torch_npu\.float32"):
        ops.npu_dtype_cast_backward(half.detach(), torch.float32, 6)


def test_cast_into(facade):
    target = torch.zeros(2, 4)[:, ::2]
    source = torch.tensor([[1, 2], [3, 4]])
    assert ops.npu_dtype_cast_(target, source) is target
    assert target.tolist() == [[1, 2], [3, 4]]
    assert ops.npu_dtype_cast_(target, torch.zeros(2, 2)).tolist() == [[1, 2], [3, 4]]
