"""Programs in processes of their own, for tests about what a process has only once: cards, masks, forks, counters.

Used by tests of all packages; the processes come from forkserver.py.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import forkserver

FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_INNER", "PYTEST", "TORCH", "ASCEND", "RANK")
PATH = [str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def run(
    code: str, *, sim: str = "910B3x4", timeout: int = 100, file: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """How a program with simulated cards ended, run from a file where one is named; any warning ends it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept |= {"TOPROPE_SIM": sim, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(PATH)}
    code = textwrap.dedent(code)
    if file is not None:
        file.write_text(code)
    return forkserver.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", *(["-c", code] if file is None else [str(file)])],
        env=kept | variables, timeout=timeout,
    )  # fmt: skip


def facts(code: str, **options: Any) -> Any:
    """Run a program; return the JSON of its last line. It has to end well and say nothing on stderr."""
    done = run(code, **options)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
