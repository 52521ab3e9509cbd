"""nn.DataParallel in a run: on cards it works, as it does with torch_npu.

Its numbers are in tests/sim/simulated/test_data_parallel.py; its behaviour without toprope.compat is in
tests/sim/simulated/test_data_parallel_bare.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

PROGRAM = """
import torch, torch_npu
from torch import nn

device = "npu:0" if torch.npu.is_available() else "cpu"
model = nn.DataParallel(nn.Linear(8, 4).to(device), device_ids=[0, 1])
model(torch.ones(6, 8)).sum().backward()
print(model.module.weight.grad[0, 0].item(), model.module.weight.grad.device)
"""


def run(folder: Path, code: str, *options: str) -> tuple[str, Any]:
    """What a program printed in `toprope run`, and the report as data."""
    (folder / "program.py").write_text(code)
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTHON", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--json", *options, "program.py"],
        cwd=folder, env=kept, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def test_the_report_said_that_torch_npu_would_not_run_it_which_has_done_so_since_2024(tmp_path: Path) -> None:
    printed, facts = run(tmp_path, PROGRAM, "--chip", "910B3", "--count", "2")
    assert printed == "6.0 npu:0\n"
    assert facts["notes"] == []
    (card,) = facts["simulated"]
    assert [each["name"] for each in card["used_cards"]] == ["npu:0", "npu:1"]
    assert card["copies"]["between_cards"]["number"] > 0


def test_where_there_is_no_card_torch_runs_the_module_as_it_is(tmp_path: Path) -> None:
    printed, facts = run(tmp_path, PROGRAM, "--device", "cpu")
    assert printed == "6.0 cpu\n"
    assert facts["notes"] == []


LATE = """
import torch, torch.cuda.comm
import toprope.sim, toprope.compat

toprope.sim.install("910B3", count=2)
toprope.compat.install()
model = torch.nn.DataParallel(torch.nn.Linear(8, 4).to("npu:0"))
print(model(torch.ones(6, 8)).shape)
toprope.compat.uninstall()
print(hasattr(torch.cuda.comm.scatter, "__toprope_wraps__"))
"""


def test_it_can_be_installed_after_torch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LATE)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=True
    )
    assert done.stdout == "torch.Size([6, 4])\nFalse\n"
