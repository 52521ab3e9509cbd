"""`toprope start --ray`: the commands, a program that finds it, and that nothing is left."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

from functions_world import FOREIGN, alive, until
from toprope.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process, pytest.mark.ray]

PROGRAM = """
import os
import yr

@yr.instance
class Where:
    def told(self):
        import torch
        return os.environ["ASCEND_RT_VISIBLE_DEVICES"], str(torch.ones(2).to("npu:0").device), os.getppid()

yr.init()
opt = yr.InvokeOptions()
opt.custom_resources = {"NPU/910B3/count": 1, "ssd": 1}
print(*yr.get(Where.options(opt).invoke().told.invoke()), sorted(yr.resources()[0]["labels"]))
yr.finalize()
"""


LEAVES = """
import os
import yr

@yr.instance
class Left:
    def __init__(self, folder):
        self.folder = folder

    def __yr_shutdown__(self, seconds):
        open(self.folder + "/hook", "w").close()

    def nothing(self):
        pass

yr.init()
opt = yr.InvokeOptions(name="left", custom_extensions={"lifecycle": "detached"})
yr.get(Left.options(opt).invoke(os.getcwd()).nothing.invoke())
yr.finalize()
"""

ENDS = """
import yr

yr.init()
yr.kill_instance("yr_defalut_namespace-left")
yr.finalize()
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_start_program_status_and_stop_with_ray(tmp_path):
    home, run = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    run.mkdir(mode=0o700)
    for name, text in {"program": PROGRAM, "leaves": LEAVES, "ends": ENDS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, "PYTEST"))}
    environment = {
        **kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(run),
        "TOPROPE_CACHE_DIR": str(Settings.load().cache_dir),
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "200000000",
    }  # fmt: skip

    def toprope(*words):
        done = subprocess.run(
            [sys.executable, "-m", "toprope", *words], cwd=tmp_path, env=environment, timeout=280, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    toprope("start", "--master", "--ray", "--chip", "910B3", "--count", "2", "--custom_resources", '{"ssd": 5}',
            "--labels", '{"zone": "a"}')  # fmt: skip
    try:
        told = toprope("run", "--quiet", "program.py")
        mask, device, parent, labels = re.fullmatch(r"(\d) (\S+) (\d+) (.*)\n", told).groups()
        assert (mask, device, labels) == ("0", "npu:0", "['HOST_IP', 'NODE_ID', 'zone']")
        assert b"raylet" in Path(f"/proc/{parent}/cmdline").read_bytes()
        assert re.search(r"node .*ssd 5 of 5 free, NPU/910B3 2 of 2 free", toprope("status"))
        toprope("run", "--quiet", "leaves.py")
        assert re.search(
            r"instance  yr_defalut_namespace-left: Left, runs, its session has ended, process \d+", toprope("status")
        )
        toprope("run", "--quiet", "ends.py")
        assert (tmp_path / "hook").exists()
        assert until(lambda: "yr_defalut_namespace-left" not in toprope("status"), 60)  # others may have some
        assert (home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0
    finally:
        toprope("stop", "--force")
    assert until(lambda: not alive(int(parent)))
    assert "STOPPED" in toprope("status")
