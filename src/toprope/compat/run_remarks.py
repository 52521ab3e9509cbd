"""Remarks on a program for the report of its `toprope run`: one file each in the run's folder.

Facades call `note` in the program's processes; cli/run.py calls `read` at the end of the run. A remark is translated
where it is read, so it travels as `messages.pack` makes it; a program must not fail for a remark. Tests:
tests/compat/test_run_remarks.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from toprope.messages import pack, unpack

__all__ = ["note", "read"]

_SUFFIX = ".note"


def note(key: str, text: str) -> None:
    """Have the report say something once, from however many processes; nothing is done outside a run.

    Args:
        key: names the remark; the first text under a key counts.
        text: one line.
    """
    folder = os.environ.get("TOPROPE_RUN_DIR", "")
    if folder:
        try:
            with (Path(folder) / f"{key}{_SUFFIX}").open("x", encoding="utf-8") as file:
                json.dump(pack(text), file)
        except OSError:
            pass  # another process was first, or the run is over


def read(folder: Path) -> tuple[str, ...]:
    """The remarks of a run."""
    return tuple(unpack(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob(f"*{_SUFFIX}")))
