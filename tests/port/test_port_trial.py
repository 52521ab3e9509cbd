"""Problems of a user who ported programs with the documentation alone: names with numbers, comparisons, the report."""

import pytest

from toprope.cli import main
from toprope.port.engine import port
from toprope.port.scan import find, port_files

CHOICE = 'device = "cuda" if torch.cuda.is_available() else "cpu"\n'


def body(text):
    done = port(("import torch\n\n" + text).encode())
    assert not done.skipped
    assert port(done.after).after == done.after
    return done.after.decode().split("\n\n", 1)[1]


def said(text):
    return [(each.rule.code, each.said) for each in port(text.encode()).findings]


# A comparison with "cuda" of what the port gives a device's name


@pytest.mark.parametrize(("text", "wanted"), [
    (CHOICE + 'amp = device == "cuda"\n', "amp = portable.is_accelerator(device)"),
    (CHOICE + 'slow = device != "cuda"\n', "slow = not portable.is_accelerator(device)"),
    (CHOICE + 'amp = "cuda" == device\n', "amp = portable.is_accelerator(device)"),
    (CHOICE + 'amp = device in ("cuda",)\n', "amp = portable.is_accelerator(device)"),
    (CHOICE + 'amp = str(device) == "cuda"\n', "amp = portable.is_accelerator(device)"),
    (CHOICE + 'dev = device\namp = dev == "cuda"\n', "amp = portable.is_accelerator(dev)"),
    (CHOICE + 'def f(x):\n    return x.half() if device == "cuda" else x\n',
     "x.half() if portable.is_accelerator(device)"),
    ('device = "cuda"\nx.to(device)\namp = device == "cuda"\n', "amp = portable.is_accelerator(device)"),
    ("device_type = 'cuda' if 'cuda' in device else 'cpu'\nfused = device_type == 'cuda'\n",
     "fused = portable.is_accelerator(device_type)"),
    ('device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\npin = device.type == "cuda"\n',
     "device = portable.device()\npin = portable.is_accelerator(device)"),
    ('p.add_argument("--device", default="cpu", choices=["cuda", "cpu"])\nargs = p.parse_args()\n'
     'half = args.device == "cuda"\n', "half = portable.is_accelerator(portable.resolve(args.device))"),
])  # fmt: skip
def test_a_comparison_with_cuda_is_converted_with_the_name(text, wanted):
    assert wanted in body(text)


@pytest.mark.parametrize("text", [
    'def f(x, device):\n    return x.half() if device == "cuda" else x.to("xpu" if device == "xpu" else "cpu")\n',
    'p.add_argument("--device", choices=["cuda", "mps", "cpu"])\nargs = p.parse_args()\nhalf = args.device == "cuda"\n',
])  # fmt: skip
def test_a_comparison_of_what_may_be_another_kind_stays(text):
    assert '== "cuda"' in body(text)


@pytest.mark.parametrize("text", [
    'def f(x, device):\n    return x.half() if device == "cuda" else x\n',
    'device = "cuda:1"\nx.to(device)\namp = device == "cuda"\n',
    'if y:\n    device = read()\nelse:\n    device = "cuda"\namp = device == "cuda"\n',
])  # fmt: skip
def test_a_comparison_of_what_may_be_another_text_is_the_same_one_on_cuda(text):
    """Not `is_accelerator`: "cuda:1" is another text there."""
    assert 'portable.is_named(device, "cuda")' in body(text)


# A number behind a name that may have one


NUMBERED = [
    ('f"{device}:{rank}"', 'f"{portable.kind(device)}:{rank}"'),
    ('f"{device}:0"', 'f"{portable.kind(device)}:0"'),
    ('device + ":0"', 'portable.kind(device) + ":0"'),
    ('device + ":" + str(rank)', 'portable.kind(device) + ":" + str(rank)'),
    ('"%s:%d" % (device, rank)', '"%s:%d" % (portable.kind(device), rank)'),
    ('"{}:{}".format(device, rank)', '"{}:{}".format(portable.kind(device), rank)'),
    ('":".join([device, str(rank)])', '":".join([portable.kind(device), str(rank)])'),
    ("torch.device(device, rank)", "torch.device(portable.kind(device), rank)"),
    ("torch.device(device, index=rank)", "torch.device(portable.kind(device), index=rank)"),
]


@pytest.mark.parametrize(("text", "wanted"), NUMBERED)
def test_a_number_is_put_behind_the_type_of_a_device(text, wanted):
    assert f"where = {wanted}\n" in body(f"{CHOICE}where = {text}\n")
    choice = "('cuda' if torch.cuda.is_available() else 'cpu')"
    in_place = body(f"where = {text.replace('device', choice, 1)}\n") if not text.startswith("torch") else ""
    assert "portable.name()" not in in_place
    assert ("portable.kind()" in in_place) is bool(in_place)
    attribute = (
        text.replace("torch.device", "torch.DEVICE").replace("device", "self.device").replace("DEVICE", "device")
    )
    inside = f"class A:\n    def __init__(self, rank):\n        self.{CHOICE}        where = {attribute}\n"
    assert "portable.kind(self.device)" in body(inside)


def test_a_name_in_a_message_stays_a_name():
    assert 'print(f"{device}: {x}")' in body(CHOICE + 'print(f"{device}: {x}")\n')


# What had no rule


def test_places_without_a_rule_are_reported():
    text = (
        'import torch\n\ns = torch.cuda.current_stream().cuda_stream\nt = TrainingArguments(optim="adamw_bnb_8bit")\n'
    )
    assert {"TR047a", "TR081b"} <= {code for code, _ in said(text)}
    for text in ("cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"):
        found = said(f'import torch.distributed as dist\n\ndist.init_process_group("{text}")\n')
        assert [code for code, _ in found] == ["TR064"]
        assert "a backend for each kind of device" in found[0][1]
    assert "portable.initial_seed()" in body("seed = torch.cuda.initial_seed()\n")


# The report


def test_the_report_counts_what_it_does_not_name_and_says_what_is_rewritten(tmp_path, capsys):
    names = ["get_arch_list", "cudart", "current_blas_handle", "clock_rate", "memory_usage"]
    calls = "".join(f"torch.cuda.{name}()\n" for name in names)
    text = f"import torch\n\n{calls}y = x.is_cuda\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
    (tmp_path / "a.py").write_text(text)
    assert main(["port", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "and 2 more " in listed
    assert "torch.cuda.current_blas_handle (1)" in listed
    assert "see it: --diff" in listed
    assert "TR016 R rewritten  x.is_cuda" in listed
    assert "TR075 R  " in listed
    assert main(["port", str(tmp_path), "--diff"]) == 0
    assert "--diff" not in capsys.readouterr().out


# A method `to` of one class


OWN = """import torch


class Net(torch.nn.Module):
    def to(self, device, dtype):
        return self
"""


def test_a_to_of_one_module_leaves_tensors_of_unrelated_files_alone(tmp_path):
    (tmp_path / "net.py").write_text(OWN)
    (tmp_path / "other.py").write_text("def step(images, model):\n    return model.cuda(), images.cuda()\n")
    (tmp_path / "user.py").write_text("from net import Net\n\n\ndef step(images):\n    return images.cuda()\n")
    done = {each.path.rpartition("/")[2]: each.after.decode() for each in port_files(find([tmp_path]))}
    assert "return model.cuda(), images.to(portable.device())" in done["other.py"]
    assert "return images.cuda()" in done["user.py"]
