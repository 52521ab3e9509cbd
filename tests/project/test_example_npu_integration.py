"""The six-step example, on two simulated cards and on the CPU; and that a step that fails is seen.

The example is examples/npu_integration.py.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from apt_machines import FACADES
from device_stand_ins import environment, run

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "npu_integration.py"


@pytest.mark.parametrize(
    ("options", "device"), [(["--chip", "910B3", "--count", "2"], "npu:0"), (["--device", "cpu"], "cpu")]
)
def test_17_six_steps_pass(options, device):
    kept = environment()
    kept.pop("TORCH_DEVICE_BACKEND_AUTOLOAD")
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", *options, str(PROGRAM)],
        capture_output=True, text=True, timeout=250, env=kept | {"PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"^(\d)\. .+: passed, .+$", done.stdout, re.MULTILINE)
    assert steps == list("123456")
    assert done.stdout.splitlines()[-1] == "6 of 6 passed"
    assert f"1. NPU设备检测: passed, {'NPU Ascend 910B3' if device == 'npu:0' else 'CPU'}, {device}\n" in done.stdout
    assert f"devices: {3 if device == 'npu:0' else 1}, NPUs: {2 if device == 'npu:0' else 0}\n" in done.stdout
    assert "28 tensors moved down, 16 up, none lost" in done.stdout


def test_steps_that_fail_are_named_and_the_exit_status_is_1():
    done = run(
        f"""
        {FACADES.strip().replace(chr(10), chr(10) + "        ")}
        import runpy, sys
        import apt_model.optimization.vgpu_stack as module
        module.VGPUStack.get = lambda self, key: None
        sys.argv = [{str(PROGRAM)!r}]
        try:
            runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
        except SystemExit as end:
            print("exit status", end.code)
        """,
        TOPROPE_DEVICE="cpu",
    )
    assert "4. VGPU Stack NPU支持: failed, StepError: a tensor on level 0 is not kept as it is\n" in done.stdout, (
        done.stderr
    )
    assert len(re.findall(r"^\d\. .+: passed, ", done.stdout, re.MULTILINE)) == 5
    assert done.stdout.endswith("5 of 6 passed\nexit status 1\n")
