"""Parts that need no torch, which is an extra: the port, the checker of streams, the pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "import sys; sys.modules['torch'] = None; from toprope.cli import main; sys.exit(main(sys.argv[1:]))"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPROPE_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--help"], 0, "port"),
        (["port", "examples/digits_npu.py"], 0, "1 file"),
        (["cores", "check", "examples/cores/circle.json"], 1, "deadlock"),
        (["explain", "chips"], 0, "910B3"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_is_done_without_torch(words, status, said):
    done = run(*words)
    assert done.returncode == status, done.stderr
    assert said in done.stdout


@pytest.mark.process
def test_what_needs_torch_says_so():
    done = run("estimate", "torch.nn:Identity")
    assert done.returncode == 3
    assert done.stderr.startswith("toprope: this needs torch, which is not installed.\n")
    assert "\n  do         pip install " in done.stderr
    assert "Traceback" not in done.stderr
