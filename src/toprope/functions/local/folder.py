"""Folder of a session for its shared memory: private to the user, and removed with the session.

Sessions on this machine and graphs of `toprope.flow` make one each; `toprope status` lists them. A lock says that a
folder is in use, so that folders left by kill -9 are removed by the next session. Sessions of other versions follow the
same names and lock: do not change them. Who can get in is a matter of security:
tests/functions/test_functions_security.py; for folders that processes share tests/flow/test_flow_far.py, for the list
tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from toprope.functions.exceptions import CODES, YRRuntimeError

__all__ = ["LOCK", "MARK", "folders_of_sessions", "hold", "join_folder", "leave_folder", "shared_folder"]

LOCK = "lock"

MARK = "TOPROPE_WORKER"
"""The variable by which programs that a worker started are known: the session's folder and the worker's number."""

_FRESH = 60.0
"""Seconds within which a new session locks its folder."""


def shared_folder() -> Path:
    """A new folder for the shared memory of a session, that only this user may enter.

    What sessions that were killed together with their forkserver have left is removed.

    Raises:
        YRRuntimeError: there can be none, or others could put theirs in its place.
    """
    base = _base()
    try:
        mode = os.stat(base).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(None, "every user may rename files in it")
        _sweep(Path(base))
        return Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=base))
    except OSError as error:
        raise YRRuntimeError(
            f"the object store in {base} cannot be used: {error.strerror}. Name another folder in TOPROPE_OBJECT_STORE",
            CODES["shared memory limit"],
            30,
        ) from None


def join_folder(name: str) -> tuple[Path, int]:
    """The folder of this name on this machine, which processes of one user share, made by the first of them.

    Returns:
        The folder, and a descriptor for `leave_folder`: while somebody has one, the folder is in use.

    Raises:
        OSError: there can be none, or it belongs to somebody else.
    """
    folder = Path(_base()) / f"{_prefix()}{name}"
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} belongs to another user, or others may enter it")
        try:
            file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # the last one has just removed it
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.fstat(file), os.stat(folder / LOCK)):
                return folder, file
        except FileNotFoundError:
            pass
        os.close(file)


def leave_folder(folder: Path, file: int) -> None:
    """Release a folder of `join_folder`; the last user removes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # others use it
    finally:
        os.close(file)


def hold(folder: Path) -> int:
    """A descriptor: while somebody has it, the folder is in use, whatever became of its process."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def folders_of_sessions() -> list[Path]:
    """The folders of this user's sessions on this machine, those that have just ended included."""
    found = []
    for folder in Path(_base()).glob(f"{_prefix()}*"):
        try:
            status = folder.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            found.append(folder)
    return found


def _base() -> str:
    return os.environ.get("TOPROPE_OBJECT_STORE") or (
        "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    )


def _prefix() -> str:
    return f"toprope-{os.getuid()}-"


def _sweep(base: Path) -> None:
    """Remove the folders of sessions that have ended without removing them."""
    for folder in base.glob(f"{_prefix()}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            try:
                file = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                if time.time() - found.st_mtime > _FRESH:
                    shutil.rmtree(folder)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(file)
        except OSError:
            pass  # it is in use, or somebody else removes it
