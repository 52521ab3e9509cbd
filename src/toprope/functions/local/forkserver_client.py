"""Client of the forkserver in the driver: starts it, requests workers, and restarts it if it was killed.

Only the reactor calls it. The forkserver (`worker.forkserver`) is another program, which this one does not import: the
messages, one JSON object each, are agreed with it: change both. Workers may import torch ahead only where no real
card's software reads its mask at that moment (`_may_import_torch`). Tests: tests/functions/test_functions_sockets.py,
and (slow) tests/functions/test_functions_faults.py.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local.folder import MARK

__all__ = ["Forkserver", "end_strays"]

_FORKSERVER = "toprope.functions.local.worker.forkserver"
"""The program that Python runs as the forkserver."""

_TIMES, _WITHIN = 3, 60.0
"""After this number of ends within these seconds a forkserver is not started again."""

_PATIENCE = 10.0
"""Time for the forkserver to read a request, in seconds."""


class Forkserver:
    """Starts workers of a session through the forkserver.

    Args:
        folder: of the session.
        lock: a descriptor that the forkserver holds too.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: deque[float] = deque(maxlen=_TIMES)
        self.control: socket.socket | None = None
        self.is_up = False
        """True once it has sent a report."""

    def start(self) -> None:
        """Start the forkserver.

        Raises:
            YRRuntimeError: it has ended too often.
        """
        self.close()
        if len(self._starts) == _TIMES and time.monotonic() - self._starts[0] < _WITHIN:
            raise YRRuntimeError(
                f"the process that starts workers has ended {_TIMES} times within {_WITHIN:.0f} s; what it wrote to "
                "stderr, and the kernel's log of processes killed for memory, may say why", CODES["internal error"]
            )  # fmt: skip
        self._starts.append(time.monotonic())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE)
        modules = "cloudpickle,numpy,torch" if _may_import_torch() else "cloudpickle"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*_python_path(), _package_root()])}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _FORKSERVER, str(theirs.fileno()), str(self._folder), modules,
                 str(os.getpid()), str(self._lock)],
                pass_fds=[theirs.fileno(), self._lock], env=environment, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.control, self.is_up = ours, False

    def ask(self, number: int, file: int) -> None:
        """Ask for a worker that has this end of a socket.

        Raises:
            YRRuntimeError: the forkserver is gone, or does not answer.
        """
        try:
            if self.control is None:
                raise OSError("it has ended")
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
            self.control.sendmsg([json.dumps({"number": number}).encode()], ancillary)
        except OSError as error:
            raise YRRuntimeError(
                f"no worker can be started: {error}. Call yr.finalize and yr.init", CODES["internal error"]
            ) from None

    def report(self) -> dict[str, Any] | None:
        """Read a report about a worker; None once the forkserver is gone."""
        try:
            data = b"" if self.control is None else self.control.recv(65536)
        except OSError:
            data = b""
        self.is_up = self.is_up or bool(data)
        found: dict[str, Any] | None = json.loads(data) if data else None
        return found

    def close(self) -> None:
        """Have the forkserver end all its processes and exit; one that is still importing exits at once."""
        control, self.control = self.control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            if not self.is_up:
                process.kill()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def abandon(self) -> None:
        """Close its socket in a fork of the driver, which does not own it."""
        if self.control is not None:
            self.control.close()
        self.control = self._process = None


def end_strays(folder: Path, workers: set[int]) -> None:
    """Kill the processes that workers have left behind, if the forkserver, which does so otherwise, is gone.

    Args:
        folder: of the session.
        workers: their processes.
    """
    mark = f"{MARK}={folder.name}:".encode()
    for _ in range(5):  # what is killed may have forked just then
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_stray(pid, workers, mark)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if not found:
            return
        time.sleep(0.001)


def _is_stray(pid: int, workers: set[int], mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state, _, _, session = file.read().rpartition(")")[2].split()[:4]
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    return state != "Z" and (int(session) in workers or environment.startswith(mark) or b"\0" + mark in environment)


def _may_import_torch() -> bool:
    """True if workers may import torch before they know their card: a real card's software reads its mask then."""
    return bool(os.environ.get("TOPROPE_SIM")) or os.environ.get("TOPROPE_DEVICE") == "cpu" or not _has_card()


def _has_card() -> bool:
    return os.path.exists("/dev/davinci_manager") or os.path.exists("/dev/nvidiactl")


def _package_root() -> str:
    """The folder that toprope is imported from."""
    import toprope

    return os.path.dirname(os.path.dirname(os.path.abspath(toprope.__file__)))


def _python_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
