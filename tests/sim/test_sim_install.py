"""Installing the simulated cards: once, not next to a real torch_npu, and all or nothing. Each case is a process.

Holds src/toprope/sim/installation/installer.py.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import forkserver

pytestmark = [pytest.mark.native, pytest.mark.process]

FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE", "PYTHON", "PYTEST", "TORCH", "ASCEND")

TELL = """
    import json, sys
    def tell(call):
        try:
            return repr(call())
        except Exception as error:
            return [type(error).__name__, str(error)]
"""


def run(code: str, *, start: Any = forkserver.run, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return start(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(TELL) + textwrap.dedent(code)],
        env=kept | variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def facts(code: str, **options: Any) -> Any:
    """What the code printed as JSON on its last line; it has to end well. The first process of all builds the card."""
    done = run(code, **options)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
    assert [line for line in done.stderr.splitlines() if not line.startswith("toprope: ")] == []
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def real(tmp_path: Path) -> str:
    """A module path with a torch_npu that is not ours. It is never to be imported by us."""
    package = tmp_path / "path" / "torch_npu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import sys\nsys.stderr.write('imported!\\n')\n__version__ = '2.13.0'\n")
    return str(package.parent)


# ---- what makes no sense is refused before anything happens


def test_what_makes_no_sense() -> None:
    found = facts(
        """
        from toprope.sim import install, installed
        calls = {
            "chip": lambda: install("910B7"), "family": lambda: install("910B"), "none": lambda: install(""),
            "count 0": lambda: install(count=0), "count 17": lambda: install(count=17),
            "count -1": lambda: install("910B3", -1), "count True": lambda: install(count=True),
            "size": lambda: install(hbm="much"), "size 0": lambda: install(hbm=0),
            "size -1": lambda: install(hbm="-1GB"),
        }
        found = {name: tell(call) for name, call in calls.items()}
        print(json.dumps([found, repr(installed()), "torch" in sys.modules]))
    """,
        start=subprocess.run,
    )
    answers, installed, torch = found
    assert (installed, torch) == ("None", False)
    kinds = {name: answer[0] for name, answer in answers.items()}
    assert kinds == {
        "chip": "UnknownChipError", "family": "UnknownChipError", "none": "UnknownChipError",
        "count 0": "UsageError", "count 17": "UsageError", "count -1": "UsageError", "count True": "UsageError",
        "size": "SizeError", "size 0": "SizeError", "size -1": "SizeError",
    }  # fmt: skip
    assert "'910B7'" in answers["chip"][1]
    assert "1 to 16 cards" in answers["count 0"][1]
    assert "'much'" in answers["size"][1]


def test_a_chip_whose_memory_is_not_public_needs_a_size() -> None:
    from toprope import chips

    unknown = [name for name in chips.names() if chips.get(name).hbm_mib is None]
    for name in unknown[:1]:
        kind, text = facts(f"""
            from toprope.sim import install
            print(json.dumps(tell(lambda: install({name!r}))))
        """)
        assert kind == "UsageError"
        assert "hbm=" in text


# ---- once


def test_once() -> None:
    answers = facts(
        """
        import threading
        import toprope.sim
        from toprope.sim import install, installed
        threads = [threading.Thread(target=install, args=("910b3", 2, "64MiB")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        import torch
        x = torch.ones(3, device="npu:1")
        found = {
            "installed": repr(installed()),
            "same": tell(lambda: install("910B3", 2, "64MiB")),
            "same by another name": tell(lambda: install("Ascend910B3", count=2, hbm=64 * 2**20, force=True)),
            "other count": tell(lambda: install("910B3", 3, "64MiB")),
            "other chip": tell(lambda: install("910B1", 2, "64MiB")),
            "other size": tell(lambda: install("910B3", 2, "65MiB")),
            "the chip's own size": tell(lambda: install("910B3", 2)),
            "unknown": tell(lambda: install("910B7", 2)),
            "after all that": [torch.npu.device_count(), (x + 1).sum().item(), torch.npu.mem_get_info()[1]],
            "names": [torch.npu is sys.modules["torch.npu"], hasattr(torch.Tensor, "npu"), torch.ones(1).npu().is_npu],
        }
        print(json.dumps(found))
        """
    )
    assert "count=2" in answers["installed"]
    assert answers["same"] == answers["same by another name"] == "None"
    for name in ("other count", "other chip", "other size", "the chip's own size"):
        kind, text = answers[name]
        assert kind == "InstallError", name
        assert "already has 2 simulated 910B3" in text
        assert "installed: 910B3x2,hbm=67108864" in text
    assert answers["unknown"][0] == "UnknownChipError"
    assert answers["after all that"] == [2, 6.0, 64 * 2**20]
    assert answers["names"] == [True, True, True]


# ---- a real torch_npu wins


def test_beside_a_real_torch_npu(real: str) -> None:
    first, loaded, forced, torch = facts(
        """
        from toprope.sim import install
        first = tell(install)
        had_torch = "torch" in sys.modules
        import types
        sys.modules["torch_npu"] = types.ModuleType("torch_npu")  # as if it had been imported
        sys.modules["torch_npu"].__version__ = "2.13.0"
        print(json.dumps([first, tell(install), tell(lambda: install(force=True)), had_torch]))
        """,
        PYTHONPATH=real,
        start=subprocess.run,
    )
    assert not torch, "nothing was begun"
    assert first[0] == loaded[0] == forced[0] == "InstallError"
    assert "a real torch_npu is installed here" in first[1]
    assert f"{real}/torch_npu/__init__.py" in first[1]
    assert "force=True" in first[1]
    for text in (loaded[1], forced[1]):
        assert "the real torch_npu is loaded in this process" in text
        assert "2.13.0" in text


def test_beside_a_real_torch_npu_when_asked_by_name(real: str) -> None:
    done = run(
        """
        from toprope.sim import install
        install("910B3", 2, force=True)
        import torch
        print(json.dumps([torch.ones(2, device="npu:1").sum().item(), torch.npu.__name__, "torch_npu" in sys.modules]))
        """,
        PYTHONPATH=real,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [2.0, "toprope.sim.npu", False]
    assert "imported!" not in done.stderr


@pytest.mark.slow
def test_a_folder_of_that_name_is_no_torch_npu(tmp_path: Path) -> None:
    # A program's folder may hold a directory torch_npu, such as somebody's clone: Python could import it, as an empty
    # package without a file. If that counts, then the message has to say where it lies.
    (tmp_path / "torch_npu").mkdir()
    answer = facts(
        """
        from toprope.sim import install
        print(json.dumps(tell(lambda: install("910B3"))))
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert answer == "None" or str(tmp_path) in answer[1], answer


# ---- torch's one place for a device of others


def test_another_device_has_taken_the_place() -> None:
    answer, name, own = facts("""
        import torch
        torch.utils.rename_privateuse1_backend("foo")
        from toprope.sim import install, installed
        print(json.dumps([tell(install), torch._C._get_privateuse1_backend_name(), repr(installed())]))
    """)
    assert answer[0] == "InstallError"
    assert "'foo' has taken it" in answer[1]
    assert (name, own) == ("foo", "None")


# ---- TOPROPE_SIM


def test_import_torch_alone_gives_the_cards() -> None:
    found = facts(
        """
        import torch
        import toprope.sim
        print(json.dumps([
            torch.npu.device_count(), torch.npu.get_device_name(), torch.npu.mem_get_info()[1],
            torch.ones(3).npu(1).device.index, toprope.sim.installed().format(), "torch_npu" in sys.modules,
            tell(lambda: toprope.sim.install("910B3", 2, "256MB")),
        ]))
        """,
        TOPROPE_SIM="910B3x2,hbm=256MB",
    )
    assert found == [2, "Ascend910B3", 256 * 10**6, 1, "910B3x2,hbm=256000000", False, "None"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "  "])
def test_without_the_variable_torch_is_left_alone(text: str) -> None:
    found = facts(
        """
        import torch
        print(json.dumps([
            hasattr(torch, "npu"), hasattr(torch.Tensor, "npu"), torch._C._get_privateuse1_backend_name(),
            [name for name in ("build", "npu", "native") if f"toprope.sim.{name}" in sys.modules],
            tell(lambda: torch.ones(1, device="npu"))[0],
        ]))
        """,
        TOPROPE_SIM=text,
    )
    assert found == [False, False, "privateuseone", [], "RuntimeError"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("910B3:2", "SettingError: TOPROPE_SIM='910B3:2' cannot be read"),
        ("910B7x2", "UnknownChipError: there is no chip '910B7'"),
    ],
)
def test_the_cause_of_a_bad_variable_can_be_seen(text: str, cause: str) -> None:
    done = run("import torch", TOPROPE_SIM=text)
    assert done.returncode == 1
    assert cause in done.stderr
    assert len(done.stderr.splitlines()) < 40, "the cause does not drown"


def test_the_variable_is_no_concern_of_a_torch_that_loads_no_backends() -> None:
    found = facts(
        "import torch; print(json.dumps(hasattr(torch, 'npu')))",
        TOPROPE_SIM="910B3", TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )  # fmt: skip
    assert found is False


# ---- all or nothing


def test_a_build_that_cannot_be_loaded(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\necho no library > "$out"\n'
    )
    compiler.chmod(0o755)
    answer, installed, name = facts(
        """
        from toprope.sim import install, installed
        answer = tell(install)
        import torch
        print(json.dumps([answer, repr(installed()), torch._C._get_privateuse1_backend_name()]))
        """,
        CXX=str(compiler), TOPROPE_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    assert (installed, name) == ("None", "privateuseone")
    assert answer[0] == "BuildError", answer
    assert str(tmp_path / "cache") in answer[1]


@pytest.mark.slow
def test_a_run_whose_record_cannot_be_kept() -> None:
    # /proc is a folder in which nobody can make a file.
    first, second, count = facts(
        """
        import os
        from toprope.sim import install
        first = tell(lambda: install("910B3", 2))
        del os.environ["TOPROPE_RUN_DIR"]
        second = tell(lambda: install("910B3", 3))
        import torch
        print(json.dumps([first, second, torch.npu.device_count() if hasattr(torch, "npu") else None]))
        """,
        TOPROPE_RUN_DIR="/proc",
    )
    assert first[0] == "EnvironmentProblem"
    assert "TOPROPE_RUN_DIR" in first[1]
    assert (second, count) == ("None", 3)


@pytest.mark.slow
def test_a_system_that_does_not_grant_the_addresses() -> None:
    first, second, count, worked = facts(
        """
        import resource
        import torch
        from toprope.sim import install
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 2**30, now + 2 * 2**30))
        first = tell(lambda: install("910B3", 4))
        second = tell(lambda: install("910B3", 2, "64MiB"))
        print(json.dumps([first, second, torch.npu.device_count(), torch.ones(3, device="npu:1").sum().item()]))
        """
    )
    assert first[0] == "EnvironmentProblem"
    assert "addresses for 4 cards of 61.0 GiB" in first[1]
    assert "ulimit -v" in first[1]
    assert (second, count, worked) == ("None", 2, 3.0)


@pytest.mark.slow
def test_a_system_that_grants_no_addresses_later_does_no_harm() -> None:
    # What a card's bookkeeping needs was granted when it was installed: its first use asks for no more.
    done = run(
        """
        import resource
        import torch
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (now + 64 * 2**20, now + 64 * 2**20))
        print(json.dumps(tell(lambda: torch.ones(3, device="npu").sum().item())))
        """,
        TOPROPE_SIM="910B3x1",
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"
    assert json.loads(done.stdout.splitlines()[-1]) == "3.0"


# ---- a process may meet a part of toprope before torch, as one that unpickles does


FIRST = """
    import importlib, os, pathlib, sys
    import toprope.sim
    found = {}
    folder = pathlib.Path(toprope.sim.__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    paths = [file.relative_to(folder).with_suffix("").parts for file in files]
    whole = ("air", "distributed", "graph", "npu", "profiler")  # many files each, which need each other from the start
    names = {".".join(("toprope.sim", *path)).removesuffix(".__init__") for path in paths if path[0] not in whole}
    for name in sorted((names - {"toprope.sim"}) | {f"toprope.sim.{each}" for each in whole}):
        if (child := os.fork()) == 0:
            importlib.import_module(name)
            if "torch" in sys.modules:
                import torch
                os._exit(3 if float(torch.ones(2, device="npu").sum()) == 2 and callable(torch.npu.stream) else 4)
            os._exit(0)
        found[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    import json
    print(json.dumps(found))
"""


def test_a_module_that_was_imported_before_torch_met_itself_half_made() -> None:
    """torch installs the card at the end of its import, which needs modules of which one may be the one that began."""
    found = facts(FIRST, start=subprocess.run, TOPROPE_SIM="910B3")
    assert {name: code for name, code in found.items() if code not in (0, 3)} == {}
    assert {"toprope.sim.graph", "toprope.sim.npu", "toprope.sim.sharing"} <= {n for n, c in found.items() if c == 3}
    assert {"toprope.sim.installation.installer", "toprope.sim.tracing.records"} <= found.keys()


def test_a_spawned_process_may_receive_a_tensor_of_the_card_before_it_imports_torch() -> None:
    done = run(
        """
        import multiprocessing, torch
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=print, args=(torch.arange(3.0, device="npu"),))
        child.start()
        child.join(200)
        sys.exit(child.exitcode)
        """,
        start=subprocess.run,
        TOPROPE_SIM="910B3",
    )
    assert (done.returncode, done.stdout) == (0, "tensor([0., 1., 2.], device='npu:0')\n"), done.stderr


def test_the_card_made_symbols_of_torch_global_so_that_another_extension_crashed() -> None:
    """An extension that is loaded later, OR-tools here, took classes of libtorch_cpu for its own of the same names."""
    found = facts(
        """
        import ctypes, torch
        name = "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE"  # at::_ops::add_Tensor::call
        torch_cpu, every = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so"), ctypes.CDLL(None)
        from ortools.sat.python import cp_model
        status = int(cp_model.CpSolver().solve(cp_model.CpModel()))
        print(json.dumps([hasattr(torch_cpu, name), hasattr(every, name), hasattr(every, "ts_configure"), status]))
        """,
        start=subprocess.run,
        TOPROPE_SIM="910B3",
    )
    assert found == [True, False, False, 4]  # 4: optimal
