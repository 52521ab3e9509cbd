"""The examples in docstrings, which are in the reference too: each gives what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SOURCES = Path(__file__).resolve().parents[2] / "src"
TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted((SOURCES / "toprope").rglob("*.py"))}
MODULES = {
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): "sim.install(" in text
    for path, text in TEXTS.items()
    if ">>> " in text
}
PROGRAM = """
import doctest, importlib, sys
flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
for name in sys.argv[1:]:
    done = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert done.attempted, f"{name} has no example that doctest finds"
    assert not done.failed, name
"""


def run(*names):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_examples_that_need_no_card():
    names = [name for name, on_card in MODULES.items() if not on_card]
    assert len(names) > 20
    run(*names)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, on_card in MODULES.items() if on_card])
def test_examples_on_the_simulated_card(name):
    run(name)
