"""Finds out in child processes what torch makes of the machine: nothing of torch is imported here.

One child imports torch without its backends and loads them one by one; where other backends are installed, a second
one does what a program does, `import torch` alone. A crash or a driver that hangs ends a child and nothing else.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

from toprope.device.machine import BackendResult, DeviceResult, DtypeResult, Examination, Step

__all__ = ["WAIT", "ended_by", "examination", "examine"]

WAIT = 60.0
"""Seconds that the children have: loading torch_npu and CANN takes 5 to 20, a driver that hangs takes for ever."""

_GRACE = 1.0
_CHILD = Path(__file__).with_name("_examine_child.py")
# run_path and not the file itself: the folder of a script would come first on sys.path, and it has a select.py.
# toprope comes last, for a Python in which it is not installed.
_BOOT = (
    "import runpy, sys; path = sys.argv.pop(1); sys.path.append(sys.argv.pop(1)); "
    "runpy.run_path(path, run_name='__main__')"
)


def examine(
    environment: Mapping[str, str] | None = None, *, wait: float = WAIT, trying: bool = True, memory: bool = False
) -> Examination:
    """What child processes of this Python find.

    Args:
        environment: their variables; this process's own when left out.
        wait: seconds that they have.
        trying: whether dtypes and a step of training are tried.
        memory: whether the free memory of every card is asked for, which takes a little of each.
    """
    variables = dict(os.environ if environment is None else environment)
    plain = (
        _start_plain(variables) if _has_backends() and variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0" else None
    )
    deadline = time.monotonic() + wait
    try:
        lines, ended = _run_child(variables, {"try": trying, "memory": memory}, deadline, wait)
        import_error = None if plain is None else _end_of_plain(*plain, deadline, wait)
    finally:
        if plain is not None:
            _kill(plain[0])
            plain[1].close()
    return examination(lines, ended=ended, import_error=import_error)


def examination(lines: Iterable[str], *, ended: str = "", import_error: str | None = None) -> Examination:
    """The facts that a child said. Pure; lines that say nothing, such as half of one, are passed over.

    Args:
        lines: what it wrote.
        ended: how it ended, where it did not say that it was done.
        import_error: what a plain `import torch` ended with.
    """
    values: dict[str, Any] = {}
    backends: list[BackendResult] = []
    absent: dict[str, str] = {}
    broken: dict[str, str] = {}
    devices: dict[str, dict[str, Any]] = {}
    done = False
    for line in lines:
        fact = _fact(line)
        match fact.pop("fact", ""):
            case "doing":
                values["doing"] = fact["what"]
            case "torch":
                values |= {"torch": fact.get("version", ""), "torch_error": fact.get("error", "")}
            case "backend":
                backends.append(BackendResult(fact["name"], fact["module"], fact.get("error", "")))
            case "torch_npu":
                values |= {"torch_npu": fact.get("version", ""), "torch_npu_error": fact.get("error", "")}
                values |= {"torch_npu_file": fact.get("file", ""), "facade": fact.get("facade", False)}
            case "absent":
                absent[fact["kind"]] = fact["reason"]
                if fact.get("broken"):
                    broken[fact["kind"]] = fact["broken"]
            case "device":
                devices.setdefault(fact["name"], {"dtypes": []}).update(fact)
            case "dtype":
                dtypes = devices[fact.pop("device")]["dtypes"]
                dtypes.append(DtypeResult(**fact))
            case "best":
                devices[fact["device"]]["best"] = fact["dtype"]
            case "step":
                device = devices[fact.pop("device")]
                device["step"] = Step(**fact)
            case "choice":
                values |= {"choice": fact.get("text", ""), "refused": fact.get("refused", {})}
            case "failed":
                ended = f"it failed: {fact['error']}"
            case "end":
                done = True
    if done:
        ended, values["doing"] = "", ""
    return Examination(
        **values,
        ended=ended,
        import_error=import_error,
        backends=tuple(backends),
        absent=absent,
        broken=broken,
        devices=tuple(DeviceResult(**{**each, "dtypes": tuple(each["dtypes"])}) for each in devices.values()),
    )


def ended_by(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"it ended with exit status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def _fact(line: str) -> dict[str, Any]:
    try:
        fact = json.loads(line)
    except ValueError:
        return {}
    return fact if isinstance(fact, dict) else {}


def _has_backends() -> bool:
    """Whether `import torch` loads anything besides what toprope itself has there."""
    own = bool(os.environ.get("TOPROPE_SIM"))
    return any(own or not entry.value.startswith("toprope.") for entry in entry_points(group="torch.backends"))


def _start_plain(variables: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    said = tempfile.TemporaryFile()  # noqa: SIM115  closed by whoever waits for the child
    child = subprocess.Popen(
        [sys.executable, "-c", "import torch"],
        env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
    )  # fmt: skip
    return child, said


def _end_of_plain(child: subprocess.Popen[bytes], said: IO[bytes], deadline: float, wait: float) -> str:
    try:
        status = child.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"it did not end within {wait:.0f} s"
    if status == 0:
        return ""
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ended_by(status)


def _run_child(
    variables: Mapping[str, str], options: Mapping[str, object], deadline: float, wait: float
) -> tuple[list[str], str]:
    """The lines of the child, and how it ended where it was not done."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", _BOOT, str(_CHILD), str(Path(__file__).parents[2])]
    try:
        child = subprocess.Popen(
            [*command, str(writer), json.dumps(options)],
            env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        text, in_time = _read(reader, deadline)
        if not in_time:
            return text.splitlines(), f"it did not answer within {wait:.0f} s"
        try:
            status = child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return text.splitlines(), "it did not end"
        return text.splitlines(), ended_by(status)
    finally:
        _kill(child)
        os.close(reader)


def _read(channel: int, deadline: float) -> tuple[str, bool]:
    """What is said until the child says that it is done, or closes; False where the time was over first."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while not data.endswith(b'{"fact": "end"}\n'):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return data.decode(errors="replace"), False
            piece = os.read(channel, 65536)
            if not piece:
                break
            data += piece
    return data.decode(errors="replace"), True


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its own children, if it still runs."""
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
