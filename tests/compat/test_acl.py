"""The facade `acl`: the questions about cards that pyACL answers, and Ray, which counts the NPUs of a machine by it.

Holds src/toprope/compat/acl; the measure is the documentation of pyACL, and Ray itself.
"""

import subprocess
import sys

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

CASES = {
    "acl": """
import acl, sys
assert acl.rt.get_device_count() == (2, 0)
assert acl.rt.get_device() == acl.rt.get_mem_info(1)[1:] == (0, 107002)  # no card was used
assert acl.rt.synchronize_device() == 107002
assert (acl.init(), acl.init("acl.json")) == (0, 100002)
assert acl.get_soc_name() == "Ascend910B3"
assert (acl.rt.set_device(2), acl.rt.set_device(-1), acl.rt.reset_device(2)) == (107001,) * 3
assert acl.rt.set_device(1) == 0
assert acl.rt.get_device() == (1, 0)
held = torch.ones(2**20, device="npu:1")
free, total, code = acl.rt.get_mem_info(1)
assert code == 0 and free < total
assert (free, total) == torch.npu.mem_get_info(1)
assert acl.rt.get_mem_info(0) == (0, 0, 207000)  # DDR
assert acl.rt.synchronize_device() == acl.rt.reset_device(1) == 0
assert (acl.finalize(), acl.finalize()) == (0, 100037)
""",
    "what is missing": """
import acl
refused(AttributeError, "toprope's facade of acl does not have acl.mdl", lambda: acl.mdl)
assert not hasattr(acl.rt, "malloc")
""",
}

ON_RAY = """
import os
import ray
ray.init(num_cpus=2, include_dashboard=False)
assert ray.cluster_resources()["NPU"] == 2, ray.cluster_resources()
assert "accelerator_type:Ascend910B3" in ray.cluster_resources()


@ray.remote(resources={"NPU": 1})
class Worker:
    def see(self):
        import torch
        import torch_npu
        return os.environ["ASCEND_RT_VISIBLE_DEVICES"], torch.npu.device_count(), torch.ones(2).npu().sum().item()


workers = [Worker.remote() for _ in range(2)]
print("seen", sorted(ray.get([each.see.remote() for each in workers], timeout=200)))
"""


@pytest.fixture(scope="module")
def results():
    return outcomes(CASES, TOPROPE_SIM="910B3x2")


@pytest.mark.parametrize("name", CASES)
def test_cards_are_found_and_chosen_through_acl(results, name):
    assert not results[name]


def test_importing_it_imports_no_torch():
    code = "import toprope.compat; toprope.compat.install(); import acl, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.slow
@pytest.mark.ray
def test_ray_counts_the_simulated_cards_and_gives_each_actor_its_own(tmp_path):
    """A program that calls ray.init itself found no NPU, and its actors waited for one for ever."""
    pytest.importorskip("ray")
    (tmp_path / "program.py").write_text(ON_RAY)
    command = [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--count", "2", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "seen [('0', 1, 2.0), ('1', 1, 2.0)]" in done.stdout
