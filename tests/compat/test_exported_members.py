"""Exported names (`__all__`): each exists, has a docstring, and is sorted as ruff sorts it.

The order is constants, classes, the rest. Holds all modules of src/toprope.
"""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.xdist_group("exported members")]

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "src" / "toprope"
# They mirror names of torch_npu and others, documented there.
FOREIGN = ("toprope.sim.npu", "toprope.compat")


def public_modules():
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ["toprope", *file.relative_to(PACKAGE).with_suffix("").parts]
        folders = file.relative_to(PACKAGE).parents
        if any(not (PACKAGE / folder / "__init__.py").exists() for folder in folders):
            continue  # not a package, for example a folder that is put on PYTHONPATH
        name = ".".join(parts).removesuffix(".__init__")
        if any(part.startswith("_") for part in parts if part != "__init__"):
            continue
        if not any(name == foreign or name.startswith(foreign + ".") for foreign in FOREIGN):
            yield name


def door(name):
    return PACKAGE.joinpath(*name.split(".")[1:], "__init__.py")


MODULES = list(public_modules())
# In a process of its own: modules of the simulator may load its native part.
LOOK = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    found[name] = {
        "doc": bool((module.__doc__ or "").strip()),
        "all": None if exported is None else list(exported),
        "missing": [each for each in exported or () if not hasattr(module, each)],
        "undocumented": [
            each for each in exported or ()
            if (callable(getattr(module, each, None)) or type(getattr(module, each, None)).__name__ == "module")
            and not (getattr(module, each).__doc__ or "").strip()
        ],
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-c", LOOK, *MODULES], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_known_modules_are_among_them():
    assert {"toprope", "toprope.errors", "toprope.settings", "toprope.sizes", "toprope.chips"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_exports(found, name):
    module = found[name]
    assert module["doc"], f"{name} does not say what it is for"
    assert module["all"] is not None, f"{name} does not say what it exports"
    assert module["missing"] == []
    assert module["undocumented"] == []
    assert module["all"] == sorted(module["all"], key=order)


def order(name):
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    # ruff takes digits together as a number: INT8 stands before INT16
    parts = re.split(r"(\d+)", name)
    return kind, [(int(part) if part.isdigit() else -1, part) for part in parts]


@pytest.mark.parametrize("name", [name for name in MODULES if door(name).exists()])
def test_a_door_is_only_a_door(name):
    """A package's __init__.py has imports and `__all__`, at most a lazy __getattr__; the work is in named files."""
    lines = door(name).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80
    classes = [node.name for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ClassDef)]
    assert classes == []
