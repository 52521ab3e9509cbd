"""Numbers and names that torch's C++ side (c10::ScalarType) gives to dtypes; pure.

The C++ core knows dtypes by these numbers: files for it, traces and counters use them. A dtype of a newer torch is
appended, in torch's order. Tests: tests/sim/test_documents.py, and tests/sim/simulated/test_trace.py on a card.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NUMBERS", "bits", "names", "scalar_name"]

_ORDER = """
uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 bfloat16
quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz
uint16 uint32 uint64 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 float8_e8m0fnu
float4_e2m1fn_x2
"""

NUMBERS = {name: number for number, name in enumerate(_ORDER.split())}
"""Number of each dtype by its name in torch."""

_SCALAR_NAMES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip

_NAMES = {number: name for name, number in NUMBERS.items()}


def bits(dtypes: Iterable[str]) -> int:
    """A set of dtypes, by name, as the bits of one number."""
    return sum(1 << NUMBERS[name] for name in set(dtypes))


def names(mask: int) -> tuple[str, ...]:
    """The dtypes whose bits are set."""
    return tuple(name for number, name in _NAMES.items() if mask >> number & 1)


def scalar_name(dtype: object) -> str:
    """Name of a dtype of torch in messages of C++: "Float" for torch.float32."""
    name = str(dtype).removeprefix("torch.")
    return _SCALAR_NAMES.get(name, name)
