"""The vendor's documents about operators and dtypes, in the form that the C++ core reads at every start.

Reading refusals.toml takes tens of milliseconds; the core's form takes one. It is made once for a chip and kept beside
the build.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toprope.chips import Chip
from toprope.sim import refusals
from toprope.sim.dtypes import NUMBERS, bits

__all__ = ["ensure", "lines"]

_FORM = "1"
_PLACE_OF_DTYPE = "\x01"


def ensure(folder: Path, chip: Chip) -> Path:
    """The file for a chip in the folder of the build, made now where there is none."""
    facts = refusals.FILE.stat()
    stamp = hashlib.sha256(f"{_FORM} {chip.family} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:12]
    path = folder / f"documents-{chip.name}-{stamp}.tsv"
    if not path.exists():
        handle, aside = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(chip))
        os.replace(aside, path)
    return path


def lines(chip: Chip) -> Iterator[str]:
    """The lines of the file: the vendor's names of dtypes, then a rule for each argument that the vendor checks."""
    for dtype, name in refusals.VENDOR_NAMES.items():
        yield f"dtype\t{NUMBERS[dtype]}\t{name}"
    for row in refusals.rows(chip):
        listed = "".join(f"{refusals.VENDOR_NAMES.get(name, f'DT_{name}')}," for name in row.supported)
        refused = bits(row.refused)
        known = bits(dtype for dtype in refusals.DTYPES if row.decides(dtype))
        for operator in row.operators:
            for operand in row.operands:
                sentence = row.sentence.format(
                    parameter=operand.parameter, dtype=_PLACE_OF_DTYPE, list=f"[{listed}]", soc=row.soc
                )
                kernel = row.kernel_of(operator)
                yield f"rule\t{operator}\t{operand.position}\t{refused:x}\t{known:x}\t{kernel}\t{sentence}"
