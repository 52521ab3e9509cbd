"""Serialization of values between processes: pickles whose large buffers are in shared memory.

Sessions on this machine and `toprope.flow` use it; Ray has its own, which gets our reducers. Arrays and tensors of at
least `INLINE` bytes are copied into shared memory once and read there by every receiver; what a receiver writes to
them stays private (arrays are marked read-only). Pickles are only ever read from sockets that this session made
itself. Outside of us are pickle's protocol 5, cloudpickle's rule of what goes by value, and its private `_code_reduce`;
the rest is free, as both ends have the same version. Tests: tests/functions/test_functions_arena.py,
tests/functions/test_functions_objects.py.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import threading
import types
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

from toprope.functions.transport.arena import Arena, Block, Reader

__all__ = ["INLINE", "SIMPLE", "Packed", "dumps", "pack", "plain", "unpack"]

INLINE = 32 * 1024
"""Size from which a buffer goes through shared memory, in bytes."""

BlockKey = tuple[str, int, int]
"""A block as a message carries it: segment, offset, bytes."""

_NUMBERS = {int, float, bool, type(None), complex}
_TEXTS = {str, bytes}
_PLAIN = _NUMBERS | _TEXTS

SIMPLE: set[type] = set()
"""Further types that the fast pickler accepts: they define their own reduction."""


class Packed:
    """A value as messages carry it.

    Attributes:
        data: the pickle, None where it lies in the first block of `spec`.
        spec: for each buffer its block, None for one that is in `parts`.
        parts: the buffers that travel in the message.
        refs: references (`ObjectRef`) that the value contains.
    """

    __slots__ = ("data", "parts", "refs", "spec")

    def __init__(
        self,
        data: bytes | None,
        spec: tuple[BlockKey | None, ...] = (),
        parts: Sequence[bytes] = (),
        refs: Sequence[Any] = (),
    ) -> None:
        self.data = data
        self.spec = spec
        self.parts = parts
        self.refs = refs

    def blocks(self) -> list[BlockKey]:
        """The blocks that it needs."""
        return [key for key in self.spec if key is not None]


class _Local(threading.local):
    refs: list[Any] | None = None  # references found while pickling
    values: Sequence[Any] | None = None  # their values while unpickling
    own = False  # whether arrays that are unpickled may be written to


local = _Local()


_reducers: dict[type, Callable[[Any], Any]] = {}


class _Pickler(pickle.Pickler):
    dispatch_table: Any = ChainMap(_reducers, copyreg.dispatch_table)  # noqa: RUF012 - as the base class has it


def pack(value: Any, arena: Arena | None) -> Packed:
    """Serialize a value.

    Args:
        value: anything that pickle or cloudpickle can take.
        arena: where large buffers go; None keeps all in the message.

    Raises:
        Whatever pickling raises; YRRuntimeError where the object store is full.
    """
    data = plain(value)
    if data is not None:
        return Packed(data)
    value = _with_blobs(value)
    spec: list[BlockKey | None] = []
    parts: list[bytes] = []
    taken: list[Block] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        if arena is None or raw.nbytes < INLINE:
            spec.append(None)
            parts.append(bytes(raw))
        else:
            block, room = arena.new(raw.nbytes)
            taken.append(block)
            room[:] = raw
            spec.append((block.segment, block.offset, block.size))

    outer, local.refs = local.refs, []
    try:
        data = _dumps(value, keep)
        refs = local.refs
        if arena is not None and len(data) >= INLINE:
            block, room = arena.new(len(data))
            taken.append(block)
            room[:] = data
            return Packed(None, ((block.segment, block.offset, block.size), *spec), parts, refs)
        return Packed(data, tuple(spec), parts, refs)
    except BaseException:
        for block in taken:
            arena.free(block)  # type: ignore[union-attr]
        raise
    finally:
        local.refs = outer


class _Blob:
    """Bytes that are pickled as a buffer: inside of the pickle they would be copied once more."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self._data), (pickle.PickleBuffer(self._data),)


SIMPLE.add(_Blob)


def _with_blobs(value: Any) -> Any:
    """A value, or the arguments of a call, with large bytes in it as blobs; they arrive as the bytes they were."""
    if value.__class__ in (bytes, bytearray):
        return _Blob(value) if len(value) >= INLINE else value
    if value.__class__ is not tuple or len(value) != 2:
        return value
    arguments, keywords = value
    if arguments.__class__ is not tuple or keywords.__class__ is not dict:
        return value
    if not any(each.__class__ in (bytes, bytearray) for each in (*arguments, *keywords.values())):
        return value
    return tuple(map(_with_blobs, arguments)), {name: _with_blobs(each) for name, each in keywords.items()}


def plain(value: Any) -> bytes | None:
    """Return the pickle of a value that is only numbers or a short text, as most are; None for others."""
    kind = value.__class__
    if kind in _NUMBERS or (kind in _TEXTS and len(value) < INLINE) or (kind is tuple and _are_numbers(value)):
        return pickle.dumps(value, 5)
    return None


def _are_numbers(value: tuple[Any, ...]) -> bool:
    """True if these are arguments of a call that are all numbers, as in most calls."""
    if len(value) != 2 or value[0].__class__ is not tuple or value[1].__class__ is not dict or value[1]:
        return False
    return all(each.__class__ in _NUMBERS for each in value[0])


def unpack(
    data: bytes | None,
    spec: Sequence[BlockKey | None],
    parts: Sequence[bytes | bytearray],
    reader: Reader,
    release: Callable[[BlockKey], None],
    values: Sequence[Any] = (),
    *,
    own: bool = False,
) -> Any:
    """Deserialize the value of a message.

    Args:
        data, spec, parts: as `Packed` has them.
        reader: maps blocks.
        release: called with each block once it is not used here any more.
        values: what the references in it become.
        own: whether arrays may be written to, where their memory can be; else they are read-only.
    """
    if not spec and not values and data is not None:
        return pickle.loads(data)
    inline = iter(parts)
    buffers = [
        memoryview(next(inline)) if key is None else reader.view(Block(*key), functools.partial(release, key))
        for key in spec
    ]
    pickled = data if data is not None else buffers.pop(0)
    outer = local.values, local.own
    local.values, local.own = values, own
    try:
        return pickle.loads(pickled, buffers=buffers)
    finally:
        local.values, local.own = outer


def _dumps(value: Any, keep: Callable[[pickle.PickleBuffer], None]) -> bytes:
    _know_libraries()
    if _is_simple(value, 3):
        stream = io.BytesIO()
        _Pickler(stream, 5, buffer_callback=keep).dump(value)
        return stream.getvalue()
    return dumps(value, keep)


def dumps(value: Any, keep: Callable[[pickle.PickleBuffer], None] | None = None) -> bytes:
    """Pickle any object: by value if it is defined in the program's own file; tracebacks name that file.

    Args:
        value: what to pickle.
        keep: takes large buffers; None leaves them in the pickle.
    """
    stream = io.BytesIO()
    _by_value()(stream, 5, buffer_callback=keep).dump(value)
    return stream.getvalue()


@functools.cache
def _by_value() -> Any:
    """cloudpickle's pickler with our reducers, which it looks up in its class only."""
    import cloudpickle

    table = ChainMap({types.CodeType: _reduce_code}, _reducers, cloudpickle.Pickler.dispatch_table)
    return type("ByValue", (cloudpickle.Pickler,), {"dispatch_table": table})


def _reduce_code(code: types.CodeType) -> Any:
    from cloudpickle.cloudpickle import _code_reduce

    make, parts = _code_reduce(code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def _is_simple(value: Any, depth: int) -> bool:
    """True if a value contains nothing that needs cloudpickle, such as a class of the program's own file."""
    kind = value.__class__
    if kind in _PLAIN or kind in _reducers or kind in SIMPLE:
        return True
    if depth and kind in (tuple, list) and len(value) <= 16:
        return all(_is_simple(each, depth - 1) for each in value)
    if depth and kind is dict and len(value) <= 16:
        return all(each_kind.__class__ in _PLAIN and _is_simple(each, depth - 1) for each_kind, each in value.items())
    return False


def _know_libraries() -> None:
    """Register the reducers of arrays and tensors once their libraries are loaded; imports nothing."""
    table = _reducers
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and (array := getattr(numpy, "ndarray", None)) is not None and array not in table:
        table[array] = _reduce_array
    if torch is not None and (tensor := getattr(torch, "Tensor", None)) is not None and tensor not in table:
        parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
        if parameter is not None:
            table[tensor] = table[parameter] = _reduce_tensor


def _reduce_array(array: Any) -> Any:
    if array.dtype.hasobject or array.nbytes < INLINE:
        return array.__reduce_ex__(5)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy()
    order = "C" if array.flags.c_contiguous else "F"
    # as bytes: times and the types of other packages have no buffers of their own
    raw = array.reshape(-1, order=order).view("u1")
    dtype = array.dtype.str if array.dtype.kind in "biufcSUmM" else array.dtype
    return _array, (pickle.PickleBuffer(raw), dtype, array.shape, order)


def _array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    import numpy

    array = numpy.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
    array.flags.writeable = local.own and array.flags.writeable
    return array


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
    if not plain or (tensor.requires_grad and not tensor.is_leaf):
        return tensor.__reduce_ex__(5)
    kind = "parameter" if type(tensor) is torch.nn.Parameter else "tensor"
    with torch.no_grad():
        host = tensor.detach().to("cpu").contiguous()
    raw = host.reshape(-1).view(torch.uint8) if host.numel() else host
    bytes_ = raw.numpy() if host.numel() else b""
    where = "" if tensor.device.type == "cpu" else str(tensor.device)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _tensor, (pickle.PickleBuffer(bytes_), dtype, tuple(tensor.shape), where, tensor.requires_grad, kind)


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...], where: str, requires_grad: bool, kind: str) -> Any:
    import torch

    of = getattr(torch, dtype)
    view = memoryview(buffer)
    if not view.nbytes:
        tensor = torch.empty(shape, dtype=of)
    else:
        # what came in the message itself is read-only bytes
        tensor = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=of).reshape(shape)
    if where:
        tensor = tensor.to(where)
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
