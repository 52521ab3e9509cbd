"""The assertions of the yr model that need a machine, or a session, of their own; see test_functions_assertions.py."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import forkserver
from functions_world import BACKENDS, FOREIGN, Thing, alive, ended, free_cards, leftovers, opt, session, until
from toprope import functions as yr

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

MASK, GPU_MASK = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def program(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of its own in the world of `toprope run`."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, "PYTEST"))}
    front = "from toprope import compat; compat.install(); import runpy; runpy.run_path('program.py', {}, '__main__')"
    return forkserver.run(
        [sys.executable, "-c", front], cwd=folder, env=kept | {"TOPROPE_SIM": "910B4x2", **variables},
        timeout=120,
    )  # fmt: skip


SEED = """
    import os
    import torch
    import torch_npu
    import yr

    @yr.instance
    class NPUInstance:
        def __init__(self):
            self.device = None

        def run(self):
            if torch.npu.is_available():
                tensor = torch.randn(3, 3).to(torch.device("npu:0"))
                return f"Tensor device: {tensor.device}, result: \\n {tensor}"
            return "NPU is not available"

    def main():
        yr.init()
        opt = yr.InvokeOptions()
        opt.custom_resources = {"NPU/.+/count": 1}
        npu_instance = NPUInstance.options(opt).invoke()
        print(yr.get(npu_instance.run.invoke()))
        yr.finalize()

    if __name__ == "__main__":
        main()
"""


def test_01_the_program_of_the_mission(backend, tmp_path):
    if backend == "ray":
        pytest.skip("the same program on Ray is held by the tests of the Ray backend")
    done = program(tmp_path, SEED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Tensor device: npu:0, result: \n tensor([["), done.stdout
    assert done.stdout.rstrip().endswith("device='npu:0')")


def test_01_without_a_card_there_is_a_shortage_and_no_pretence(backend):
    if backend == "ray":
        pytest.skip("a Ray of its own takes 10 s, and test_16_off_... sees the same there")
    with session(backend, TOPROPE_SIM="", TOPROPE_DEVICE="cpu"):
        one = Thing.options(opt(1, schedule_timeout_ms=0)).invoke()
        with pytest.raises(yr.YRequestError, match=r"Card Type Not Found \(no card was found on the node\)") as caught:
            yr.get(one.pid.invoke())
        assert caught.value.code == 1002


def test_04_08_18_a_parents_mask_is_handed_on_and_finalize_frees_all(backend):
    """Cards have the numbers of the parent's mask (ours; openYuanrong hands out 0 and 1)."""
    with session(backend, TOPROPE_SIM="910B4x8", ASCEND_RT_VISIBLE_DEVICES="5,6"):
        assert free_cards() == 2
        first, second = Thing.options(opt(1)).invoke(), Thing.options(opt(1)).invoke()
        assert yr.get([first.env.invoke(MASK), second.env.invoke(MASK)]) == [["5"], ["6"]]
        assert yr.get([first.run.invoke(), second.run.invoke()]) == [("npu:0", 1)] * 2
        third = Thing.options(opt(1, schedule_timeout_ms=20000)).invoke()
        assert yr.wait(third.pid.invoke(), timeout=0.3)[0] == []
        none = Thing.invoke()
        assert yr.get(none.env.invoke(MASK)) == ["5,6"]  # what the host has is inherited
        pids = [*yr.get([first.pid.invoke(), none.pid.invoke()]), *yr.get(first.spawn.invoke())]
        assert all(map(alive, pids))
    assert until(lambda: not any(map(alive, pids)), 60 if backend == "ray" else 10)


def test_16_off_has_no_card_and_an_unknown_mode_no_session(backend):
    with session(backend, yr.Config(num_cpus=16, npu_collection_mode="off")):
        one = Thing.options(opt(1, schedule_timeout_ms=0)).invoke()
        with pytest.raises(yr.YRequestError, match="Card Type Not Found") as caught:
            yr.get(one.pid.invoke())
        assert caught.value.code == 1002
    with (
        pytest.raises(Exception, match="npu_collection_mode only support all, count, hbm, sfmd, topo, off"),
        session(backend, yr.Config(npu_collection_mode="foo")),
    ):
        pass
    assert not yr.is_initialized()


def test_16_a_machine_whose_npu_smi_is_missing_has_a_session_all_the_same(backend, tmp_path):
    if backend == "ray":
        pytest.skip("cards are looked for by the same code")
    with session(backend, TOPROPE_SIM="", PATH=str(tmp_path)):
        assert free_cards() == 0
        begin = time.monotonic()
    assert time.monotonic() - begin < 5  # a session that ends at once waits for nothing


def test_04_16_17_cards_by_their_files_gpus_and_the_opt_out_of_the_whole_machine(backend, tmp_path):
    tool = tmp_path / "nvidia-smi"
    rows = "".join(f"echo {number}, NVIDIA A100-SXM4-40GB, 40960, GPU-{number}\n" for number in range(2))
    tool.write_text("#!/bin/sh\n" + rows)
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    config = yr.Config(num_cpus=16, npu_collection_mode="count")
    gpu, npu = {"GPU/.+/count": 1}, {"NPU/Ascend/count": 2}
    with session(backend, config, PATH=path, YR_NOSET_ASCEND_RT_VISIBLE_DEVICES=""):
        other = Thing.options(opt(custom_resources={"NPU/910B4/count": 1}, schedule_timeout_ms=0)).invoke()
        with pytest.raises(yr.YRequestError, match=r"Card Type Not Found \(.*there are .*NPU/Ascend\)"):
            yr.get(other.pid.invoke())
        one = Thing.options(opt(custom_resources=gpu)).invoke()
        free = Thing.options(opt(custom_resources=gpu | npu, env_vars={f"YR_NOSET_{GPU_MASK}": "0"})).invoke()
        names = (GPU_MASK, MASK, "GPU-DEVICE-IDS", "NPU-DEVICE-IDS")
        with ended(one, free):
            assert yr.get(one.env.invoke(*names)) == ["0", None, "0", None]
            assert yr.get(free.env.invoke(*names)) == [None, None, "1", "0,1"]
            assert free_cards("GPU/NVIDIA A100-SXM4-40GB") == free_cards("NPU/Ascend") == 0


def test_sessions_leave_nothing():
    assert leftovers() == []
