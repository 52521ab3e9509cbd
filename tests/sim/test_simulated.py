"""The simulated card itself: every module of tests/*/simulated in a process of its own, with a time limit.

A mistake in C++ aborts or hangs a process; then one test here fails, with what the process printed. A module may
declare its needs as literals at its top, which are read without importing it:

    SIM = "910B3x2,hbm=64MiB"     the cards (4 of kind 910B3 that refuse no dtype, where it says nothing)
    ENVIRONMENT = {"NAME": "x"}   variables of its process

One module by hand: TOPROPE_INNER=1 python -m pytest tests/sim/simulated/test_views.py
"""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forkserver

pytestmark = [pytest.mark.native, pytest.mark.process]

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").glob("*/simulated/test_*.py"))
# What `make test` runs of them; the others are left to `make check`.
QUICK = ("memory_figures", "operators", "streams")
LONG = (
    "core_limits", "counters_file", "fork", "images_attention", "images_engine", "images_hidream", "images_memory",
    "memory_leaks", "module_samples", "npu_settings", "samples_with_documents", "sharing", "tiers_experts",
    "tiers_models", "tiers_threads", "tiers_torchao", "tiers_training", "visible_devices",
)  # fmt: skip
"""Modules of 15 s and more, for `make soak`."""

TEST_LIMIT, LIMIT = (1800, 3500) if SOAK else (120, 280)
"""Seconds for one test, after which its process prints every thread's stack and ends, and for a whole module."""

FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTHON", "PYTEST", "TORCH", "ASCEND", "RANK")


def literals(source: str) -> dict[str, Any]:
    """The literals that a module assigns to SIM and ENVIRONMENT."""
    found = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in ("SIM", "ENVIRONMENT"):
                found[name] = ast.literal_eval(statement.value)
    return found


def ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def failure(path: Path, limit: float = LIMIT, test_limit: float = TEST_LIMIT) -> str:
    """Runs the tests of a module in a process of its own; what went wrong, "" where nothing did."""
    wants = literals(path.read_text(encoding="utf-8"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    variables = {"TOPROPE_INNER": "1", "TOPROPE_SIM": wants.get("SIM", "910B3x4,refuse=off")} | wants.get(
        "ENVIRONMENT", {}
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path), "--rootdir", str(ROOT)]
    command += ["-c", str(ROOT / "pyproject.toml"), "-o", "faulthandler_exit_on_timeout=true"]
    command += ["-o", f"faulthandler_timeout={test_limit}"]
    try:
        done = forkserver.run(command, cwd=ROOT, env=kept | variables, timeout=limit)
    except subprocess.TimeoutExpired as error:
        return f"{path.name} did not end within {limit} s\n{error.output}{error.stderr}"
    if done.returncode != 0:
        return f"{path.name}: {ending(done.returncode)}\n{done.stdout}{done.stderr}"
    return "" if " passed" in done.stdout.splitlines()[-1] else f"{path.name}: nothing was tested\n{done.stdout}"


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=() if name in QUICK else pytest.mark.soak if name in LONG else pytest.mark.slow)
        for module in MODULES
        for name in [Path(module).stem.removeprefix("test_")]
    ],
)
def test_module(module: str) -> None:
    wrong = failure(ROOT / "tests" / module)
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("assert 1 + 1 == 2", ""),
        ("assert 1 + 1 == 3", "exit status 1\n"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV\n"),
        ("import time; time.sleep(60)", "in test_it"),
        ("import pytest; pytest.skip()", "nothing was tested\n"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "test_small.py"
    path.write_text(f"def test_it():\n    {body}\n")
    wrong = failure(path, test_limit=3 if "sleep" in body else TEST_LIMIT)
    assert told in wrong
    assert bool(told) == bool(wrong)


@pytest.mark.slow
def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "test_small.py"
    path.write_text("import atexit, time\n\natexit.register(time.sleep, 60)\n\n\ndef test_it():\n    pass\n")
    assert failure(path, limit=3).startswith("test_small.py did not end within 3 s\n")


def test_a_module_says_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "test_small.py"
    body = "assert (os.environ['NAME'], os.environ['TOPROPE_SIM']) == ('x', '910B4')"
    path.write_text(f"import os\nSIM = '910B4'\nENVIRONMENT = {{'NAME': 'x'}}\ndef test_it():\n    {body}\n")
    assert failure(path) == ""


def test_it_is_read_without_importing_the_module() -> None:
    assert literals("import nothing_of_this_name\nSIM = '910B3x2'\nENVIRONMENT = {'A': 'b'}\nOTHER = f()\n") == {
        "SIM": "910B3x2",
        "ENVIRONMENT": {"A": "b"},
    }
