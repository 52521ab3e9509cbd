"""Files of a repository at one commit, and processes that run them with a limit of time.

Used by scripts/library_tests too. `Suite` has the fields of a suite in suites.toml: a new key there is a field here.
Only files of the named commit are read; a process that is out of time is interrupted, and killed with its children.

Tests: tests/project/test_vendor_tests.py.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Suite", "chosen", "run_limited", "say", "without_folders"]

ROOT = Path(__file__).resolve().parents[2]
_FOR_REPORT = 60
"""Seconds that an interrupted command has to end."""


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *arguments], check=True, capture_output=True).stdout


@dataclass(frozen=True)
class Suite:
    """Files of one repository at one commit.

    Attributes:
        folders: what its files need of the repository; empty for the topmost folder of the first of `files`.
        together: whether one process runs all files.
        sample: how many tests are drawn, where not all are run.
        blocks: whether the files are pages, whose Python programs are run.
        prints: for files that are programs what each prints where all went well, by name; empty for tests.
        edits: what is put in the place of texts of a program, by name: pairs of old and new.
        before: Python that is run in the programs' folder first; "" for none.
        start: options of `toprope start`, which runs before; none for no start.
        run: options of `toprope run` that say on what device.
        environment: variables of the tests.
        limit: seconds for a file, or a page's program; 0 for the command line's.
        seed: of the draw.
        cards: tests whose source asks for more cards are not drawn.
        disabled: file of the repository with the tests that the vendor does not run on a card; "" for none.
    """

    name: str
    repository: str
    commit: str
    files: list[str]
    folders: Sequence[str] = ()
    together: bool = False
    sample: int = 0
    blocks: bool = False
    prints: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, list[list[str]]] = field(default_factory=dict)
    before: str = ""
    start: Sequence[str] = ()
    run: Sequence[str] = ("--chip", "910B3", "--count", "2")
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: float = 0
    seed: int = 0
    cards: int = 2
    disabled: str = ""

    def clone(self, vendor: Path) -> Path | None:
        """The copy of the repository in a folder; None where it is not there."""
        folder = vendor / self.repository.replace("/", "+")
        return next(
            (each for each in (folder / "repo", folder) if (each / "HEAD").exists() or (each / ".git").exists()), None
        )

    def paths(self, clone: Path) -> list[str]:
        """Files of the suite, in order. A pattern may end with `**/` and a name, for all folders below one."""
        found = []
        for pattern in self.files:
            folder, _, name = pattern.rpartition("/")
            below = folder.endswith("/**")
            command = ["ls-tree", "--name-only", *(["-r"] if below else []), self.commit]
            every = _git(clone, *command, f"{folder.removesuffix('/**')}/").decode().splitlines()
            found += [path for path in every if fnmatch.fnmatch(path.rpartition("/")[2], name)]
        return found

    def source(self, clone: Path, path: str) -> str:
        """Text of a file of the commit."""
        return _git(clone, "show", f"{self.commit}:{path}").decode()

    def unpack(self, clone: Path, folder: Path) -> None:
        """Write the files of the commit that the tests need: `folders`, or else the first file's topmost folder."""
        needed = self.folders or [self.files[0].partition("/")[0]]
        archive = _git(clone, "archive", self.commit, *needed)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def chosen(entries: Iterable[dict[str, Any]], folder: Path, name: str) -> Iterator[tuple[Suite, Path]]:
    """Yield the suites whose name contains a text, each with its copy in the folder; one without a copy is reported."""
    for suite in (Suite(**entry) for entry in entries):
        if name not in suite.name:
            continue
        clone = suite.clone(folder)
        if clone is None:
            say(f"{suite.repository}: skipped, {folder / suite.repository.replace('/', '+')} is not there")
        else:
            yield suite, clone


def run_limited(
    command: list[str], folder: Path, limit: float, environment: dict[str, str] | None = None
) -> tuple[str, int | None]:
    """Run a command, interrupt it at the limit, and kill it with its children if it does not end.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        limit: seconds.
        environment: added to this process's.

    Returns:
        What it wrote, and its status; None at the limit.
    """
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        output, status = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # pytest then reports the tests that have ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_FOR_REPORT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, status = process.communicate()[0], None
    return output.decode(errors="replace"), status


def without_folders(text: str) -> str:
    """Leave out the folders of this machine."""
    return re.sub(r"/tmp/tmp\w+", "TMP", text.replace(str(ROOT), "."))
