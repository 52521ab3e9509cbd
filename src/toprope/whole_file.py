"""Write a file so that a reader finds it whole: the new content or the old, never a part.

Used for every file that another process may read while it is written.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["writing_whole"]


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
