"""The published torch-npu without CANN ends `import torch` itself: toprope's commands go on and say how to fix it.

Where the wheel is not to be had, these tests are skipped and say why; see published_wheel.py.

Holds `device.torch_import` and `device.doctor`.
"""

import json
import os
import subprocess
import sys

import pytest

import published_wheel

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.fixture(scope="module")
def variables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which torch-npu is installed and CANN is not."""
    return {**os.environ, "PYTHONPATH": str(published_wheel.unpacked(request, tmp_path_factory))}


def run(variables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_import_torch_itself_dies(variables: dict[str, str]) -> None:
    done = run(variables, "-c", "import torch")
    assert done.returncode == 1
    assert "Failed to load the backend extension: torch_npu" in done.stderr


@pytest.mark.slow
def test_doctor_survives_it_names_the_library_and_says_how_to_fix_it(variables: dict[str, str]) -> None:
    done = run(variables, "-m", "toprope", "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    answer = json.loads(done.stdout)
    found = {each["name"]: each for each in answer["findings"]}
    assert "libhccl.so is missing" in found["no-cann"]["what"]
    assert "set_env.sh" in found["no-cann"]["do"][0]
    assert "pip uninstall torch-npu" in found["no-cann"]["do"][1]
    assert found["import-torch"]["do"] == ["until it is fixed: export TORCH_DEVICE_BACKEND_AUTOLOAD=0"]
    assert answer["dtypes"]["cpu"]["float32"] == "ok"  # it runs on the CPU
    assert answer["facts"]["packages"]["torch-npu"].startswith("2.")


@pytest.mark.slow
def test_the_text_for_a_reader(variables: dict[str, str]) -> None:
    done = run(variables, "-m", "toprope", "doctor")
    assert done.returncode == 1
    assert "problem   torch_npu cannot be loaded: libhccl.so is missing." in done.stdout
    assert "training  cpu ok" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 problems"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["doctor", "107001"], 0),
        (["devices"], 1),
        (["run", "--quiet", "--device", "cpu", "-m", "this"], 0),
        (["run", "--device", "npu", "-m", "this"], 3),
    ],
)
def test_every_other_command_runs_on(variables: dict[str, str], words: list[str], status: int) -> None:
    done = run(variables, "-m", "toprope", *words)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    if words[0] == "devices":
        assert "libhccl.so is missing" in done.stdout


@pytest.mark.slow
def test_the_switch_acts_in_the_probes_alone(variables: dict[str, str]) -> None:
    """A program that toprope starts finds the variable as its user left it."""
    code = "import os; print(os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    for value in (None, "1"):
        given = {name: text for name, text in variables.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
        if value is not None:
            given["TORCH_DEVICE_BACKEND_AUTOLOAD"] = value
        done = run(given, "-m", "toprope", "run", "--quiet", "--device", "cpu", sys.executable, "-c", code)
        assert (done.stdout, done.returncode) == (f"{value}\n", 0)


@pytest.mark.slow
def test_next_to_a_simulated_card_the_real_one_makes_way(variables: dict[str, str]) -> None:
    done = run(variables, "-m", "toprope", "run", "--quiet", "--chip", "910B3", "-m", "toprope", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "here the simulated card takes its place" in done.stdout
    assert "npu:0: Ascend910B3 (simulated)" in done.stdout
