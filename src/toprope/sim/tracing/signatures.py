"""Reading of the operators that ran while a trace was written, with the shapes of their tensors; pure.

The layout is given by csrc/core/signatures.h.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from toprope.estimate.record.calls import OperatorCall, Role, TensorShape
from toprope.sim.dtypes import NUMBERS

__all__ = ["SIZE", "SUFFIX", "calls", "parse"]

SUFFIX = ".signatures"

_MAX_SIGNATURES, _MAX_TENSORS = 8192, 8
_HEADER = struct.Struct("<8sQ")
_SIGNATURE = struct.Struct("<HHI3Q")
_SHAPE = struct.Struct("<bBBB4xQ6q")
_SIGNATURE_SIZE = _SIGNATURE.size + _MAX_TENSORS * _SHAPE.size
SIZE = _HEADER.size + _MAX_SIGNATURES * (_SIGNATURE_SIZE + 8)
"""Bytes of all."""

_MAGIC = b"TRSIGNA\x01"
_ROLES: tuple[Role, ...] = ("read", "written", "result")
_DTYPES = {number: name for name, number in NUMBERS.items()}


def parse(data: bytes | memoryview, names: Sequence[str]) -> list[OperatorCall]:
    """The calls by their number, which records count from 1; none where the bytes are no signatures.

    Args:
        data: as the core writes them.
        names: names of operators by the index that signatures hold.
    """
    if len(data) < SIZE:
        return []
    magic, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return []
    return [_call(data, _HEADER.size + number * _SIGNATURE_SIZE, names) for number in range(count)]


def calls(data: bytes | memoryview) -> list[int]:
    """Return the calls of each signature, but for parts of composites."""
    count = len(parse(data, ()))
    start = _HEADER.size + _MAX_SIGNATURES * _SIGNATURE_SIZE
    return [struct.unpack_from("<Q", data, start + 8 * number)[0] for number in range(count)]


def _call(data: bytes | memoryview, start: int, names: Sequence[str]) -> OperatorCall:
    kind, tensors, _, operations, more_read, more_written = _SIGNATURE.unpack_from(data, start)
    start += _SIGNATURE.size
    shapes = tuple(_shape(data, start + place * _SHAPE.size) for place in range(tensors))
    name = names[kind] if kind < len(names) else ""
    return OperatorCall(name, shapes, operations, more_read, more_written)


def _shape(data: bytes | memoryview, start: int) -> TensorShape:
    dtype, dimensions, role, form, size, *sizes = _SHAPE.unpack_from(data, start)
    strided, cold = bool(form & 1), bool(form & 2)
    return TensorShape(_DTYPES.get(dtype, ""), tuple(sizes[:dimensions]), _ROLES[role], size, strided, cold)
