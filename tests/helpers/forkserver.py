"""Python processes that start with torch imported: a server imports it once and forks for each request.

Importing torch takes seconds of processor time, and hundreds of tests need it in a process of their own. `run` and
`start` take a command as `subprocess` does, `[sys.executable, "-c" | "-m" | FILE, ...]`, and the child sees what a new
interpreter would: its arguments, variables, folder, warning filters, `sys.path`, and the backends that `import torch`
loads. What it cannot show is what happens before or while torch is imported; such tests start a real interpreter.

Started by tests/conftest.py; used wherever a test needs a process with torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

PRELOADED = ("torch", "numpy")
ADDRESS, OWNER = "TESTS_FORKSERVER", "TESTS_FORKSERVER_OWNER"
"""Variables: the server's socket, and the process with which it ends. conftest.py sets them for a run of the tests."""

FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "ASCEND")
_HEADER = 16  # bytes of a number in a message


class Process:
    """A forked process, which leads a session of its own."""

    def __init__(self, command, connection):
        self.args, self._connection = command, connection
        self.returncode = None
        self.pid = self._number()

    def _number(self):
        data = self._connection.recv(_HEADER)
        if not data:
            raise RuntimeError("the fork server ended")
        return int(data)

    def wait(self, timeout=None):
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._number()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._connection.close()
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(1e-3)
        return None

    def kill(self):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def start(command, *, env=None, cwd=None, stdin=None, stdout=None, stderr=None):
    """A process for `command`, whose first word is this interpreter; files are descriptors or None for ours."""
    arguments = list(map(os.fspath, command))
    assert arguments[0] == sys.executable, arguments
    request = {"arguments": arguments[1:], "cwd": os.path.abspath(cwd or "."), "env": dict(env or os.environ)}
    files = [default if given is None else given for given, default in ((stdin, 0), (stdout, 1), (stderr, 2))]
    connection = _connected()
    socket.send_fds(connection, [json.dumps(request).encode()], files)
    return Process(command, connection)


def run(command, *, env=None, cwd=None, input="", timeout=250, check=False, capture_output=True, text=True):
    """As `subprocess.run`: what the process printed, as text. One that does not end in time is killed."""
    assert capture_output
    assert text
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        process = start(command, env=env, cwd=cwd, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno())
        try:
            process.wait(timeout)
            late = None
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait(10)
            late = error
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
    if late is not None:
        raise subprocess.TimeoutExpired(command, timeout, *printed) from None
    done = subprocess.CompletedProcess(command, process.returncode, *printed)
    if check:
        done.check_returncode()
    return done


def _connected():
    """A connection to the server of this run of the tests, which is started where there is none yet."""
    address = os.environ[ADDRESS]
    with contextlib.suppress(OSError):
        return _connection(address)
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            return _connection(address)
        reader, writer = os.pipe()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        child = subprocess.Popen(
            [sys.executable, __file__, address, os.environ[OWNER], str(writer), *PRELOADED], pass_fds=(writer,),
            env=kept | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(writer)
        with open(reader, "rb") as ready:
            assert ready.read() == b"ready", "the fork server did not start"
        child.returncode = 0  # it outlives this process
    return _connection(address)


def _connection(address):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _serve(listener, owner):
    """Fork for each request; returns the request in the child, and None in the server when the owner has ended."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer)
    watch = os.pidfd_open(owner)
    connections = {}
    with selectors.DefaultSelector() as selector:
        for file in (listener, reader, watch):
            selector.register(file, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if watch in ready:
                return None
            if reader in ready:
                os.read(reader, 4096)
                _report_ended(connections)
            if listener not in ready:
                continue
            connection, _ = listener.accept()
            data, files, *_ = socket.recv_fds(connection, 2**20, 3)
            child = os.fork()
            if not child:
                break
            for file in files:
                os.close(file)
            connections[child] = connection
            connection.send(str(child).encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (connection, listener, *connections.values()):
        each.close()
    for file in (reader, writer, watch):
        os.close(file)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    return json.loads(data)


def _report_ended(connections):
    while connections:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with connections.pop(child) as connection, contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _enter(request):
    """Make this process look as a new interpreter with the request's arguments would; returns what to run."""
    import importlib
    import types
    import warnings

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0:1] = [""] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    importlib.invalidate_caches()
    time.tzset()
    arguments = request["arguments"]
    while arguments[0] in ("-W", "-X"):
        option, value, *arguments = arguments
        if option == "-W":
            warnings.simplefilter(value)
        elif value == "faulthandler":
            import faulthandler

            faulthandler.enable()
        else:
            raise SystemExit(f"forkserver: -X {value} needs a new interpreter")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        torch._import_device_backends()
    match arguments:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            return lambda: exec(compile(code, "<string>", "exec"), main.__dict__)
        case ["-m", name, *rest]:
            import runpy

            sys.argv = [name, *rest]
            sys.path[0] = os.getcwd()
            return lambda: runpy._run_module_as_main(name)
        case [file, *rest]:
            sys.argv = [file, *rest]
            sys.path[0] = os.path.dirname(os.path.realpath(file))
            main.__file__ = file
            with open(file, "rb") as source:
                code = source.read()
            return lambda: exec(compile(code, file, "exec"), main.__dict__)


if __name__ == "__main__":
    _address, _owner, _ready, *_names = sys.argv[1:]
    for _name in _names:
        __import__(_name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as _listener:
        _listener.bind(_address)
        _listener.listen(64)
        os.write(int(_ready), b"ready")
        os.close(int(_ready))
        _asked = _serve(_listener, int(_owner))
    if _asked is not None:
        _enter(_asked)()
