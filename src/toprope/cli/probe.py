"""Whether this machine has a real card that works: torch_npu is tried in a child process, never in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions

from toprope.compat.distribution import FacadeDistribution, same_name
from toprope.compat.finder import real_spec

__all__ = ["Probe", "installed_version", "probe"]

TIME_LIMIT = 120.0
"""Seconds a child has: loading torch, torch_npu and CANN takes 5 to 20; a driver that hangs takes forever."""

_MARK = "toprope-probe:"
# Autoload would try torch_npu in the middle of `import torch`: off, and then by name, its own reason is seen.
_CODE = f"""
import json, os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
def say(**facts):
    sys.stdout.write("\\n{_MARK}" + json.dumps(facts) + "\\n")
try:
    import torch
    import torch_npu
    count = torch.npu.device_count() if torch.npu.is_available() else 0
    name = str(torch.npu.get_device_name(0)) if count else ""
    say(count=count, name=name)
except BaseException as error:
    say(error=f"{{type(error).__name__}}: {{error}}")
"""


@dataclass(frozen=True)
class Probe:
    """What a search for a real card found.

    Attributes:
        state: "works"; "no card" (torch_npu loads and sees none); "broken" (installed, cannot be loaded);
            "not installed".
        version: version of torch_npu; empty when it is not known.
        count: number of cards.
        name: name of the first card.
        reason: why torch_npu cannot be loaded, in one line.
    """

    state: str
    version: str = ""
    count: int = 0
    name: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The finding as one sentence without a full stop."""
        name = f"torch_npu {self.version}".strip()
        if self.state == "works":
            return f"{name} works and sees {self.count} x {self.name}"
        if self.state == "no card":
            return f"{name} works but sees no card"
        if self.state == "broken":
            return f"{name} is installed but cannot be loaded: {self.reason}"
        return "torch_npu is not installed"


def probe(environment: Mapping[str, str] | None = None, time_limit: float = TIME_LIMIT) -> Probe:
    """Look for a real card; no process is started where no torch_npu is installed.

    Args:
        environment: the variables of the child, this process's own when left out. What an outer `toprope run` set
            is left out, so that no facade answers.
        time_limit: seconds after which torch_npu counts as one that cannot be loaded.
    """
    version = installed_version()
    if version is None:
        return Probe("not installed")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE],
            env=_clean(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=time_limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Probe("broken", version, reason=f"it did not answer within {time_limit:.0f} s")
    facts = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not facts:
        return Probe("broken", version, reason=_end(done.returncode))
    answer = json.loads(facts[-1])
    if "error" in answer:
        return Probe("broken", version, reason=_reason(answer["error"]))
    if not answer["count"]:
        return Probe("no card", version)
    return Probe("works", version, answer["count"], answer["name"])


def installed_version() -> str | None:
    """Version of the installed torch_npu, empty when it is not known; None when there is none. Facades do not count."""
    for found in distributions(name="torch-npu"):
        if not isinstance(found, FacadeDistribution) and same_name(found.name, "torch-npu"):
            return found.version
    return None if real_spec("torch_npu") is None else ""


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    from toprope.cli.child import without_run

    return without_run(environment)


def _reason(error: str) -> str:
    """One line of the error; a library that is missing is named first, since that is what has to be mended."""
    kind, _, text = " ".join(error.split()).partition(": ")
    library, missing, _ = text.partition(": cannot open shared object file")
    return f"{library} is missing" if kind == "ImportError" and missing else f"{kind}: {text}"


def _end(status: int) -> str:
    if status < 0:
        return f"it ended the process with {signal.Signals(-status).name}"
    return f"it ended the process with exit status {status}"
