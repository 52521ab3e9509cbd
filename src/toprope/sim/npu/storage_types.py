"""Classes `torch.npu.FloatStorage` and others: the elements of a dtype in one block of a card's memory.

Tests: tests/sim/simulated/test_tensor_types.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import _LegacyStorage

from toprope.sim.npu._state import NOT_SUPPORTED, lazy_init, message

__all__ = [
    "BFloat16Storage",
    "BoolStorage",
    "ByteStorage",
    "CharStorage",
    "DoubleStorage",
    "FloatStorage",
    "HalfStorage",
    "IntStorage",
    "LongStorage",
    "ShortStorage",
]


def _unavailable(name: str) -> RuntimeError:
    return RuntimeError(message(f"{name}: Not available for NPU storage", NOT_SUPPORTED))


class _NPUStorage(_LegacyStorage):
    """A torch.TypedStorage on the current card; torch keeps these types for programs of its first releases."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        lazy_init()
        return super().__new__(cls, *args, **kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Any:
        """Refused: a buffer of the host is not on a card.

        Raises:
            RuntimeError: always.
        """
        raise _unavailable("from_buffer")

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> Any:
        raise _unavailable("_new_with_weak_ptr")

    @classmethod
    def _new_shared_filename(cls, *args: Any, **kwargs: Any) -> Any:
        raise _unavailable("_new_shared_filename")


def _make(name: str, dtype: torch.dtype) -> type[_NPUStorage]:
    namespace = {
        "__module__": "torch.npu",
        "__doc__": f"Elements of {dtype} on an NPU.",
        "dtype": dtype,
        "_dtype": dtype,
    }
    kind: Any = type(_NPUStorage)
    made: type[_NPUStorage] = kind(name, (_NPUStorage,), namespace)
    torch._storage_classes.add(made)
    return made


BFloat16Storage = _make("BFloat16Storage", torch.bfloat16)
BoolStorage = _make("BoolStorage", torch.bool)
ByteStorage = _make("ByteStorage", torch.uint8)
CharStorage = _make("CharStorage", torch.int8)
DoubleStorage = _make("DoubleStorage", torch.float64)
FloatStorage = _make("FloatStorage", torch.float32)
HalfStorage = _make("HalfStorage", torch.float16)
IntStorage = _make("IntStorage", torch.int32)
LongStorage = _make("LongStorage", torch.int64)
ShortStorage = _make("ShortStorage", torch.int16)
