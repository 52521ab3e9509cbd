"""The process that workers are forked from: it has imported what they need and never touches a device.

The session starts it anew, not as a fork of itself. It has one thread, so that forks are safe. It is the reaper of all
that workers leave behind, and ends them all when the driver is gone, however that went.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
MARK = "TOPROPE_WORKER"
"""The variable by which descendants of a worker are known, with the worker's number."""


def main() -> None:
    """Serve the driver until it is gone. Arguments: descriptor of the socket, folder of the session, what to import."""
    control = socket.socket(fileno=int(sys.argv[1]))
    folder, modules = sys.argv[2], [each for each in sys.argv[3].split(",") if each]
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
    from toprope.functions.local import worker

    gc.collect()
    gc.freeze()
    workers: dict[int, int] = {}  # pid: the worker's number
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    try:
        while True:
            for fd, _ in poll.poll():
                if fd == woken:
                    os.read(woken, 4096)
                    _reap(control, workers)
                    continue
                data, files, _, _ = socket.recv_fds(control, 65536, 8)
                if not data:
                    return
                number = json.loads(data)["number"]
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    control.close()
                    os.close(woken)
                    os.close(wake)
                    _become_worker(libc, worker, files[0], folder, number)
                os.close(files[0])
                workers[pid] = number
                control.send(json.dumps({"number": number, "pid": pid}).encode())
    except (ConnectionError, BrokenPipeError):
        pass
    finally:
        if os.getpid() == zygote_pid():
            _end_all(workers)
            shutil.rmtree(folder, ignore_errors=True)


def zygote_pid() -> int:
    """The process that `main` runs in."""
    return _PID


_PID = os.getpid()


def _become_worker(libc: ctypes.CDLL, worker: object, file: int, folder: str, number: int) -> None:
    status = 1
    try:
        os.setsid()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != _PID:
            os._exit(1)  # the zygote is gone already
        for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        os.environ[MARK] = str(number)
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
    """End as a program does, but without the zygote's own ending."""
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
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        number = workers.pop(pid, None)
        if number is None:
            continue  # something that a worker left behind
        _end_descendants(pid, number)
        code = os.waitstatus_to_exitcode(status)
        control.send(json.dumps({"number": number, "exit": code}).encode())


def _end_descendants(pid: int, number: int) -> None:
    """Kill what a worker has left: its session, and what was started with its mark."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    mark = f"{MARK}={number}".encode()
    for _ in range(3):  # what is killed may have just forked
        found = False
        for child in _children(os.getpid()):
            if os.getsid(child) == pid or mark in _environment(child):
                found = True
                for each in (*_descendants(child), child):
                    try:
                        os.kill(each, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        if not found:
            return


def _end_all(workers: dict[int, int]) -> None:
    for each in (*_descendants(os.getpid()), *workers):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found.extend(_children(child))
    return found


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(each) for each in file.read().split()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def send_worker(control: socket.socket, number: int, file: int) -> None:
    """Ask the zygote for a worker that has this end of a socket."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
    control.sendmsg([json.dumps({"number": number}).encode()], ancillary)


if __name__ == "__main__":
    main()
