"""Write a file so that a reader finds it whole: the new content or the old, never a part.

Used for every file that another process may read while it is written, and for every file that a user names for a
result. On POSIX a rename within a folder is what makes the change whole, so the new file must lie in the folder of the
old one. Tests: tests/base/test_whole_file.py.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from toprope.errors import UsageError

__all__ = ["check_named", "write_named", "writing_named", "writing_whole"]


@contextmanager
def writing_whole(path: str | os.PathLike[str], *, mode: int = 0o666, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends; after an error `path` is as it was.

    Until then it lies in the same folder under a hidden name, which is what a process leaves behind that was killed.

    Args:
        path: the file. Its folder must exist. A link is replaced, not what it points to.
        mode: the new file's permissions; the process's umask takes away from them.
        durable: it must have reached the disk before it takes its place, and the folder's entry after: for data whose
            loss after a power failure matters. It costs a wait for the disk.

    Raises:
        OSError: it cannot be written or put in its place.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "facts.json"
        >>> with writing_whole(target) as file:
        ...     _ = file.write(b"{}")
        ...     target.exists()
        False
        >>> target.read_bytes()
        b'{}'
    """
    path = Path(path)
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(name, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield cast("BinaryIO", file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_named(path: str | os.PathLike[str]) -> None:
    """Try, before long work, whether the file that a user named for its result can be written; nothing changes.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    there = path.exists()
    with path.open("ab"):
        pass
    if not there:
        path.unlink()


@contextmanager
def writing_named(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The file that a user named for a result, written whole: after an error an older file of that name is as it was.

    A link is followed. A device or a pipe, such as /dev/stdout, is written to as it is, and so is a file that may be
    changed in a folder that may not.

    Raises:
        OSError: it cannot be written. A file that was not there before is not there then.
    """
    target = Path(path)
    plain = target.is_file() or not target.exists()
    if plain and not target.absolute().is_relative_to("/dev") and not target.absolute().is_relative_to("/proc"):
        target = Path(os.path.realpath(target))
        there = target.exists()
        if not there or os.access(target.parent, os.W_OK):
            with writing_whole(target, mode=target.stat().st_mode & 0o777 if there else 0o666) as file:
                yield file
            return
    with target.open("wb") as file:
        yield file


def write_named(
    path: str | os.PathLike[str], text: str | bytes, do: str = "name a file in a folder that is yours"
) -> None:
    """Write a result to the file that a user named for it, as `writing_named` does.

    Args:
        path: the file.
        text: its content; a text is written in UTF-8.
        do: the advice where it cannot be written.

    Raises:
        UsageError: it cannot be written.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "report.txt"
        >>> write_named(target, "done")
        >>> target.read_text()
        'done'
        >>> write_named(target.parent, "done")
        Traceback (most recent call last):
            ...
        toprope.errors.UsageError: ... cannot be written: Is a directory.
          do         name a file in a folder that is yours
    """
    try:
        with writing_named(path) as file:
            file.write(text.encode() if isinstance(text, str) else text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", do=do) from None
