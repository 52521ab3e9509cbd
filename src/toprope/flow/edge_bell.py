"""What a process sleeps at: whoever has something for it sees whether it sleeps, and wakes it only then."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from toprope.flow.edge_page import fence, shared_cells

__all__ = ["Bell"]


_ONE = (1).to_bytes(8, sys.byteorder)


class Bell:
    """The bell of a process: a flag that says whether it sleeps, and an event that it sleeps at.

    Not a pipe or a socket: who is woken by these is put onto the processor of who wakes it, which is not done yet,
    and the other processors stay idle.

    Args:
        folder: of the graph.
        name: of the process.
        file: the event's descriptor, which came from that process and is this object's from now on; None for that
            process itself, which makes both.
    """

    def __init__(self, folder: Path, name: str, file: int | None = None) -> None:
        self._file = -1 if file is None else file
        self._sleeps = shared_cells(folder / f"bell-{name}", 1, new=file is None)
        if file is None:
            self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def give(self, sock: socket.socket) -> None:
        """Give it to the process at the other end, which `taken` takes first of all that comes."""
        try:
            socket.send_fds(sock, [b"b"], [self._file])
        except OSError:
            pass  # the other side is gone, which is seen by reading

    @classmethod
    def taken(cls, sock: socket.socket, folder: Path, name: str) -> Bell | None:
        """The bell of the process of this name, which has come by this socket; None where there is none.

        The socket has ended, or this process may have no more descriptors: it wakes the other by the socket then.
        """
        try:
            _, files, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
            return cls(folder, name, files[0]) if files else None
        except OSError:
            return None

    def fileno(self) -> int:
        """The event's descriptor."""
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
            os.write(self._file, _ONE)
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
            os.read(self._file, 8)
        except OSError:
            pass

    def close(self) -> None:
        """Close this end."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()
