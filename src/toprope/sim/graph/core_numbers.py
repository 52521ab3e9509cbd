"""Numbers of cores as the graph engine (GE) reads them from text: form, range, and GE's error E10001; pure.

Used by ge.py and lowering.py. Source of the rules: hicann/ge, register/core_num_utils (2026-08). Tests:
tests/sim/test_graph_scopes.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["OPTION", "VECTOR_OPTION", "CoreNumberError", "Cores", "from_option", "number"]

OPTION = "ge.aicoreNum"
"""The global option, "24|48"; after it was split, its part for cube cores."""

VECTOR_OPTION = "ge.vectorcoreNum"
"""The part for vector cores."""

_NO_DIVISION = "Invalid format for ge.aicoreNum: {}. Expected format: aicore_num|vectorcore_num."
_INT32 = 2**31


class CoreNumberError(ValueError):
    """A text that is not an acceptable number of cores; its own text is the one of E10001."""

    def __init__(self, parameter: str, value: str, reason: str) -> None:
        super().__init__(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


@dataclass(frozen=True)
class Cores:
    """Numbers of cores; None where the kind is not limited."""

    cube: int | None = None
    vector: int | None = None


def number(parameter: str, value: str, most: int) -> int | None:
    """The number of cores that an operator's attribute says; None for 0, which is as if it were not set.

    Args:
        parameter: the attribute or option, for the error's text.
        value: what it says.
        most: cores of the chip.

    Raises:
        CoreNumberError: it is no plain decimal number, or out of range.
    """
    read = _integer(parameter, value)
    if not 0 <= read <= most:
        raise CoreNumberError(parameter, value, f"It is out of range, value must be in range (0, {most}].")
    return read or None


def from_option(text: str, most: Cores, *, clamps: bool) -> tuple[Cores, str]:
    """The limits of the global option "cube|vector".

    Args:
        text: the option; a part that is empty limits nothing. Without the division mark all of it is about cube cores.
        most: cores of the chip.
        clamps: whether a number over the chip's cores counts as all of them (CANN before 9) or is an error.

    Returns:
        The numbers, and a warning; "" where there is nothing to warn of.

    Raises:
        CoreNumberError: as for `number`.
    """
    cube, mark, vector = text.partition("|")
    warning = "" if mark or not text else _NO_DIVISION.format(text)
    return (
        Cores(
            _part(OPTION, cube, most.cube or 0, clamps=clamps),
            _part(VECTOR_OPTION, vector, most.vector or 0, clamps=clamps),
        ),
        warning,
    )


def _part(parameter: str, value: str, most: int, *, clamps: bool) -> int | None:
    if not value:
        return None
    read = _integer(parameter, value)
    return most if clamps and read > most else number(parameter, value, most)


def _integer(parameter: str, value: str) -> int:
    """Read as C's functions do, which stop at the first character that is no digit; then all must have been read."""
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", value)
    if found is None or not -_INT32 <= int(found[1]) < _INT32:
        raise CoreNumberError(parameter, value, "It is not integer.")
    if str(int(found[1])) != value:
        raise CoreNumberError(
            parameter,
            value,
            "Invalid integer format: only non-negative decimal digits are allowed (no leading zeros, spaces, or mixed"
            " characters).",
        )
    return int(found[1])
