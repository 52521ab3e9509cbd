"""What a process sleeps at: whoever has something for it sees whether it sleeps, and wakes it only then."""

from __future__ import annotations

import os
from pathlib import Path

from toprope.flow.edge_page import fence, shared_cells

__all__ = ["Bell"]


class Bell:
    """The bell of a process: a flag that says whether it sleeps, and a pipe that it sleeps at.

    Args:
        folder: of the graph.
        name: of the process.
        new: whether this is that process.
    """

    def __init__(self, folder: Path, name: str, *, new: bool) -> None:
        self._file = -1
        path = folder / f"bell-{name}"
        pipe = path.with_name(f"{path.name}.pipe")
        if new:
            os.mkfifo(pipe, 0o600)
        self._sleeps = shared_cells(path, 1, new=new)
        # for both directions: nothing here waits for the other side, nor is told that it is gone
        self._file = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def fileno(self) -> int:
        """The pipe's descriptor."""
        return self._file

    def ring(self) -> None:
        """Wake the process if it sleeps: it has been given something."""
        fence()
        if self._sleeps[0]:
            self._sleeps[0] = 0  # others need not wake it too
            self.knock()

    def knock(self) -> None:
        """Wake the process."""
        try:
            os.write(self._file, b"x")
        except OSError:
            pass  # it was knocked at often enough, or has ended

    def hang_out(self) -> None:
        """Say that this process sleeps; what was given before is seen after this."""
        self._sleeps[0] = 1
        fence()

    def take_in(self) -> None:
        """Say that this process is awake."""
        self._sleeps[0] = 0

    def clear(self) -> None:
        """Forget who has knocked."""
        try:
            os.read(self._file, 4096)
        except OSError:
            pass

    def close(self) -> None:
        """Close this end."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()
