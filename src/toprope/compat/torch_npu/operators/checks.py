"""Checks of arguments for the operators of the torch_npu facade: a kernel's refusal is one clear RuntimeError here.

Used by nearly all modules of this folder. A refusal is also counted for the run's report (sim/metrics), so it goes
through `refuse`. The rules are those of the operators' published documents (op-plugin, ops-nn and ops-transformer of
CANN); where the document and the tiling code differ, the tiling code is followed, since it is what runs. Words are
free, but an error begins with the operator's name. Tests: tests/compat/test_torch_npu_facade.py, and each operator's
own.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from toprope.sim.metrics.counters import Lack
from toprope.sim.metrics.python_errors import note

__all__ = ["FLOATING", "compute_dtype", "even_axis", "floating", "refuse", "same_dtype"]

FLOATING = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes that the fused kernels take; float64 is not among them."""


def refuse(operator: str, reason: str, dtype: torch.dtype | None = None) -> NoReturn:
    """Raise the error of an operator that does not take its arguments.

    Args:
        operator: name of the operator, such as "npu_swiglu".
        reason: what is wrong and what the kernel takes instead.
        dtype: that is refused, for the list of what a program lacks.

    Raises:
        RuntimeError: always.
    """
    text = f"{operator}: {reason}"
    note(Lack.REFUSED, f"npu::{operator}", text, None if dtype is None else str(dtype).removeprefix("torch."))
    raise RuntimeError(text)


def floating(operator: str, **tensors: torch.Tensor | None) -> None:
    """Refuse tensors whose dtype is none of FLOATING; None stands for an argument that was left out."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATING:
            refuse(operator, f"{name} is {tensor.dtype}; the kernel takes float16, bfloat16 and float32", tensor.dtype)


def same_dtype(operator: str, **tensors: torch.Tensor | None) -> None:
    """Refuse tensors that do not all have one dtype; None stands for an argument that was left out."""
    found = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    if len(set(found.values())) > 1:
        text = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        refuse(operator, f"its inputs must have one dtype, but got {text}")


def even_axis(operator: str, tensor: torch.Tensor, dim: int) -> int:
    """Refuse an axis that is not there or cannot be halved.

    Returns:
        the axis, counted from the front.
    """
    dims = tensor.dim()
    if not 1 <= dims <= 8:
        refuse(operator, f"the input has {dims} dimensions; the kernel takes 1 to 8")
    if not -dims <= dim < dims:
        refuse(operator, f"dim {dim} is out of range for {dims} dimensions, [{-dims}, {dims - 1}]")
    axis = dim % dims
    if tensor.shape[axis] % 2:
        refuse(operator, f"axis {dim} has {tensor.shape[axis]} elements, an odd number, and cannot be halved")
    return axis


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Dtype in which the operators compute: float32, as the kernels do inside, or float64 for float64 input."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
