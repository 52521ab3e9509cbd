"""Setup of all tests: the sizes of a run (`make test`, `check`, `soak`), the fork server, and the record of a soak.

Read by pytest for every folder of tests. Marks and their meaning are in pyproject.toml; slow tests without a mark are
listed in tests/slow.txt.
"""

import datetime
import functools
import importlib.abc
import importlib.machinery
import os
import pathlib
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
import zlib

import hypothesis
import pytest

import forkserver

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
ROOT = pathlib.Path(__file__).resolve().parents[1]
INNER = os.environ.get("TOPROPE_INNER") == "1"
# The cache and the corpus hold what can be had again, but getting it takes a while.
KEPT = ("TOPROPE_SOAK", "TOPROPE_CACHE_DIR", "TOPROPE_CORPUS")
STARTED = time.monotonic()

# Modules that need the card in their own process are run by tests/sim/test_simulated.py.
collect_ignore_glob = [] if INNER else ["*/simulated/*"]
if INNER:
    from on_card import known_state  # noqa: F401

# A loaded machine must not fail a test: no deadline on one example, no alarm that making examples takes long.
# Health checks that depend on the machine or on the seed, which `make check` draws, would fail now and then.
_BY_CHANCE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
PATIENT = {"deadline": None, "suppress_health_check": _BY_CHANCE, "database": None}
EXAMPLES = (5000, 500) if SOAK else (300, 50)
"""Examples of a property of pure code, and of one that needs torch or processes."""

IMPURE = re.compile(
    r"^\s*(from|import) "
    r"(torch|numpy|subprocess|multiprocessing|forkserver|device_stand_ins|functions_session|flow_graphs)\b",
    re.MULTILINE,
)


@functools.cache
def is_pure(path):
    return not IMPURE.search(path.read_text(encoding="utf-8"))


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    """Choose how many examples the properties of a module try, before it is imported."""
    if isinstance(collector, pytest.Module):
        hypothesis.settings.load_profile(f"pure={is_pure(collector.path)}")


def pytest_configure(config):
    # A shell starts what it runs in the background with SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `make test` tries the same examples every time; with a seed, as `make check` gives one, they are others
    seeded = SOAK or config.getoption("--hypothesis-seed", None) is not None
    options = {"print_blob": True} if seeded else {"derandomize": True}
    for pure, count in zip((True, False), EXAMPLES, strict=True):
        hypothesis.settings.register_profile(f"pure={pure}", max_examples=count, **options, **PATIENT)
    hypothesis.settings.load_profile("pure=False")
    # Tests choose their own variables: what this shell has set for toprope must not decide what they see.
    for name in [name for name in os.environ if name.startswith("TOPROPE_") and name not in KEPT]:
        del os.environ[name]
    # what commands print is held to English, wherever the tests run
    os.environ.update({name: "C.UTF-8" for name in ("LC_ALL", "LC_MESSAGES", "LANG") if name in os.environ})
    # nor what the user has started with `toprope start`
    folder = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="toprope-tests-")
    os.environ["XDG_CONFIG_HOME"] = f"{folder}/config"  # nor the rates of the user's card
    if not INNER:
        sys.meta_path.insert(0, WithoutCard())
    if forkserver.ADDRESS not in os.environ:  # xdist's workers, and processes of tests, use the server of the run
        os.environ[forkserver.ADDRESS] = f"{folder}/forkserver"
        os.environ[forkserver.OWNER] = str(os.getpid())


class WithoutCard(importlib.abc.MetaPathFinder):
    """Has torch imported as on a machine without a simulated card, whatever variable a test has set by then.

    torch loads its backends once, when it is imported: a test in whose session that happened first would leave the card
    to all modules after it, and which test that is depends on what runs before.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                card = os.environ.pop("TOPROPE_SIM", None)
                try:
                    load(module)
                finally:
                    if card is not None:
                        os.environ["TOPROPE_SIM"] = card

            spec.loader.exec_module = exec_module
        return spec


def pytest_unconfigure(config):
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def shared_state_is_put_back():
    """Fail a module whose tests leave the process otherwise than they found it: the next module would see that.

    Which module is next depends on how the tests are spread over processes. One that needs the card in its own process
    has that to itself.
    """
    if INNER:
        yield
        return
    before = shared_state()
    yield
    after = shared_state()
    left = [f"{name}: {before.get(name)!r}, now {after.get(name)!r}" for name in sorted(before | after)
            if after.get(name) != before.get(name)]  # fmt: skip
    assert not left, "what these tests have changed and not put back: " + "; ".join(left)


LIBRARIES_OWN = ("PYTEST_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "RAY_", "KMP_", "HF_", "DIFFUSERS_", "TRANSFORMERS_")
"""Variables that pytest and libraries set, or that are set for them."""


def shared_state():
    """What the tests of one process share and may change, by a name for each part."""
    variables = {f"${name}": text for name, text in os.environ.items() if not name.startswith(LIBRARIES_OWN)}
    torch = sys.modules.get("torch")
    raylet = sys.modules.get("ray._raylet")
    return {
        **variables,
        "folder": os.getcwd(),
        "sys.path": [path for path in sys.path if "site-packages" not in path],  # Ray adds its own
        "Ctrl-C": signal.getsignal(signal.SIGINT),
        "modules named torch_npu": [name for name in sys.modules if name.partition(".")[0] == "torch_npu"],
        "torch.npu": getattr(torch, "npu", None),
        "authentication of Ray": int(raylet.get_authentication_mode()) if raylet else 0,
        "default dtype": str(torch.get_default_dtype()) if hasattr(torch, "get_default_dtype") else "torch.float32",
    }


@pytest.fixture
def one_thread():
    """torch computes with one thread: tests run beside others, and its threads would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ctrl_c_heeded():
    """Ctrl-C is heeded, also where a shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where tests run side by side, those of a file stay together, since they share what they have started.

    But for the modules of the simulated card, each of which has a process of its own. By names alone: the groups of
    pytest-xdist 3.8 are written where pytest 9.2 does not look for them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith("test_simulated.py") else file

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def in_turns(items, seed):
    """Leave out two thirds of the slow tests: others for another seed."""
    out = [item for item in items if item.get_closest_marker("slow") and (zlib.crc32(item.nodeid.encode()) + seed) % 3]
    left_out = set(out)
    return [item for item in items if item not in left_out], out


def pytest_collection_modifyitems(config, items):
    lines = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    slow = tuple(line for line in lines if line and not line.startswith("#"))
    for item in items:
        test = getattr(item, "obj", None)
        if getattr(test, "is_hypothesis_test", False) and is_pure(item.path):
            item.add_marker("pure")
        if item.nodeid.startswith(slow):
            item.add_marker("slow")
    if not SOAK:
        seed = config.getoption("--hypothesis-seed", None)
        if seed is not None and config.args_source is config.ArgsSource.TESTPATHS:
            items[:], left_out = in_turns(items, int(seed))
            config.hook.pytest_deselected(items=left_out)
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a full count, run by `make soak`"))


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """After a soak of everything, add one line to docs/soak.md and say so."""
    if not SOAK or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    if any(config.getoption(name) for name in ("keyword", "markexpr", "collectonly", "lf", "failedfirst")):
        return
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # a run that was interrupted is not whole
        return
    import torch

    counts = {kind: len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")}
    line = "| {} | Python {}, torch {}, {} {} cores | {} | {:.0f} min |".format(
        datetime.datetime.now(datetime.UTC).date(),
        platform.python_version(),
        torch.__version__,
        os.cpu_count(),
        platform.machine(),
        ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind == "passed"),
        (time.monotonic() - STARTED) / 60,
    )
    page = ROOT / "docs" / "soak.md"
    page.write_text(page.read_text(encoding="utf-8").rstrip("\n") + "\n" + line + "\n", encoding="utf-8")
    terminalreporter.write_line(f"soak: added to docs/soak.md\n  {line}")
