"""The dtypes of the dataflow API (`DT_FLOAT`, ...), and descriptions of tensors; pure.

Public names and numbers are fixed by CANN's dataflow API; all of `toprope.flow` reads them. Imports neither numpy nor
torch. Tests: tests/flow/test_flow_info.py, tests/flow/test_flow_tensor.py, tests/flow/test_serve_app.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toprope.flow.exceptions import DATATYPE_INVALID, SHAPE_INVALID, DfException

__all__ = [
    "DTYPES",
    "DT_BF16",
    "DT_BOOL",
    "DT_DOUBLE",
    "DT_FLOAT",
    "DT_FLOAT16",
    "DT_INT8",
    "DT_INT16",
    "DT_INT32",
    "DT_INT64",
    "DT_STRING",
    "DT_UINT8",
    "DT_UINT16",
    "DT_UINT32",
    "DT_UINT64",
    "DType",
    "TensorDesc",
    "numpy_type",
    "of_numpy",
    "of_torch",
]


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype of the dataflow API, with its names in numpy and torch.

    Attributes:
        name: "DT_FLOAT".
        value: its number in the vendor's enum.
        numpy: numpy's name; empty where numpy has none.
        torch: torch's name; empty where torch has none.
    """

    name: str
    value: int
    numpy: str
    torch: str

    def __repr__(self) -> str:
        return self.name


DT_FLOAT = DType("DT_FLOAT", 0, "float32", "float32")
DT_FLOAT16 = DType("DT_FLOAT16", 1, "float16", "float16")
DT_INT8 = DType("DT_INT8", 2, "int8", "int8")
DT_INT32 = DType("DT_INT32", 3, "int32", "int32")
DT_UINT8 = DType("DT_UINT8", 4, "uint8", "uint8")
DT_INT16 = DType("DT_INT16", 6, "int16", "int16")
DT_UINT16 = DType("DT_UINT16", 7, "uint16", "uint16")
DT_UINT32 = DType("DT_UINT32", 8, "uint32", "uint32")
DT_INT64 = DType("DT_INT64", 9, "int64", "int64")
DT_UINT64 = DType("DT_UINT64", 10, "uint64", "uint64")
DT_DOUBLE = DType("DT_DOUBLE", 11, "float64", "float64")
DT_BOOL = DType("DT_BOOL", 12, "bool", "bool")
DT_STRING = DType("DT_STRING", 13, "", "")
DT_BF16 = DType("DT_BF16", 27, "", "bfloat16")

DTYPES = (
    DT_FLOAT, DT_FLOAT16, DT_INT8, DT_INT32, DT_UINT8, DT_INT16, DT_UINT16, DT_UINT32, DT_INT64, DT_UINT64, DT_DOUBLE,
    DT_BOOL, DT_STRING, DT_BF16,
)  # fmt: skip
"""All of them, by number."""

_OF_NUMPY = {each.numpy: each for each in DTYPES if each.numpy}
_OF_TORCH = {each.torch: each for each in DTYPES if each.torch}


def numpy_type(dtype: DType) -> Any:
    """numpy's type of a dtype, as functions in stages see it: `numpy.int32`; None where numpy has none."""
    import numpy

    if dtype == DT_STRING:
        return numpy.bytes_
    return numpy.dtype(dtype.numpy).type if dtype.numpy else None


def of_numpy(name: str) -> DType:
    """The dtype of a numpy dtype's name; texts are DT_STRING.

    Raises:
        DfException: there is none (145022).
    """
    if name.startswith(("str", "bytes", "<U", "|S")):
        return DT_STRING
    found = _OF_NUMPY.get(name)
    if found is None:
        raise DfException(f"numpy's {name} is no dtype of a tensor", DATATYPE_INVALID)
    return found


def of_torch(name: str) -> DType:
    """The dtype of a torch dtype's name ("torch.float32").

    Raises:
        DfException: there is none (145022).
    """
    found = _OF_TORCH.get(name.removeprefix("torch."))
    if found is None:
        raise DfException(f"{name} is no dtype of a tensor", DATATYPE_INVALID)
    return found


class TensorDesc:
    """A dtype and a shape; a negative number of the shape stands for any.

    Raises:
        DfException: the dtype is none (145022), or the shape no list or tuple of ints (145021).
    """

    def __init__(self, dtype: DType, shape: Sequence[int]) -> None:
        if not isinstance(dtype, DType):
            raise DfException(f"dtype must be a DT_..., got {type(dtype).__name__}", DATATYPE_INVALID)
        if not isinstance(shape, list | tuple) or not all(type(each) is int for each in shape):
            raise DfException(f"shape must be a list or tuple of int, got {shape!r}", SHAPE_INVALID)
        self._dtype = dtype
        self._shape = list(shape)

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """The shape."""
        return self._shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorDesc) and (self._dtype, self._shape) == (other._dtype, other._shape)

    def __hash__(self) -> int:
        return hash((self._dtype, tuple(self._shape)))

    def __repr__(self) -> str:
        return f"TensorDesc(dtype={self._dtype!r}, shape={self._shape})"
