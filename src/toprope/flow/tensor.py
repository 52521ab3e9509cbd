"""Tensors of the dataflow API on the host: an array with a description.

For users (`Tensor`, `alloc_tensor`); stages and the service use it for tensors that are not torch's. Methods, refusals
and alignments are those of CANN's dataflow API. `Tensor.over` is toprope's own and copies nothing. Tests:
tests/flow/test_flow_tensor.py, tests/flow/test_serve_app.py.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from toprope.flow.data_type import DT_STRING, DTYPES, DType, TensorDesc, numpy_type, of_numpy
from toprope.flow.exceptions import DATATYPE_INVALID, SHAPE_INVALID, SUCCESS, UDF_PARAM_INVALID, DfException
from toprope.flow.func_log import logger

if TYPE_CHECKING:
    import numpy

__all__ = ["Tensor", "alloc_tensor"]

_ALIGNMENTS = (32, 64, 128, 256, 512, 1024)


class Tensor:
    """A tensor on the host: an array of numpy with a dtype and a shape of the dataflow API.

    Args:
        data: a number, a list, an array or a Tensor; it is copied.
        tensor_desc: dtype and shape; data of another dtype are cast, with a warning. A negative number in
            its shape stands for any.

    Raises:
        DfException: another shape (145021), a dtype that tensors do not have (145022), or an array whose elements do
            not lie side by side (145000).
        ValueError: the elements cannot be cast.
    """

    __slots__ = ("_array",)

    def __init__(self, data: Any, *, tensor_desc: TensorDesc | None = None) -> None:
        if tensor_desc is not None and not isinstance(tensor_desc, TensorDesc):
            raise DfException(f"tensor_desc must be a TensorDesc, got {type(tensor_desc).__name__}")
        self._array = _fitted(_array(data), tensor_desc)

    @classmethod
    def over(cls, array: numpy.ndarray[Any, Any]) -> Tensor:
        """The tensor that lies over an array, without a copy."""
        tensor = cls.__new__(cls)
        tensor._array = array
        return tensor

    @property
    def tensor_desc(self) -> TensorDesc:
        """Dtype and shape."""
        return TensorDesc(of_numpy(self._array.dtype.name), self.get_shape())

    def numpy(self, copy: bool = False) -> numpy.ndarray[Any, Any]:
        """Its elements.

        Args:
            copy: whether they are copied; else the array lies over the tensor's own memory. One that came from
                another process is read-only then.

        Raises:
            DfException: the elements are texts and no copy is asked for.
        """
        if copy:
            return self._array.copy()
        if self._array.dtype.kind == "S":
            raise DfException("a tensor of texts can only be copied: numpy(copy=True)")
        return self._array

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._array.shape)

    def get_data_type(self) -> Any:
        """Its dtype as numpy's type, such as `numpy.int32`; `tensor_desc.dtype` is the DT_... of it."""
        return numpy_type(of_numpy(self._array.dtype.name))

    def get_data_size(self) -> int:
        """Its size in bytes."""
        return int(self._array.nbytes)

    def get_element_cnt(self) -> int:
        """Number of elements."""
        return int(self._array.size)

    def reshape(self, shape: list[int] | tuple[int, ...]) -> int:
        """Give it another shape of as many elements.

        Returns:
            0; 164000 where the shape has another number of elements, which the log says.
        """
        try:
            self._array = self._array.reshape(shape)
        except (TypeError, ValueError) as error:
            logger.error("a tensor of shape %s cannot have the shape %r: %s", self.get_shape(), shape, error)
            return UDF_PARAM_INVALID
        return SUCCESS

    def __repr__(self) -> str:
        return f"Tensor({self._array!r}, tensor_desc={self.tensor_desc!r})"


def _array(data: Any) -> numpy.ndarray[Any, Any]:
    """A new array of the data.

    Raises:
        DfException: it is none of a dtype that tensors have, or does not lie side by side.
    """
    import numpy

    if isinstance(data, Tensor):
        return data.numpy(copy=True)
    if isinstance(data, numpy.ndarray) and not data.flags.c_contiguous:
        raise DfException("the elements of an array must lie side by side (C-contiguous)")
    try:
        array = numpy.array(data)
    except Exception as error:  # also what __array__ of other libraries raises
        raise DfException(f"no tensor can be made of it: {error}", DATATYPE_INVALID) from error
    if array.dtype.kind == "U":
        try:
            return numpy.char.encode(array, "ascii")
        except UnicodeEncodeError as error:
            raise DfException(f"texts in a tensor must be ASCII: {error}", DATATYPE_INVALID) from error
    of_numpy(array.dtype.name)
    return array


def _fitted(array: numpy.ndarray[Any, Any], desc: TensorDesc | None) -> numpy.ndarray[Any, Any]:
    if desc is None:
        return array
    wanted = desc.shape
    if len(wanted) != array.ndim or any(
        side not in (size, -1) and side >= 0 for side, size in zip(wanted, array.shape, strict=True)
    ):
        raise DfException(f"the shape must be {wanted}, it is {list(array.shape)}", SHAPE_INVALID)
    found = of_numpy(array.dtype.name)
    if found == desc.dtype:
        return array
    name = desc.dtype.numpy
    if desc.dtype == DT_STRING:
        name = "bytes"
    elif not name:
        raise DfException(f"numpy has no {desc.dtype!r}", DATATYPE_INVALID)
    warnings.warn(f"a tensor of {found!r} is cast to {desc.dtype!r}", stacklevel=3)
    return array.astype(name)


def alloc_tensor(shape: list[int] | tuple[int, ...], dtype: Any, align: int = 64) -> Tensor:
    """A tensor of zeros whose memory is aligned.

    Args:
        shape: its shape.
        dtype: a DT_... or a numpy type.
        align: bytes: 32, 64, 128, 256, 512 or 1024.

    Raises:
        TypeError: the dtype is none of these.
        DfException: the shape or the alignment cannot be, or tensors do not have this dtype.
    """
    import numpy

    if align not in _ALIGNMENTS:
        raise DfException(f"align must be one of {', '.join(map(str, _ALIGNMENTS))}, got {align!r}")
    if isinstance(dtype, DType):
        if not dtype.numpy:
            raise DfException(f"a tensor of {dtype!r} cannot be allocated", DATATYPE_INVALID)
        kind = numpy.dtype(dtype.numpy)
    else:
        try:
            kind = numpy.dtype(dtype)
        except TypeError as error:
            raise TypeError(f"dtype must be a DT_... or a numpy type, got {dtype!r}") from error
        if dtype is None or not any(each.numpy == kind.name for each in DTYPES):
            raise TypeError(f"dtype must be a DT_... or a numpy type, got {dtype!r}")
    if not isinstance(shape, list | tuple) or not all(type(each) is int and each >= 0 for each in shape):
        raise DfException(f"shape must be a list or tuple of int of at least 0, got {shape!r}", SHAPE_INVALID)
    size = kind.itemsize
    for each in shape:
        size *= each
    raw = numpy.zeros(size + align, dtype="u1")
    begin = -raw.ctypes.data % align
    return Tensor.over(raw[begin : begin + size].view(kind).reshape(shape))
