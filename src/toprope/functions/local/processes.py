"""The worker processes of a session: started ahead, listened to, and noticed when they end."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local import zygote
from toprope.functions.local.process import Process
from toprope.functions.local.timers import Timer, Timers
from toprope.functions.objects import Entry
from toprope.functions.serial import BlockKey
from toprope.functions.wire import Channel, Closed, Kind

if TYPE_CHECKING:
    from toprope.functions.local.session import Session

__all__ = ["Processes"]

WARM = 2
"""Processes that wait for work, so that an instance need not wait for one."""

EXIT_NEWS = 2.0
"""Seconds that the news how a process ended may come after its socket has closed."""

FLUSH = 0.002
"""Seconds between tries to send what a worker has not taken."""

STOP_ALL = 10.0
"""Seconds that all workers together may take to end with the session."""


class Processes:
    """Starts workers through the zygote, and reads what they send while nobody else does."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._warm: deque[Process] = deque()
        self._all: dict[int, Process] = {}
        self._numbers = itertools.count(1)
        self._timers = Timers(self._wake)
        self._full: deque[Process] = deque()  # those whose socket did not take all that was sent
        self._epoll = select.epoll()
        self._listened: dict[int, Process] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._owned: dict[int, int] = {}  # blocks of ended workers that are still needed, by number
        self._closing = False
        self._up = False  # whether the zygote has told anything
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pump = threading.Thread(target=self._run, name="toprope functions", daemon=True)

    def start(self) -> None:
        """Start the zygote, the first workers, and the thread that listens to them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        modules = "cloudpickle,numpy,torch" if _may_import_torch() else "cloudpickle"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*_python_path(), _package_root()])}
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "toprope.functions.local.zygote", str(theirs.fileno()), str(self._session.folder),
             modules],
            pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._control = ours
        self._epoll.register(ours, select.EPOLLIN)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        with self._session.lock:
            self._refill()
        self._pump.start()

    # Starting and ending

    def take(self) -> Process:
        """A process that nobody uses; it may still be on its way up. Held: the session's lock."""
        if not self._warm:
            self._warm.append(self._new())
        process = self._warm.popleft()
        self._refill()
        return process

    def stop(self, process: Process, grace: float, done: Callable[[], None] | None = None) -> None:
        """Let a process end: its hook first, by force after the time of grace. Held: the session's lock."""
        if process.stopping or process.closed:
            return
        process.stopping = True
        try:
            process.channel.send(Kind.STOP, 0, grace)
        except Closed:
            pass
        process.deadline = self.after(grace, lambda: self.kill(process))

    def kill(self, process: Process) -> None:
        """End a process by force. Its pid is its own until the zygote has told its end."""
        if process.exit is not None or process.buried:
            return
        if not process.pid:  # the zygote has not said yet which process it is
            process.deadline = self.after(0.02, lambda: self.kill(process))
        else:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def lost(self, process: Process) -> None:
        """The socket of a process has ended."""
        with self._session.lock:
            if process.closed:
                return
            process.closed = True
            self._unlisten(process)
            if process in self._warm:
                self._warm.remove(process)
            if process.exit is None and not self._closing:
                # how it ended is on its way from the zygote; a process that only closed its socket has to go
                self.kill(process)
                self.after(EXIT_NEWS, lambda: self._buried(process))
            else:
                self._buried(process)

    def _buried(self, process: Process) -> None:
        """A process is gone: what it held is free."""
        with self._session.lock:
            if self._all.pop(process.number, None) is None:
                return
            for key, times in process.lent.items():
                if times > 0:
                    self._session.values.returned(key, times)
            process.lent.clear()
            process.held.clear()
            process.buried = True
            if process.deadline is not None:
                process.deadline.cancel()
            process.channel.close()
            if not self._owned.get(process.number):
                self._sweep(process.number)
            if process.on_lost is not None:
                process.on_lost(process)

    def owns(self, owner: int, blocks: int) -> None:
        """Values in so many more blocks of a worker are known. Held: the session's lock."""
        self._owned[owner] = self._owned.get(owner, 0) + blocks

    def free(self, owner: int, keys: list[BlockKey]) -> None:
        """Blocks of a worker are not needed any more. Held: the session's lock."""
        self._owned[owner] = left = self._owned.get(owner, 0) - len(keys)
        process = self._all.get(owner)
        if process is None:
            if left <= 0:
                self._sweep(owner)
        elif not process.closed:
            try:
                process.channel.send(Kind.FREE, 0, tuple(keys))
            except Closed:
                self.lost(process)

    def _sweep(self, number: int) -> None:
        """Remove the segments of an ended worker, none of whose values is needed."""
        self._owned.pop(number, None)
        for path in self._session.folder.glob(f"w{number}-*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End all processes, and wait until they have."""
        with self._session.lock:
            self._closing = True
            left = [each for each in self._all.values() if not each.closed]
            for process in left:
                self.stop(process, STOP_ALL)
        if not self._up and self._zygote is not None:
            self._zygote.kill()  # it is still importing, and has no workers
        until = time.monotonic() + STOP_ALL
        while any(not each.closed for each in left) and time.monotonic() < until:
            time.sleep(0.005)
        self._wake()
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            try:
                self._zygote.wait(5)
            except subprocess.TimeoutExpired:
                self._zygote.kill()
                self._zygote.wait()
        self._pump.join(5)

    def _refill(self) -> None:
        while len(self._warm) < WARM and not self._closing:
            self._warm.append(self._new())

    def _new(self) -> Process:
        if self._control is None:
            raise YRRuntimeError("the session has no processes any more", CODES["finalized"])
        ours, theirs = socket.socketpair()
        process = Process(next(self._numbers), Channel(ours, on_full=lambda: self._overflows(process)))
        self._all[process.number] = process
        try:
            zygote.send_worker(self._control, process.number, theirs.fileno())
        except OSError:
            raise YRRuntimeError(
                "the process that starts workers is gone; call yr.finalize and yr.init", 3003
            ) from None
        finally:
            theirs.close()
        self._epoll.register(process.channel, select.EPOLLIN | select.EPOLLONESHOT)
        self._listened[process.channel.fileno()] = process
        return process

    # Listening

    def read_here(self, process: Process, entry: Entry, timeout: float | None) -> None:
        """Read for the caller until its object is there or the time is over. Held: the channel's `reading`."""
        until = None if timeout is None else time.monotonic() + timeout
        while not entry.done and not process.closed:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                messages = process.channel.receive(left)
            except Closed:
                self.lost(process)
                return
            if not messages:
                return
            self._session.handle(process, messages)

    def listen(self, process: Process) -> None:
        """Nobody reads what a process sends any more: this thread's pump does again."""
        if not process.closed:
            try:
                self._epoll.modify(process.channel, select.EPOLLIN | select.EPOLLONESHOT)
            except (OSError, ValueError):
                pass  # it was closed in this moment

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Do something later, in the listening thread."""
        return self._timers.after(seconds, action)

    def _overflows(self, process: Process) -> None:
        self._full.append(process)
        self._wake()

    def _unlisten(self, process: Process) -> None:
        self._listened.pop(process.channel.fileno(), None)
        try:
            self._epoll.unregister(process.channel)
        except (OSError, ValueError):
            pass

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass

    def _run(self) -> None:
        assert self._control is not None
        control = self._control.fileno()
        while not self._closing or any(not each.closed for each in list(self._all.values())):
            try:
                self._once(control)
            except Exception:
                if not self._closing:
                    import traceback

                    traceback.print_exc()

    def _once(self, control: int) -> None:
        for fd, _ in self._epoll.poll(FLUSH if self._full else self._timers.due):
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
            elif fd == control:
                self._news()
            else:
                found = self._listened.get(fd)
                if found is not None:
                    self._read(found)
        for _ in range(len(self._full)):
            process = self._full.popleft()
            if not process.channel.flush():
                self._full.append(process)
        self._timers.run()
        self._session.values.settle()

    def _read(self, process: Process) -> None:
        """Read what a worker has sent, where nobody else does."""
        if process.channel.reading.acquire(blocking=False):
            try:
                messages = process.channel.receive(0)
                if messages:
                    self._session.handle(process, messages)
            except Closed:
                self.lost(process)
            finally:
                process.channel.reading.release()
            self.listen(process)

    def _news(self) -> None:
        """Read what the zygote tells: a worker's process, or its end."""
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(self._control)
            for process in list(self._all.values()):
                self.lost(process)
            return
        news = json.loads(data)
        self._up = True
        with self._session.lock:
            found = self._all.get(news["number"])
            if found is None:
                return
            process = found
            if "pid" in news:
                process.pid = news["pid"]
                return
            process.exit = news["exit"]
            if process.closed:
                self._buried(process)
        # what it sent before its end is still to be read
        if process.channel.reading.acquire(timeout=1):
            try:
                while messages := process.channel.receive(0):
                    self._session.handle(process, messages)
            except (Closed, OSError):
                pass
            finally:
                process.channel.reading.release()
        self.lost(process)
        with self._session.lock:
            self._buried(process)


def _may_import_torch() -> bool:
    """Whether workers may import torch before they know their card: a real card's software reads its mask then."""
    return bool(os.environ.get("TOPROPE_SIM")) or os.environ.get("TOPROPE_DEVICE") == "cpu" or not _has_card()


def _has_card() -> bool:
    return os.path.exists("/dev/davinci_manager") or os.path.exists("/dev/nvidiactl")


def _package_root() -> str:
    """The folder that toprope is imported from."""
    import toprope

    return os.path.dirname(os.path.dirname(os.path.abspath(toprope.__file__)))


def _python_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
