"""Compiling native parts at first use: the compiler, one builder at a time, and a build that is whole or not there.

The simulated card and the kernels of pages are built this way, each into a folder of its own in the cache directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toprope.errors import BuildError

__all__ = [
    "LOCK_LIMIT",
    "NOTE",
    "compiler",
    "digest",
    "identity",
    "locked",
    "not_writable",
    "put_in_place",
    "run",
    "tell",
]

NOTE = "build.json"
"""The file that says what a build was made for and with; it is written last."""

LOCK_LIMIT = 900.0
"""Seconds to wait for another process that builds the same."""


def digest(*parts: str) -> str:
    """A short name for what a build depends on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def compiler() -> list[str] | None:
    """The C++ compiler with its options: CXX, g++ or clang++; None where there is none.

    Raises:
        BuildError: CXX cannot be read.
    """
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(
            "the variable CXX cannot be read.", f"CXX={os.environ['CXX']!r}: {error}", "quote it as for a shell"
        ) from error
    for command in [named] if named else [["g++"], ["clang++"]]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    return None


def identity(compiler: list[str]) -> Iterator[str]:
    """Tells one compiler from another without starting it."""
    program = Path(compiler[0]).resolve()
    facts = program.stat()
    yield from (str(program), str(facts.st_size), str(facts.st_mtime_ns), *compiler[1:])


@contextmanager
def locked(folder: Path, what: str, limit: float = LOCK_LIMIT) -> Iterator[None]:
    """Holds off other processes that would make the same build, `what`; waits for them for `limit` seconds.

    Raises:
        BuildError: another process does not get done, or the cache directory cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise not_writable(folder.parent, error, what) from error
    try:
        _wait_for(lock, what, limit)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int, what: str, limit: float) -> None:
    end = time.monotonic() + limit
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        if not told:
            tell(f"waiting for another process that builds {what}")
            told = True
        if time.monotonic() > end:
            raise BuildError(
                f"another process has been building {what} for {limit:.0f} s.",
                do="see whether it hangs and end it; the lock goes with it",
            )
        time.sleep(0.1)


def not_writable(folder: Path, error: OSError, what: str) -> BuildError:
    """The error for a cache directory that does not take the build of `what`."""
    verb = "have" if what.endswith("s") else "has"
    return BuildError(
        f"{what} {verb} to be built once, and the cache directory cannot be written.",
        f"{folder}: {error.strerror}",
        "make it writable, or name another one in TOPROPE_CACHE_DIR",
    )


def tell(text: str) -> None:
    """A line of progress, on stderr: stdout belongs to the user's program."""
    sys.stderr.write(f"toprope: {text}\n")
    sys.stderr.flush()


def put_in_place(aside: Path, folder: Path, note: dict[str, object], what: str) -> None:
    """Moves a finished build of `what` to its folder, whole and with its note.

    Raises:
        BuildError: the cache directory cannot be written.
    """
    try:
        (aside / NOTE).write_text(json.dumps(note))
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o777 & ~mask)  # a cache may be shared; mkdtemp makes folders for one user alone
        shutil.rmtree(folder, ignore_errors=True)  # what a crash may have left
        aside.rename(folder)
    except OSError as error:
        raise not_writable(folder.parent, error, what) from error


def run(command: list[str], what: str) -> None:
    """Runs the compiler on `what`; the command names its output after -o.

    Raises:
        BuildError: the compiler cannot be started, fails, or makes nothing.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            "the C++ compiler cannot be started.",
            f"{command[0]}: {error.strerror}",
            "name another compiler in CXX, or install g++",
        ) from error
    output = Path(command[command.index("-o") + 1])
    if done.returncode == 0 and not output.exists():
        raise BuildError(
            f"the C++ compiler made nothing of {what}.",
            f"{command[0]} ended without an error and without {output.name}",
            "name another compiler in CXX; g++ 11 or newer is known to work",
        )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise BuildError(
            f"the C++ compiler failed on {what}.",
            f"{' '.join(command[:1])}, exit status {done.returncode}: " + "; ".join(lines[:3]),
            "g++ 11 or newer is needed (C++20); name another compiler in CXX",
        )
