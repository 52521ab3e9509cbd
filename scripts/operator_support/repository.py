"""Reading of a bare git repository: files at a commit, and the commits that branches and submodules name.

Used by the modules next to it, for clones of Ascend/op-plugin and Ascend/pytorch; a folder `repo` in it may be the
clone. Nothing is checked out and nothing of a clone is run: only git reads it.

No test runs it: all that is written with it is held by tests/support/test_operators_on_card.py.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["Repository"]


class Repository:
    """A clone that is only read; it may be bare, and `git` needs no work tree."""

    def __init__(self, folder: Path) -> None:
        inner = folder / "repo"
        self.folder = inner if inner.is_dir() else folder
        self.text = cache(self._text)

    def git(self, *arguments: str, check: bool = True) -> str:
        """Output of a git command; empty where it fails and `check` is False."""
        command = ["git", "-C", str(self.folder), "-c", "core.quotepath=off", *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, errors="replace").stdout

    def branches(self) -> list[str]:
        """Names of all branches."""
        return self.git("branch", "-a", "--format=%(refname:short)").split()

    def commit(self, name: str) -> str:
        """Full hash of a branch or a short hash."""
        return self.git("rev-parse", f"{name}^{{commit}}").strip()

    def date(self, commit: str) -> str:
        """Day of a commit: 2026-08-21."""
        return self.git("log", "-1", "--format=%cs", commit).strip()

    def submodule(self, commit: str, path: str) -> str:
        """Commit that a submodule is pinned to; empty where there is none."""
        return "".join(re.findall(r"^160000 commit (\w+)", self.git("ls-tree", commit, path), re.MULTILINE))

    def has(self, commit: str) -> bool:
        """True if a commit is stored."""
        return bool(self.git("cat-file", "-t", commit, check=False).strip())

    def files(self, commit: str, folder: str) -> list[str]:
        """Paths of the files below a folder."""
        return self.git("ls-tree", "-r", "--name-only", commit, folder).splitlines()

    def containing(self, commit: str, pattern: str, *folders: str) -> list[str]:
        """Paths of the files that contain a line which an extended regular expression matches."""
        found = self.git("grep", "-lE", pattern, commit, "--", *folders, check=False)
        return [line.partition(":")[2] for line in found.splitlines()]

    def _text(self, commit: str, path: str) -> str:
        return self.git("show", f"{commit}:{path}", check=False)
