"""Write ported files to the disk: whole or not at all, with the old one kept where that is wanted, only where asked.

Called by `cli.port --write` alone; everything before it leaves the disk as it is. Tests:
tests/port/test_port_files.py, tests/port/test_port_cli.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from toprope.errors import UsageError
from toprope.port.finding import Ported
from toprope.whole_file import writing_whole

__all__ = ["check_clean", "write"]


def check_clean(changed: Iterable[Path]) -> None:
    """Refuse to go on if the port's changes would mix with changes that are not committed.

    Files outside of git are not looked at.

    Raises:
        UsageError: a git repository has changes that are not committed, or does not know a file that would be changed.
    """
    files = [path.absolute() for path in changed]
    for folder in sorted({path.parent for path in files}):
        top = _git(folder, "rev-parse", "--show-toplevel")
        if top is None:
            continue
        known = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", top.strip()) or ""
        mine = [path.name for path in files if path.parent == folder]
        unknown = _git(folder, "ls-files", "--others", "--", *mine) or ""
        if known or unknown:
            first = known.splitlines()[0][3:] if known else unknown.splitlines()[0]
            raise UsageError(
                "the git repository has changes that are not committed.",
                looked_at=f"{top.strip()}, for example {first}",
                do="commit them first, so that git shows what the port did, or add --allow-dirty",
            )


def _git(folder: Path, *arguments: str) -> str | None:
    """Run git and return its output; None without git, or outside a repository."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def write(ported: Ported, *, backup: bool = False) -> None:
    """Put a changed file in the place of the old one, at once. A file that cannot be written says so in `skipped`.

    Args:
        ported: the file; nothing happens where nothing is changed.
        backup: keep the old file next to it, with ".orig" behind its name; an older one of that name stays.
    """
    if not ported.changed or ported.skipped:
        return
    target = Path(os.path.realpath(ported.path))
    try:
        mode = target.stat().st_mode
        if not mode & 0o222:
            ported.skipped = "it is read-only"
        elif target.read_bytes() != ported.before:
            ported.skipped = "it was changed by someone else in the meantime"
        else:
            if ported.companion is not None:
                _put(target.with_name(ported.companion[0]), ported.companion[1])
            if ported.after != ported.before:
                _replace(target, ported.after, backup)
    except FileExistsError:
        ported.skipped = f"{ported.companion[0] if ported.companion else target} is there already"
    except OSError as error:
        ported.skipped = f"it cannot be written: {error.strerror}"
    if ported.skipped:
        ported.after, ported.companion = ported.before, None


def _put(place: Path, data: bytes) -> None:
    """A new file; FileExistsError where there is another one of its name."""
    if place.exists() and place.read_bytes() == data:  # an earlier run was cut off behind it
        return
    with place.open("xb") as file:
        file.write(data)


def _replace(target: Path, data: bytes, backup: bool) -> None:
    kept = target.with_name(target.name + ".orig")
    if backup and not kept.exists():
        with writing_whole(kept) as file:  # whole, since a part would be taken for the old file from then on
            file.write(target.read_bytes())
            file.flush()
            shutil.copystat(target, file.name)
    with writing_whole(target) as file:
        file.write(data)
        file.flush()
        shutil.copystat(target, file.name)
