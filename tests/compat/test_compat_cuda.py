"""A program written for CUDA on another device: `toprope run --from cuda` and `--trace-cuda`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]

PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "programs" / "written_for_cuda.py"


def run(*options, program=PROGRAM, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", *options, str(program)], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def on_the_card():
    return run("--device", "sim", "--from", "cuda")


def test_the_program_takes_the_card_for_cuda(on_the_card):
    told = json.loads(on_the_card.stdout)
    weights = told.pop("weights")
    assert told == {
        "seen": [True, "cuda", "cuda:0", "cuda"],
        "generator": [True, [2]],
        "class": ["torch.float32", True],
        "loaded": "cuda",
        "memory": True,
    }
    plain = json.loads(run("--device", "cpu", "--from", "cuda", "--quiet").stdout)
    assert plain["seen"] == [False, "cpu", "cpu", "cpu"]
    assert weights == pytest.approx(plain["weights"], abs=1e-2)


def test_the_report_says_that_torch_was_redefined(on_the_card):
    assert "torch.cuda was redefined in the program's processes" in on_the_card.stderr


def test_a_trace_lists_what_reached_torch_with_the_place(tmp_path):
    file = tmp_path / "trace.json"
    run("--device", "cpu", "--quiet", "--trace-cuda", str(file))
    sites = json.loads(file.read_text())["sites"]
    seen = {(each["text"].removeprefix("torch."), each["stack"][0]["line"]) for each in sites}
    wanted = set()
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1):
        if "# SITE " in line:
            wanted.add((line.rpartition("# SITE ")[2].removeprefix("torch."), number))
    assert wanted <= seen
    assert all(each["stack"][0]["file"] == str(PROGRAM) for each in sites)
    assert not any("manual_seed" in each["text"] for each in sites)  # torch's own: the program called torch.manual_seed


def test_all_is_undone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import torch
from pathlib import Path
from toprope.compat import cuda
def state():
    names = "is_available", "memory_allocated", "FloatTensor", "Stream"
    return [getattr(torch.cuda, name) for name in names] + [
        torch.Generator, torch.load, torch.autocast, torch.cuda.amp.autocast]
before = state()
undo = cuda.install(Path("."))
assert not any(one is other for one, other in zip(before, state()))
undo()
assert all(one is other for one, other in zip(before, state()))
try:
    torch.ones(1, device="cuda")
except (AssertionError, RuntimeError):
    print("as it was")
""")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={"TOPROPE_DEVICE": "cpu", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "as it was\n", done.stderr


def test_another_origin_is_refused():
    done = run("--from", "rocm", status=2)
    assert "--from rocm is not known" in done.stderr
