"""Probe of torch and its devices in child processes: this process imports nothing of torch.

One child imports torch without its backends and loads them one by one; where other backends are installed, a second
one does what a program does, `import torch` alone. A crash or a driver that hangs ends a child and nothing else.

Called by `collect`, and by `cli.launch.detect` for `toprope run`. The child is `_torch_probe_child`, which fixes names
and fields of the facts; they become `host.machine.Examination`. Lines may be cut short: `examination` must take what is
there. Tests: tests/device/test_doctor_cli.py, tests/device/test_doctor_collect.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from toprope.device.host.child_process import Child, facts_in
from toprope.device.host.machine import BackendResult, DeviceResult, DtypeResult, Examination, Step
from toprope.messages import Message, unpack

__all__ = ["WAIT", "examination", "examine"]

WAIT = 60.0
"""Time limit of the children, in seconds: loading torch_npu and CANN takes 5 to 20, a driver that hangs never ends."""

_CHILD = Path(__file__).with_name("_torch_probe_child.py")
# run_path and not the file itself: the folder of a script would come first on sys.path, and its modules hide others.
# toprope comes last, for a Python in which it is not installed.
_BOOT = (
    "import runpy, sys; path = sys.argv.pop(1); sys.path.append(sys.argv.pop(1)); "
    "runpy.run_path(path, run_name='__main__')"
)


def examine(
    environment: Mapping[str, str] | None = None, *, wait: float = WAIT, memory: bool = False, only_npu: bool = False
) -> Examination:
    """Probe torch in child processes of this Python.

    Args:
        environment: their variables; this process's own when left out.
        wait: their time limit, in seconds.
        memory: whether the free memory of every card is asked for, which takes a little of each.
        only_npu: whether only torch_npu is loaded and its cards are counted, and the first one asked for its name.
    """
    variables = dict(os.environ if environment is None else environment)
    plain = not only_npu and _has_backends() and variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"

    def start(**options: bool) -> Child:
        words = ["-c", _BOOT, str(_CHILD), str(Path(__file__).parents[3]), json.dumps(options)]
        return children.enter_context(Child(words, variables, wait=wait))

    with ExitStack() as children:
        importing = start(plain=True) if plain else None
        lines, ended = start(memory=memory, only_npu=only_npu).lines()
        import_error = None if importing is None else _import_error(*importing.lines())
    return examination(lines, ended=ended, import_error=import_error)


def examination(lines: Iterable[str], *, ended: str = "", import_error: str | None = None) -> Examination:
    """Parse the facts that a child reported. Pure; invalid lines, such as half of one, are skipped.

    Args:
        lines: what it wrote.
        ended: how it ended, if it did not report its end.
        import_error: what a plain `import torch` ended with.
    """
    values: dict[str, Any] = {}
    backends: list[BackendResult] = []
    absent: dict[str, str] = {}
    broken: dict[str, str] = {}
    devices: dict[str, dict[str, Any]] = {}
    done = False
    for fact in facts_in(lines):
        match fact.pop("fact", ""):
            case "doing":
                values["doing"] = unpack(fact["what"])
            case "torch":
                values |= {"torch": fact.get("version", ""), "torch_error": fact.get("error", "")}
            case "backend":
                backends.append(BackendResult(fact["name"], fact["module"], fact.get("error", "")))
            case "torch_npu":
                values |= {"torch_npu": fact.get("version", ""), "torch_npu_error": fact.get("error", "")}
                values |= {"torch_npu_file": fact.get("file", ""), "facade": fact.get("facade", False)}
            case "absent":
                absent[fact["kind"]] = unpack(fact["reason"])
                if fact.get("broken"):
                    broken[fact["kind"]] = unpack(fact["broken"])
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
                ended = Message("it failed: {error}", error=fact["error"])
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


def _import_error(lines: Iterable[str], ended: str) -> str:
    """The end of a plain `import torch`; the cause of an error is a finding about the backend itself."""
    said = [fact for fact in facts_in(lines) if fact.get("fact") == "torch"]
    return str(said[0].get("error", "")).partition(" (from ")[0] if said else ended


def _has_backends() -> bool:
    """True if `import torch` loads anything besides what toprope itself has there."""
    own = bool(os.environ.get("TOPROPE_SIM"))
    return any(own or not entry.value.startswith("toprope.") for entry in entry_points(group="torch.backends"))
