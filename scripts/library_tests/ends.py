"""How tests end: a plugin of pytest that writes it to a file test by test, and the reader of such a file.

A process that dies, or that is killed at its limit, loses one test only: the next one leaves out what is in the file,
which ENDS names. Each line is JSON: [test, "begins"], [test, "finished"], or [test, outcome, text].

Loaded by pytest in the processes that `__main__` starts, and by scripts/inductor_tests.py for its reader. Names of the
hooks are pytest's. A change of the lines makes kept files unreadable: run with `--again`.

Tests: tests/project/test_library_tests.py, of the reader; the hooks run in the suites alone.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "Ends", "pytest_collection_modifyitems", "pytest_runtest_logfinish", "pytest_runtest_logreport",
    "pytest_runtest_logstart",
]  # fmt: skip

ORDER = ("failed", "passed", "skipped")
PATH = Path(
    os.environ.pop("ENDS", os.devnull)
)  # the processes that a test starts run all of their tests, and write none


@dataclass
class Ends:
    """By test: "passed", "failed", "skipped" or "died", and the line of an error or the reason of a skipped test."""

    ended: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Ends:
        """Read a file; of a test with subtests the worst end counts. A file that is not there has no tests."""
        found, outcomes, finished = cls(), dict[str, dict[str, str]](), set()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            test, what, *text = json.loads(line)
            of_it = outcomes.setdefault(test, {})
            if what == "finished":
                finished.add(test)
            elif what != "begins":
                of_it.setdefault(what, *text)
        for test, of_it in outcomes.items():
            ended = next((each for each in ORDER if each in of_it), "skipped") if test in finished else "died"
            found.ended[test] = ended
            found.texts[test] = of_it.get(ended, "")
        return found


def _append(*entry: str) -> None:
    with PATH.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(entry)}\n")


def _text(report: Any) -> str:
    """The line that names the error, or the reason of a test that skips itself."""
    if report.skipped:
        reason = getattr(report, "wasxfail", None)
        return str(reason if reason is not None else report.longrepr[2])[:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in str(crash.message if crash else report.longrepr).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed)\b", line)]
    return (named[-1:] or lines or ["error"])[0][:300]  # the last one is a child process's


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what an earlier process ran."""
    known = Ends.read(PATH).ended
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write that a test begins."""
    _append(nodeid, "begins")


def pytest_runtest_logreport(report: Any) -> None:
    """Write the end of a phase, or of a subtest, if it says how the test ended."""
    if report.failed or report.skipped:
        _append(report.nodeid, report.outcome, _text(report))
    elif report.when == "call":
        _append(report.nodeid, "passed", "")


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write that a test is finished, with what is to be torn down after it."""
    _append(nodeid, "finished")
