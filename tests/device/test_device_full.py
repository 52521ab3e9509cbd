"""Processes that hold a device whose memory is full: by npu-smi's output, real or simulated.

Holds `device.host.smi` and `Device.holders`.
"""

import json
import os
import subprocess
import sys

import pytest

from toprope.cli.smi.machine import machine
from toprope.cli.smi.tables import overview
from toprope.device.host.smi import SmiProcess, holders, processes
from toprope.sim.metrics.cards import CardState, ProcessState
from toprope.sim.spec import SimSpec

pytestmark = pytest.mark.process
MIB = 2**20


def overview_of(chip):
    """`npu-smi info` of four cards; process 7 holds 5 MiB of card 1, and process 8 6 MiB of cards 1 and 3."""
    first = ProcessState(7, "python", 1, (0, 5 * MIB, 0, 0))
    second = ProcessState(8, "my server", 1, (0, 6 * MIB, 0, 6 * MIB))
    users = ((), (first, second), (), (second,))
    cards = [CardState(number, 0, 0, each) for number, each in enumerate(users)]
    return overview(machine(SimSpec.parse(f"{chip}x4"), cards))


@pytest.mark.parametrize(
    ("chip", "places"), [("910B3", [(1, 0), (3, 0)]), ("910C", [(0, 1), (1, 1)]), ("310P3", [(32, 0), (96, 0)])]
)
def test_the_table_of_processes_is_read(chip, places):
    one, three = places
    assert processes(overview_of(chip)) == (
        SmiProcess(*one, 7, "python", 5), SmiProcess(*one, 8, "my server", 6), SmiProcess(*three, 8, "my server", 6),
    )  # fmt: skip


@pytest.mark.parametrize("chip", ["910B3", "910C", "310P3"])
def test_holders_are_those_of_the_card_that_the_process_calls_so(tmp_path, chip):
    (tmp_path / "table").write_text(overview_of(chip))
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path / 'table'}\n")
    tool.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    server = "my server (pid 8) holds 6 MB"
    assert holders(1, path) == ("python (pid 7) holds 5 MB", server)
    assert holders(1, path | {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}) == (server,)
    assert holders(0, path) == holders(9, path) == holders(0, {"PATH": str(tmp_path / "none")}) == ()


PROGRAM = """
import json, os, subprocess, sys, torch
from toprope import device
from toprope.errors import EnvironmentProblem
if len(sys.argv) > 1:
    held = []
    for size in (8 * 2**20, 2**20, 2**16, 512):
        try:
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="npu:1"))
        except torch.OutOfMemoryError:
            pass
    print("full", flush=True)
    sys.stdin.read()
    sys.exit()
child = subprocess.Popen(
    [sys.executable, __file__, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    env=os.environ | {"ASCEND_RT_VISIBLE_DEVICES": "0,1"},
)
assert child.stdout.readline() == "full\\n"
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1"
try:
    device.best_dtype("npu:0")
except EnvironmentProblem as error:
    print(json.dumps([child.pid, error.what, error.looked_at]))
child.stdin.close()
child.wait()
print(json.dumps(str(device.best_dtype("npu:0"))))
"""


@pytest.mark.slow
@pytest.mark.native
def test_a_full_card_was_a_bare_out_of_memory_that_did_not_say_who_holds_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["run", "--quiet", "--chip", "910B3", "--count", "2", "--hbm", "64MB", str(program)]
    done = subprocess.run([sys.executable, "-m", "toprope", *words], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    (pid, what, looked_at), dtype = map(json.loads, done.stdout.splitlines())
    assert what == "npu:0 has no memory left to try bfloat16 on it."
    assert f"; this process holds 0 B; python (pid {pid}) holds 60 MB" in looked_at
    assert dtype == "torch.bfloat16"  # and the probe that failed is not remembered
