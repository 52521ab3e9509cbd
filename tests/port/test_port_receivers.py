"""Receivers that may be of a class of the project, what TorchScript compiles, and numbers in the place of devices.

Holds `port.analysis.receivers`, `port.project.scripted` and `port.rules.numbers`.
"""

import json
import subprocess
import sys

import pytest
import torch

from toprope.port import Kind, port
from toprope.port.registry import python_rules
from toprope.port.scan import find, port_files

BATCH = "import torch\n\n\nclass Batch:\n    def cuda(self, device=None):\n        return self\n\n\n"


def after(text):
    done = port(text.encode())
    assert not done.skipped
    assert port(done.after).after == done.after
    return done.after.decode()


def ported(folder, **files):
    """The files of a project after the port, by their names, and what is said of each."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = {each.path.rpartition("/")[2][:-3]: each for each in port_files(find([folder]))}
    return {name: each.after.decode() for name, each in done.items()}, done


# Receivers


@pytest.mark.parametrize(
    "receiver",
    [
        "torch.zeros(2)", "torch.stack(parts)", "torch.nn.Linear(1, 1)", "torch.nn.functional.relu(x)",
        "x.unsqueeze(0)",
        "torch.from_numpy(x).float()", "x.view(2, -1)[0]", "torch.load_none(x)", "-torch.ones(1)",
        "(torch.ones(1) + x)",
        "torch.nn.Sequential(x)", "torch.nn.Parameter(x)", "next(x.parameters())",
        "torch.ones(1).data",
        "(torch.ones(1) if x else torch.zeros(1))", "torch.nn.Linear(1, 1)(x)", "torch.nn.Linear(1, 1).half()",
        "Other(torch)", "torch.autograd.Variable(x)", "torch.ones(1).to(x)",
    ],
)  # fmt: skip
def test_what_is_seen_to_be_a_tensor_or_a_module_is_rewritten_next_to_an_own_class(receiver):
    text = f"{BATCH}from other import Other\n\ny = {receiver}.cuda()\n"
    assert after(text).endswith(f"y = {receiver}.to(portable.device())\n")


@pytest.mark.parametrize(
    "body",
    [
        "for data in loader:\n    data = data.cuda(0).to_dict()\n",
        "def f(data):\n    data.cuda()\n",
        "def make():\n    return Batch()\n\nmake().cuda()\n",
        "class T:\n    def __init__(self):\n        self.b = Batch()\n        self.b.cuda()\n",
        "class T:\n    def __init__(self, b):\n        self.b = b\n        self.b.cuda()\n",
        "class Small(Batch):\n    pass\n\nSmall().cuda()\n",
        "def f(b: Batch):\n    b.cuda()\n",
        "def f(b: 'Batch | None'):\n    b.cuda()\n",
        "torch.load('x', map_location='cpu').cuda()\n",
        "x = torch.ones(1)\nx = other(x)\nx.cuda()\n",
        "x = torch.ones(1) if a else Batch()\nx.cuda()\n",
        "parts[0].cuda()\n",
        "a, b = pair()\na.cuda()\n",
        "with opened() as b:\n    b.cuda()\n",
        "Batch.from_list(x).cuda()\n",
        "m = {k: v.cuda() for k, v in data.items()}\n",
        "f = lambda v: v.cuda()\n",
    ],
)
def test_what_may_be_of_an_own_class_is_left_and_said(body):
    text = BATCH + body
    assert after(text) == text
    said = [each for each in port(text.encode()).findings if each.rule.code in ("TR006", "TR007")]
    assert said
    assert {each.kind for each in said} == {Kind.REVIEW}
    assert all("has a method cuda of its own" in each.held_back for each in said)


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("x = other\nx = torch.stack(x)\nx = x.cuda()\n", "x = x.to(portable.device())\n"),
        ("def f(x: torch.Tensor):\n    return x.cuda()\n", "    return x.to(portable.device())\n"),
        ("def f(x):\n    if torch.is_tensor(x):\n        x = x.cuda()\n", "        x = x.to(portable.device())\n"),
        ("y = [t.cuda() for t in x if isinstance(t, torch.Tensor)]\n",
         "y = [t.to(portable.device()) for t in x if isinstance(t, torch.Tensor)]\n"),
        ("def f(m):\n    for p in m.parameters():\n        p.data = p.data.cuda()\n",
         "        p.data = p.data.to(portable.device())\n"),
        ("class T(torch.nn.Module):\n    def __init__(self):\n        self.a = torch.ones(1)\n\n"
         "    def f(self):\n        return self.a.cuda(), self.cuda()\n",
         "        return self.a.to(portable.device()), self.to(portable.device())\n"),
    ],
)  # fmt: skip
def test_what_the_program_says_of_a_receiver_is_used(before, wanted):
    assert after(BATCH + before).endswith(wanted)


def test_an_own_class_of_another_file_or_notebook_counts(tmp_path):
    user = "import torch\n\n\ndef run(data):\n    return data.cuda()\n"
    small = "from batch import Batch\n\n\nclass Small(Batch):\n    x = 1\n"
    made = "from small import Small\n\ns = Small()\ns.cuda()\n"
    texts, done = ported(tmp_path, batch=BATCH, small=small, user=user, made=made)
    assert texts["user"] == user
    assert "Small has a method cuda of its own" in done["made"].findings[0].held_back
    other = tmp_path / "other"
    other.mkdir()
    cells = [{"cell_type": "code", "source": BATCH, "metadata": {}, "outputs": [], "execution_count": None}]
    (other / "n.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    (other / "user.py").write_text(user)
    assert [each.changed for each in port_files(find([other]))] == [False, False]


def test_without_an_own_class_nothing_is_left(tmp_path):
    texts, _ = ported(tmp_path, user="def run(data):\n    return data.cuda()\n", other="class Batch:\n    x = 1\n")
    assert "data.to(portable.device())" in texts["user"]


def test_a_module_that_overrides_to_is_not_given_to_in_the_place_of_cuda():
    net = "import torch\n\n\nclass Net(torch.nn.Module):\n    def to(self, kind):\n        return self\n\n\n"
    assert after(net + "n = build().cuda()\n") == net + "n = build().cuda()\n"
    plain = net.replace("torch.nn.Module", "dict")
    assert "build().to(portable.device())" in after(plain + "n = build().cuda()\n")


def test_an_own_to_is_given_a_text_still_and_a_number_is_left():
    pipe = "import torch\n\n\nclass Pipe:\n    def to(self, device):\n        return self\n\n\n"
    assert after(f"{pipe}a = build().to('cuda')\nb = torch.ones(1).to('cuda')\n").endswith(
        "a = build().to(portable.name())\nb = torch.ones(1).to(portable.device())\n"
    )
    assert after(f"{pipe}a = build().to(0)\n") == f"{pipe}a = build().to(0)\n"


OVERRIDE = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.anchors = torch.zeros(2)

    def cuda(self, device=None):
        self.anchors = self.anchors.cuda(device)
        self.was_asked = True
        return super().cuda(device)


class Trainer:
    def __init__(self):
        self.net = Net()
        self.net.cuda()


def build():
    return Net()


print([each.was_asked for each in (Net().cuda(), build().cuda(), Trainer().net)])
"""


@pytest.mark.process
def test_a_module_that_overrides_cuda_moves_all_that_it_holds(tmp_path):
    (tmp_path / "a.py").write_text(after(OVERRIDE))
    done = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, env={"TOPROPE_DEVICE": "cpu", "PATH": ""},
                          capture_output=True, text=True, timeout=100)  # fmt: skip
    assert done.stdout.strip() == "[True, True, True]", done.stderr


# TorchScript


SCRIPTED = """
import torch
from torch.cuda.amp import autocast


@torch.jit.script
def f(x: torch.Tensor):
    return x.cuda() if x.numel() > 100 else x


def g(x: torch.Tensor):
    return h(x)


def h(x: torch.Tensor):
    if x.is_cuda:
        return x * 2
    return x


class Layer(torch.nn.Module):
    def forward(self, x):
        with autocast():
            return x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x):
        return self.twice(self.layer(x))

    def twice(self, x):
        return x * 2 if x.is_cuda else x + 1

    @torch.jit.unused
    def move(self, x):
        return x.cuda()


G = torch.jit.script(g)
net = torch.jit.script(Net())
y = torch.ones(1)
"""


def test_what_torchscript_compiles_is_left_and_compiles_after_the_port(tmp_path):
    text = after(SCRIPTED + "z = y.cuda()\n")
    for line in ("return x.cuda() if x.numel()", "if x.is_cuda:", "with autocast():", "x * 2 if x.is_cuda else x + 1"):
        assert line in text
    assert "from torch.cuda.amp import autocast\n" in text
    assert "    def move(self, x):\n        return x.to(portable.device())" in text
    assert text.endswith("z = y.to(portable.device())\n")
    left = [each for each in port(SCRIPTED.encode()).findings if not each.converted]
    assert len(left) == 4
    assert all("TorchScript" in each.held_back for each in left)
    (tmp_path / "a.py").write_text(text.rpartition("z = ")[0] + "print(G(y), net(y))\n")
    done = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100,
                          env={"TOPROPE_DEVICE": "cpu", "PATH": ""})  # fmt: skip
    assert done.stdout == "tensor([1.]) tensor([2.])\n", done.stderr


METHOD = "(self, x):\n        return x.is_cuda\n"
MODULE = f"class M(torch.nn.Module):\n    def forward{METHOD}\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"class M(torch.jit.ScriptModule):\n    @torch.jit.script_method\n    def run{METHOD}", True),
        (f"class M(torch.nn.Module):\n    @torch.jit.export\n    def run{METHOD}", True),
        ("from torch import jit as j\n@j.script\ndef f(x):\n    return x.is_cuda\n", True),
        ("def f(x):\n    return x.is_cuda\ng = torch.jit.trace(f, y)\n", False),
        (f"{MODULE}def save(m):\n    torch.jit.script(m)\n", True),
        (f"{MODULE}torch.jit.script(N())\n", False),
        (f"{MODULE}m = M().eval()\ntorch.jit.script(m)\n", True),
        (f"{MODULE}torch.jit.script(torch.nn.Sequential(M()))\n", True),
        (f"{MODULE}class N(M):\n    x = 1\n\ntorch.jit.script(N())\n", True),
        (f"{MODULE}torch.export.export(M(), y)\n", False),
    ],
)
def test_scripted_traced_and_exported(text, left):
    text = f"import torch\n{text}"
    assert (after(text) == text) == left


def test_a_function_that_another_file_scripts_is_left(tmp_path):
    helper = "def f(x):\n    return x.is_cuda\n"
    texts, _ = ported(tmp_path, helper=helper, main="import torch\nfrom helper import f\n\ng = torch.jit.script(f)\n")
    assert texts["helper"] == helper


# Numbers


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("x.to(torch.distributed.get_rank())", "x.to(portable.device(torch.distributed.get_rank()))"),
        ("x.to(int(a))", "x.to(portable.device(int(a)))"),
        ("x.to(rank % n)", "x.to(portable.device(rank % n))"),
        ("x.to(args.gpu_ids[0])", "x.to(portable.device(args.gpu_ids[0]))"),
        ("x.new_zeros(2, device=0)", "x.new_zeros(2, device=portable.device(0))"),
        ("n = 1\nx.to(n)", "n = 1\nx.to(portable.device(n))"),
        ("f(device_id=torch.cuda.current_device())", "f(device_id=portable.current_device())"),
        ("x.to(dtype)", "x.to(dtype)"),
        ("x.to(names['a'] + 'b')", "x.to(names['a'] + 'b')"),
    ],
)  # fmt: skip
def test_numbers_where_a_device_is_wanted(before, wanted):
    assert after(f"import torch  # not torch.cuda\n{before}\n").endswith(f"{wanted}\n")


def test_current_device_is_a_device_on_the_cpu(tmp_path):
    text = "import torch\nx = torch.ones(2).to(torch.cuda.current_device())\nd = torch.cuda.current_device()\n"
    text += "device = torch.cuda.current_device()\nprint(x.device, torch.ones(1, device=d).device, device)\n"
    (tmp_path / "a.py").write_text(after(text))
    done = subprocess.run([sys.executable, "a.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100,
                          env={"TOPROPE_DEVICE": "cpu", "PATH": ""})  # fmt: skip
    assert done.stdout == "cpu cpu cpu\n", done.stderr


# Comparisons, and other rough edges


def test_what_a_function_compares_by_its_text_is_not_given_another_name(tmp_path):
    """A way of its own for another kind: the comparison stays, and what is given to it."""
    helper = (
        "def f(dev):\n    assert dev in ('cuda', 'mps')\n    return dev == 'cuda'\n\n\nclass Net:\n"
        "    def __init__(self, size, device):\n        assert device in ('cuda', 'mps')\n\n\n"
        "f('cuda')\nf(dev='cuda')\nNet(1, device='cuda')\n"
    )
    user = "from helper import Net, f\n\nf(dev='cuda')\nNet(1, device='cuda')\n"
    texts, done = ported(tmp_path, helper=helper, user=user)
    assert texts == {"helper": helper, "user": user}
    assert all("its text is asked for in line" in each.held_back for each in done["user"].findings)


def test_an_assignment_to_a_function_of_torch_cuda_says_so():
    (first, *_) = port(b"import torch\ntorch.cuda.synchronize = torch.xpu.synchronize\n").findings
    assert first.held_back == "it is assigned to"


def test_no_blank_is_left_behind_at_the_end_of_a_line():
    text = after("w = t.cuda(\n    # c\n    non_blocking=True)\n")
    assert "w = t.to(portable.device(),\n    # c\n" in text


def test_torch_is_imported_once():
    assert after("import torch\nimport torch.cuda\ntorch.cuda.init()\n").count("import torch\n") == 1
    assert after("import torch.cuda\nimport os\nimport torch\ntorch.cuda.init()\n").count("import torch\n") == 1


# The port of its own output


MODES = {
    "plain": "toprope.device.portable", "vendored": "toprope_portable", "package": "pkg.sub.toprope_portable",
    "relative": "..toprope_portable",
}  # fmt: skip
BEFORE = [(rule.code, n, each.before) for rule in python_rules().values() for n, each in enumerate(rule.examples)]


@pytest.mark.parametrize("first", MODES)
def test_the_port_of_its_own_output_changes_nothing_in_any_mode(first):
    """Also where the first run was in another mode: what is ported is known under each spelling."""
    wrong = []
    for code, number, before in BEFORE:
        once = port(before.encode(), runtime=MODES[first]).after
        wrong += [
            (code, number, second, port(once, runtime=runtime).after.decode())
            for second, runtime in MODES.items()
            if port(once, runtime=runtime).after != once
        ]
    assert wrong == []


def test_pinning_leaves_out_torchs_own_alone_where_there_is_no_accelerator():
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    from toprope.device import portable

    class Batch:
        def pin_memory(self):
            return "pinned"

    tensor = torch.ones(1)
    assert portable.pin_memory(tensor) is tensor
    packed = torch.nn.utils.rnn.pack_sequence([tensor])
    assert portable.pin_memory(packed) is packed
    assert portable.pin_memory(Batch()) == "pinned"
