"""The search for a real card, with stubs for torch and torch_npu on the child's module path."""

import os
import sys
from pathlib import Path

import pytest

from toprope.cli.child import SITE
from toprope.cli.probe import Probe, probe

pytestmark = [pytest.mark.native, pytest.mark.process]

WORKS = """
import torch, types
print("torch_npu prints a banner, without a line end", end="")
torch.npu = types.SimpleNamespace(
    is_available=lambda: COUNT > 0, device_count=lambda: COUNT, get_device_name=lambda index: "Ascend910B3"
)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that installs a stub torch_npu 2.13.0 with this code and searches for a card."""

    def search(code: str, time_limit: float = 60.0) -> Probe:
        for name, text in (("torch", ""), ("torch_npu", code)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(text)
        info = tmp_path / "torch_npu-2.13.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return probe(os.environ | {"PYTHONPATH": str(tmp_path)}, time_limit)

    return search


def test_nothing_is_started_where_torch_npu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    assert probe() == Probe("not installed")


def test_a_card_that_works(machine) -> None:
    assert machine(f"COUNT = 2\n{WORKS}") == Probe("works", "2.13.0", 2, "Ascend910B3")


def test_no_card(machine) -> None:
    found = machine(f"COUNT = 0\n{WORKS}")
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
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it ended the process with SIGSEGV"),
        ("import os; os._exit(3)", "it ended the process with exit status 3"),
        ("raise SystemExit(4)", "SystemExit: 4"),
    ],
)
def test_an_import_that_ends_the_process(machine, code: str, reason: str) -> None:
    assert machine(code).reason == reason


def test_a_driver_that_hangs(machine) -> None:
    found = machine("import time; time.sleep(600)", time_limit=1.0)
    assert (found.state, found.reason) == ("broken", "it did not answer within 1 s")


def test_torchs_autoload_does_not_hide_the_reason(machine) -> None:
    found = machine("import os; raise ImportError(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])")
    assert found.reason == "ImportError: 0"


def test_a_facade_of_an_outer_run_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside `toprope run`, this process and its children have the facade; it is no real torch_npu."""
    from toprope.compat import install, uninstall

    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    install(simulated_card="torch_npu" not in sys.modules)
    try:
        assert probe() == Probe("not installed")
    finally:
        uninstall()


def test_the_child_is_outside_an_outer_run(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_SIM", "910B3")
    monkeypatch.delenv("TOPROPE_CACHE_DIR", raising=False)  # the user's own, which the child may see
    code = "import os, sys; raise ValueError([name for name in os.environ if name.startswith('TOPROPE')])"
    assert machine(code).reason == "ValueError: []"
    found = probe(os.environ | {"PYTHONPATH": os.pathsep.join([SITE, str(Path(sys.path[0]))])})
    assert found.reason == "ValueError: []"
