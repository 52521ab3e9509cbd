"""Imports of toprope load nothing heavy and change nothing. Each case is a process of its own.

Holds the `__init__` of every package: a new import at the top of one fails here.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

HEAVY = ("torch", "numpy", "typer", "rich", "click", "psutil", "safetensors", "cloudpickle")


def python(code, *, timeout=120, **environment):
    """Run code in a fresh process; return what it prints as JSON. It must print nothing else and end well."""
    # pytest's own variable differs from one test to the next
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "toprope",
        "toprope.errors",
        "toprope.sizes",
        "toprope.settings",
        "toprope.chips",
        "toprope.sim",
        "toprope.device",
        "toprope.visible_devices",
    ],
)
def test_early_imports_load_nothing_heavy(module):
    loaded = python(f"import sys, json; import {module}; print(json.dumps(sorted(sys.modules)))")
    assert module in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_command_line_loads_no_torch():
    loaded = python("import sys, json; import toprope.cli; print(json.dumps(sorted(sys.modules)))")
    assert "torch" not in loaded
    assert "numpy" not in loaded


WHAT_IMPORTS_CAN_CHANGE = """
def state():
    import atexit, builtins, logging, os, signal, sys, warnings
    return {
        "meta_path": [repr(getattr(finder, "__name__", type(finder).__name__)) for finder in sys.meta_path],
        "path": sys.path, "path_hooks": len(sys.path_hooks), "environment": dict(os.environ),
        "filters": [repr(each) for each in warnings.filters], "showwarning": warnings.showwarning.__module__,
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "import": builtins.__import__.__module__, "atexit": atexit._ncallbacks(), "cwd": os.getcwd(),
        "signals": [repr(signal.getsignal(number)) for number in signal.valid_signals()],
        "root_logger": [logging.root.level, len(logging.root.handlers)],
    }
"""


def test_importing_toprope_changes_nothing():
    before, after = python(
        "import atexit, json, logging, os, signal, sys, warnings\n"
        + WHAT_IMPORTS_CAN_CHANGE
        + "before = state(); import toprope, toprope.errors, toprope.settings, toprope.sizes, toprope.chips\n"
        "print(json.dumps([before, state()]))"
    )
    assert before == after


TORCH_STATE = (
    WHAT_IMPORTS_CAN_CHANGE
    + """
import hashlib, json, sys, torch
def digest(names):
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()
modules = [torch, torch.Tensor, torch.nn, torch.nn.Module, torch._C, torch.utils, torch.cuda, torch.accelerator]
result = state()
result["environment"].pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
result["torch"] = {each.__name__: digest(dir(each)) for each in modules}
result["kinds"] = digest(f"{name} {getattr(value, '__module__', '')}" for name, value in vars(torch).items())
result["backend"] = torch._C._get_privateuse1_backend_name()
result["npu"] = [hasattr(torch, "npu"), "torch_npu" in sys.modules, torch.accelerator.is_available()]
result["defaults"] = [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.get_num_threads()]
result["modules"] = digest(name for name in sys.modules if name.split(".")[0] == "torch")
print(json.dumps(result))
"""
)


@pytest.fixture(scope="module")
def torch_alone():
    """torch in a process that never hears of toprope: the entry point is not asked either."""
    return python(TORCH_STATE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@pytest.mark.slow
def test_torch_alone_has_no_npu(torch_alone):
    assert torch_alone["backend"] == "privateuseone"
    assert torch_alone["npu"][:2] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["", "import toprope\n", "import toprope, toprope.settings, toprope.chips, toprope.sim\n"]
)
def test_torch_is_the_same_next_to_toprope(torch_alone, first):
    assert python(first + TORCH_STATE) == torch_alone
