"""Operators that ran while a trace was written, with the shapes of their tensors, read from the core's file; pure.

tracer.py joins them to the records. The layout is `struct Signatures` of csrc/core/signatures.h (see layouts.py), whose
roles and bits of a form are in the same order. Tests: tests/sim/simulated/test_timing.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from toprope.estimate.record.calls import OperatorCall, Role, TensorShape
from toprope.sim import layouts
from toprope.sim.dtypes import NUMBERS

__all__ = ["SIZE", "SUFFIX", "calls", "parse"]

SUFFIX = ".signatures"

SIZE = ctypes.sizeof(layouts.Signatures)
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
    kept = _kept(data)
    return [] if kept is None else [_call(one, names) for one in kept.signatures[: kept.count]]


def calls(data: bytes | memoryview) -> list[int]:
    """Return the calls of each signature, but for parts of composites."""
    kept = _kept(data)
    return [] if kept is None else kept.calls[: kept.count]


def _kept(data: bytes | memoryview) -> layouts.Signatures | None:
    if len(data) < SIZE or data[: len(_MAGIC)] != _MAGIC:
        return None
    return layouts.Signatures.from_buffer_copy(data)


def _call(signature: layouts.Signature, names: Sequence[str]) -> OperatorCall:
    name = names[signature.kind] if signature.kind < len(names) else ""
    shapes = tuple(map(_shape, signature.shapes[: signature.tensors]))
    return OperatorCall(name, shapes, signature.operations, signature.more_read, signature.more_written)


def _shape(tensor: layouts.TensorShape) -> TensorShape:
    return TensorShape(
        _DTYPES.get(tensor.dtype, ""), tuple(tensor.sizes[: tensor.dimensions]), _ROLES[tensor.role], tensor.bytes,
        bool(tensor.form & 1), bool(tensor.form & 2),
    )  # fmt: skip
