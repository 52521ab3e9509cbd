"""`toprope run` with the simulated card itself: each case is a real process with torch.

Holds that the parts meet: `cli.run`, `sim`, `compat` and the report.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.native, pytest.mark.process]


def toprope(folder: Path, code: str, *options: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run this code in a folder, and give how it ended and the report as data. It may say nothing on stderr itself."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTHON", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--json", *options, "program.py"],
        cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("toprope: ")]  # a first run builds
    assert len(lines) == 1, done.stderr
    return done, json.loads(lines[0])


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A module path with a torch_npu that breaks `import torch` itself, as it does on a machine without CANN."""
    stubs = tmp_path / "stubs"
    (stubs / "torch_npu").mkdir(parents=True)
    (stubs / "torch_npu" / "__init__.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')\n"
    )
    info = stubs / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return str(stubs)


@pytest.mark.slow
def test_a_program_that_only_launches_kernels_has_used_its_card(tmp_path: Path) -> None:
    code = """
        import torch, toprope.sim
        for _ in range(3):
            toprope.sim.launch("vector", vector=4)
        torch.npu.synchronize()
    """
    done, facts = toprope(tmp_path, code, "--chip", "910B3")
    assert done.returncode == 0
    (card,) = facts["simulated"]
    assert [(one["name"], one["kernels"]) for one in card["used_cards"]] == [("npu:0", 3)]


def test_import_torch_alone_gives_the_card_and_the_report_its_figures(tmp_path: Path) -> None:
    code = """
        import os, sys, torch
        x = torch.ones(1024, 1024).npu()
        y = (x + x).cpu()
        print(torch.npu.is_available(), torch.npu.device_count(), "TORCH_DEVICE_BACKEND_AUTOLOAD" in os.environ)
        sys.stdout.flush()
        os._exit(5)
    """
    done, facts = toprope(tmp_path, code, "--chip", "910B3")
    assert (done.returncode, done.stdout) == (5, "True 1 False\n")
    assert (facts["device"], facts["chosen_by"], facts["exit_status"]) == ("sim", "user", 5)
    (card,) = facts["simulated"]
    assert (card["chip"], card["processes"], card["visible_cards"]) == ("910B3", 1, 1)
    assert card["copies"]["to_card"] == {"number": 1, "bytes": 4 * 2**20}
    assert card["copies"]["from_card"] == {"number": 1, "bytes": 4 * 2**20}
    assert card["operators"]["calls"] >= 1
    assert any("add" in name for name in card["operators"]["by_name"])
    (used,) = card["used_cards"]
    assert (used["name"], used["capacity"]) == ("npu:0", 62423 * 2**20)
    assert 8 * 2**20 <= used["peak_allocated"] <= used["peak_reserved"]


@pytest.mark.slow
def test_children_are_counted_even_when_they_are_killed(tmp_path: Path) -> None:
    code = """
        import os, signal, subprocess, sys
        child = "import torch_npu, torch, os, signal; x = torch.ones(2**20).npu(); os.kill(os.getpid(), signal.SIGKILL)"
        seen = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": "1"}
        print(subprocess.run([sys.executable, "-c", child], env=seen).returncode)
    """
    done, facts = toprope(tmp_path, code, "--chip", "910B2", "--count", "2", "--hbm", "64MiB")
    assert (done.returncode, done.stdout) == (0, "-9\n")
    (card,) = facts["simulated"]
    assert (card["chip"], card["hbm_by_user"], card["processes"]) == ("910B2", True, 1)
    assert [(used["name"], used["capacity"]) for used in card["used_cards"]] == [("card 1", 64 * 2**20)]


@pytest.mark.slow
def test_a_torch_npu_that_breaks_torch_does_not_break_a_run(tmp_path: Path, broken: str) -> None:
    code = """
        import importlib.metadata, torch, torch_npu
        print(torch.ones(1).npu().device, torch_npu.__version__ == importlib.metadata.version("torch-npu"))
    """
    done, facts = toprope(tmp_path, code, PYTHONPATH=broken)
    assert (done.returncode, done.stdout) == (0, "npu:0 True\n")
    assert facts["chosen_by"] == "toprope"
    assert (facts["real_card"]["state"], facts["real_card"]["reason"]) == ("broken", "libhccl.so is missing")


@pytest.mark.slow
def test_who_switches_autoload_off_gets_the_card_with_torch_npu(tmp_path: Path) -> None:
    code = """
        import os, torch
        print(hasattr(torch, "npu"), os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"])
        import torch_npu
        print(torch.ones(1).npu().device)
    """
    done, _ = toprope(tmp_path, code, "--device", "sim", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.returncode, done.stdout) == (0, "False 0\nnpu:0\n")


@pytest.mark.slow
def test_a_card_that_cannot_be_installed_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "program.py").write_text("import torch\n")
    cache = f"TOPROPE_CACHE_DIR={tmp_path / 'file'}"  # the program's alone: else it would not be started, see below
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "-q", "--chip", "910B3", "env", cache, sys.executable, "program.py"],
        cwd=tmp_path, text=True, capture_output=True, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "BuildError: " in done.stderr
    assert "TOPROPE_CACHE_DIR" in done.stderr
    assert "/sim/" not in done.stderr.split("BuildError: ")[0]
    assert done.stderr.count("Traceback") == 1
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "-q", "--chip", "910B3", "program.py"], cwd=tmp_path, text=True,
        env={**os.environ, "TOPROPE_CACHE_DIR": str(tmp_path / "file")}, capture_output=True, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("toprope: the simulated card has to be built once, and the cache directory cannot")
    assert "TOPROPE_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


LIBRARIES = """
    from transformers.utils import is_torch_npu_available
    from accelerate.utils import is_npu_available
    import torch
    print(is_torch_npu_available(), is_npu_available(), torch.npu.is_available(), torch.npu.device_count())
"""


@pytest.mark.parametrize(
    ("options", "seen"),
    [(["--chip", "910B3", "--count", "2"], "True True True 2\n"), (["--device", "cpu"], "False False False 0\n")],
)
@pytest.mark.slow
def test_libraries_find_the_card_only_where_there_is_one(tmp_path: Path, options: list[str], seen: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done, facts = toprope(tmp_path, LIBRARIES, *options)
    assert (done.returncode, done.stdout) == (0, seen)
    assert all(not card["used_cards"] for card in facts["simulated"])


def test_a_first_allocation_that_fails_was_taken_for_a_card_that_the_program_did_not_use(tmp_path: Path) -> None:
    code = """
        import sys, torch
        try:
            torch.ones(64 << 20, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError:
            sys.exit(1)
    """
    done, facts = toprope(tmp_path, code, "--chip", "910B3", "--hbm", "16MB")
    assert done.returncode == 1
    (card,) = facts["simulated"]
    assert card["verdict"].startswith("ended with exit status 1; until then: does not fit")
    (finding,) = card["findings"]
    assert finding["kind"] == "memory"
    assert finding["text"] == "npu:0 does not fit: an allocation failed; the peak is 0 B of 15.3 MiB"
    assert finding["advice"] == "a smaller tensor: 64.0 MiB at once are more than the card has"
    assert (finding["file"], finding["line"]) == (str(tmp_path / "program.py"), 4)
    (used,) = card["used_cards"]
    assert (used["ooms"], used["peak_allocated"]) == (1, 0)
