"""Dtypes that a chip's kernels refuse, by operator, with the vendor's error text; pure, from refusals.toml.

The simulated card raises the same error (sim/installation/documents.py gives the table to C++); port and cli report by
it. Every row has a public source; a pair without a row runs, and counts as assumed. The texts are the vendor's, to the
letter. Nothing here imports torch, and the file is read when it is first asked. Tests: tests/support/test_refusals.py;
page: docs/refusals.md (`refusals_page`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from toprope.chips import Chip

__all__ = ["DTYPES", "Operand", "Refusal", "Row", "known", "refusal", "rows", "table"]

FILE = Path(__file__).with_name("refusals.toml")

CODE = 161002
"""Status that aclnn returns for a dtype or shape that it does not take."""

SENTENCE = "Tensor {parameter} not implemented for {dtype}, should be in dtype support list {list}."
"""CANN's error text for rows that have none of their own."""

TOO_MANY_DIMENSIONS = "The {parameter} tensor cannot be larger than {most} dimensions."
"""CANN's error text for a tensor with more dimensions than its kernel takes."""

VENDOR_NAMES = {
    "float64": "DT_DOUBLE",
    "float32": "DT_FLOAT",
    "float16": "DT_FLOAT16",
    "bfloat16": "DT_BFLOAT16",
    "complex128": "DT_COMPLEX128",
    "complex64": "DT_COMPLEX64",
    "complex32": "DT_COMPLEX32",
    "int64": "DT_INT64",
    "int32": "DT_INT32",
    "int16": "DT_INT16",
    "int8": "DT_INT8",
    "uint8": "DT_UINT8",
    "bool": "DT_BOOL",
    "uint64": "DT_UINT64",
    "uint32": "DT_UINT32",
    "uint16": "DT_UINT16",
    "float8_e5m2": "DT_FLOAT8_E5M2",
    "float8_e4m3fn": "DT_FLOAT8_E4M3FN",
    "float8_e8m0fnu": "DT_FLOAT8_E8M0",
    "float4_e2m1fn_x2": "DT_FLOAT4_E2M1",
}
"""torch's dtypes and CANN's names for them, as torch_npu pairs them."""

DTYPES = tuple(name for name in VENDOR_NAMES if name != "float4_e2m1fn_x2")
"""The dtypes that are decided: all but the one that holds two values in a byte (float4_e2m1fn_x2)."""


@dataclass(frozen=True)
class Operand:
    """An argument of an operator that the vendor checks: a tensor, or the dtype of the result."""

    position: int
    """Position in torch's schema of the operator, from 0."""

    parameter: str
    """The vendor's name for it."""


@dataclass(frozen=True)
class Row:
    """One table of refusals.toml, for one family of chips."""

    operators: tuple[str, ...]
    """Operators of torch; "aten::silu.*" is every overload of aten::silu."""

    kernel: str
    inplace: str
    """The aclnn interface for operators that end in "_"; the same as `kernel` for most."""

    operands: tuple[Operand, ...]
    """In the vendor's order."""

    dimensions: int
    """The most dimensions that each operand may have; 0 where the source says nothing of them."""

    supported: tuple[str, ...]
    """Dtypes that the vendor's error text lists, in its order; empty if it lists none."""

    refused: frozenset[str]
    """dtypes that are refused; empty where all that is decided is taken."""

    sentence: str
    soc: str
    """The vendor's name of the family in its sentences."""

    source: str
    """Address of the public file that says so."""

    seen: str
    """Address of a public thread in which a user met it; empty when none is known."""

    def decides(self, dtype: str) -> bool:
        """Return True if the source says that this dtype is refused, or that it is taken."""
        return dtype in self.refused or dtype in self.supported

    def kernel_of(self, operator: str) -> str:
        """The aclnn interface that torch_npu calls for one of the operators."""
        return self.inplace if operator.partition(".")[0].endswith("_") else self.kernel


@dataclass(frozen=True)
class Refusal:
    """An operator, a dtype and a chip that do not go together."""

    operator: str
    dtype: str
    operand: Operand
    chip: str
    row: Row

    @property
    def kernel(self) -> str:
        """The aclnn interface that refuses."""
        return self.row.kernel_of(self.operator)

    @property
    def source(self) -> str:
        """Address of the public file that says so."""
        return self.row.source

    @property
    def message(self) -> str:
        """The vendor's sentence alone."""
        listed = "".join(f"{VENDOR_NAMES.get(name, f'DT_{name}')}," for name in self.row.supported)
        return self.row.sentence.format(
            parameter=self.operand.parameter, dtype=VENDOR_NAMES[self.dtype], list=f"[{listed}]", soc=self.row.soc
        )

    @property
    def text(self) -> str:
        """Text of the RuntimeError that a program sees, without times and process numbers."""
        return self._text("", "")

    def stamped(self, when: datetime, pid: int, device: int, rank: int = -1) -> str:
        """The same with the time, the process, the logical device and the rank, where torch_npu prints them."""
        second, milli, micro = f"{when:%Y-%m-%d-%H:%M:%S}", when.microsecond // 1000, when.microsecond % 1000
        return self._text(
            f"{second} (PID:{pid}, Device:{device}, RankID:{rank}) ",
            f"[PID: {pid}] {second}.{milli:03}.{micro:03} ",
        )

    def _text(self, host: str, library: str) -> str:
        function = self.operator.partition("::")[2].partition(".")[0]
        return (
            f"{function}: NPU function error: call {self.kernel} failed, error code is {CODE}\n"
            f"[ERROR] {host}ERR00100 PTA call acl api failed.\n"
            f"{library}AclNN_Parameter_Error(EZ1001): {self.message}"
        )


def refusal(operator: str, dtypes: Sequence[str | Sequence[str] | None], chip: Chip) -> Refusal | None:
    """Return the chip's refusal of an operator with operands of these dtypes; None if no source says that it refuses.

    Args:
        operator: torch's name with its overload: "aten::repeat_interleave.self_int".
        dtypes: for each argument of the schema its dtype ("float64" or "torch.float64"), None for what is no tensor on
            the card (numbers, tensors of the CPU, missing ones), a sequence for a list of tensors. An argument that is
            the dtype of the result is that dtype. May be shorter.
        chip: the chip, from `toprope.chips`.
    """
    for row in _by_operator(chip.family).get(_key(operator, chip.family), ()):
        for operand in row.operands:
            given = dtypes[operand.position] if operand.position < len(dtypes) else None
            names = [given] if isinstance(given, str) else list(given or ())
            for name in names:
                dtype = name.removeprefix("torch.")
                if dtype in row.refused:
                    return Refusal(operator, dtype, operand, chip.name, row)
    return None


def table(chip: Chip) -> dict[str, dict[int, frozenset[str]]]:
    """Every documented operator of a chip with the refused dtypes by the position of the argument.

    The keys are as in the data: "aten::silu.*" is every overload of aten::silu, and none has a key of its own then.
    A set is empty where a source says that all is taken.
    """
    found: dict[str, dict[int, frozenset[str]]] = {}
    for operator, of_operator in _by_operator(chip.family).items():
        found[operator] = {operand.position: row.refused for row in of_operator for operand in row.operands}
    return found


def known(operator: str, chip: Chip, dtype: str | None = None) -> bool:
    """Return True if a source says which dtypes this chip's kernel takes; otherwise the operator is assumed to run.

    Args:
        operator: torch's name with its overload.
        chip: the chip.
        dtype: with it, whether that dtype is decided for every argument that is checked.
    """
    found = _by_operator(chip.family).get(_key(operator, chip.family), ())
    return bool(found) and (dtype is None or all(row.decides(dtype.removeprefix("torch.")) for row in found))


def rows(chip: Chip) -> tuple[Row, ...]:
    """All rows that hold for a chip, in the order of the file."""
    return _rows(chip.family)


def _key(operator: str, family: str) -> str:
    """Key of an operator in the table: its own name, or the name that covers all its overloads."""
    every = f"{operator.partition('.')[0]}.*"
    return every if every in _by_operator(family) else operator


@functools.cache
def _by_operator(family: str) -> Mapping[str, tuple[Row, ...]]:
    found: dict[str, tuple[Row, ...]] = {}
    for row in _rows(family):
        for operator in row.operators:
            found[operator] = (*found.get(operator, ()), row)
    return found


@functools.cache
def _rows(family: str) -> tuple[Row, ...]:
    data = _data()
    short = {table["family"]: name for name, table in data["families"].items()}.get(family)
    if short is None:
        return ()
    read = (_row(entry, short, data) for entry in data["row"])
    return tuple(row for row in read if row is not None)


def _row(entry: Mapping[str, Any], short: str, data: Mapping[str, Any]) -> Row | None:
    """The row for one family; None when the entry says nothing of it."""
    supported, sentence = _of(entry.get("supported"), short), _of(entry.get("texts"), short)
    if supported is None and sentence is None:
        return None
    family, (source, _, path) = data["families"][short], entry["source"].partition("/")
    decided = set(family.get("decided", " ".join(DTYPES)).split())
    only = _of(entry.get("refused"), short)
    refused = decided - set((supported or "").split()) if only is None else decided & set(only.split())
    return Row(
        operators=tuple(entry["operators"].split()),
        kernel=entry["kernel"],
        inplace=entry.get("inplace", entry["kernel"]),
        operands=tuple(
            Operand(int(position), name) for position, name in re.findall(r"(\d+)=(\S+)", entry["operands"])
        ),
        dimensions=0 if "decided" in family else entry.get("dimensions", 0),
        supported=tuple((supported or "").split()),
        refused=frozenset(refused - set(entry.get("disputed", "").split())),
        sentence=sentence or SENTENCE,
        soc=family["soc"],
        source=data["sources"][source]["url"] + path,
        seen=entry.get("seen", ""),
    )


def _of(by_families: Mapping[str, str] | None, short: str) -> str | None:
    """The value whose key names the family: {"910B 910C": ...}."""
    return next((value for key, value in (by_families or {}).items() if short in key.split()), None)


@functools.cache
def _data() -> Mapping[str, Any]:
    import tomllib  # not needed by those who only import

    with FILE.open("rb") as file:
        return tomllib.load(file)
