"""Installing the simulated card in a process where TOPROPE_SIM asks for one too.

Holds src/toprope/sim/installation/installer.py; its other cases are in test_sim_install.py.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import forkserver

pytestmark = [pytest.mark.native, pytest.mark.process]


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE_SIM", "ASCEND"))}
    return forkserver.run([sys.executable, "-c", textwrap.dedent(code)], env=kept | variables, timeout=280)


def test_the_call_may_come_before_the_import_of_torch_that_installs_the_same_cards() -> None:
    code = """
        import toprope.sim
        toprope.sim.install("910B3", count=2)
        import torch
        print(torch.npu.device_count(), torch.ones(2, device="npu:1").sum().item())
    """
    done = run(code, TOPROPE_SIM="910B3x2,force=on")
    assert (done.returncode, done.stdout) == (0, "2 2.0\n"), done.stderr


def test_other_cards_than_those_are_refused() -> None:
    done = run("import toprope.sim; toprope.sim.install('910B4')", TOPROPE_SIM="910B3x2")
    assert done.returncode == 1
    assert "InstallError: this process already has 2 simulated 910B3; it cannot have 1 910B4 too." in done.stderr


CHILD = """
    def work(queue, answers):
        import torch
        assert not hasattr(torch, "npu")
        tensor = queue.get()
        answers.put((tensor.tolist(), str(tensor.device), torch.npu.device_count(), torch.npu.get_device_name(0)))
"""


@pytest.mark.slow
def test_tensors_reach_a_process_that_was_not_told_of_the_cards(tmp_path: Path) -> None:
    code = """
        import toprope.sim
        toprope.sim.install("910B4", count=2)
        import torch
        from child import work
        from torch.multiprocessing import get_context

        spawn = get_context("spawn")
        queue, answers = spawn.SimpleQueue(), spawn.SimpleQueue()
        process = spawn.Process(target=work, args=(queue, answers))
        process.start()
        queue.put(torch.arange(3.0, device="npu:1"))
        print(answers.get())
        process.join()
    """
    (tmp_path / "child.py").write_text(textwrap.dedent(CHILD))
    done = run(code, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "([0.0, 1.0, 2.0], 'npu:1', 2, 'Ascend910B4')\n"
