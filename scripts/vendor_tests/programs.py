"""Sample programs of a repository: run as they are, and compared with the output that suites.toml expects.

Called by `__main__` for a suite with `prints`. A program may end with status 0 and still have failed, so its output
decides too; an edit whose old text is gone is an error.

Tests: tests/project/test_vendor_tests.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vendor_tests.suites import run_limited
from vendor_tests.tests import Results

__all__ = ["run_program"]


def run_program(
    path: Path, prints: str, edits: Sequence[tuple[str, str]], run: Sequence[str], environment: Mapping[str, str],
    limit: float,
) -> Results:  # fmt: skip
    """Run a program in its folder.

    Args:
        path: of the program.
        prints: pattern of what it prints where all went well; it may end with status 0 otherwise, too.
        edits: texts of the program and their replacements, where it cannot be run as it is.
        run: options of `toprope run`.
        environment: added to this process's.
        limit: seconds.
    """
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise SystemExit(f"{path.name} does not have {old!r}")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "toprope", "run", "--quiet", *run, path.name]
    output, status = run_limited(command, path.parent, limit, dict(environment))
    name = "program"
    if status == 0 and re.search(prints, output, re.DOTALL):
        return Results({name: "passed"})
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next(
        (line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[-1] if lines else ""
    )
    why = f"it did not end within {limit:g} s" if status is None else f"status {status}: {said}"
    return Results({name: "failed"}, {name: why[:300]})
