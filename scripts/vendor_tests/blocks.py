"""Programs in the pages of a documentation: blocks of Python that are run as they are.

Called by `__main__` for suites of Markdown pages. A block counts as a program if it begins a session of yr itself; a
change of that rule changes the figures of docs/compat.md. Tests: tests/project/test_vendor_tests.py, of finding the
programs.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from vendor_tests.suites import run_limited
from vendor_tests.tests import Results

__all__ = ["programs", "run_blocks"]

_BLOCK = re.compile(r"^([ \t]*)```\s*(?:python|py)\b[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL | re.IGNORECASE)


def programs(page: str) -> dict[int, str]:
    """The Python blocks of a page that begin a session themselves, by their number among all of its Python blocks.

    One that names the address of a server is left out: it is a program for a cluster.
    """
    blocks = [
        "\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in _BLOCK.findall(page)
    ]
    return {
        number: text
        for number, text in enumerate(blocks, 1)
        if "import yr" in text and "yr.init(" in text and "server_address" not in text
    }


def run_blocks(page: str, run: Sequence[str], environment: Mapping[str, str], limit: float) -> Results:
    """Run the programs of a page.

    Args:
        page: its text.
        run: options of `toprope run`.
        environment: added to this process's.
        limit: seconds for a program.
    """
    results = Results()
    for number, text in programs(page).items():
        name = f"block {number}"
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "block.py").write_text(text + "\n", encoding="utf-8")
            command = [sys.executable, "-m", "toprope", "run", "--quiet", *run, "block.py"]
            output, status = run_limited(command, Path(folder), limit, dict(environment))
        results.ended[name] = "passed" if status == 0 else "failed"
        if status is None:
            results.errors[name] = f"it did not end within {limit:g} s"
        elif status:
            lines = [line for line in output.splitlines() if line.strip()]
            found = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")
            results.errors[name] = found.strip()[:300]
    return results
