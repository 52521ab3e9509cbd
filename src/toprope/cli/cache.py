"""`toprope cache`: files that toprope keeps on this machine, with their size and age, and their removal.

A new kind of kept file needs a row in `find`, so that users can see and remove it. Where such a file lies and what it
is called is decided by the module that writes it: `_FOLDERS` and `_OF_A_RUN` follow `native_build`, `tiers`, `run`,
`ui` and the doctor. Nothing that a process uses may be removed: a build is renamed before it is deleted, and its lock
is asked. Texts are free, keys of --json an interface. Tests: tests/cli/test_cache.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from toprope.cli.group import HELP, group
from toprope.errors import EnvironmentProblem, UsageError
from toprope.messages import Message, local
from toprope.native_build import NOTE, UNFINISHED, is_held, lock_of
from toprope.settings import Settings, config_dir
from toprope.sizes import decimal
from toprope.terminal import say, show, table

__all__ = ["KINDS", "Entry", "app", "find"]

KINDS = {
    "card": Message("the simulated card, compiled"),
    "kernels": Message("kernels for quantised weights, compiled"),
    "tiers": Message("weights on the disk"),
    "runs": Message("state of a run"),
    "rates": Message("measured rates of a card"),
    "other": Message("other files"),
}
"""Kinds of entries, in words. All but the rates, which were measured on a card, are made again when needed."""

KEPT = {"rates"}
"""Kinds that are removed only where they are named."""

_FOLDERS = {"sim": "card", "pages": "kernels", "tiers": "tiers"}
_OF_A_RUN = re.compile(rf"toprope-(?:run|ui|doctor|cards|{os.getuid()}-\d+)-[a-z0-9_]{{8}}")
"""Names of folders that runs, pages of `toprope ui`, searches of the doctor, deployments and sessions make."""

_FRESH = 60.0
"""Seconds after which the folder of a run that no process uses is left over."""


@dataclass(frozen=True)
class Entry:
    """A file or folder that toprope keeps.

    Attributes:
        kind: one of KINDS.
        path: where it is.
        size: bytes on the disk.
        made: when it was written, in seconds since the epoch.
        made_for: what it was made for, such as a version of torch; "" where that is not known.
        in_use: why it must not be removed now; "" where it may be.
    """

    kind: str
    path: Path
    size: int
    made: float
    made_for: str = ""
    in_use: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The entry as plain data."""
        return {
            "what": self.kind, "path": str(self.path), "bytes": self.size, "made": round(self.made, 3),
            "made_for": self.made_for or None, "in_use": self.in_use or None,
        }  # fmt: skip


app = group(metavar="[COMMAND ...]", alone=True)


@app.callback(invoke_without_command=True)
def cache(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON, sizes in bytes.")] = False,
) -> None:
    """Show the files that toprope keeps on this machine: what, where, size, age, and whether a process uses it.

    `toprope cache clear` removes them. TOPROPE_CACHE_DIR names the folder. More: toprope explain commands.
    """
    if context.invoked_subcommand is not None:
        return
    entries = find()
    if as_json:
        say(json.dumps([entry.as_dict() for entry in entries], indent=2) + "\n")
        return
    folder = Settings.load().cache_dir
    if not entries:
        show(Message("nothing is kept here; the cache folder is {folder}", folder=str(folder)))
        return
    _show(entries)
    cleared = [entry for entry in entries if not entry.in_use and entry.kind not in KEPT]
    all_of_it, removed = (decimal(sum(entry.size for entry in some)) for some in (entries, cleared))
    show(Message("{all} in all; toprope cache clear removes {removed} of it", all=all_of_it, removed=removed))


@app.command(context_settings=HELP)
def clear(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            show_default=False,
            help="card, kernels, tiers, runs, other or rates. [default: all but rates, which a card was measured for]",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove what toprope keeps; never what a process uses. What is needed again is made again."""
    unknown = sorted(set(what or ()) - set(KINDS))
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: nothing of this name is kept.", do=f"give some of {', '.join(KINDS)}")
    wanted = set(what or ()) or set(KINDS) - KEPT
    found = [entry for entry in find() if entry.kind in wanted]
    entries = [entry for entry in found if not entry.in_use]
    used = len(found) - len(entries)
    if used:
        show(Message("{number} in use: kept", number=used))
    if not entries:
        show(Message("nothing to remove"))
        return
    if not yes:
        _ask(entries)
    size, failed = 0, []
    for entry in entries:
        try:
            size += _remove(entry)
        except OSError as error:
            failed.append(f"{entry.path}: {error.strerror}")
    show(Message("removed {size}", size=decimal(size)))
    if failed:
        raise EnvironmentProblem(
            f"{len(failed)} of {len(entries)} could not be removed.", "; ".join(failed[:3]), "see to their permissions"
        )


def _ask(entries: list[Entry]) -> None:
    if not sys.stdin.isatty():
        raise UsageError("it asks before it removes, and stdin is no terminal.", do="toprope cache clear --yes")
    _show(entries)
    size = decimal(sum(entry.size for entry in entries))
    if not typer.confirm(local(Message("remove {size}?", size=size))):
        raise typer.Exit(1)


def _show(entries: list[Entry]) -> None:
    header = (Message("what"), "", Message("size"), Message("age"), Message("in use"), Message("where"))
    show(table([_row(entry) for entry in entries], header, right=(2, 3)))


def _row(entry: Entry) -> tuple[str, ...]:
    what = KINDS[entry.kind]
    text = Message("{what}, for {version}", what=what, version=entry.made_for) if entry.made_for else what
    return entry.kind, text, decimal(entry.size), _age(time.time() - entry.made), entry.in_use, str(entry.path)


def _age(seconds: float) -> str:
    if seconds < 3600:
        return Message("{number:.0f} min", number=max(seconds, 0) / 60)
    if seconds < 48 * 3600:
        return Message("{number:.0f} h", number=seconds / 3600)
    return Message("{number:.0f} days", number=seconds / 86400)


def find() -> list[Entry]:
    """Everything that toprope keeps for this user on this machine, by kind, the newest of a kind first."""
    used = _Used()
    entries = [*_cached(Settings.load().cache_dir, used), *_runs(used), *_rates()]
    order = list(KINDS)
    return sorted(entries, key=lambda entry: (order.index(entry.kind), -entry.made))


def _cached(folder: Path, used: _Used) -> Iterator[Entry]:
    for child in _children(folder):
        kind = _FOLDERS.get(child.name)
        if kind is None or not child.is_dir():
            yield _entry("other", child, used)
            continue
        for path in _children(child):
            if path.suffix == ".lock":
                continue  # of builds; an empty file, which keeps two builders apart
            building = Message("being built") if is_held(lock_of(_finished(path))) else ""
            yield _entry(kind, path, used, made_for=_made_for(path), in_use=building)


def _finished(path: Path) -> Path:
    """The folder of a build, also for one that is being made."""
    return path.with_name(path.name.split(UNFINISHED)[0])


def _made_for(build: Path) -> str:
    try:
        note = json.loads((build / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    version = note.get("torch", "") if isinstance(note, dict) else ""
    return f"torch {version}" if version else ""


def _runs(used: _Used) -> Iterator[Entry]:
    """Folders that exist while a run, a page or a session lives, and longer where it was killed."""
    from toprope.functions.deployment import state_file

    begun = state_file.read()
    folders = {Path(tempfile.gettempdir()), Path(os.environ.get("TOPROPE_OBJECT_STORE") or "/dev/shm")}
    for path in (child for folder in sorted(folders) for child in _children(folder)):
        try:
            facts = path.lstat()
        except OSError:
            continue  # its process has just removed it
        private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
        if not private or not _OF_A_RUN.fullmatch(path.name):
            continue  # somebody else's, or a user's own folder of such a name
        reason = ""
        if begun is not None and begun.cards == str(path):
            reason = Message("by what toprope start began")
        elif time.time() - facts.st_mtime < _FRESH or is_held(path / "lock"):
            reason = Message("by its run")
        yield _entry("runs", path, used, in_use=reason)


def _rates() -> Iterator[Entry]:
    for path in _children(config_dir() / "rates"):
        yield _entry("rates", path, made_for=path.stem)


def _entry(kind: str, path: Path, used: _Used | None = None, *, made_for: str = "", in_use: str = "") -> Entry:
    try:
        made = path.lstat().st_mtime
    except OSError:
        made = time.time()
    pids = used.by(path) if used is not None else ()
    if pids and not in_use:
        in_use = Message("by process {pids}", pids=", ".join(map(str, pids[:3])))
    return Entry(kind, path, _size(path), made, made_for, in_use)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    """Bytes that a file or a folder takes on the disk."""
    total = 0
    for each in [path, *(Path(root, name) for root, _, names in os.walk(path) for name in names)]:
        try:
            total += each.lstat().st_blocks * 512
        except OSError:
            pass  # removed meanwhile
    return total


class _Used:
    """Files that processes of this machine have open or in memory, and folders in their variables."""

    def __init__(self) -> None:
        self._paths: dict[str, set[int]] = {}
        for process in Path("/proc").glob("[0-9]*"):
            pid = int(process.name)
            if pid != os.getpid():
                for path in _paths_of(process):
                    self._paths.setdefault(path, set()).add(pid)

    def by(self, path: Path) -> tuple[int, ...]:
        """The processes that use a file, or something in a folder."""
        folder, inside = str(path), f"{path}{os.sep}"
        found = (pids for each, pids in self._paths.items() if each == folder or each.startswith(inside))
        return tuple(sorted(set().union(*found)))


def _paths_of(process: Path) -> Iterator[str]:
    """Yield the files and folders that a process uses: mapped, open, or named in its variables."""
    for line in _read(process / "maps").splitlines():
        if "/" in line:
            yield line[line.index("/") :].removesuffix(" (deleted)")
    for variable in _read(process / "environ").split("\0"):
        if "toprope-" in variable:
            yield from variable.partition("=")[2].split(os.pathsep)
    try:
        for number in os.listdir(process / "fd"):
            yield os.readlink(process / "fd" / number)
    except OSError:
        pass  # another user's, or it has ended


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _remove(entry: Entry) -> int:
    """Remove an entry and return its size; 0 where a process began to build it meanwhile."""
    if entry.kind in ("card", "kernels") and is_held(lock_of(_finished(entry.path))):
        return 0
    if entry.path.is_symlink() or not entry.path.is_dir():
        entry.path.unlink(missing_ok=True)
        return entry.size
    # under another name first: no process finds half a build
    aside = entry.path.with_name(f"{_finished(entry.path).name}{UNFINISHED}removed-{os.getpid()}")
    entry.path.rename(aside)
    shutil.rmtree(aside)
    return entry.size
