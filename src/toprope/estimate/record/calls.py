"""`OperatorCall`: a call of an operator with the dtypes and shapes of its tensors; pure.

Recorder, traces, profiles and costs.py all use this form. Names of operators and dtypes are torch's, in the order of
its schemas, results last: costs.py relies on the order. Tests: tests/estimate/test_costs.py,
tests/estimate/test_paper.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Literal

__all__ = ["BITS", "OperatorCall", "TensorShape", "item_bits"]

Role = Literal["read", "written", "result"]
"""Use of a tensor by an operator: it reads it, writes it (and reads it first, where it adds), or makes it."""

BITS = {"bool": 8, "complex32": 32, "complex64": 64, "complex128": 128, "float4_e2m1fn_x2": 8}
"""Bits of an element, of dtypes whose names do not say it."""

_NUMBER = re.compile(r"\d+")


def item_bits(dtype: str) -> int:
    """Bits of an element of a dtype, by torch's name of it ("bfloat16", "int4")."""
    if dtype in BITS:
        return BITS[dtype]
    found = _NUMBER.search(dtype)
    return int(found[0]) if found else 32


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor of a call.

    Attributes:
        dtype: torch's name, such as "bfloat16".
        sizes: its shape.
        role: "read", "written" (also where it is read first), or "result" for a new one.
        bytes: what it takes in memory; fewer than the shape says where it is expanded.
        strided: whether its elements do not lie one after the other, as after a transpose.
        cold: whether it is read, and was not touched for so long that the level-2 cache does not hold it any more.
    """

    dtype: str
    sizes: tuple[int, ...]
    role: Role = "read"
    bytes: int = -1
    strided: bool = False
    cold: bool = False

    def __post_init__(self) -> None:
        if self.bytes < 0:
            object.__setattr__(self, "bytes", self.elements * item_bits(self.dtype) // 8)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.sizes)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator.

    Attributes:
        name: "aten::mm", "npu::npu_fusion_attention".
        tensors: its tensors in the order of the schema, results last.
        operations: multiplications and additions, where the shapes do not say it; 0 elsewhere.
        more_read, more_written: bytes of further tensors, of which no shape is kept.
    """

    name: str
    tensors: tuple[TensorShape, ...]
    operations: int = 0
    more_read: int = 0
    more_written: int = 0

    @property
    def base(self) -> str:
        """The name without its namespace, and without the mark of an in-place operator: "add" of "aten::add_"."""
        return self.name.rpartition("::")[2].partition(".")[0].rstrip("_")

    def of(self, *roles: Role) -> tuple[TensorShape, ...]:
        """The tensors of these roles."""
        return tuple(each for each in self.tensors if each.role in roles)
