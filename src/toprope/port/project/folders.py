"""Folders that the port leaves alone: excluded by a pattern, vendored code, git submodules, records of old runs.

Called by `scan` and `cli.port`; tests/port/test_port_folders.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

__all__ = ["EXCLUDED", "LeftAlone", "Pattern", "submodules", "why_left_alone"]

EXCLUDED = "excluded"
_VENDORED = {
    "vendor", "vendors", "vendored", "_vendor", "third_party", "third-party", "thirdparty", "third_parties", "3rdparty",
    "3rd_party", "external", "externals", "extern", "submodules",
}  # fmt: skip
_RECORDS = {"logs", "log", "records", "runs", "wandb", "mlruns", "lightning_logs", "tb_logs"}
_RUN = re.compile(r"\d{4}[-_]?\d{2}[-_]?\d{2}|(?:version|run)[-_]?\d+(?!\w)", re.IGNORECASE)
_RUN_FILES = re.compile(r"events\.out\.tfevents|wandb-(?:metadata|summary)\.json$|.+\.log$")
_MOST_LOOKED_AT = 2000
_DEPTH = 3
_SUBMODULE = re.compile(r"^\s*path\s*=\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class LeftAlone:
    """A folder or file that was not looked at.

    Attributes:
        path: where it is.
        reason: why, as a few words.
        files: number of files in it that the port would have looked at.
    """

    path: Path
    reason: str
    files: int


@dataclass
class Pattern:
    """A glob for files and folders, as in .gitignore: a folder that matches stands for all that is in it.

    Without a slash it matches a name anywhere below its folder, else the path from that folder; `**` is any number of
    folders.

    Attributes:
        text: the glob.
        base: the folder that paths count from.
        used: whether something matched.
    """

    text: str
    base: Path
    used: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        text = self.text.strip().replace(os.sep, "/").removeprefix("./")
        anchored = "/" in text.rstrip("/")
        self._regex = re.compile(_translated(text.strip("/"), anchored), re.DOTALL)
        self._root = os.path.abspath(self.base)

    def matches(self, path: str | Path) -> bool:
        """Return True if a path, or a folder around it, matches."""
        relative = os.path.relpath(os.path.abspath(path), self._root).replace(os.sep, "/")
        found = not relative.startswith("../") and self._regex.match(relative) is not None
        self.used |= found
        return found


def _translated(glob: str, anchored: bool) -> str:
    """Regular expression of a glob; what follows a match may only be deeper in it."""
    parts, at = [], 0
    while at < len(glob):
        if glob.startswith("**/", at):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 2
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inner = glob[at + 1 : end].replace("\\", "\\\\")
            parts.append(f"[{'^' + inner[1:] if inner[0] == '!' else inner}]")
            at = end + 1
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(glob[at]) or re.escape(glob[at]))
            at += 1
    return f"{'' if anchored else '(?:.*/)?'}{''.join(parts)}(?:/|$)"


def why_left_alone(folder: str | Path) -> str:
    """Return why a folder is no code of this project; "" where it is, or nothing says otherwise."""
    name = os.path.basename(folder).lower()
    if os.path.exists(os.path.join(folder, ".git")):
        return "a repository of its own"
    if _is_submodule(folder):
        return "a git submodule"
    if name in _VENDORED:
        return "code of others, by its name"
    if name in _RECORDS and not os.path.exists(os.path.join(folder, "__init__.py")):
        run = next((each for each in islice(_below(folder, _DEPTH), _MOST_LOOKED_AT) if _is_run(each)), "")
        return f"records of old runs: {os.path.relpath(run, folder)}" if run else ""
    return ""


def _is_run(path: str) -> bool:
    name = os.path.basename(path)
    return bool((_RUN if os.path.isdir(path) else _RUN_FILES).match(name))


def _below(folder: str | Path, depth: int) -> Iterator[str]:
    """Files and folders below a folder, those nearest first."""
    try:
        here = sorted(each.path for each in os.scandir(folder))
    except OSError:
        return
    yield from here
    for path in here if depth > 1 else ():
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _below(path, depth - 1)


def _is_submodule(folder: str | Path) -> bool:
    """Return True if a .gitmodules of a folder above names this one; its repository need not be checked out."""
    whole = os.path.abspath(folder)
    for above in Path(whole).parents:
        file = above / ".gitmodules"
        if file.is_file():
            relative = os.path.relpath(whole, above).replace(os.sep, "/")
            return relative in submodules(file)
        if (above / ".git").exists():
            break
    return False


def submodules(file: Path) -> Iterable[str]:
    """The paths that a .gitmodules names."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return [path.strip("/") for path in _SUBMODULE.findall(text)]
