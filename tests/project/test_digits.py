"""An ordinary NPU program learns to read digits on the simulated card: the first example of the README."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.native, pytest.mark.process]

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "digits_npu.py"

pytest.importorskip("sklearn")


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--chip", "910B3", str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )


def test_it_is_an_ordinary_program():
    assert "toprope" not in PROGRAM.read_text(encoding="utf-8").lower()


@pytest.mark.slow
def test_it_reads_97_percent_of_held_out_digits():
    done = run()
    assert done.returncode == 0, done.stderr
    *epochs, last = done.stdout.splitlines()
    assert len(epochs) == 8
    for number, line in enumerate(epochs, 1):
        assert re.fullmatch(rf"epoch {number}  loss \d\.\d{{3}}  accuracy \d\d\.\d %", line)
    final = re.fullmatch(r"held-out accuracy (\d+\.\d\d) % of 450 digits", last)
    assert float(final[1]) >= 97
    assert "ran on npu:0, a simulated Ascend 910B3" in done.stderr
    # torch's scaler casts to float64, which a card has as float32, and torch_npu says so
    cast = r"\[W\d+ [^\n]* Warning: Device do not support double dtype now, dtype cast replace with float\.[^\n]*\n"
    assert "Warning" not in re.sub(cast, "", done.stderr, count=1)


@pytest.mark.slow
def test_it_says_so_when_it_does_not():
    done = run("--epochs", "1", "--require", "100")
    assert done.returncode == 1
    assert "accuracy is below 100.0 %" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("held-out accuracy ")
