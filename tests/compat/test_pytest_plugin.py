"""The pytest plugin (`pytest --npu 910B3`), each case in a pytest of its own.

Holds src/toprope/compat/pytest_plugin.py and the example of docs/pytest.md.
"""

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from _pytest.assertion.rewrite import AssertionRewriter

import toprope
from toprope import __version__
from toprope.settings import Settings

pytestmark = [pytest.mark.native, pytest.mark.process]

pytest_plugins = ["pytester"]

CACHE = Settings.load(trust_env=True).cache_dir
NAMES = ("TOPROPE_SIM", "PYTHONPATH", "PYTEST_ADDOPTS", "ASCEND_RT_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD")


@pytest.fixture(autouse=True)
def same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytester moves HOME, and with it the cache that the simulator was built into."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(CACHE))


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=280)


def test_pytest_finds_it_wherever_toprope_is_installed() -> None:
    (found,) = [each for each in entry_points(group="pytest11") if each.value.startswith("toprope")]
    assert (found.name, found.value) == ("toprope", "toprope.compat.pytest_plugin")


@pytest.mark.slow
def test_without_npu_it_does_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, sys

        def test_nothing_was_done(request):
            assert request.config.pluginmanager.has_plugin("toprope")
            assert not {"torch", "toprope.sim", "toprope.settings", "toprope.chips"} & set(sys.modules)
            assert not [name for name in os.environ if name == "TOPROPE_SIM"]
            assert not [each for each in sys.meta_path if type(each).__module__.startswith("toprope")]
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("npu:*")


def test_it_costs_a_pytest_next_to_nothing() -> None:
    """Counted in modules, which a loaded machine cannot change: none but its own, and none of them large."""
    code = (
        "import json, sys, pytest; before = set(sys.modules); import toprope.compat.pytest_plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [
        "toprope", "toprope.compat", "toprope.compat.fatal_error", "toprope.compat.finder",
        "toprope.compat.parallel_import", "toprope.compat.pytest_plugin", "toprope.compat.torch_import",
        "toprope.errors", "toprope.imports",
    ]  # fmt: skip


@pytest.mark.slow
def test_tests_run_on_the_cards_that_were_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import torch_npu\nassert torch_npu.npu.device_count() == 2")
    pytester.makepyfile(
        """
        import subprocess, sys
        import torch

        def test_card(npu):
            assert (npu.device, npu.count, npu.name, npu.simulated) == ("npu:0", 2, "Ascend910B3", True)
            assert torch.ones(2, device=npu.device).add(1).tolist() == [2, 2]
            assert torch.npu.get_device_properties(0).total_memory == 2**30

        def test_without_the_fixture():
            assert torch.ones(2).npu().device == torch.device("npu:0")

        def test_child():
            code = "import torch_npu, torch; print(torch.npu.device_count())"
            assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "2\\n"
        """
    )
    result = run(pytester, "--npu", "910B3x2,hbm=1GiB")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"npu: 910B3x2,hbm=1GiB, simulated by toprope {__version__}"])


@pytest.mark.slow
def test_each_test_begins_on_the_first_card_with_nothing_cached(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_one(npu):
            torch.npu.set_device(1)
            torch.empty(2**22, device="npu")

        def test_other(npu):
            assert torch.npu.current_device() == 0
            assert torch.npu.memory_reserved(1) == 0
        """
    )
    run(pytester, "--npu", "910B3x2").assert_outcomes(passed=2)


@pytest.mark.slow
def test_an_error_of_queued_work_is_that_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from toprope.sim import faults

        def test_that_does_not_wait(npu):
            with faults.fail("add", 507015):
                torch.ones(2, device="npu") + 1

        def test_after(npu):
            pass
        """
    )
    result = run(pytester, "--npu", "910B3")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*507015*", "ERROR test_*::test_that_does_not_wait*"])


@pytest.mark.slow
def test_the_option_may_stand_in_the_projects_settings(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --npu=910B4")
    pytester.makepyfile("def test_card(npu): assert npu.name == 'Ascend910B4'")
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.slow
def test_torch_may_have_been_imported_before(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(early="import torch")
    pytester.makepyfile("def test_card(npu): assert npu.count == 3")
    run(pytester, "-p", "early", "--npu", "910B3x3").assert_outcomes(passed=1)


@pytest.mark.slow
def test_without_a_card_tests_that_need_one_are_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_card(npu): assert False\ndef test_other(): pass")
    result = run(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*no NPU: there is no card that torch.npu sees; give --npu 910B3 for a simulated one"])


@pytest.mark.slow
def test_a_mask_that_shows_no_card_is_no_card(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1,0")
    pytester.makepyfile("def test_card(npu): assert False")
    run(pytester, "--npu", "910B3x2").assert_outcomes(skipped=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [("910Z9", "910Z9"), ("910B3x99", "99 is not a number of cards"), ("910B3,x", "'x' is not an option")],
)
def test_cards_that_cannot_be_are_one_error(pytester: pytest.Pytester, text: str, told: str) -> None:
    pytester.makepyfile("def test_one(): pass")
    result = run(pytester, "--npu", text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0].startswith(f"ERROR: --npu {text}: ")
    assert told in "\n".join(result.errlines)
    assert "Traceback" not in "\n".join(result.errlines)


@pytest.mark.slow
def test_in_this_process_variables_and_finders_are_given_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, sys

        def test_set():
            assert os.environ["TOPROPE_SIM"] == "910B3,force=on"
            assert "site" in os.environ["PYTHONPATH"]
            assert [each for each in sys.meta_path if type(each).__module__.startswith("toprope")]
        """
    )
    code = """
        import os, sys, pytest
        status = pytest.main(["-q", "-p", "no:cacheprovider", "--npu", "910B3"])
        left = [each for each in sys.meta_path if type(each).__module__.startswith("toprope")]
        print(int(status), os.environ.get("TOPROPE_SIM"), os.environ.get("PYTHONPATH"), left, "torch" in sys.modules)
    """
    pytester.makepyfile(outer=code.replace("\n        ", "\n").strip())
    done = subprocess.run([sys.executable, "outer.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "0 None None [] False"


def test_pytest_does_not_complain_where_toprope_was_imported_first() -> None:
    """As in `toprope run pytest -W error`, where the child process has toprope before pytest begins."""
    assert AssertionRewriter.is_rewrite_disabled(toprope.__doc__ or "")


@pytest.mark.slow
def test_a_test_asserts_what_it_did_to_the_card(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch, toprope.sim

        def test_stays_on_the_card(npu):
            x = torch.ones(4, 8, device=npu.device) @ torch.ones(8, 4, device=npu.device)
            npu.assert_on_card()
            assert npu.syncs == 0
            assert 0 < npu.peak < 20e9
            with toprope.sim.rehearse() as inner:
                x.sum().item()
            assert (inner.syncs, npu.syncs) == (1, 1)

        def test_is_refused(npu):
            with pytest.raises(RuntimeError):
                torch.bincount(torch.ones(4, dtype=torch.float16, device=npu.device))
            npu.assert_on_card()
        """
    )
    result = run(pytester, "--npu", "910B3")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*test_a_test_asserts*.py:14: aten::bincount (float16) is refused; give it another*"])
