"""Devices that are compared or looked up, choices that stay together, and guards of code that is compiled for CUDA.

Holds `port.conditions.compared` and `compiled`.
"""

import subprocess
import sys

import pytest
import torch

from device_stand_ins import run
from toprope.cli import main
from toprope.port.engine import port
from toprope.port.project.context import Context
from toprope.port.report import summary
from toprope.port.runtime.vendor import plan
from toprope.port.scan import find, port_files

CHOICE = 'device = "cuda" if torch.cuda.is_available() else "cpu"\n'


def ported(text, **options):
    done = port(("import torch\n\n" + text).encode(), **options)
    assert not done.skipped
    assert port(done.after, **options).after == done.after
    return done


def left(text, **options):
    """The places of a program that stay as they are, with the reason."""
    return {each.before: each.held_back for each in ported(text, **options).findings if each.held_back}


# What is asked about by its text is not the device to run on


@pytest.mark.parametrize(
    "text",
    [
        'same = x.device == torch.device("cuda:0")\n',
        'other = torch.device("cuda") != device\n',
        'near = device in [torch.device("cpu"), torch.device("cuda")]\n',
        'far = device not in (torch.device("cuda", 1),)\n',
        'same = str(torch.device("cuda")) == text\n',
        'self.assertEqual(x.device, torch.device("cuda"))\n',
        'self.assertIn(x.device, [torch.device("cuda"), torch.device("cpu")])\n',
        "same = x.device == torch.device(0)\n",
        'CUDA = torch.device("cuda")\nif x.device == CUDA:\n    work()\n',
    ],
)
def test_a_device_in_a_comparison_is_not_one_to_run_on(text):
    """On the CPU `device == torch.device("cuda:0")` became true: a test of pytorch_cluster left the CPU out."""
    done = ported(text)
    assert done.after == done.before
    assert any(each.held_back.startswith("it is compared") for each in done.findings)


@pytest.mark.parametrize(
    "text",
    [
        CHOICE + 'number = {"cuda": 0, "cpu": -1}[device]\n',
        CHOICE + 'numbers = {"cuda": 0, "cpu": -1}\nnumber = numbers[device]\n',
        CHOICE + 'number = {"cuda": 0}.get(device, -1)\n',
        CHOICE + 'number = ["cpu", "cuda"].index(device)\n',
        CHOICE + 'match device:\n    case "cuda":\n        work()\n',
        CHOICE + 'model = torch.load(f"model_{device}.pt")\n',
        CHOICE + 'path = "out/model_%s" % device\n',
        CHOICE + 'path = "model_{}.pt".format(device)\n',
        'def run(device="cuda"):\n    return {"cuda": 0, "cpu": -1}[device]\n',
        'class Run:\n    def __init__(self):\n        self.device = "cuda"\n\n    def number(self):\n'
        '        return {"cuda": 0}[self.device]\n',
    ],
)
def test_the_name_of_a_device_that_is_looked_up_stays(text):
    """`{"cuda": 0, "cpu": -1}[device]` has no key for another card: KeyError."""
    assert any(each.startswith("its text is ") for each in left(text).values())
    assert "portable.name" not in ported(text).after.decode()
    assert "portable.resolve" not in ported(text).after.decode()


@pytest.mark.parametrize(
    "text",
    [
        CHOICE + 'print(f"on {device}.")\nlogger.info("model/%s" % device)\nx = {device: 1}[device]\n',
        CHOICE + "x = torch.ones(2, device=device)\nsame = x.device == y.device\n",
        CHOICE + 'title = f"run on {device}"\n',
    ],
)
def test_the_name_of_a_device_that_is_shown_is_converted(text):
    assert not left(text)
    assert "device = portable.name()" in ported(text).after.decode()


# What decides where tensors are is converted together, or stays together


def test_choices_of_one_program_stay_together():
    """`device=` went to the NPU, and what another condition moved stayed on the CPU."""
    text = CHOICE + "model.to(device)\nif torch.cuda.is_available():\n    x = x.cuda()\n    torch.cuda.cudart()\n"
    done = ported(text)
    assert done.after == done.before
    assert "decides where tensors are" in left(text)['"cuda" if torch.cuda.is_available() else "cpu"']
    apart = text + "cuda = torch.cuda.is_available()\nif cuda:\n    y = y.cuda()\n"
    assert ported(apart).after == ported(apart).before
    alone = CHOICE + 'backend = "nccl" if torch.cuda.is_available() else torch.cuda.cudart()\n'
    assert "device = portable.name()" in ported(alone).after.decode()


def test_places_that_stay_with_a_condition_are_one_line():
    """One condition of PyTorch-GAN had a line for each of the places behind it: 121 in all."""
    moves = "".join(f"    x{number}.cuda()\n" for number in range(9))
    done = ported(f"if torch.cuda.is_available():\n{moves}    torch.cuda.cudart()\n")
    lines = [each for each in summary.text(".", [done]).splitlines() if "stay with the condition" in each]
    assert len(lines) == 1
    assert "9 places stay with the condition in line 3: lines 4, 5, 6, 7, 8, 9, 10, 11, 12" in lines[0]


@pytest.mark.process
def test_a_class_of_tensors_makes_and_moves_tensors_on_each_device():
    program = ported(
        "cuda = torch.cuda.is_available()\nTensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor\n"
        "Long = torch.cuda.LongTensor\nx = Tensor([1, 2])\n"
        "y = torch.ones(2, dtype=torch.int32).type(Long)\nlayer = torch.nn.Linear(1, 1).type(Tensor)\n"
        "print(x.device.type, x.dtype, y.device.type, y.dtype, Tensor(2, 3).shape == (2, 3),\n"
        "      isinstance(x, Tensor), isinstance(y, Tensor), next(layer.parameters()).device.type)\n"
    ).after.decode()
    assert "torch.cuda" not in program
    for device, begin in (("cpu", ""), ("npu", "import toprope.sim\ntoprope.sim.install()\n")):
        done = run(begin + program, TOPROPE_DEVICE=device)
        want = f"{device} torch.float32 {device} torch.int64 True True False {device}\n"
        assert done.stdout == want, done.stderr


# Guards of code that is compiled for CUDA


GUARDS = [
    "if x.is_cuda:\n        x = _C.march(x)\n    else:\n        raise NotImplementedError\n    return x\n",
    "if not x.is_cuda:\n        raise NotImplementedError\n    return _C.march(x)\n",
    "assert x.is_cuda\n    return _C.march(x)\n",
    "if x.is_cuda and y.is_cuda:\n        return _C.march(x)\n",
    'if x.device.type == "cuda":\n        return _C.march(x)\n',
    "if torch.cuda.is_available():\n        torch.cuda.synchronize()\n        return _C.march(x)\n",
    "return _C.march(x) if x.is_cuda else x\n",
]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    "imported", ["import nerf.cuda as _C", "from nerf import cuda as _C", "import march_cuda as _C"]
)
def test_a_guard_of_code_that_is_compiled_for_cuda_stays(guard, imported):
    context = Context(compiled=frozenset({"cuda"}))
    done = ported(f"{imported}\n\n\ndef run(x, y, device):\n    {guard}", context=context)
    assert done.after == done.before
    plain = guard.replace("_C.march", "torch.abs")
    done = ported(f"{imported}\n\n\ndef run(x, y, device):\n    {plain}", context=context)
    assert done.after != done.before
    assert b"torch.cuda" not in done.after


def test_a_package_that_loads_its_extension_when_it_is_called_is_compiled_for_cuda(tmp_path):
    """nerfacc imports `nerfacc.cuda`, whose functions import the built module at the first call."""
    (tmp_path / "nerf" / "cuda" / "csrc").mkdir(parents=True)
    for folder in ("nerf", "nerf/cuda"):
        (tmp_path / folder / "__init__.py").write_text("def march(*a):\n    from ._backend import _C\n")
    (tmp_path / "nerf" / "cuda" / "csrc" / "march.cu").write_text("__global__ void march() {}\n")
    (tmp_path / "nerf" / "cuda" / "_backend.py").write_text("from torch.utils.cpp_extension import load\n_C = load()\n")
    user = tmp_path / "nerf" / "march.py"
    user.write_text("import nerf.cuda as _C\n\n\ndef run(x):\n    if x.is_cuda:\n        return _C.march(x)\n")
    files = find([tmp_path])
    assert {"cuda", "_backend"} <= Context.of(files).compiled
    assert "nerf" not in Context.of(files).compiled
    (done,) = [each for each in port_files(files) if each.path == str(user)]
    assert done.after == done.before


# TorchScript that others compile


STYLED = (
    "def sample(start: torch.Tensor, size: float, ends: Optional[List[int]] = None):\n    assert not start.is_cuda\n"
)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (STYLED + "    return torch.ops.cluster.sample(start, size)\n", True),
        (STYLED + "    if torch.jit.is_scripting():\n        return start\n", True),
        ("def f(x, n):\n    # type: (Tensor, int) -> Tensor\n    return x.cuda()\n", True),
        (STYLED + "    return start\n", False),
        ("def f(x: Batch):\n    if torch.jit.is_scripting():\n        return x\n    return x.cuda()\n", False),
    ],
)
def test_a_function_in_the_style_of_torchscript_is_left(text, stays):
    """Nothing in pytorch_cluster scripts its functions, and its users do."""
    done = ported(text)
    assert (done.after == done.before) is stays
    assert any("TorchScript" in each.held_back for each in done.findings) is stays


# A vendored file where the files of a folder look for it


@pytest.mark.process
def test_a_folder_whose_files_import_each_other_by_bare_names_is_no_package(tmp_path):
    """`tuning/__init__.py` is there and nobody uses it: `from tuning import ...` failed in `python tuning/tune.py`."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'voice'\n")
    folder = tmp_path / "tuning"
    folder.mkdir()
    (folder / "__init__.py").touch()
    use = "import torch\nimport warnings\n\nwarnings.filterwarnings('ignore')\nx = torch.ones(2).cuda()\n"
    (folder / "utils.py").write_text(use)
    (folder / "tune.py").write_text("from utils import x\n" + use + "print(x.device)\n")
    (folder / "alone.py").write_text(use + "print(x.device)\n")
    places = plan([tmp_path], find([tmp_path]), "").places
    assert {place.module for path, place in places.items() if path.parent == folder} == {"toprope_portable"}
    assert main(["port", str(tmp_path), "--vendor", "--write"]) == 0
    for name in ("tune.py", "alone.py"):
        for where in (tmp_path, folder):
            done = subprocess.run(
                [sys.executable, str(folder / name)], cwd=where, capture_output=True, text=True, timeout=280,
                env={"TOPROPE_DEVICE": "cpu", "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            assert done.stdout == "cpu\n", done.stderr
    before = (folder / "utils.py").read_bytes()
    assert main(["port", str(tmp_path), "--vendor", "--write"]) == 0
    assert (folder / "utils.py").read_bytes() == before


def test_what_takes_the_place_of_none_as_map_location_does_the_same_on_the_cpu(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "f.pt")
    text = f"print(torch.load({str(tmp_path / 'f.pt')!r}, map_location=None if torch.cuda.is_available() else 'cpu'))\n"
    program = ported(text).after.decode()
    assert "map_location=portable.map_location" in program
    done = run(program, TOPROPE_DEVICE="cpu")
    assert done.stdout == "{'a': tensor([1., 1.])}\n", done.stderr
