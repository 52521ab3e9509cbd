"""Event loop of a local session: starts worker processes ahead of use, reads their messages, and detects their end.

One thread of the driver; a caller that waits for a result reads the worker's socket itself, which is faster. Instances
and pools take processes from it; scheduler, groups, listing and worker requests set timers; the dispatcher gets the
messages. All of it is free, but for two rules: who reads a socket holds `channel.reading`, and a process is cleaned up
once, whether its socket or the forkserver tells of its end first. Tests: tests/functions/test_functions_objects.py,
tests/functions/test_functions_sockets.py, and (slow) tests/functions/test_functions_faults.py, which kills and stops
processes at random moments.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from toprope.functions.exceptions import YRRuntimeError
from toprope.functions.interrupts import interruptible
from toprope.functions.local.forkserver_client import Forkserver, end_strays
from toprope.functions.local.process import Process
from toprope.functions.objects import Entry
from toprope.functions.timers import Timer, Timers
from toprope.functions.transport.serialization import BlockKey
from toprope.functions.transport.wire import Channel, Closed, Kind

if TYPE_CHECKING:
    from toprope.functions.local.session_state import SessionState

__all__ = ["Reactor"]

IDLE = 2
"""Number of idle processes that are kept ready for new instances."""

SELF_EXIT = 0.2
"""Time for a process to exit by itself after its socket has closed, in seconds; then it is killed."""

EXIT_REPORT = 20.0
"""Time for the report of a process's exit after its socket has closed, in seconds: its children are ended first."""

FLUSH = 0.002
"""Interval between attempts to send to a full socket, in seconds."""

REQUESTED_EXIT = 30.0
"""Time for a process to exit after the user's code requested it, in seconds."""

STOP_ALL = 10.0
"""Time for all workers to end with the session, in seconds."""


class Reactor:
    """Starts workers through the forkserver, and reads their messages unless a waiting caller does."""

    def __init__(self, session: SessionState) -> None:
        self._session = session
        self._idle: deque[Process] = deque()
        self._all: dict[int, Process] = {}
        self._numbers = itertools.count(1)
        self._timers = Timers(self.wake)
        self._full: deque[Process] = deque()  # processes with unsent data
        self._epoll = select.epoll()
        self._listened: dict[int, Process] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._owned: dict[int, int] = {}  # blocks of ended workers that are still needed, by number
        self._closing = False
        self._forkserver = Forkserver(session.folder, session.hold)
        self._listener = threading.Thread(target=self._run, name="toprope functions", daemon=True)

    def start(self) -> None:
        """Start the forkserver, the first workers, and the thread that listens to them."""
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._forkserver.start()
        self._epoll.register(self._forkserver.control, select.EPOLLIN)  # type: ignore[arg-type]
        with self._session.lock:
            self._refill()
        self._listener.start()

    # Starting and ending

    def take(self) -> Process:
        """Take an idle process, which may still be starting. The caller holds the session's lock."""
        if not self._idle:
            self._idle.append(self._new())
        process = self._idle.popleft()
        self._refill()
        return process

    def stop(self, process: Process, grace: float) -> None:
        """Stop a process: its hook runs; after the grace period it is killed. The caller holds the session's lock."""
        if process.stopping or process.closed:
            return
        process.stopping = True
        try:
            process.channel.send(Kind.STOP, 0, grace)
        except Closed:
            pass
        process.deadline = self.after(grace, lambda: self.kill(process))

    def exits_by_itself(self, process: Process) -> None:
        """Give a process time to exit, as the user's code requested it. The caller holds the session's lock."""
        if not process.stopping and not process.closed:
            process.stopping = True
            process.deadline = self.after(REQUESTED_EXIT, lambda: self.kill(process))

    def kill(self, process: Process) -> None:
        """Kill a process. Its pid is valid until the forkserver has reported its end."""
        if process.exit is not None or process.cleaned_up:
            return
        if not process.pid:  # the forkserver has not said yet which process it is
            process.deadline = self.after(0.02, lambda: self.kill(process))
        else:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def lost(self, process: Process) -> None:
        """Handle the end of a process's socket."""
        with self._session.lock:
            if process.closed:
                return
            process.closed = True
            self._unlisten(process)
            if process in self._idle:
                self._idle.remove(process)
            if process.exit is None and not self._closing:
                # The forkserver will report how it ended. A process that has only closed its socket is killed.
                if process.deadline is not None:
                    process.deadline.cancel()
                process.deadline = self.after(SELF_EXIT, lambda: self.kill(process))
                process.cleanup_timer = self.after(EXIT_REPORT, lambda: self._clean_up(process))
            else:
                self._clean_up(process)

    def _clean_up(self, process: Process) -> None:
        """Release the resources of a process that is gone."""
        with self._session.lock:
            if self._all.pop(process.number, None) is None:
                return
            process.cleaned_up = True
            self._close(process)
            self._session.release(process)
            for timer in (process.deadline, process.cleanup_timer, process.recycling):
                if timer is not None:
                    timer.cancel()
            if not self._owned.get(process.number):
                self._sweep(process.number)
            if process.on_lost is not None:
                process.on_lost(process)

    def owns(self, owner: int, blocks: int) -> None:
        """Count further blocks of a worker that are in use. The caller holds the session's lock."""
        self._owned[owner] = self._owned.get(owner, 0) + blocks

    def free(self, owner: int, keys: list[BlockKey]) -> None:
        """Release blocks of a worker. The caller holds the session's lock."""
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
        with contextlib.suppress(FileNotFoundError):  # at the end the forkserver removes the folder
            for path in self._session.folder.glob(f"w{number}-*"):
                path.unlink(missing_ok=True)

    def _close(self, process: Process) -> None:
        """Close the socket of a process that is gone; a thread that reads it wakes up first, and closes it then."""
        process.channel.end()
        if process.channel.reading.acquire(blocking=False):
            process.channel.close()
            process.channel.reading.release()

    def close(self) -> None:
        """End all processes, and wait until they have; at once where that is interrupted."""
        with self._session.lock:
            self._closing = True
            left = [each for each in self._all.values() if not each.closed]
            for process in left:
                self.stop(process, STOP_ALL)
        try:
            # a forkserver that is still importing has no workers yet
            until = time.monotonic() + (STOP_ALL if self._forkserver.is_up else 0)
            while any(not each.closed for each in left) and time.monotonic() < until:
                _pause()
        finally:
            self._forkserver.close()
            with self._session.lock:  # a thread that asked for a worker a moment ago has it, or its error
                left = list(self._all.values())
            for process in left:
                self.lost(process)
                self._clean_up(process)  # if it was lost before, no report of its exit comes any more
            self.wake()
            self._listener.join(5)
            if not self._listener.is_alive():
                self._epoll.close()
                for file in (self._wake_read, self._wake_write):
                    os.close(file)
                self._wake_write = -1

    def abandon(self) -> None:
        """Close all descriptors in a fork of the driver, which does not own the workers."""
        self._closing = True
        self._forkserver.abandon()
        self._epoll.close()
        for process in self._all.values():
            process.channel.close()
        for file in (self._wake_read, self._wake_write):
            os.close(file)
        self._wake_write = -1

    def _refill(self) -> None:
        while len(self._idle) < IDLE and not self._closing:
            self._idle.append(self._new())

    def _new(self) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            number = next(self._numbers)
            process = Process(number, Channel(ours, on_full=functools.partial(self._on_overflow, number)))
            self._all[number] = process  # before `ask`: the forkserver's report may reach the other thread at once
            try:
                self._forkserver.ask(number, theirs.fileno())
            except YRRuntimeError:
                del self._all[number]
                ours.close()
                raise
        # Listed before epoll watches it: the process reports only once that it is up, perhaps at once.
        self._listened[process.channel.fileno()] = process
        self._epoll.register(process.channel, select.EPOLLIN | select.EPOLLONESHOT)
        return process

    # Listening

    def read_here(self, process: Process, entry: Entry, timeout: float | None) -> None:
        """Read for the caller until its object is available or the time is over. The caller holds `channel.reading`."""
        until = None if timeout is None else time.monotonic() + timeout
        self._set_events(process, 0)  # else the listening thread would wake for every message that is read here
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

    def read_available(self, process: Process) -> None:
        """Handle the messages of a worker that are there, unless another thread reads. The caller holds the lock."""
        if not process.closed and process.channel.reading.acquire(blocking=False):
            self._read_some(process)

    def listen(self, process: Process) -> None:
        """Hand a process back to the listening thread: the caller reads its socket no longer."""
        if process.cleaned_up:
            self._close(process)
        elif not process.closed:
            self._set_events(process, select.EPOLLIN | select.EPOLLONESHOT)

    def _set_events(self, process: Process, events: int) -> None:
        try:
            self._epoll.modify(process.channel, events)
        except (OSError, ValueError):
            pass  # it was closed in this moment

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run an action later, in the listening thread."""
        return self._timers.after(seconds, action)

    def _on_overflow(self, number: int) -> None:
        process = self._all.get(number)
        if process is not None:
            self._full.append(process)
            self.wake()

    def _unlisten(self, process: Process) -> None:
        self._listened.pop(process.channel.fileno(), None)
        try:
            self._epoll.unregister(process.channel)
        except (OSError, ValueError):
            pass

    def wake(self) -> None:
        """Wake the listening thread: there are deleted handles, closed generators, or new timers."""
        try:
            os.write(self._wake_write, b"x")
        except OSError:
            pass  # it is awake, or has ended

    def _run(self) -> None:
        while not self._closing or any(not each.closed for each in list(self._all.values())):
            try:
                self._handle_events()
            except Exception:
                if not self._closing:
                    import traceback

                    traceback.print_exc()

    def _handle_events(self) -> None:
        control = self._forkserver.control
        forkserver = -1 if control is None else control.fileno()
        for fd, _ in self._epoll.poll(FLUSH if self._full else self._timers.due):
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
            elif fd == forkserver:
                self._read_forkserver()
            else:
                found = self._listened.get(fd)
                if found is not None:
                    self._read(found)
        for _ in range(len(self._full)):
            process = self._full.popleft()
            if not process.channel.flush():
                self._full.append(process)
        self._timers.run()
        self._session.tidy()

    def _read(self, process: Process) -> None:
        """Read messages of a worker, unless another thread does."""
        if process.channel.reading.acquire(blocking=False):
            self._read_some(process)

    def _read_some(self, process: Process) -> None:
        try:
            messages = process.channel.receive(0)
            if messages:
                self._session.handle(process, messages)
        except Closed:
            self.lost(process)
        finally:
            process.channel.reading.release()
            self.listen(process)

    def _read_forkserver(self) -> None:
        """Read a report of the forkserver: a worker's process, or its end."""
        report = self._forkserver.report()
        if report is None:
            self._forkserver_gone()
            return
        process = self._all.get(report["number"])
        if process is None:
            return
        if "pid" in report:
            process.pid = report["pid"]
        elif "refused" in report:
            process.refused = report["refused"]
            self._ended(process)
        else:
            process.exit = report["exit"]
            self._ended(process)

    def _ended(self, process: Process) -> None:
        """Handle the end of a process; messages that it sent before are still read."""
        try:
            if not process.closed and process.channel.reading.acquire(timeout=1):
                try:
                    while messages := process.channel.receive(0):
                        self._session.handle(process, messages)
                except (Closed, OSError):
                    pass
                finally:
                    process.channel.reading.release()
        finally:
            self.lost(process)
            self._clean_up(process)
            self._close(process)  # it may have been cleaned up while it was read here

    def _forkserver_gone(self) -> None:
        """Handle the loss of the forkserver and all its workers; a new one may be started."""
        with self._session.lock:
            gone = list(self._all.values())
            self._idle.clear()
            if self._forkserver.control is not None:
                self._epoll.unregister(self._forkserver.control)
            if self._closing:
                return
            try:
                self._forkserver.start()
                self._epoll.register(self._forkserver.control, select.EPOLLIN)  # type: ignore[arg-type]
            except (YRRuntimeError, OSError) as error:
                logging.getLogger("toprope").error("%s", error)
        end_strays(self._session.folder, {each.pid for each in gone if each.pid})
        for process in gone:
            if process.exit is None:
                process.exit = -signal.SIGKILL
            self._ended(process)


@interruptible
def _pause() -> None:
    time.sleep(0.005)
