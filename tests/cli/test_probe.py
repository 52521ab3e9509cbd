"""The search for a real card, with a stub for torch_npu on the child's module path, and one for torch where it does.

Holds `cli.launch.detect`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from device_stand_ins import in_python
from toprope.cli.launch.child_process import SITE
from toprope.cli.launch.detect import probe
from toprope.cli.launch.select_target import DeviceOption, Probe, choose
from toprope.device.doctor.diagnosis import diagnose
from toprope.device.host.machine import Examination, Facts
from toprope.errors import CardError
from toprope.settings import Settings

pytestmark = [pytest.mark.native, pytest.mark.process]

BANNER = "print('torch_npu prints a banner, without a line end', end='')\n"
PROPERTIES = """
npu.get_device_properties = lambda index: types.SimpleNamespace(name="Ascend910B3", total_memory=2**36)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that installs a stub torch_npu 2.13.0 with this code and searches for a card."""

    def search(code: str, time_limit: float = 60.0, torch: str | None = "__version__ = '2.13.0'") -> Probe:
        """With a stub of torch, or the real one: None."""
        for name, text in (("torch", torch), ("torch_npu", code)):
            if text is None:
                continue
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(text)
        info = tmp_path / "torch_npu-2.13.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return probe(os.environ | {"PYTHONPATH": str(tmp_path)}, time_limit)

    return search


def test_nothing_is_started_where_torch_npu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert probe() == Probe("not installed")


@pytest.mark.slow
def test_a_card_that_works(machine) -> None:
    assert machine(f"{BANNER}{in_python(2)}{PROPERTIES}", torch=None) == Probe("works", "2.13.0", 2, "Ascend910B3")


@pytest.mark.slow
def test_no_card(machine) -> None:
    found = machine(f"{BANNER}{in_python(0)}", torch=None)
    assert found == Probe("no card", "2.13.0")
    assert found.text == "torch_npu 2.13.0 works but sees no card"


@pytest.mark.parametrize("library", ["libhccl.so", "libatb.so"])
def test_a_missing_library_is_named(machine, library: str) -> None:
    found = machine(
        f"raise ImportError('{library}: cannot open shared object file: No such file or directory. Please check that "
        "the cann package is installed.')"
    )
    assert found == Probe("broken", "2.13.0", reason=f"{library} is missing")
    assert found.text == f"torch_npu 2.13.0 is installed but cannot be loaded: {library} is missing"


def test_any_other_error_is_one_line(machine) -> None:
    found = machine("raise RuntimeError('torch version\\n  is too old')")
    assert found.reason == "RuntimeError: torch version is too old"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("import os; os._exit(3)", "it ended with exit status 3"),
        ("raise SystemExit(4)", "SystemExit: 4"),
    ],
)
def test_an_import_that_ends_the_process(machine, code: str, reason: str) -> None:
    assert machine(code).reason == reason


def test_a_driver_that_hangs(machine) -> None:
    found = machine("import time; time.sleep(600)", time_limit=1.0)
    assert (found.state, found.reason) == ("broken", "it did not answer within 1 s")


def test_torchs_autoload_does_not_hide_the_reason(machine) -> None:
    torch = "import os\n__version__ = os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']"
    found = machine("import torch; raise ImportError(torch.__version__)", torch=torch)
    assert found.reason == "ImportError: 0"


def test_a_facade_of_an_outer_run_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside `toprope run`, this process and its children have the facade; it is no real torch_npu."""
    from toprope.compat import install, uninstall

    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    install(simulated_card="torch_npu" not in sys.modules)
    try:
        assert probe() == Probe("not installed")
    finally:
        uninstall()


def test_the_child_is_outside_an_outer_run(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_SIM", "910B3")
    for name in ("TOPROPE_CACHE_DIR", "TOPROPE_SOAK"):
        monkeypatch.delenv(name, raising=False)  # the user's own, which the child may see
    code = "import os, sys; raise ValueError([name for name in os.environ if name.startswith('TOPROPE')])"
    assert machine(code).reason == "ValueError: []"
    found = probe(os.environ | {"PYTHONPATH": os.pathsep.join([SITE, str(Path(sys.path[0]))])})
    assert found.reason == "ValueError: []"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (in_python(2).replace("npu.device_count = lambda: npu.count", "npu.device_count = lambda: 1 / 0"),
         "torch_npu cannot count the cards: ZeroDivisionError: division by zero"),
        (in_python(2), "AttributeError: module 'torch_npu.npu' has no attribute 'get_device_properties'"),
        (in_python(2) + "npu.get_device_properties = lambda index: __import__('os')._exit(3)",
         "it ended with exit status 3, while it was to ask npu:0"),
    ],
)  # fmt: skip
def test_one_that_can_be_imported_and_does_not_work(machine, code: str, reason: str) -> None:
    found = machine(code, torch=None)
    assert (found.state, found.reason) == ("broken", reason)
    assert found.text == f"torch_npu 2.13.0 can be imported, and yet there is no NPU: {reason}"


@pytest.mark.slow
def test_a_module_that_was_removed_and_left_its_metadata(machine, tmp_path: Path) -> None:
    found = machine("", torch=None)
    assert found.reason == "torch_npu 2.13.0 was imported, but gives torch no npu"
    shutil.rmtree(tmp_path / "torch_npu")
    assert probe(os.environ | {"PYTHONPATH": str(tmp_path)}).reason == "there is no module of this name"
    gone = Examination(torch="2.13.0", absent={"npu": "torch_npu is not installed"})
    said, *_ = diagnose(Facts(packages={"torch": "2.13.0", "torch-npu": "2.13.0"}, examination=gone))
    assert "there is no module of this name" in said.what


@pytest.mark.slow
def test_run_and_doctor_agree(machine, tmp_path: Path) -> None:
    """They had a probe each, and could say different things about the same machine."""
    found = machine("raise ImportError('libascend_hal.so: cannot open shared object file')")
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["name"] == "driver-library"]
    assert found.reason in finding["what"]
    with pytest.raises(CardError) as caught:
        choose(DeviceOption.NPU, chip=None, count=None, hbm=None, settings=Settings(), probe=lambda: found)
    assert "Ascend/driver/lib64" in finding["do"][0]
    assert "the environment of the driver" in caught.value.do
