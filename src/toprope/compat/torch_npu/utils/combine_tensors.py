"""Facade module: tensors laid one behind the other in the memory of one, as the fused optimizers need them.

Names and errors are torch_npu's. A tensor must keep its values and become a view of the whole. Tests:
tests/compat/test_torch_npu_utils.py, tests/compat/test_torch_npu_optim.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._error_codes import ErrCode, pta_error
from ..operators.storage import get_storage_size, npu_change_data_ptr

__all__ = ["get_part_combined_tensor", "is_combined_tensor_valid", "npu_combine_tensors"]


def npu_combine_tensors(list_of_tensor: Sequence[Any], require_copy_value: bool = True) -> torch.Tensor | None:
    """Move tensors into the memory of a new one, one behind the other.

    Args:
        list_of_tensor: contiguous tensors on the card, of one dtype: float16, bfloat16 or float32.
        require_copy_value: whether they keep their values; else they are 0.

    Returns:
        The new tensor, of one dimension; None where there is nothing to move.

    Raises:
        RuntimeError: a tensor is None or not as above.
    """
    if len(list_of_tensor) == 0:
        return None
    if any(tensor is None for tensor in list_of_tensor):
        raise RuntimeError("Tensors to combine must not have `None`." + pta_error(ErrCode.PARAM))
    dtype = list_of_tensor[0].dtype
    for tensor in list_of_tensor:
        if tensor.dtype != dtype:
            raise RuntimeError("Tensors to combine must have the same dtype." + pta_error(ErrCode.TYPE))
        if tensor.device.type != "npu":
            device = tensor.device.type
            raise RuntimeError(f"Tensors to combine must be on NPU, got {device}." + pta_error(ErrCode.VALUE))
        if not tensor.is_contiguous():
            raise RuntimeError("Tensors to combine must be contiguous." + pta_error(ErrCode.VALUE))
    total = sum(get_storage_size(tensor) for tensor in list_of_tensor)
    if total == 0:
        return None
    combined = torch.zeros(total, dtype=dtype, device=list_of_tensor[0].device)
    index = 0
    for tensor in list_of_tensor:
        values = tensor.detach().clone() if require_copy_value else None
        npu_change_data_ptr(tensor, combined, index)
        if values is not None:
            tensor.detach().copy_(values)
        index += get_storage_size(tensor)
    return combined


def get_part_combined_tensor(combined_tensor: torch.Tensor | None, index: int, size: int) -> torch.Tensor | None:
    """Tensor of one dimension in the memory of a combined one.

    Args:
        combined_tensor: of `npu_combine_tensors`.
        index: first element.
        size: number of elements.

    Returns:
        The tensor; None where there is no combined one, or the size is 0.

    Raises:
        RuntimeError: the combined tensor ends before.
    """
    if combined_tensor is None or size == 0:
        return None
    if index + size > get_storage_size(combined_tensor):
        total = get_storage_size(combined_tensor)
        raise RuntimeError(
            f"(index + size) ({index + size}) > torch_npu.get_storage_size(combined_tensor) ({total})"
            + pta_error(ErrCode.VALUE)
        )
    part = torch.zeros(size, dtype=combined_tensor.dtype, device=combined_tensor.device)
    npu_change_data_ptr(part, combined_tensor, index)
    return part


def is_combined_tensor_valid(combined_tensor: torch.Tensor | None, list_of_tensor: Sequence[Any]) -> bool:
    """Return True if all tensors are contiguous and begin in the memory of the combined one."""
    if len(list_of_tensor) == 0:
        return True
    if combined_tensor is None:
        return False
    start = combined_tensor.data_ptr()
    end = start + get_storage_size(combined_tensor) * combined_tensor.element_size()
    return all(
        tensor is not None and start <= tensor.data_ptr() < end and tensor.is_contiguous() for tensor in list_of_tensor
    )
