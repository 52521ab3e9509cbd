"""Sizes in bytes, read and printed by one rule: MB is 10^6 bytes, MiB is 2^20 bytes.

Tests: tests/base/test_sizes.py. The units are the SI's and the IEC's; the number of decimals shows in reports that
tests and pages compare.
"""

# For maintainers: used by every option and text with a size; tests/base/test_sizes.py.

from __future__ import annotations

import re
from fractions import Fraction

from toprope.errors import SizeError

__all__ = ["decimal", "gibibytes", "parse_size"]

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str | int, least: int = 1) -> int:
    """Bytes of "256MB", "1.5 GiB" or a plain number of bytes; no fewer than `least`.

    Raises:
        SizeError: the text is not a number with one of the known units, or is less than that.

    Example:
        >>> parse_size("1.5 GiB"), parse_size("256MB")
        (1610612736, 256000000)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _SIZE.fullmatch(str(text))
        if match is None or match[2].lower() not in _FACTORS:
            raise SizeError(
                f"{text!r} is not a size.",
                do="write a number with B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)",
            )
        size = int(Fraction(match[1]) * _FACTORS[match[2].lower()])
    if size < least:
        few = "one byte" if least == 1 else f"{least} bytes"
        raise SizeError(f"{text!r} is less than {few}.", do=f"give a size of at least {least}B")
    return size


def decimal(size: float) -> str:
    """A size in powers of 1000 with one decimal, as files and copies are reported: "11.3 MB".

    Example:
        >>> decimal(11_264_000)
        '11.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def gibibytes(size: float) -> str:
    """A size in powers of 1024 with one decimal, as device memory is reported: "39.3 MiB", "64.0 GiB".

    Example:
        >>> gibibytes(64 * 2**30)
        '64.0 GiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
