"""The process that workers are forked from: it has imported what they need and never touches a device.

The session starts it as a new program, not as a fork, and talks to it by `forkserver_client`. It has one thread, so
forks are safe: nothing that is imported here may start another. Each worker adopts what its descendants leave behind,
and this process what an ended worker leaves: a child that is no worker is killed. It ends all of them when the driver
is gone, even if the driver was killed, or a fork of the driver still holds its sockets. The means are Linux's (prctl,
pidfd, /proc). Tests: tests/functions/test_functions_assertions.py (children), and (slow)
tests/functions/test_functions_faults.py.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import weakref
from collections.abc import Collection

from toprope.functions.local.folder import MARK

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_PATIENCE = 2.0
"""Seconds that processes may take to be gone once they were killed."""


def main() -> None:
    """Serve the driver until it is gone.

    Arguments: the control socket, the session's folder, what to import, the driver's process, a descriptor to hold.
    """
    for file in (int(sys.argv[1]), int(sys.argv[5])):
        os.set_inheritable(file, False)  # programs that a worker starts must not inherit them
    control = socket.socket(fileno=int(sys.argv[1]))
    folder, modules, driver = sys.argv[2], [each for each in sys.argv[3].split(",") if each], int(sys.argv[4])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for module in modules:
        try:
            __import__(module)
        except Exception:
            pass  # the worker that needs it says what is wrong
    from toprope.functions.local.worker import worker_process

    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False  # workers must not tear this process's resources down at their exit
    gc.collect()
    gc.freeze()
    watch = _watch(driver)
    poll = select.poll()
    for file in (control.fileno(), woken, *([watch] if watch is not None else [])):
        poll.register(file, select.POLLIN)
    workers: dict[int, int] = {}  # pid: the worker's number
    try:
        while os.getppid() == driver:
            for fd, _ in poll.poll(1000):
                if fd == watch:
                    return
                if fd == woken:
                    os.read(woken, 4096)
                    _reap(control, workers)
                    continue
                data, files, _, _ = socket.recv_fds(control, 65536, 8)
                if not data:
                    return
                number = json.loads(data)["number"]
                os.set_inheritable(files[0], False)
                try:
                    pid = os.fork()
                except OSError as error:  # no more processes, or no memory for them
                    control.send(json.dumps({"number": number, "refused": error.strerror}).encode())
                else:
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        control.close()
                        for each in (woken, wake, *([watch] if watch is not None else [])):
                            os.close(each)
                        _become_worker(libc, worker_process, files[0], folder, number)
                    workers[pid] = number
                    control.send(json.dumps({"number": number, "pid": pid}).encode())
                finally:
                    os.close(files[0])
    except ConnectionError:
        pass
    finally:
        if os.getpid() == _PID:
            _end(spare=())
            shutil.rmtree(folder, ignore_errors=True)


_PID = os.getpid()


def _watch(driver: int) -> int | None:
    """Return a descriptor that is readable once the driver is gone; None if the system has none."""
    try:
        return os.pidfd_open(driver)
    except OSError:
        return None


def _become_worker(libc: ctypes.CDLL, worker: object, file: int, folder: str, number: int) -> None:
    status = 1
    try:
        os.setsid()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what its descendants leave stays its own
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != _PID:
            os._exit(1)  # the forkserver is gone already
        for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        os.environ[MARK] = f"{os.path.basename(folder)}:{number}"
        worker.main(socket.socket(fileno=file), folder, number)  # type: ignore[attr-defined]
        status = 0
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> None:
    """End as a program does, but without the forkserver's own ending."""
    import atexit

    try:
        import threading

        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _reap(control: socket.socket, workers: dict[int, int]) -> None:
    """Report the workers that have ended, once the processes that they left are gone too."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            break
        number = workers.pop(pid, None)
        if number is not None:
            ended.append({"number": number, "exit": os.waitstatus_to_exitcode(status)})
    if ended:
        _end(spare=workers)
    for report in ended:
        control.send(json.dumps(report).encode())


def _end(spare: Collection[int]) -> None:
    """Kill all other children and their descendants, and wait until they are gone."""
    until = time.monotonic() + _PATIENCE
    while (children := [each for each in _children(os.getpid()) if each not in spare]) and time.monotonic() < until:
        for child in children:  # again and again: what is killed may have forked just then
            for each in (child, *_descendants(child)):
                try:
                    os.kill(each, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.001)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found.extend(_children(child))
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


if __name__ == "__main__":
    main()
