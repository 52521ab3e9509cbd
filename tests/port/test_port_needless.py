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
