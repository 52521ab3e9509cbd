"""`toprope port` for CI and beyond: SARIF and HTML, baselines, the vendored file, traces of a run.

Holds `port.report` and `port.runtime.vendor`.
"""

import json
import os
import subprocess
import sys

import pytest

from device_stand_ins import run
from toprope.cli import main
from toprope.port.registry import all_rules
from toprope.port.runtime.placement import Place
from toprope.port.runtime.vendor import plan, text
from toprope.port.scan import find

pytestmark = pytest.mark.process

PROGRAM = (
    "import torch\nimport triton\n\nx = torch.ones(3).cuda()\nscaler = torch.cuda.amp.GradScaler()\n"
    "torch.cuda.synchronize()\nprint(x.sum().item(), x.is_cuda, scaler.is_enabled())\n"
)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a.py").write_text(PROGRAM)
    return tmp_path


def status(*words):
    return main(["port", *map(str, words)])


def findings(capsys, *words):
    capsys.readouterr()
    status(*words, "--format", "json")
    return json.loads(capsys.readouterr().out)["findings"]


def test_sarif_and_html_of_a_tree(tree, capsys):
    assert status(tree, "--check", "--format", "sarif") == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    assert {"TR006", "TR055", "TR082"} <= {each["ruleId"] for each in log["runs"][0]["results"]}
    assert status(tree, "--format", "html", "--output", tree / "report.html") == 0
    page = (tree / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "scaler = portable.GradScaler()" in page


def test_a_baseline_knows_moved_lines_and_nothing_else(tree, capsys, monkeypatch):
    base = tree / "known.json"
    assert status(tree, "--write-baseline", base) == 0
    assert "sites are known from now on" in capsys.readouterr().out
    assert status(tree, "--check") == 1
    assert status(tree, "--check", "--baseline", base) == 0
    capsys.readouterr()
    (tree / "a.py").write_text("# a new line\n" + PROGRAM.replace("torch.ones(3).cuda()", "torch.ones(3) . cuda( )"))
    assert status(tree, "--check", "--baseline", base) == 1  # another text
    (tree / "a.py").write_text("# a new line\n" + PROGRAM)
    assert status(tree, "--check", "--baseline", base) == 0
    (tree / "a.py").write_text(PROGRAM + "torch.cuda.synchronize()\n")
    assert status(tree, "--check", "--baseline", base) == 1
    new = [each for each in findings(capsys, tree, "--baseline", base) if not each["known"]]
    assert [(each["rule"], each["line"]) for each in new] == [("TR026", 8)]
    (tree / "b.py").write_text(PROGRAM)  # the same places in another file
    assert status(tree / "b.py", "--check", "--baseline", base) == 1
    monkeypatch.chdir(tree)
    (tree / "b.py").unlink()
    (tree / "a.py").write_text(PROGRAM)
    assert status(".", "--check", "--baseline", "known.json") == 0  # files are named from the baseline


HINTS = """import torch
import torch.nn.functional as F

def attend(q, k, v, mask):
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    weights = torch.softmax(q @ k.mT, dim=-1) @ v
    return torch.linalg.inv(out), weights.double() @ v.double(), torch.searchsorted(out, weights)

step = torch.optim.AdamW(parameters, fused=True)
image = image.to(torch.float64, memory_format=torch.channels_last)
"""


def test_hints_are_listed_and_do_not_fail_a_check(tmp_path, capsys):
    (tmp_path / "a.py").write_text(HINTS)
    codes = {"TR098", "TR099", "TR100", "TR111", "TR112", "TR113", "TR114", "TR115"}
    assert codes == {rule.code for rule in all_rules().values() if rule.hint}
    assert status(tmp_path, "--check") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}: 1 file, 0 with sites, 0 sites\n  hints ")
    assert {line.split()[1] for line in said.splitlines() if line.startswith(f"{tmp_path}/a.py:")} == codes
    assert status(tmp_path, "--check", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sites"], found["files_with_sites"], found["rate"]) == ({"P": 0, "R": 0, "N": 0}, 0, None)
    assert found["hints"] == len(found["findings"]) == sum(each["hint"] for each in found["findings"])
    assert status(tmp_path, "--format", "sarif") == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert {each["level"] for each in run["results"]} == {"note"}
    assert {each["defaultConfiguration"]["level"] for each in run["tool"]["driver"]["rules"]} == {"note"}
    page = tmp_path / "page.html"
    assert status(tmp_path, "--format", "html", "--output", page) == 0
    assert "<td>sites</td><td>0</td>" in page.read_text()
    assert page.read_text().count("data-kind=hint") == found["hints"]
    base = tmp_path / "known.json"
    assert status(tmp_path, "--write-baseline", base) == 0
    assert json.loads(base.read_text())["findings"] == []
    with (tmp_path / "a.py").open("a") as file:
        file.write("model.cuda()\n")
    assert status(tmp_path, "--check") == 1


CALL = "y = torch.linalg.inv(torch.nn.functional.scaled_dot_product_attention(q, k, v))"


def test_a_condition_is_converted_with_hints_behind_it(tmp_path):
    (tmp_path / "a.py").write_text(
        f'import torch\nif torch.cuda.is_available():\n    q = torch.randn(2, device="cuda")\n    {CALL}\n'
    )
    assert status(tmp_path, "--write") == 0
    assert "if portable.is_available():" in (tmp_path / "a.py").read_text()
    assert status(tmp_path, "--check") == 0


def test_a_hint_does_not_hide_what_a_trace_saw_in_its_line(tmp_path):
    (tmp_path / "a.py").write_text(f"import torch\n{CALL}\n")
    trace = tmp_path / "trace.json"
    site = {"what": "a device", "text": "cuda", "count": 2, "stack": [{"file": str(tmp_path / "a.py"), "line": 2}]}
    trace.write_text(json.dumps({"version": 1, "sites": [site]}))
    assert status(tmp_path / "a.py", "--check", "--with-trace", trace) == 1
    assert status(tmp_path / "a.py", "--check", "--with-trace", trace, "--ignore", "TR000") == 0


def test_what_is_no_baseline_and_no_trace(tree, capsys):
    (tree / "x.json").write_text('{"version": 2}')
    for option in ("--baseline", "--with-trace"):
        assert status(tree, option, tree / "none.json") == 2
        assert status(tree, option, tree / "x.json") == 2
    assert status(tree, "--baseline", tree / "x.json", "--write-baseline", tree / "y.json") == 2
    assert status(tree, "--write-baseline", tree / "no" / "y.json") == 2
    assert status(tree, "--vendor=nowhere") == 2
    said = capsys.readouterr().err
    assert "none.json cannot be read" in said
    assert "its version is 2" in said
    assert "nowhere is no folder" in said


def test_a_vendored_program_runs_without_toprope_and_is_left_alone(tree, capsys):
    (tree / "a.py").write_text(PROGRAM.replace("import triton\n", ""))
    assert status(tree, "--vendor") == 0
    assert not (tree / "toprope_portable.py").exists()
    assert status(tree, "--vendor", "--write") == 0
    assert "toprope_portable.py written" in capsys.readouterr().out
    program = (tree / "a.py").read_text()
    assert "import toprope_portable as portable\n" in program
    done = run(program, tree, TOPROPE_DEVICE="cpu")
    assert (done.returncode, done.stdout) == (0, "3.0 False False\n"), done.stderr
    mine = text() + b"\nVERSION = 'mine'\n"
    (tree / "toprope_portable.py").write_bytes(mine)
    (tree / "b.py").write_text("x.cuda()\n")
    for words in ([], ["--vendor"]):  # found by itself the second time
        assert status(tree, "--write", *words) == 0
        assert (tree / "a.py").read_text() == program
        assert (tree / "toprope_portable.py").read_bytes() == mine
        assert (tree / "b.py").read_text() == "import toprope_portable as portable\nx.to(portable.device())\n"


def test_where_the_vendored_file_goes(tree):
    (tree / "src" / "pack" / "inner").mkdir(parents=True)
    for folder in ("pack", "pack/inner"):
        (tree / "src" / folder / "__init__.py").touch()
    (tree / "src" / "pack" / "inner" / "m.py").write_text("from . import other\n")

    def found(paths, folder=""):
        files = find(paths)
        return {path.name: place for path, place in plan(paths, files, folder).places.items()}

    assert found([tree])["a.py"] == Place("toprope_portable", (tree,))
    inner = tree / "src" / "pack" / "inner"
    assert found([tree])["m.py"] == Place(".toprope_portable", (inner,))  # nobody says that `pack` is imported
    wished = found([tree], str(inner))
    assert wished["m.py"] == Place(".toprope_portable", (inner,))
    assert wished["a.py"] == Place("pack.inner.toprope_portable", (inner,))
    (tree / "b.py").write_text("import pack.inner.m\n")
    (tree / "src" / "run.py").write_text("from pack.inner import m\n")
    assert found([tree])["m.py"] == Place("..toprope_portable", (tree / "src" / "pack",))
    assert found([tree / "a.py", tree / "src"])["a.py"].folders == (tree,)


# A repository with all kinds of files. PROGRAM prints what a run must print.
LINE = "import torch\nprint(NAME, torch.ones(2, device='cuda').sum().item())\n"
REPOSITORY = {
    "train.py": LINE + "import models.net\n",
    "models/net.py": LINE,  # no __init__.py
    "scripts/run.py": LINE,
    "scripts/deep/more.py": LINE + "if __name__ == '__main__':\n    import near\n",
    "scripts/deep/near.py": LINE,
    "tools/__init__.py": "",
    "tools/guarded.py": LINE + "if __name__ == '__main__':\n    print('main')\n",
    "lib/__init__.py": "from .core import f\n",
    "lib/core.py": "import torch\ndef f():\n    return torch.ones(1, device='cuda')\n",
    "uses_lib.py": "import lib\nprint('lib', lib.f().item())\n",
    "book/a.ipynb": json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": [
            "import torch\n", "print(torch.ones(2, device='cuda').sum())"]},
    ]}),
}  # fmt: skip
WAYS = [  # from this folder, with these words
    (".", ["train.py"]), (".", ["scripts/run.py"]), ("scripts", ["run.py"]), ("/", ["{}/scripts/run.py"]),
    (".", ["scripts/deep/more.py"]), (".", ["tools/guarded.py"]), (".", ["-m", "tools.guarded"]),
    ("tools", ["guarded.py"]), (".", ["uses_lib.py"]), (".", ["-m", "models.net"]),
]  # fmt: skip


@pytest.fixture
def repository(tmp_path):
    for name, program in REPOSITORY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(program.replace("NAME", repr(name)))
    return tmp_path


def start(folder, words):
    environment = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=250,
        env=environment | {"TOPROPE_DEVICE": "cpu"},
    )  # fmt: skip


# How two public repositories are laid out: `src/` is on the path, and only the inner package has an `__init__.py`; the
# folder of the repository is the package itself, under a name that is no identifier.
LAYOUTS = {
    "src/main.py": "import utils.ops.fused\nfrom utils import misc\nimport models.big\nprint('main')\n",
    "src/models/big.py": LINE,
    "src/models/small.py": LINE,  # imported by a name that is made at run time
    "src/utils/misc.py": LINE,
    "src/utils/helper.py": "import torch\n\nnumber = torch.ones(1, device='cuda')\n",
    "src/utils/ops/__init__.py": "",
    "src/utils/ops/fused.py": LINE + "from .. import misc\nfrom . import plain\n",
    "src/utils/ops/plain.py": LINE,
    "face-net/__init__.py": "from .nets.big import size\n",
    "face-net/setup.py": "from setuptools import setup\nsetup(packages=['face_net'], package_dir={'face_net': '.'})\n",
    "face-net/nets/big.py": LINE + "from .tools.draw import size\n",
    "face-net/nets/tools/draw.py": "import torch\n\nsize = torch.ones(1, device='cuda').numel()\n",
    "face-net/tests/run.py": "import sys\nsys.path.insert(0, '.')\nfrom nets.big import size\nprint(size)\n",
    "tried/main.py": "import core\nprint(core.size)\n",
    "tried/core.py": "import torch\ntry:\n    from .near import size\nexcept ImportError:\n    from near import size\n"
                     "x = torch.ones(size, device='cuda')\n",
    "tried/near.py": "import torch\n\nsize = torch.ones(1, device='cuda').numel()\n",
}  # fmt: skip


@pytest.mark.slow
def test_a_package_is_imported_under_the_names_that_the_project_uses(tmp_path):
    """`from ops import toprope_portable` in a package that the program calls `utils.ops` broke its import."""
    for name, program in LAYOUTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(program.replace("NAME", repr(name)))
    for top in ("src", "face-net", "tried"):
        assert status(tmp_path / top, "--vendor", "--write") == 0
    ways = [
        ("src", ["main.py"]), (".", ["src/main.py"]), ("src", ["-c", "import utils.ops.plain, utils.helper"]),
        ("src", ["-c", "import importlib; importlib.import_module('models.small')"]),
        ("face-net", ["tests/run.py"]), ("tried", ["main.py"]),
        (".", ["-c", "import os, sys; os.symlink('face-net', 'face_net'); import face_net; print(face_net.size)"]),
    ]  # fmt: skip
    for folder, words in ways:
        done = start(tmp_path / folder, words)
        assert done.returncode == 0, (folder, words, done.stderr)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}
    for top in ("src", "face-net", "tried"):
        for again in (["--vendor"], []):
            assert status(tmp_path / top, "--write", *again) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.py")} == before


@pytest.mark.slow
def test_every_script_still_starts_wherever_it_is(repository, capsys):
    """One file at the root, imported by its bare name: scripts in other folders did not start any more."""
    assert status(repository, "--vendor", "--write") == 0
    for folder, words in WAYS:
        done = start(repository / folder, [each.format(repository) for each in words])
        assert done.returncode == 0, (folder, words, done.stderr)
        assert done.stdout.strip()
    assert (repository / "book" / "toprope_portable.py").exists()
    assert (repository / "lib" / "core.py").read_text().startswith("import torch\nfrom . import toprope_portable")
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    for words in (["--vendor"], [], [f"--vendor={repository / 'lib'}"]):  # the second run changes nothing
        assert status(repository, "--write", *words) == 0
        after = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
        assert {path: data for path, data in after.items() if "__pycache__" not in path.parts} == {
            path: data for path, data in before.items() if "__pycache__" not in path.parts
        }


INSTALLS = {
    "mapped": ("setup.py", "from setuptools import setup\nsetup(package_dir={'lib.tools': 'tools'})\n"),
    "excluded": ("setup.py", "from setuptools import *\nsetup(packages=find_packages(exclude=('tools', 'tests')))\n"),
    "in src": ("pyproject.toml", "[project]\nname = 'lib'\n[tool.setuptools.packages.find]\nwhere = ['src']\n"),
    "others": ("pyproject.toml", "[project]\nname = 'lib'\n[tool.setuptools.packages.find]\ninclude = ['lib*']\n"),
    "listed": ("setup.py", "from setuptools import setup\nsetup(name='lib', packages=['lib', 'lib.nn'])\n"),
    "poetry": ("pyproject.toml", "[tool.poetry]\nname = 'lib'\npackages = [{ include = 'lib' }]\n"),
}


@pytest.mark.parametrize("how", INSTALLS)
def test_a_script_in_a_package_that_is_not_installed_still_starts(tmp_path, how):
    """`from tools import toprope_portable` in `tools/demo.py`, which is started as a file, ended it (YOLOX)."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "demo.py").write_text(LINE.replace("NAME", "1"))
    name, text = INSTALLS[how]
    (tmp_path / name).write_text(text)
    assert status(tmp_path, "--vendor", "--write") == 0
    assert "import toprope_portable as portable" in (tmp_path / "tools" / "demo.py").read_text()
    for words in (["tools/demo.py"], ["-m", "tools.demo"]):
        done = start(tmp_path, words)
        assert done.returncode == 0, done.stderr


def test_an_installed_package_gets_the_file_inside(tmp_path):
    """A copy at the root is in no wheel."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'pack'\n")
    (tmp_path / "src" / "pack").mkdir(parents=True)
    (tmp_path / "src" / "pack" / "__init__.py").touch()
    program = "import torch\nx = torch.ones(1).cuda()\nif __name__ == '__main__':\n    print(x)\n"
    (tmp_path / "src" / "pack" / "cli.py").write_text(program)
    assert status(tmp_path, "--vendor", "--write") == 0
    assert "from pack import toprope_portable as portable\n" in (tmp_path / "src" / "pack" / "cli.py").read_text()
    assert [path.parent.name for path in tmp_path.rglob("toprope_portable.py")] == ["pack"]


def test_a_file_that_may_not_find_the_wanted_folder_is_named(repository, capsys):
    assert status(repository, f"--vendor={repository / 'lib'}") == 0
    said = capsys.readouterr().out
    assert f"{repository / 'scripts' / 'run.py'} may not find the file in" in said
    assert "core.py may not find" not in said


def test_another_file_of_that_name_is_not_taken_for_the_vendored_one(tree, capsys):
    (tree / "toprope_portable.py").write_text("mine = 1\n")
    assert status(tree, "--vendor", "--write") == 2
    assert "is not the file of --vendor" in capsys.readouterr().err
    assert (tree / "a.py").read_text() == PROGRAM


DISTRIBUTED = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def wrap(model, r):
    return DDP(model.cuda(), device_ids=[r], output_device=r)
"""


@pytest.mark.parametrize("mode", ["plain", "vendored", "package", "relative"])
def test_what_is_ported_is_known_in_every_spelling(tmp_path, mode):
    """`device_ids=portable.device_ids(...)` was wrapped again by each run, with --vendor."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    path = tmp_path / "pack" / "a.py"
    path.write_text(DISTRIBUTED)
    words = {"plain": [], "package": [f"--vendor={tmp_path / 'pack'}"]}.get(mode, ["--vendor"])
    assert status(tmp_path, "--write", *words) == 0
    once = path.read_text()
    assert once.count("device_ids(") == 2
    if mode == "relative":  # as a user may write it, and as the port does where a file has relative imports
        once = once.replace("from pack import toprope_portable", "from . import toprope_portable")
        assert "from . import toprope_portable" in once
        path.write_text(once)
    for again in (words, []):
        assert status(tmp_path, "--write", *again) == 0
        assert path.read_text() == once
        assert status(tmp_path, "--check", "--select", "TR06", *again) == 0


TRACED = """import torch
name = open("device.txt").read()
x = torch.ones(2, device=name)
torch.cuda.synchronize()
y = torch.ones(2, device=name)  # toprope: ignore
"""


# what `toprope run --trace-cuda` does, in a process that has torch already
RUN = """
import json, os, pathlib, runpy
from toprope.compat import cuda, cuda_sites
folder = pathlib.Path(os.environ["TREE"])
os.chdir(folder)
undo = cuda.install(folder)
runpy.run_path("a.py")
undo()
pathlib.Path(os.environ["TRACE"]).write_text(json.dumps(cuda_sites.merge(folder)))
"""


def test_a_trace_marks_places_and_adds_what_only_a_run_shows(tree, capsys):
    (tree / "a.py").write_text(TRACED)
    (tree / "device.txt").write_text("cuda:0")
    trace = tree / "trace.json"
    done = run(RUN, TREE=str(tree), TRACE=str(trace), TOPROPE_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    found = findings(capsys, tree, "--with-trace", trace)
    assert [(each["rule"], each["line"], each["seen"]) for each in found] == [("TR000", 3, 1), ("TR026", 4, 1)]
    assert found[0]["message"] == "a device of CUDA reached torch from here: cuda:0"
    assert found[0]["before"] == "x = torch.ones(2, device=name)"
    assert status(tree, "--with-trace", trace, "--check", "--ignore", "TR026") == 1
    assert status(tree, "--with-trace", trace, "--check", "--ignore", "TR026,TR000") == 0
    sites = json.loads(trace.read_text())
    sites["sites"].append({"what": "a device", "text": "cuda", "count": 2, "stack": [
        {"file": "/lib/other.py", "line": 7, "function": "f"}, {"file": str(tree / "a.py"), "line": 2, "function": ""},
    ]})  # fmt: skip
    sites["sites"].append({"what": "a device", "text": "cuda", "count": 2, "stack": []})
    trace.write_text(json.dumps(sites))
    capsys.readouterr()
    assert status(tree, "--with-trace", trace) == 0
    said = capsys.readouterr().out
    assert "a.py:2:1  TR000 R  a device of CUDA reached torch from here: cuda, through /lib/other.py:7 " in said
    assert "(asked 2 times in the trace)" in said
    assert "elsewhere      1   sites of the trace" in said
