"""The vendors' names compared with those of the facades: each is there, or is listed as missing and says so when used.

The names are src/toprope/support/vendor_names.toml, which scripts/vendor_names.py writes from the vendors'
repositories; the operators of torch_npu are those of its wheel. What is missing is vendor_missing.toml, with reasons.
"""

import datetime
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

import vendor_names as script
from device_stand_ins import run_anew, told
from toprope.compat import missing
from toprope.support.npu_operators import npu_operators

pytestmark = [pytest.mark.native, pytest.mark.process]

NAMES = missing.vendor_names()
GROUPS = tomllib.loads(Path(__file__).with_name("vendor_missing.toml").read_text(encoding="utf-8"))["missing"]
MISSING = [name for group in GROUPS for name in group["names"]]

LOOK = """
import importlib
import toprope.compat
toprope.compat.install(simulated_card=True)
from toprope.compat.missing import vendor_names

found = {}
for vendor in vendor_names().values():
    for module, names in vendor["modules"].items():
        try:
            place = importlib.import_module(module)
        except ImportError as error:
            found[module] = [type(error).__name__, str(error)]
            continue
        for name in names:
            try:
                getattr(place, name)
            except (AttributeError, NotImplementedError) as error:
                found[f"{module}.{name}"] = [type(error).__name__, str(error)]
tell(found)
"""


@pytest.fixture(scope="module")
def absent():
    """What asking for each vendor name raises, where it raises anything."""
    return told(LOOK, by=run_anew, TOPROPE_SIM="910B3", TORCH_DEVICE_BACKEND_AUTOLOAD="1")


@pytest.mark.slow
def test_every_name_is_there_or_listed_and_nothing_listed_is_there(absent):
    inside = tuple(f"{module}." for module in absent)  # a module that is missing is listed, not all in it
    assert sorted(name for name in absent if name not in MISSING and not name.startswith(inside)) == []
    assert sorted(name for name in MISSING if name not in absent) == []
    assert len(MISSING) == len({*MISSING})
    assert all(group["why"] for group in GROUPS)


def test_what_is_missing_says_so(absent):
    for name, (error, text) in absent.items():
        top = name.partition(".")[0]
        assert error in ("AttributeError", "ModuleNotFoundError"), name
        assert f"toprope's facade of {top} does not have {name}: " in text or text.startswith("No module named '"), text
        abouts = (NAMES[top]["source"], "an operator, ")
        assert any(f"the real {top} has it ({about}" in text for about in abouts), text
        assert text.endswith("toprope does not simulate it") or "No module" in text, text


OPERATORS = {space: sorted({full.partition(".")[0] for full in npu_operators()[space]}) for space in ("npu", "atb")}
LOOK_FOR_OPERATORS = """
import toprope.compat
toprope.compat.install(simulated_card=True)
import torch, torch_npu

def error(place, name):
    try:
        getattr(place, name)
    except AttributeError as error:
        return str(error)

tell([
    {name: [error(torch_npu, name), error(getattr(torch.ops, space), name)] for name in names}
    for space, names in %r.items()
])
"""


@pytest.mark.slow
def test_each_missing_operator_says_that_the_vendor_has_it():
    found = told(LOOK_FOR_OPERATORS % OPERATORS, by=run_anew, TOPROPE_SIM="910B3", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    table, texts = npu_operators(), {}
    for names in found:
        for name, (at_top, in_ops) in names.items():
            assert (at_top is None) <= (in_ops is None), name  # what torch_npu has is in torch.ops, too
            texts.update({(name, text): None for text in (at_top, in_ops) if text})
    assert {name for name, _ in texts} >= {"npu_mla_preprocess", "npu_ifmr", "npu_attention_to_ffn"}
    for name, text in texts:
        assert "the real torch_npu has it (an operator" in text, text
        assert f"{name}(" in text, text
        assert (
            f"page {table['pages_at']}/{table['pages'][name]} " if name in table["pages"] else "a page, from"
        ) in text
        assert text.endswith("toprope does not simulate it"), text


def test_each_operator_of_the_vendor_is_known_wherever_it_is_looked_for():
    for space, names in OPERATORS.items():
        for name in names:
            for place in ("torch_npu", f"torch.ops.{space}"):
                assert "the real torch_npu has it (an operator" in missing.of_the_real_one(f"{place}.{name}"), name
    said = missing.of_the_real_one("torch_npu.npu_mla_preprocess")
    assert "an operator as torch_npu.atb.npu_mla_preprocess, " in said
    assert "an operator as torch.ops.npu.zeros, " in missing.of_the_real_one("torch_npu.zeros")


@pytest.mark.parametrize("place", ["torch_npu", "torch.ops.npu"])
def test_a_misspelt_operator_gets_the_name_that_may_be_meant(place):
    said = missing.of_the_real_one(f"{place}.npu_swigloo")
    assert said.startswith("it is not one of the documented names of the real torch_npu")
    assert said.endswith(f"; did you mean {place}.npu_swiglu?")
    assert "did you mean" not in missing.of_the_real_one(f"{place}.quite_another_thing")


@pytest.mark.parametrize("package", script.PACKAGES)
def test_the_names_have_their_source(package):
    vendor = NAMES[package]
    origin, date = vendor["source"].split(", ")
    assert origin == script.PACKAGES[package][0]
    assert datetime.date.fromisoformat(date) > datetime.date(2026, 1, 1)
    assert len(vendor["commit"]) == 40
    assert len(vendor["modules"][package]) > 5


IMPORTS = """
import toprope.compat
toprope.compat.install(simulated_card=True)

def caught(line):
    try:
        exec(line)
    except (ImportError, AttributeError) as error:
        return [type(error).__name__, str(error)]
    return None

tell(*map(caught, {lines!r}))
"""
# First lines of torchair's documents, examples and tests.
FIRST_LINES = [
    "import torchair",
    "import torchair as tng",
    "import torch_npu, torchair",
    "from torchair import CompilerConfig",
    "from torchair import logger",
    "from torchair import patch_for_hcom",
    "from torchair.configs.compiler_config import CompilerConfig",
    "from torchair.core.utils import logger",
    "from torchair.core.utils import logger, EVENT_LEVEL",
    "import torchair; from torchair.core.utils import logger; assert logger is torchair.logger",
]
MISSING_LINES = {
    "from torchair.scope import everything": "torchair.scope.everything: it is not one of the documented names of",
    "from torchair import dynamo_export": "facade of torchair does not have torchair.dynamo_export: the real",
    "from torchair.inference import set_dim_gears": "torchair does not have this API: the real torchair has it",
    "from torchair.ge import Tensor": "toprope's torchair does not have this API: the real torchair has it",
    "from dataflow.flow_func.flowfunc_wrapper import MetaRunContext": "the compiled part of the real dataflow",
    "from dataflow.utils.log import everything": "dataflow.utils.log.everything: it is not one of the documented names",
    "from yr.object_ref import ObjectRefDirect": "yr.object_ref.ObjectRefDirect: the real yr has it",
    "import torch_npu.asd": "toprope's torch_npu does not have this API: the real torch_npu has it",
    "from torch_npu.npu.memory import everything": "everything",
}


@pytest.mark.slow
def test_imports():
    lines = [*FIRST_LINES, *MISSING_LINES]
    found = told(IMPORTS.format(lines=lines), by=run_anew, TOPROPE_SIM="910B3", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    answers = dict(zip(lines, found, strict=True))
    assert {line: answers[line] for line in FIRST_LINES if answers[line]} == {}
    for line, text in MISSING_LINES.items():
        error, said = answers[line]
        assert error in ("ImportError", "ModuleNotFoundError"), line
        assert text in said, line


# --- the script, on a repository made here

FILES = {
    "python/torchair/__init__.py": "__all__ = ['run']\nfrom .scope import inner\ndef unlisted(): ...\n",
    "python/torchair/scope/__init__.py": "from ._hidden import shown, _not\nfrom torch import nn\nLIMIT = 1\n",
    "python/torchair/_hidden.py": "def shown(): ...\n",
    "python/torchair/unnamed.py": "def nobody(): ...\n",
    "python/torchair/lazy.py": "_LAZY_EXPORTS = {'first': 1}\n_LAZY_EXPORTS.update({'second': 2})\n",
    "docs/a.md": "# torchair.scope.written\\_down\nimport torchair as tng\ntng.lazy.first()\nsee torchair.log\n",
}


def test_the_script_reads_a_repository(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert script.names_of("torchair", script.Repository(tmp_path), "python/torchair") == {
        "torchair": ["run"],
        "torchair.lazy": ["first", "second"],
        "torchair.scope": ["LIMIT", "shown", "written_down"],
    }
    assert tomllib.loads(f"x = {script._table([json.dumps(number) for number in range(99)])}")["x"][98] == "98"
