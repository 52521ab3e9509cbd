"""The program of `toprope run` as a child process: its environment variables, signals, and exit status.

Called by `cli.run`. The variables are what the parts read in the child: `toprope.sim.launching`, `compat`, and programs
written for CANN, whose names in `_TOOLKIT` are those of CANN's set_env.sh. A new variable also belongs into
`_SET_BY_RUN`, for a run inside a run. Which signals are forwarded is free as long as Ctrl-C reaches the program once,
from the terminal.

Tests: tests/cli/test_run.py, and tests/cli/test_probe.py for `without_run`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from toprope.cli.launch.select_target import Choice
from toprope.errors import ProgramError

__all__ = ["SITE", "end_as", "environment_for", "make_toolkit", "run_program", "without_run"]

SITE = str(Path(__file__).resolve().parents[2] / "compat" / "site")
"""The folder with our sitecustomize.py."""

_SET_BY_RUN = (
    "TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE", "TOPROPE_TOOLS", "TOPROPE_FROM_CUDA",
    "TOPROPE_TRACE_CUDA", "TOPROPE_REHEARSE",
)  # fmt: skip
_TOOLKIT = {
    "ASCEND_TOOLKIT_HOME": "",
    "ASCEND_HOME_PATH": "",
    "ASCEND_AICPU_PATH": "",
    "ASCEND_OPP_PATH": "opp",
    "TOOLCHAIN_HOME": "toolkit",
}
"""Variables that CANN's set_env.sh exports, with the folder of the toolkit that each names."""

_NO_TOOLKIT = """This folder represents CANN in a run on a simulated card (toprope run): there is no CANN here.

Programs ask for ASCEND_HOME_PATH and its like to see that set_env.sh was sourced, as on a machine with a real card.
"""
_LIBRARIES = ("ascendcl", "torch_npu")
"""Libraries that DeepSpeed links its extensions to, also those that call nothing of them, such as CPUAdam."""

_NO_LIBRARY = "/* GNU ld script: a run on a simulated card has no such library, so nothing is linked. */\n"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_LEFT_TO_CHILD = (signal.SIGINT, signal.SIGQUIT)


def environment_for(
    choice: Choice,
    base: Mapping[str, str],
    folder: str,
    *,
    real_installed: bool = False,
    trace: bool = False,
    smallest: int | None = None,
) -> dict[str, str]:
    """The variables of a program that gets this card.

    Args:
        choice: the card.
        base: the variables of the user, which are otherwise handed on as they are.
        folder: where the processes of the run keep their cards, counters and notes; programs find its `bin` first.
        real_installed: whether a real torch_npu is there, from which cpu and cuda hide the cards.
        trace: whether the processes record what they do to the simulated card.
        smallest: bytes of the smallest block of memory whose line is recorded; None for no rehearsal.
    """
    environment = without_run(base)
    environment["PYTHONPATH"] = os.pathsep.join(
        [SITE, *([environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else [])]
    )
    kind = "npu" if choice.device == "sim" else choice.device
    named = base.get("TOPROPE_DEVICE", "")
    environment["TOPROPE_DEVICE"] = named if named.partition(":")[0] == kind else kind
    if "PATH" in environment:
        environment["TOPROPE_TOOLS"] = os.path.join(folder, "bin")
        environment["PATH"] = os.pathsep.join([environment["TOPROPE_TOOLS"], environment["PATH"]])
    if choice.spec is not None:
        environment["TOPROPE_SIM"] = choice.spec.format()
        environment["TOPROPE_RUN_DIR"] = folder
        if trace:
            environment["TOPROPE_TRACE"] = "1"
        if smallest is not None:
            environment["TOPROPE_REHEARSE"] = str(smallest)
        if not any(environment.get(name) for name in _TOOLKIT):
            environment |= _toolkit(Path(folder))
    elif choice.device == "npu":
        environment["TOPROPE_RUN_DIR"] = folder
    elif real_installed:
        # torch.npu.is_available() is then False, as these devices promise
        environment["ASCEND_RT_VISIBLE_DEVICES"] = ""
    return environment


def make_toolkit(folder: Path) -> None:
    """Make the folder that the variables of CANN name in a run; it says that it is none."""
    for path in _toolkit(folder).values():
        Path(path).mkdir(parents=True, exist_ok=True)
    home = Path(_toolkit(folder)["ASCEND_HOME_PATH"])
    (home / "README").write_text(_NO_TOOLKIT, encoding="utf-8")
    (home / "lib64").mkdir(exist_ok=True)
    for name in _LIBRARIES:
        (home / "lib64" / f"lib{name}.so").write_text(_NO_LIBRARY, encoding="utf-8")


def _toolkit(folder: Path) -> dict[str, str]:
    home = folder / "Ascend" / "ascend-toolkit" / "latest"
    return {name: str(home / inner) for name, inner in _TOOLKIT.items()}


def without_run(base: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that an outer `toprope run` set."""
    outer = base.get("TOPROPE_RUN_DIR", "")
    ours = {name for name in _TOOLKIT if outer and base.get(name, "").startswith(outer)}
    environment = {name: value for name, value in base.items() if name not in _SET_BY_RUN and name not in ours}
    tools = base.get("TOPROPE_TOOLS")
    if "PATH" in environment and tools:
        environment["PATH"] = os.pathsep.join(
            entry for entry in environment["PATH"].split(os.pathsep) if entry != tools
        )
    entries = environment.pop("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(entry for entry in entries if entry != SITE)
    if kept:
        environment["PYTHONPATH"] = kept
    return environment


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program with this process's input and output, and wait for it.

    SIGTERM and SIGHUP are handed on to it. Ctrl-C and Ctrl-\\ reach it from the terminal, and it decides what they
    mean: they do nothing here while it runs.

    Returns:
        Its exit status; the negative number of the signal that killed it.

    Raises:
        ProgramError: it cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    def leave(number: int, frame: FrameType | None) -> None:
        """Do nothing; unlike SIG_IGN a function is not inherited by the program."""

    # signals that this process ignores (nohup) the program ignores too
    handlers = dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_LEFT_TO_CHILD, leave)
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        try:
            child = subprocess.Popen(list(command), env=dict(environment))
        except OSError as error:
            raise ProgramError(
                f"{command[0]!r} cannot be started: {error.strerror}.",
                do="check that it is a program for this machine (a script needs #! in its first line)",
            ) from error
        for number in early:
            child.send_signal(number)
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(status: int) -> int:
    """The exit status for a program's end; where a signal killed the program, this process ends by it too."""
    if status >= 0:
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    # one core dump, the program's own, is enough
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status
