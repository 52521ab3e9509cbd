"""Faults that a second round of readers found in ports of unseen repositories: one test each, by what broke."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.files.kinds import FileKind
from toprope.port.files.text import port_text
from toprope.port.notebook import port_notebook
from toprope.port.project.facts import facts_of, project_of
from toprope.port.runtime.placement import Tree
from toprope.port.scan import find, port_files
from toprope.port.syntax.source import Source
from toprope.support.replacements import for_kernels


def ported(text, **named):
    """The program afterwards, and what is said about it; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", **named)
    assert done.skipped == ""
    assert port(done.after, **named).after == done.after
    return done.after.decode(), [f"{each.rule.code} {each.held_back or each.said}" for each in done.findings]


def project(folder, **files):
    """The files of a project afterwards, by their names; a second run must change nothing."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).strip("\n") + "\n")
    done = {Path(each.path).relative_to(folder).as_posix()[:-3].replace("/", "__"): each
            for each in port_files(find([folder]))}  # fmt: skip
    before = {name: each.after for name, each in done.items()}
    for name, after in before.items():
        (folder / f"{name.replace('__', '/')}.py").write_bytes(after)
    again = [each.after for each in port_files(find([folder]))]
    assert again == list(before.values())
    return {name: after.decode() for name, after in before.items()}, done


# Assertions and errors in front of what only CUDA has

ASSERTED = """
    import torch

    def load(model):
        {guard}
        del model.estimator
        import tensorrt as trt
        return trt.Runtime(model)
"""


@pytest.mark.parametrize(
    "guard",
    [
        "assert torch.cuda.is_available(), 'tensorrt only supports gpu!'",
        "assert torch.cuda.device_count() > 0",
        "if not torch.cuda.is_available(): raise RuntimeError('no GPU')",
        "if not torch.cuda.is_available(): exit(1)",
    ],
)
def test_an_assertion_in_front_of_tensorrt_became_an_import_error_on_other_devices(guard):
    after, said = ported(ASSERTED.format(guard=guard))
    assert "portable" not in after
    assert any("the condition guards import tensorrt" in each for each in said)


def test_an_assertion_that_is_kept_in_a_name_was_opened():
    after, _ = ported("""
        import torch

        has_cuda = torch.cuda.is_available()
        assert has_cuda
        graph = torch.cuda.CUDAGraph()
    """)
    assert "portable" not in after


@pytest.mark.parametrize(
    "behind",
    ["x = x.cuda()", "if fast:\n            graph = torch.cuda.CUDAGraph()", "graph = lambda: torch.cuda.CUDAGraph()"],
)
def test_a_program_that_raises_without_cuda_is_converted_with_what_it_can_be(behind):
    after, _ = ported(f"""
    import torch

    def main(x, fast):
        if not torch.cuda.is_available():
            raise RuntimeError("needs a GPU")
        assert torch.cuda.is_available()
        {behind}
    """)
    assert "torch.cuda.is_available()" not in after


def test_an_assertion_that_stays_does_not_decide_for_the_whole_file():
    after, _ = ported("""
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        def export(model):
            assert torch.cuda.is_available()
            model = model.cuda()
            import tensorrt
    """)
    assert "device = portable.device()" in after
    assert "assert torch.cuda.is_available()\n    model = model.cuda()" in after


# Code that only CUDA runs


def test_what_follows_an_import_of_tensorrt_is_left():
    after, _ = ported("""
        import torch

        def evaluate(x, engine):
            if engine is not None:
                from torch2trt import TRTModule
                model = TRTModule()
                x = torch.ones(1).cuda()
            return x.cuda()
    """)
    assert "x = torch.ones(1).cuda()" in after
    assert "return x.to(portable.device())" in after


def test_nothing_is_converted_behind_a_comparison_with_a_device_of_cuda_that_stays():
    after, _ = ported("""
        import torch

        def seed(c, seed):
            if c.device == torch.device("cuda"):
                torch.cuda.manual_seed_all(seed)
    """)
    assert "portable" not in after


def test_cuda_in_the_text_of_a_device_that_stays_holds_its_branch():
    """`assert portable.is_available()` passed on an NPU, and `torch.device("cuda")` came back."""
    after, _ = ported("""
        import torch

        def init_device(device_str):
            if "cuda" in device_str:
                assert torch.cuda.is_available(), "No CUDA device available!"
                torch.cuda.init()
                return torch.device(device_str)
            if device_str == "mps":
                return torch.device("mps")
            return torch.device("cpu")
    """)
    assert "portable" not in after


def test_a_name_such_as_device_str_is_the_text_of_a_device():
    after, _ = ported("""
        def half(device_str):
            return "cuda" in device_str
    """)
    assert "return portable.is_accelerator(device_str)" in after


# Texts of devices that another function decides by

DECIDES = """
    import torch

    def init_device(device_str):
        if "cuda" in device_str:
            return torch.device(device_str)
        if device_str == "xpu":
            return torch.device("xpu")
        return torch.device("cpu")
"""
CALLS = """
    import torch
    from tools import init_device

    class Calculator:
        def __init__(self, model, device):
            self.model = model.to(device)
            self.device = init_device(device)

    def make(model, device=""):
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return Calculator(model, device=device)
"""


def test_the_name_of_a_device_was_taken_for_the_cpu_by_another_file(tmp_path):
    """The model was on the NPU and every batch on the CPU: "npu" fell through to torch.device("cpu")."""
    after, done = project(tmp_path, tools=DECIDES, calls=CALLS)
    assert '("cuda" if torch.cuda.is_available() else "cpu")' in after["calls"]
    assert any("its text is asked for in line 4 of tools.py" in each.held_back for each in done["calls"].findings)


def test_a_choice_without_a_way_for_other_devices_is_followed_through_files(tmp_path):
    encoder = """
        class Encoder:
            def __init__(self, path, device=None):
                if device == "cpu":
                    providers = ["CPUExecutionProvider"]
                elif device == "cuda":
                    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
                self.session = start(path, providers)
    """
    utils = """
        def get_encoder(name, device=None, **more):
            from encoder import Encoder
            return Encoder(name, device=device)
    """
    tool = """
        import torch
        import utils

        class Svc:
            def __init__(self):
                self.dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
                self.encoder = utils.get_encoder("vec", device=self.dev)
    """
    after, _ = project(tmp_path, encoder=encoder, utils=utils, tool=tool)
    assert "portable" not in after["tool"]


@pytest.mark.parametrize(
    "body",
    [
        "return x.half() if device == 'cuda' else x",
        "if device == 'cuda':\n            torch.cuda.empty_cache()\n        return x",
        "with torch.autocast('cuda', enabled=device == 'cuda'):\n            return x",
    ],
)
def test_an_answer_that_moves_nothing_holds_no_choice_back(tmp_path, body):
    use = f"""
    import torch

    def run(x, device):
        {body}
    """
    main = """
        import torch
        from use import run

        device = "cuda" if torch.cuda.is_available() else "cpu"
        run(x.to(device), device)
    """
    after, _ = project(tmp_path, use=use, main=main)
    assert "device = portable.name()" in after["main"]


def test_an_option_is_not_resolved_for_a_function_that_decides_by_its_text(tmp_path):
    main = """
        import argparse
        from tools import init_device

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        args = parser.parse_args()
        device = init_device(args.device)
        x = x.to(args.device)
    """
    after, _ = project(tmp_path, tools=DECIDES, main=main)
    assert "init_device(args.device)" in after["main"]


def test_an_option_that_is_compared_with_other_kinds_is_not_resolved_there():
    """`portable.resolve(x) == "cuda"` is true on CUDA alone: no branch was taken, and no process group made."""
    after, _ = ported("""
        import argparse
        import torch.distributed as dist

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cpu", choices=["cpu", "cuda", "mps", "xpu"])
        args = parser.parse_args()
        if args.device == "cuda":
            dist.init_process_group(backend="nccl")
        elif args.device == "xpu":
            dist.init_process_group(backend="ccl")
    """)
    assert "portable" not in after


def test_an_attribute_of_options_that_another_file_compares_stays(tmp_path):
    """The weights stayed on the CPU behind `args.RUN_DEVICE == "cuda"`, and the state went to the NPU."""
    model = """
        import torch

        def load(args, w):
            if args.RUN_DEVICE == "cuda":
                w = w.cuda()
            return w, torch.zeros(2, device=args.RUN_DEVICE)
    """
    chat = """
        from model import load
        from types import SimpleNamespace

        args = SimpleNamespace()
        args.RUN_DEVICE = "cuda"
        load(args, w)
    """
    after, _ = project(tmp_path, model=model, chat=chat)
    assert "portable" not in after["chat"]


def test_a_decision_that_stays_in_one_file_holds_for_the_files_that_ask_it(tmp_path):
    misc = """
        import torch

        def get_device():
            if torch.cuda.is_available() and have_plugin(torch.cuda.cudart()):
                return torch.device("cuda")
            return torch.device("cpu")
    """
    main = """
        import torch
        from misc import get_device

        use_half = False
        if torch.cuda.is_available():
            use_half = True
        model = build(half=use_half).to(get_device())
    """
    after, done = project(tmp_path, misc=misc, main=main)
    assert "portable" not in after["misc"] + after["main"]
    assert any("get_device() of misc.py" in each.held_back for each in done["main"].findings)


# TorchScript


def test_a_function_that_another_file_scripts_by_another_name_is_left(tmp_path):
    fn = "def f(x):\n    return x.is_cuda\n"
    for use in (
        "from helper import f as g\ny = torch.jit.script(g)\n",
        "import helper\ny = torch.jit.script(helper.f)\n",
        "import helper as h\nfor each in (h.f, len):\n    torch.jit.script(each)\n",
        "from helper import f\nwanted = torch.jit.script if fast else same\ny = wanted(f)\n",
        "from helper import f\ndef jit_of(fn):\n    return torch.jit.script(fn)\ny = jit_of(f)\n",
        "from helper import f\nimport functools\ng = functools.partial(torch.jit.script, optimize=True)\ng(f)\n",
    ):
        after, _ = project(tmp_path, helper=fn, main="import torch\n" + use)
        assert after["helper"] == fn, use


def test_a_decorator_of_the_project_that_scripts_is_one(tmp_path):
    jit = """
        import torch

        def maybe_script(fn):
            return torch.jit.script(fn) if FAST else fn
    """
    use = """
        from jit import maybe_script
        import torch

        @maybe_script
        def f(x: torch.Tensor):
            return x.cuda()

        class Other(torch.nn.Module):
            def forward(self, x):
                return x.cuda()
    """
    after, _ = project(tmp_path, jit=jit, use=use)
    assert "def f(x: torch.Tensor):\n    return x.cuda()" in after["use"]
    assert "return x.to(portable.device())" in after["use"]


def test_methods_of_a_class_that_another_file_scripts_are_left(tmp_path):
    net = """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = Layer()

            def forward(self, x):
                return self.layer.encode(x)

        class Layer(torch.nn.Module):
            def encode(self, x):
                return x.cuda()

            def unused(self, x):
                return x.cuda()
    """
    after, _ = project(tmp_path, net=net, main="import torch\nfrom net import Net as N\nm = torch.jit.script(N())\n")
    assert "def encode(self, x):\n        return x.cuda()" in after["net"]
    assert "def unused(self, x):\n        return x.to(portable.device())" in after["net"]


def test_a_method_next_to_a_scripted_one_is_not_compiled():
    after, _ = ported("""
        import torch

        Module = torch.jit.ScriptModule
        Method = torch.jit.script_method

        class Net(Module):
            def forward(self, x):
                return self.one(x.cuda())

            @Method
            def one(self, x):
                return x.cuda()
    """)
    assert "return self.one(x.to(portable.device()))" in after
    assert "    def one(self, x):\n        return x.cuda()" in after


def test_a_function_of_the_same_name_in_another_file_is_not_the_one_that_is_compiled(tmp_path):
    one = """
        import torch

        def load(x):
            return x.cuda()

        @torch.jit.script
        def run(x: torch.Tensor):
            return load(x)
    """
    after, _ = project(tmp_path, one=one, two="import torch\n\ndef load(x):\n    return x.cuda()\n")
    assert "portable" not in after["one"]
    assert "portable.device()" in after["two"]


REFUSED = [
    "import json\n            x = x.cuda()",
    "for y in x:\n                yield y.cuda()",
    "try:\n                return x.cuda()\n            except ValueError:\n                return x",
    "with open('a') as file:\n                return x.cuda()",
    "f = lambda y: y.cuda()\n            return f(x)",
    "state = torch.load('a')\n            return x.cuda()",
    "return np.array(x.cuda())",
]


@pytest.mark.parametrize("body", REFUSED)
def test_what_torchscript_cannot_compile_was_left_for_the_sake_of_any_module(body):
    after, said = ported(f"""
    import numpy as np
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            {body}

    class Small(torch.nn.Module):
        def forward(self, x):
            return x.cuda()

    def export(model):
        torch.jit.script(model.part)
    """)
    assert after.count(".cuda()") == 1
    assert sum("TorchScript" in each for each in said) == 1


def test_what_the_compiler_refuses_is_refused_by_this_torch():
    """The list in port/scripted.py is of torch.jit.frontend: each of these is an error there."""
    bodies = ["import json", "yield x", "try:\n  pass\n except ValueError:\n  pass", "f = lambda y: y", "global z",
              "def g(): pass", "class C: pass", "y = {1}", "(y := x)"]  # fmt: skip
    programs = [f"def f(x):\n {each}\n return x\n" for each in bodies] + [
        "def f(*x):\n return x\n",
        "def f(**x): return x\n",
    ]
    program = (
        "import torch, json\nfrom torch.jit.frontend import NotSupportedError\n"
        "import linecache\n"
        f"for number, text in enumerate({programs!r}):\n"
        "    name = f'<p{number}>'\n"
        "    linecache.cache[name] = (len(text), None, text.splitlines(True), name)\n"
        "    space = {}\n    exec(compile(text, name, 'exec'), space)\n"
        "    try:\n        torch.jit.script(space['f'])\n    except (NotSupportedError, RuntimeError):\n"
        "        continue\n    print('compiled', text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "", done.stderr
    assert done.returncode == 0, done.stderr


# Settings, options, command lines


def test_a_setting_of_a_module_is_not_asked_for_at_the_import(tmp_path):
    """The mask that train.py sets came too late on CUDA: the import of defaults.py had asked for the device."""
    defaults = """
        from yacs.config import CfgNode as CN

        _C = CN()
        _C.MODEL = CN()
        _C.MODEL.DEVICE = "cuda"
        _C.DIST_BACKEND = "nccl"
    """
    train = """
        import os
        from defaults import _C as cfg

        def main():
            os.environ["CUDA_VISIBLE_DEVICES"] = cfg.MODEL.DEVICE_ID
            return build().to(cfg.MODEL.DEVICE), start(cfg.DIST_BACKEND)
    """
    after, done = project(tmp_path, defaults=defaults, train=train)
    assert '_C.MODEL.DEVICE = "cuda"\n_C.DIST_BACKEND = "nccl"' in after["defaults"]
    assert "to(portable.resolve(cfg.MODEL.DEVICE)), start(portable.resolve(cfg.DIST_BACKEND))" in after["train"]
    assert all(str(each.kind) == "R" for each in done["defaults"].findings)
    assert not any(each.rule.code == "TR121" for each in done["train"].findings)


@pytest.mark.parametrize(
    "option",
    ['"--device", choices=["cpu", "cuda"], default="cpu"', '"--device", default="cpu", help="cpu, cuda or auto"',
     '"--device", choices=("cuda", "cpu")'],
)  # fmt: skip
def test_an_option_that_may_be_cuda_was_silent_where_its_default_is_the_cpu(option):
    after, _ = ported(f"""
        import argparse
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument({option})
        args = parser.parse_args()
        model = build().to(args.device)
    """)
    assert "to(portable.resolve(args.device))" in after


@pytest.mark.parametrize(
    "use",
    ['subprocess.run(["train", "--device", device])', 'subprocess.run(f"train --device={device}", shell=True)',
     'words = "--device=" + device'],
)  # fmt: skip
def test_the_name_of_a_device_is_no_choice_of_another_programs_option(use):
    """mace's tests became `--device=npu`, which its parser refuses: "cuda" means the device in use there."""
    after, _ = ported(f"""
        import subprocess
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        {use}
    """)
    assert "portable" not in after


def test_arguments_of_a_command_line_are_right_as_they_stand():
    _, said = ported("""
        options = {"--distributed-backend": "nccl", "--device": "cuda"}
        words = ["--device", "cuda", "--backend", "nccl"]
    """)
    assert said == []


def test_a_backend_from_an_option_that_is_not_resolved_is_not_compared_with_another():
    after, _ = ported("""
        import torch.distributed as dist

        def sync(args):
            backend = getattr(args.vllm, "sync_backend", "nccl")
            return backend == "nccl", dist.get_backend() == "nccl"
    """)
    assert 'backend == "nccl"' in after
    assert 'dist.get_backend() == portable.dist_backend("nccl")' in after


# Names that the port took for others


def test_a_private_function_of_cuda_is_reported_where_it_is_called():
    _, said = ported("""
        from torch.cuda import _lazy_call

        def set_state(state):
            _lazy_call(lambda: restore(state))
    """)
    assert any("never calls it" in each for each in said)


def test_a_value_of_the_project_is_no_extension():
    facts = facts_of(Source(b"_C = CN()\n").parse())
    known = project_of([facts], ["defaults"], ["defaults"])
    _, said = ported("from .defaults import _C as cfg\n", project=known)
    assert said == []
    assert ported("from . import _C\n", project=known)[1]


def test_an_extension_that_is_loaded_by_its_name_is_reported():
    _, said = ported('import importlib\n\nlayer_norm = importlib.import_module("fused_layer_norm_cuda")\n')
    assert any(each.startswith("TR121 fused_layer_norm_cuda") for each in said)


def test_a_replacement_is_chosen_by_what_the_file_uses_of_an_extension():
    _, said = ported("""
        from detector import _C

        def pool(x, boxes):
            return _C.roi_align_forward(x, boxes)
    """)
    assert any("roi_align" in each for each in said)


@pytest.mark.parametrize(
    ("kernels", "wanted"),
    [
        ("ms_deformable_im2col_gpu_kernel", ["multi_scale_deformable_attn"]),
        ("deformable_im2col_gpu_kernel", ["deform_conv2d"]),
        ("DeformablePSROIPoolForwardKernel", []),
        ("roipool3d_forward roipoint_pool3d", ["roipoint_pool3d"]),
        ("boxes_overlap_kernel nms_kernel iou3d_nms_kernel.cu", ["boxes_iou_bev"]),
        ("nms_kernel", ["torchvision.ops.nms"]),
        ("scaled_upper_triang_masked_softmax_warp_forward", ["npu_scaled_masked_softmax"]),
    ],
)
def test_a_word_in_a_longer_name_of_another_kernel_gave_its_replacement(kernels, wanted):
    found = [row.instead for row in for_kernels(kernels)]
    assert len(found) == len(wanted)
    assert all(any(word in each for each in found) for word in wanted)


def test_a_tensor_of_cuda_that_is_made_by_size_is_made_on_other_devices(monkeypatch):
    """`torch.cuda.LongTensor(size=(2, 3))` was a TypeError on an NPU."""
    import torch

    from toprope.device import portable

    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    runtime = sys.modules[portable.tensor.__module__]
    made = runtime._TensorType("torch.npu.LongTensor", (), {"dtype": torch.int64})
    assert made(size=(2, 3)).shape == (2, 3)
    assert made(data=[1, 2]).tolist() == [1, 2]
    assert portable.tensor(torch.int64, size=(2, 3)).dtype == torch.int64


# Attention by hand

ATTENTION = """
    import torch

    def attend(q, k, v, bias):
        attn = q @ k.transpose(-2, -1)
        {between}
        attn = attn.softmax(dim=-1)
        x = attn @ v
        x = project(x)
        return {result}
"""


@pytest.mark.parametrize(
    ("between", "result", "wanted"),
    [
        ("pass", "x", ""),
        ("attn = attn + bias.unsqueeze(0)", "x", "a bias of floats"),
        ("attn += bias", "x", "a bias of floats"),
        ("pass", "x, attn", "the probabilities are returned"),
    ],
)
def test_a_hint_on_attention_says_what_is_in_the_way(between, result, wanted):
    _, said = ported(ATTENTION.format(between=between, result=result))
    (hint,) = [each for each in said if each.startswith("TR112")]
    assert wanted in hint
    assert wanted or not ("floats" in hint or "returned" in hint)


# Other files


@pytest.mark.parametrize(
    "name", ["apex", "cupy", "faiss-gpu", "tensorflow-gpu", "pynvml", "mamba-ssm", "transformer-engine"]
)
def test_a_package_that_no_other_word_stands_next_to_was_silent(name):
    done = port_text(f"numpy\n{name}\n".encode(), "requirements.txt", FileKind.REQUIREMENTS)
    assert [each.rule.code for each in done.findings] == ["TR106"]


def test_a_job_of_slurm_alone_was_silent():
    done = port_text(b"#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\n", "run.slurm", FileKind.SHELL)
    assert [each.rule.code for each in done.findings] == ["TR107"]


def test_other_variables_of_cuda_have_their_twin_in_shell_scripts():
    done = port_text(b"export CUDA_LAUNCH_BLOCKING=1\n", "run.sh", FileKind.SHELL)
    assert done.after == b"export CUDA_LAUNCH_BLOCKING=1 ASCEND_LAUNCH_BLOCKING=1\n"
    assert not port_text(done.after, "run.sh", FileKind.SHELL).changed


def test_a_pin_in_a_configuration_was_called_a_device():
    text = b"Parameters:\n  install: pip install torch==2.1.0 torchvision==0.15\ndevice: cuda\nbackend: nccl\n"
    done = port_text(text, "a.yml", FileKind.CONFIG)
    assert [each.rule.code for each in done.findings] == ["TR106c", "TR110a"]
    assert "torch==2.1.0" not in done.findings[1].said
    assert "1 more" in done.findings[1].said


def test_a_word_of_a_document_is_said_once():
    text = b"```bash\nconda install cudatoolkit=11.3\npython x.py --device cuda\n```\n"
    assert len(port_text(text, "a.md", FileKind.DOCUMENT, resolved={"device"}).findings) == 1


def test_a_package_that_is_taken_away_is_not_installed():
    text = b"FROM ubuntu\nRUN pip uninstall -y flash_attn pynvml\n"
    assert port_text(text, "Dockerfile", FileKind.IMAGE).findings == []


def test_a_kernel_for_the_cpu_that_refuses_cuda_is_no_cuda():
    text = b'#include "cpu/vision.h"\nvoid f() { AT_ASSERTM(!input.type().is_cuda(), "input must be a CPU tensor"); }\n'
    assert port_text(text, "a.cpp", FileKind.CPP).findings == []
    assert port_text(text.replace(b"!", b""), "a.cpp", FileKind.CPP).findings


def test_files_of_one_extension_have_the_same_replacement_and_a_header_no_line(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "nms.cu").write_text("__global__ void nms_kernel(float* x) {}\n")
    (tmp_path / "nms.h").write_text("at::Tensor nms(at::Tensor x); // CHECK\nvoid f() { x.is_cuda(); }\n")
    (tmp_path / "nms.cpp").write_text("#include <ATen/cuda/CUDAContext.h>\n")
    said = {Path(each.path).name: [one.message for one in each.findings] for each in port_files(find([tmp_path]))}
    assert said["nms.h"] == []
    assert all("torchvision.ops.nms" in said[name][0] for name in ("nms.cu", "nms.cpp"))


def test_a_package_with_a_plugin_is_said_once_for_a_project(tmp_path):
    _, done = project(tmp_path, a="import vllm\nfrom vllm import LLM\n", b="import vllm\n", c="import torch_scatter\n")
    said = [finding.message.partition(":")[0] for each in done.values() for finding in each.findings]
    assert said == ["vllm", "torch_scatter"]


def test_what_ray_calls_a_gpu_was_silent():
    _, said = ported("import ray\n\n@ray.remote(num_gpus=1)\nclass Worker:\n    pass\n")
    assert any('resources={"NPU": 1}' in each for each in said)


def test_a_mask_in_a_program_of_tensorflow_has_no_reader():
    after, _ = ported('import os\nimport tensorflow as tf\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "1"\n')
    assert "ASCEND" not in after


@pytest.mark.parametrize(
    "text",
    [
        'old = os.getenv("CUDA_VISIBLE_DEVICES", default="")\nos.environ["CUDA_VISIBLE_DEVICES"] = ""\nrun()\n'
        'os.environ["CUDA_VISIBLE_DEVICES"] = old\n',
        'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")\n',
    ],
)
def test_the_mask_of_cuda_was_put_back_into_the_one_for_npus(text):
    after, said = ported(f"import os\n{text}")
    assert "ASCEND_RT" not in after
    assert any("put back" in each for each in said)


def test_a_folder_with_the_name_of_an_installed_package_is_not_the_package(tmp_path):
    """`from ray import toprope_portable` in openrlhf/trainer/ray: ray is the installed Ray, and the import failed."""
    for folder in ("pk", "pk/ray"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "pk/ray/utils.py").write_text("def f(x):\n    import ray\n    return x.cuda()\n")
    (tmp_path / "pk/ray/launch.py").write_text("import ray\nfrom pk.ray.utils import f\n")
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='pk')\n")
    tree = Tree([tmp_path], find([tmp_path]))
    assert not tree.place(tmp_path / "pk/ray/utils.py").module.startswith("ray.")


def test_a_setup_cfg_of_tools_is_no_list_of_requirements(tmp_path):
    from toprope.port.runtime.dependency import missing_requirement

    (tmp_path / "setup.cfg").write_text("[isort]\nknown_third_party = torch\n")
    (tmp_path / "a.py").write_text("x = y.cuda()\n")
    assert "setup.cfg" not in missing_requirement(list(port_files(find([tmp_path]))))


def test_notebooks_know_what_they_script():
    cells = ["import torch\n", "def f(x):\n    return x.is_cuda\n", "g = torch.jit.script(f)\n"]
    book = {
        "cells": [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": each}
                  for each in cells],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    assert not port_notebook(json.dumps(book).encode(), "a.ipynb").changed
