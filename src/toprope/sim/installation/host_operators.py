"""Operators that run on the host in a release of torch_npu, in the form that the C++ core reads at every start.

installer.py passes the file to csrc/torch/host_operators.cpp, which must follow any change of the form (then raise
`_FORM`). The facts are support/operators_on_card.py. Tests: tests/sim/simulated/test_operators_on_host.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from toprope.chips import Chip
from toprope.sim.dtypes import bits
from toprope.sim.installation import documents
from toprope.support import operators_on_card
from toprope.support.operators_on_card import Release

__all__ = ["DISABLE", "lines", "ready", "refuses"]

DISABLE = "TORCH_NPU_FALLBACK_CPU_DISABLE"
"""torch_npu's variable that makes operators on the host an error, in releases that know it."""

_FORM = "1"


def refuses(release: Release) -> bool:
    """Return True if operators on the host are refused in this process."""
    return release.can_refuse and os.environ.get(DISABLE, "").strip() == "1"


def ready(folder: Path, release: Release, chip: Chip) -> AbstractContextManager[Path]:
    """The file for a release, from the folder of the build."""
    form = f"{_FORM} {release.branch} {chip.family}"
    name = f"host-operators-{release.branch.removesuffix('.whl')}"
    return documents.kept(folder, name, form, operators_on_card.FILE, lines(release, chip))


def lines(release: Release, chip: Chip) -> Iterator[str]:
    """The lines of the file: operator, the one that counts, dtypes as bits (0: all), whether a kernel is registered."""
    for name, found in operators_on_card.host_operators(release, chip.name):
        yield f"aten::{name}\t{found.operator}\t{bits(found.dtypes):x}\t{int(found.registered)}"
