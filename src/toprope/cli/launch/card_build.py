"""Build of the simulated card before a process is started that uses it: no time limit and no report counts it.

Called by `cli.run`, `cli.doctor` and `cli.devices`; the build itself is `toprope.sim.build`, in a child process without
the variables of an outer run. What torch itself has wrong is left for the process that imports it to report. Tests:
tests/cli/test_card_build.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import typer

from toprope.cli.launch.child_process import without_run
from toprope.device.host.software import installed_version
from toprope.errors import BuildError, TopropeError
from toprope.extras import advice
from toprope.sim.build import ENDS_WITH_PARENT, is_ready
from toprope.sim.spec import SimSpec
from toprope.terminal import Display

__all__ = ["ensure", "ensure_for_environment"]


def ensure_for_environment() -> None:
    """Build the simulated card if TOPROPE_SIM gives it to the processes that are started from here.

    Raises:
        typer.Exit: it cannot be built, and the reason has been printed.
    """
    try:
        spec = SimSpec.parse(os.environ.get("TOPROPE_SIM", ""))
        spec.capacity  # noqa: B018  raises where no public figure is known and none is given
    except TopropeError:
        return  # not set, or the process that uses it says what is wrong with it
    if spec.force or installed_version() is None:
        ensure()


def ensure(*, quiet: bool = False) -> None:
    """Build the simulated card in a child process, unless there is a build for the torch of this Python.

    The child waits where another process makes the same build.

    Args:
        quiet: whether stderr shows only why it cannot be built.

    Raises:
        typer.Exit: it cannot be built, and the reason has been printed.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None and not quiet:
        Display().say(f"torch is not installed in {sys.executable}, so no program can use the card: {advice('torch')}")
    if torch is None or torch.origin is None or not Path(torch.origin).with_name("include").is_dir() or is_ready():
        return  # where there is no torch, or no whole one, the process that imports it says so
    if not quiet:
        Display().say("the simulated card is being built, once for this torch")
    done = subprocess.run(
        [sys.executable, "-m", "toprope.sim.build", ENDS_WITH_PARENT],
        # a backend that cannot be loaded is not the build's matter
        env=without_run(os.environ) | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if quiet else None, check=False,
    )  # fmt: skip
    if not done.returncode:
        return
    sys.stderr.write((done.stderr or b"").decode(errors="replace"))
    if done.returncode < 0:
        raise BuildError(
            "the build of the simulated card was killed.",
            f"signal {-done.returncode}",
            "start again; where memory ran out (2 GiB for each compiler), free some",
        )
    raise typer.Exit(done.returncode)
