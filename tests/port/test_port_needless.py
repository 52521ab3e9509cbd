"""Edits and lines of the port that a maintainer would throw out: they change nothing, or there is nothing to do."""

from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.scan import find, port_files


def ported(text):
    """The program afterwards, and what is said about it; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n")
    assert done.skipped == ""
    assert port(done.after).after == done.after
    return done.after.decode(), [f"{each.rule.code} {each.held_back or each.said}" for each in done.findings]


PARSER = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
"""


def program(tmp_path, text, parser=PARSER):
    """The port of a program next to another one that has an option `--device` for a device's name."""
    (tmp_path / "other.py").write_text(PARSER + "args = parser.parse_args()\nx = torch.ones(2).to(args.device)\n")
    (tmp_path / "main.py").write_text(f"{parser}\n{dedent(text)}")
    (done,) = [each for each in port_files(find([tmp_path])) if each.path.endswith("main.py")]
    return done.after.decode()


SETS = """
def evaluate(model, images):
    return model(images.to(args.device))

def main():
    {before}
    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    evaluate(model, images)

args = parser.parse_args()
main()
"""


def test_an_option_that_the_program_sets_to_the_device_is_not_resolved_in_its_functions(tmp_path):
    assert "images.to(args.device)" in program(tmp_path, SETS.format(before="seed()"))


@pytest.mark.parametrize("text", [
    SETS.format(before="evaluate(model, images)"),  # read before it is set
    SETS.format(before="seed()").replace("    args.device =", "    if fast:\n        args.device ="),
    SETS.format(before="seed()").replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', "pick()"),
    SETS.format(before="seed()").replace("    evaluate(model, images)\n", "    pass\nevaluate(model, images)\n"),
])  # fmt: skip
def test_an_option_that_may_be_read_as_it_was_given_is_resolved(tmp_path, text):
    assert "images.to(portable.resolve(args.device))" in program(tmp_path, text)


NUMBERS = """
import argparse
import torch
from utils.torch_utils import select_device

parser = argparse.ArgumentParser()
parser.add_argument("--device", default={default!r}, help={help!r})
opt = parser.parse_args()
device = select_device(opt.device)
"""


@pytest.mark.parametrize("default", ["", "0", "0,1"])
def test_an_option_for_numbers_of_cards_is_not_resolved_since_another_program_has_one_for_names(tmp_path, default):
    text = NUMBERS.format(default=default, help="cuda device, i.e. 0 or 0,1,2,3 or cpu")
    assert "select_device(opt.device)" in program(tmp_path, "", text)


@pytest.mark.parametrize(("default", "text"), [
    ("", "a device"), ("cpu", "cuda device, i.e. 0 or 0,1,2,3 or cpu"), ("cuda", "i.e. 0 or 0,1"),
])  # fmt: skip
def test_an_option_for_a_name_of_a_device_is_resolved(tmp_path, default, text):
    assert "portable.resolve(opt.device)" in program(tmp_path, "", NUMBERS.format(default=default, help=text))


DEVICES = """
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=str, nargs="+", default=["cuda:0"])

def process(rank, devices):
    os.environ["MASK"] = str(devices[rank]{use})
"""


@pytest.mark.parametrize("use", ['.split(":")[-1]', '.split(":")[1]', '.rsplit(":", 1)[-1]'])
def test_a_list_of_devices_of_which_only_the_numbers_are_used_has_no_line(use):
    assert ported(DEVICES.format(use=use))[1] == []


@pytest.mark.parametrize("use", ["", '.split(":")[0]', '.split(":")'])
def test_a_list_of_devices_whose_names_are_used_has_a_line(use):
    (line,) = ported(DEVICES.format(use=use))[1]
    assert line.startswith('TR101 "cuda:0"')


def test_an_import_of_torch_cuda_that_stays_with_its_uses_has_no_line():
    text, lines = ported(
        """
        import torch
        import torch.cuda

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        """
    )
    assert "import torch.cuda\n" in text
    assert [each.partition(" ")[0] for each in lines] == ["TR050", "TR026"]


def test_names_that_keep_an_old_switch_of_tf32_have_no_line():
    _, lines = ported(
        """
        import torch

        def tf32(on):
            old = torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.allow_tf32 = on
            yield
            torch.backends.cudnn.allow_tf32 = old
        """
    )
    assert lines == ["TR075 torch.backends.cudnn.allow_tf32: left as it is; also in line 5, line 7"]


def test_imports_of_xformers_that_say_the_same_are_one_line():
    (line,) = ported("import xformers\nimport xformers.ops\n")[1]
    assert line.endswith("; also in line 2")


@pytest.mark.parametrize("name", ["natten", "lietorch", "warpctc_pytorch", "warp_rnnt"])
def test_a_package_of_kernels_for_cuda_is_seen_without_another_word_of_cuda(name):
    (line,) = ported(f"try:\n    import {name}\nexcept ImportError:\n    {name} = None\n")[1]
    assert line.startswith("TR121")


@pytest.mark.parametrize("use", [
    "if args.device is None:\n    run()", "if not args.device:\n    run()", "x = 1 if args.device else 2",
    "if args.device and ready:\n    run()", "ready = not args.device", "assert args.device",
])  # fmt: skip
def test_an_option_that_is_only_asked_whether_it_is_given_is_not_resolved(tmp_path, use):
    text = program(tmp_path, f"args = parser.parse_args()\nx = torch.ones(2).to(args.device)\n{use}\n")
    assert text.count("portable.resolve(args.device)") == 1
    assert use in text


@pytest.mark.parametrize("use", ["y = args.device or pick()", "run(args.device and 3 or args.device)"])
def test_an_option_that_is_given_on_is_resolved_where_it_is_asked_too(tmp_path, use):
    text = program(tmp_path, f"args = parser.parse_args()\n{use}\n")
    assert "portable.resolve(args.device)" in text


SUBMITS = """
import argparse
import submitit
{more}
parser = argparse.ArgumentParser()
parser.add_argument("--device", type=str, help="type of GPU to use"{default})
args = parser.parse_args()
submitit.AutoExecutor().update_parameters({name}=args.device)
"""


def test_an_option_of_a_script_without_torch_for_a_scheduler_is_not_resolved(tmp_path):
    text = program(tmp_path, "", SUBMITS.format(more="", default="", name="slurm_constraint"))
    assert "slurm_constraint=args.device" in text
    assert "portable" not in text


@pytest.mark.parametrize(("more", "default", "name"), [
    ("import torch", "", "slurm_constraint"), ("", ', default="cuda"', "slurm_constraint"), ("", "", "device"),
])  # fmt: skip
def test_an_option_that_may_be_a_device_is_resolved(tmp_path, more, default, name):
    text = program(tmp_path, "", SUBMITS.format(more=more, default=default, name=name))
    assert f"{name}=portable.resolve(args.device)" in text


def test_the_device_of_a_tensor_with_a_name_of_one_letter_is_not_resolved(tmp_path):
    text = program(tmp_path, "def repackage(h):\n    return torch.tensor(h.data, device=h.device)\n")
    assert "device=h.device" in text
    text = program(tmp_path, "def make(h):\n    return torch.tensor(1, device=h.device)\n")
    assert "device=portable.resolve(h.device)" in text


FLOATS = """
import numpy as np
import torch
import torch.distributed as dist

def run(x):
    t = {made}
    dist.all_reduce(t)
"""


@pytest.mark.parametrize(("made", "is_reported"), [
    ("torch.from_numpy(np.zeros((3, 3))).cuda()", True), ("torch.tensor(np.array([1.0, 2])).cuda()", True),
    ("torch.as_tensor(np.full(3, 0.5)).cuda()", True), ("torch.from_numpy(np.linspace(0, 1, 5)).cuda()", True),
    ("torch.from_numpy(x.astype(np.float64)).cuda()", True), ("torch.from_numpy(np.ones(3, float)).cuda()", True),
    ("torch.from_numpy(np.eye(3).reshape(-1)).cuda()", True), ('torch.from_numpy(x.astype("float64")).cuda()', True),
    ("torch.from_numpy(np.zeros(3, dtype=np.float32)).cuda()", False),
    ("torch.from_numpy(np.zeros(3, int)).cuda()", False),
    ("torch.from_numpy(np.array([1, 2])).cuda()", False), ("torch.from_numpy(np.zeros(3)).float().cuda()", False),
    ("torch.from_numpy(x).cuda()", False), ("torch.tensor(np.zeros(3), dtype=torch.float32).cuda()", False),
    ("torch.from_numpy(np.zeros(3).astype(np.float32)).cuda()", False),
    ("torch.from_numpy(np.full(3, 2)).cuda()", False),
])  # fmt: skip
def test_a_float64_tensor_of_numpy_that_is_reduced_is_reported(made, is_reported):
    lines = ported(FLOATS.format(made=made))[1]
    assert any(each.startswith("TR098a") for each in lines) == is_reported


@pytest.mark.parametrize(("given", "is_reported"), [("np.zeros(3)", True), ("np.zeros(3, dtype=np.float32)", False)])
def test_a_float64_tensor_that_a_function_of_the_file_reduces_is_reported(given, is_reported):
    lines = ported(
        f"""
        import numpy as np
        import torch
        import torch.distributed as dist

        def reduce_tensor(inp):
            dist.reduce(inp, dst=0)
            return inp

        def validate():
            counts = {given}
            counts = reduce_tensor(torch.from_numpy(counts).cuda()) if False else counts
            return reduce_tensor(torch.from_numpy({given}).cuda())
        """
    )[1]
    assert any(each.startswith("TR098a") for each in lines) == is_reported


def test_torch_from_a_star_import_of_an_installed_package_is_torch_in_all_that_is_converted():
    text, _ = ported(
        """
        from fastai.vision.all import *

        device = "cuda" if torch.cuda.is_available() else "cpu"
        if torch.cuda.is_available():
            model = model.cuda()
            torch.cuda.synchronize()
        """
    )
    assert "torch.cuda" not in text
    assert "device = portable.name()" in text
    assert "model.to(portable.device())" in text


def test_a_name_torch_of_the_files_own_is_not_torch_for_all_a_star_import():
    text, _ = ported("from lib import *\nfrom mine import torch\n\ntorch.cuda.synchronize()\n")
    assert "torch.cuda.synchronize()" in text


def test_torch_through_a_star_import_of_the_project_and_one_of_an_installed_package_is_torch(tmp_path):
    (tmp_path / "common.py").write_text("from fastai.vision.all import *\n")
    (tmp_path / "main.py").write_text("from common import *\n\nif torch.cuda.is_available():\n    model.cuda()\n")
    (done,) = [each for each in port_files(find([tmp_path])) if each.path.endswith("main.py")]
    assert done.after.endswith(b"if portable.is_available():\n    model.to(portable.device())\n")
