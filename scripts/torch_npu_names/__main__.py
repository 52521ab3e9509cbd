"""The command line: print what differs from the published torch-npu, or write it into a page.

The package's docstring has the usage; all work is in `report`. Exit status 2 for a wrong call, 3 where there is no
wheel.

Tests: tests/compat/test_compat_torch_npu.py, which runs it on a copy of the page.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch_npu_names import Published, Unreadable, find, renewed
from torch_npu_names.report import MINOR, report


def main(arguments: list[str]) -> int:
    """Runs the comparison; the exit status."""
    if len(arguments) > 1:
        sys.stderr.write("usage: python scripts/torch_npu_names [PAGE]\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            text, _ = report(Published(find(os.environ.get("TOPROPE_CORPUS", ""), MINOR, Path(folder), 600)))
        except Unreadable as why:
            sys.stderr.write(f"{why}\n")
            return 3
    if not arguments:
        sys.stdout.write(text)
        return 0
    page = Path(arguments[0])
    try:
        page.write_text(renewed(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{page}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
