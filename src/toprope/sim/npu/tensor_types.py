"""Classes `torch.npu.FloatTensor` and others: a dtype on the card as a type, for `isinstance` and `Tensor.type`.

Tests: tests/sim/simulated/test_tensor_types.py.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch

from toprope.sim.npu._state import lazy_init

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]


@cache
def _warn_once() -> None:
    warnings.warn(
        "torch.npu.FloatTensor and its kin are an old way to make tensors; torch.tensor(data, dtype=..., device='npu')"
        " is the present one.",
        stacklevel=3,
    )


class _TensorType(type):
    """The type of these types. They have no instances of their own: calling one makes a torch.Tensor."""

    dtype: torch.dtype

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        # torch reads the full name from the type itself (Tensor.type), everybody else this one.
        return type.__dict__["__name__"].__get__(cls).rpartition(".")[2]  # type: ignore[no-any-return]

    @property
    def layout(cls) -> torch.layout:
        """torch.strided."""
        return torch.strided

    @property
    def is_npu(cls) -> bool:
        """True."""
        return True

    @property
    def is_sparse(cls) -> bool:
        """False."""
        return False

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        _warn_once()
        lazy_init()
        made: torch.Tensor = torch.empty(0, dtype=cls.dtype, device="npu").new(*args, **kwargs)
        return made

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "npu" and instance.dtype == cls.dtype

    def __getattr__(cls, name: str) -> Any:
        return getattr(torch.Tensor, name)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def _make(name: str, dtype: torch.dtype) -> _TensorType:
    namespace = {
        "__module__": "torch.npu",
        "__qualname__": name,
        "__doc__": f"{dtype} on an NPU.",
        "dtype": dtype,
    }
    made = _TensorType(f"torch.npu.{name}", (), namespace)
    torch._tensor_classes.add(made)  # type: ignore[arg-type]
    return made


BFloat16Tensor = _make("BFloat16Tensor", torch.bfloat16)
BoolTensor = _make("BoolTensor", torch.bool)
ByteTensor = _make("ByteTensor", torch.uint8)
CharTensor = _make("CharTensor", torch.int8)
DoubleTensor = _make("DoubleTensor", torch.float64)
FloatTensor = _make("FloatTensor", torch.float32)
HalfTensor = _make("HalfTensor", torch.float16)
IntTensor = _make("IntTensor", torch.int32)
LongTensor = _make("LongTensor", torch.int64)
ShortTensor = _make("ShortTensor", torch.int16)
