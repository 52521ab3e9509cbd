"""The core without torch: memory, streams, cards. Each case of core_*_cases.py in a process of its own.

Holds csrc/core against rules of torch_npu's allocator, written again in tests/helpers/core_library.py.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toprope.sim import build

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
CASES = [
    (file.name, statement.name)
    for file in sorted(HELPERS.glob("core_*_cases.py"))
    for statement in ast.parse(file.read_text(encoding="utf-8")).body
    if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_")
]


@pytest.mark.parametrize(("file", "case"), CASES)
def test_case(file: str, case: str) -> None:
    program = HELPERS / file
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND")}
    command = [sys.executable, "-X", "faulthandler", "-W", "error", str(program), case, str(build.ensure().core)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1500, check=False)
    if done.returncode:
        pytest.fail(f"{case}: status {done.returncode}\n{done.stdout}{done.stderr[-6000:]}", pytrace=False)


def test_there_are_cases() -> None:
    assert len(CASES) > 20
