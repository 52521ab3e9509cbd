"""Table of refused dtypes (support/refusals.toml) for one chip, in the form that the C++ core reads at every start.

installer.py passes the file to csrc/core/documents.cpp, which must follow any change of the form (then raise `_FORM`).
Reading refusals.toml takes tens of milliseconds; the core's form takes one. It is made once for a chip and kept next to
the build. Tests: tests/sim/test_documents.py.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from toprope.chips import Chip
from toprope.sim.dtypes import NUMBERS, bits
from toprope.support import refusals
from toprope.whole_file import writing_whole

__all__ = ["kept", "lines", "ready"]

_FORM = "2"
_PLACE_OF_DTYPE = "\x01"


def ready(folder: Path, chip: Chip) -> AbstractContextManager[Path]:
    """The file for a chip, from the folder of the build."""
    return kept(folder, f"documents-{chip.name}", f"{_FORM} {chip.family}", refusals.FILE, lines(chip))


@contextmanager
def kept(folder: Path, name: str, form: str, source: Path, text: Iterable[str]) -> Iterator[Path]:
    """File of the core's form of a source, kept in a folder from its first use on.

    A folder that this user may not write, as a shared cache's, costs a file of its own at every start.

    Args:
        folder: the folder of the build.
        name: beginning of the file's name.
        form: the form of the text, which with the source's size and time makes the rest of the name.
        source: the file that it is made from.
        text: its lines; read only where the file is made.
    """
    facts = source.stat()
    stamp = hashlib.sha256(f"{form} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:12]
    path = folder / f"{name}-{stamp}.tsv"
    if not path.exists():
        if not os.access(folder, os.W_OK):
            with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in text)
                file.flush()
                yield Path(file.name)
            return
        with writing_whole(path) as file:
            file.writelines(f"{line}\n".encode() for line in text)
    yield path


def lines(chip: Chip) -> Iterator[str]:
    """The lines of the file: the vendor's names of dtypes, then the rules for each argument that the vendor checks."""
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
                if row.dimensions:
                    larger = refusals.TOO_MANY_DIMENSIONS.format(parameter=operand.parameter, most=row.dimensions)
                    yield f"dimensions\t{operator}\t{operand.position}\t{row.dimensions}\t{larger}"
