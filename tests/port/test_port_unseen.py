"""Faults that readers found in ports of repositories the port had never seen: wrong, false, silent or needless ones.

One test each. The measure is the reader's verdict on the public repository that is named or excerpted.
"""

import re
import subprocess
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.files.kinds import FileKind
from toprope.port.files.text import port_text


def ported(text, **named):
    """The program afterwards, and what is said about it; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", **named)
    assert done.skipped == ""
    again = port(done.after, **named)
    assert again.after == done.after
    return done.after.decode(), [f"{each.rule.code} {each.held_back or each.said}" for each in done.findings]


def text_of(text, kind, name="a", **named):
    done = port_text(text.encode(), name, kind, **named)
    return done, [f"{each.rule.code} {each.said}" for each in done.findings]


@pytest.mark.parametrize(
    "call",
    [
        "torch.load(p, map_location={})",
        "torch.load(p, map_location={{'cuda:0': {}}})",
        "torch.device({})",
        "x.to({})",
        "x.cuda({})",
        "torch.ones(1, device={})",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        '"cuda:" + str(rank % torch.cuda.device_count())',
        'f"cuda:{rank % torch.cuda.device_count()}"',
        '"cuda:{}".format(torch.cuda.current_device())',
        '"cuda:%d" % torch.cuda.current_device()',
    ],
)
def test_what_is_in_the_text_of_a_device_is_looked_at(call, text):
    after, _ = ported(f"import torch\ny = {call.format(text)}\n")
    assert "torch.cuda" not in after


def test_what_is_given_to_the_runtime_is_looked_at():
    after, _ = ported("""
        import torch
        from toprope.device import portable
        x = x.to(portable.device("cuda:" + str(rank % torch.cuda.device_count())))
        y = y.to(portable.device(rank % torch.cuda.device_count()))
        z = torch.load(p, map_location=lambda storage, place: storage.cuda(torch.cuda.current_device()))
    """)
    assert "torch.cuda" not in after


def test_a_device_object_of_torch_is_taken_as_a_number(monkeypatch):
    import torch

    from toprope.device import portable

    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    portable.set_device(portable.device_index(0))  # a context without a number on the CPU
    assert portable._index(torch.cuda.device(3)) is None
    portable.synchronize(torch.cuda.device(1))


def test_a_backend_and_the_default_that_it_is_compared_with_go_together():
    after, _ = ported("""
        import torch.distributed as dist

        def group(size, backend="nccl"):
            assert backend == "nccl", "only nccl"
            return dist.new_group(backend=backend)
    """)
    assert "backend = portable.resolve(backend)" in after
    assert "portable.resolve(backend) == portable.dist_backend()" in after


def test_a_question_for_cuda_next_to_npu_is_known_again():
    after, said = ported("""
        import argparse
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda", choices=["cpu", "npu", "cuda"])
        args = parser.parse_args()
        if "cuda" in args.device:
            torch.cuda.set_device(rank)
        elif "npu" in args.device:
            torch.npu.set_device(rank)
    """)
    assert 'if "cuda" in portable.resolve(args.device):\n    torch.cuda.set_device(rank)' in after
    assert not any(each.startswith("TR101") for each in said)


def test_an_option_with_other_kinds_of_devices_tells_them_apart():
    after, _ = ported("""
        import argparse
        import os

        def options():
            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cpu", choices=["cpu", "npu", "cuda"])
            return parser.parse_args()

        def main():
            args = options()
            if "cuda" in args.device:
                os.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)
    """)
    assert "ASCEND" not in after
    assert 'if "cuda" in args.device' in after


def test_a_question_in_front_of_a_provider_of_cuda_stays():
    after, said = ported("""
        import torch
        import onnxruntime

        use_cuda = args.gpu >= 0 and torch.cuda.is_available()
        names = ["CUDAExecutionProvider"] if use_cuda else ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, providers=names)
    """)
    assert "portable" not in after
    assert any("TR104b" in each for each in said)


def test_a_device_that_onnxruntime_binds_stays():
    after, _ = ported("""
        import torch
        device = "cpu" if args.cpu else "cuda"
        io = session.io_binding()
        io.bind_input(name, device, 0, kind, shape, x.data_ptr())
    """)
    assert "portable" not in after


def test_no_device_is_asked_for_in_front_of_a_mask():
    after, said = ported("""
        import os

        def main(args):
            if args.gpu != -1:
                args.device = "cuda"
            os.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)
            return run(device="cuda")
    """)
    assert 'args.device = "cuda"' in after
    assert "run(device=portable.name())" in after
    assert any("masks devices" in each for each in said)


def test_a_tensor_whose_name_is_a_letter_is_no_namespace():
    after, _ = ported("""
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        args = parser.parse_args()

        def scale(x, factor):
            A = x / factor
            return x.to(A.device), x.to(args.device)
    """)
    assert "x.to(A.device)" in after
    assert "portable.resolve(args.device)" in after


def test_choices_and_types_are_no_devices():
    _, said = ported("""
        from typing import Literal
        parser.add_argument("--on", choices=["cpu", "cuda"])
        Backend = Literal["gloo", "cuda"]
    """)
    assert said == []


def test_a_tensor_that_is_moved_for_a_kernel_is_moved_to_cuda():
    after, _ = ported("""
        import torch
        try:
            import _march as _backend
        except ImportError:
            from torch.utils.cpp_extension import load
            _backend = load("march", sources=["march.cu"])

        def march(rays):
            if not rays.is_cuda:
                rays = rays.cuda()
            return _backend.march(rays)
    """)
    assert "portable" not in after


def test_an_error_in_front_of_an_extension_stays():
    after, _ = ported("""
        import torch
        try:
            from . import deform_ext
        except ImportError:
            from torch.utils.cpp_extension import load
            deform_ext = load("deform", sources=["deform.cpp", "deform.cu"])

        def forward(input):
            if not input.is_cuda:
                raise NotImplementedError
            else:
                deform_ext.forward(input)

        def backward(input):
            if not input.is_cuda:
                raise NotImplementedError
            deform_ext.backward(input)
    """)
    assert "portable" not in after


def test_a_choice_that_is_given_to_a_package_for_cuda_stays():
    after, said = ported("""
        import torch
        import isaacgymenvs

        envs = isaacgymenvs.make(
            sim_device="cuda:0" if torch.cuda.is_available() and cuda else "cpu",
            headless=False if torch.cuda.is_available() and cuda else True,
        )
    """)
    assert "portable" not in after
    assert any(each.startswith("TR084 ") for each in said)


def test_a_comparison_with_the_type_of_a_device_is_one():
    after, _ = ported("""
        import torch as th

        def get_device(device):
            device = th.device(device)
            if device.type == th.device("cuda").type:
                return device
            return th.device("cpu")
    """)
    assert "if portable.is_accelerator(device):" in after


def test_a_device_whose_number_comes_from_a_choice():
    after, _ = ported("""
        import torch

        device = torch.device(("cuda:" if torch.cuda.is_available() else "") + str(rank))
        other = torch.device("cuda" + number if torch.cuda.is_available() else "cpu")
    """)
    assert 'portable.device(("cuda:" if portable.is_available() else "") + str(rank))' in after
    assert 'portable.device("cuda" + number if portable.is_available() else "cpu")' in after


def test_cudnn_next_to_cuda_is_asked_for_on_cuda_alone():
    after, _ = ported("""
        import torch

        def get_device(number):
            there = torch.cuda.is_available() and torch.backends.cudnn.is_available()
            return torch.device("cuda" + number if there else "cpu")
    """)
    assert 'portable.is_available() and (portable.kind() != "cuda" or torch.backends.cudnn.is_available())' in after


def test_an_import_of_cuda_stays_with_what_uses_it():
    after, _ = ported("""
        import torch.cuda

        graph = torch.cuda.CUDAGraph() if torch.cuda.is_available() else None
    """)
    assert "import torch.cuda" in after


def test_probabilities_that_are_computed_with_need_no_hint():
    body = """
        import torch

        def attention(query, key, value):
            scores = torch.matmul(query, key.transpose(-2, -1))
            weights = torch.softmax(scores, dim=-1)
            out = torch.matmul(weights, value)
            return {}
    """
    assert any(each.startswith("TR112") for each in ported(body.format("out"))[1])
    assert not any(each.startswith("TR112") for each in ported(body.format("out + relative(weights)"))[1])


def test_flags_of_nvcc_belong_to_their_extension():
    _, said = ported("""
        from setuptools import setup
        from torch.utils.cpp_extension import CUDAExtension

        setup(ext_modules=[CUDAExtension("a", ["a.cu"], extra_compile_args={"nvcc": ["-O3"]})])
    """)
    assert len(said) == 1


def test_an_attention_of_a_class_of_the_project_is_only_reported():
    after, said = ported("""
        from dataclasses import dataclass

        @dataclass
        class Config:
            _attn_implementation: str = "sdpa"

        config = Config(_attn_implementation="flash_attention_2")
    """)
    assert "portable" not in after
    assert any(each.startswith("TR078 Config is a class of this project") for each in said)


def test_options_of_another_program_are_not_handed_on():
    _, said = ported("""
        import argparse

        def first():
            parser = argparse.ArgumentParser()
            parser.add_argument("--rate", default=1)
            args = parser.parse_args()
            return [str(each) for each in vars(args)]
    """)
    assert said == []


def test_a_program_of_the_project_may_have_an_option_gpu():
    _, said = text_of("python train.py --gpu 0\npython train.py --gpus 0 1\n", FileKind.SHELL)
    assert said == []
    lines = "docker run --gpus 2 image\ndocker run \\\n  --gpus all image\n#SBATCH --gpus=64\n"
    assert len(text_of(lines, FileKind.SHELL)[1]) == 3


def test_a_mask_that_is_counted_for_cuda_is_only_reported():
    counted = 'gpus=$(nvidia-smi -L | wc -l)\nexport CUDA_VISIBLE_DEVICES="$gpus"\n'
    none = 'gpus="-1"\nexport CUDA_VISIBLE_DEVICES="${gpus}"\n'
    for text in (counted, none):
        done, said = text_of(text, FileKind.SHELL)
        assert not done.changed
        assert any("-1" in each for each in said)
    assert text_of('gpus=0,1\nexport CUDA_VISIBLE_DEVICES="$gpus"\n', FileKind.SHELL)[0].changed


def test_a_list_that_a_tool_made_is_reported_once():
    text = "# This file was autogenerated by uv via the following command:\n-e .\ntorch==2.4.1\n"
    done, said = text_of(text + "nvidia-cudnn-cu12==9.1 ; sys_platform\n", FileKind.REQUIREMENTS, "requirements.txt")
    assert not done.changed
    assert len(said) == 1
    assert "a tool made this list" in said[0]


def test_packages_that_a_document_installs_are_reported():
    text = "```bash\npip install git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch\n```\n"
    assert text_of(text, FileKind.DOCUMENT)[1]


def test_libtorch_in_cpp_is_reported():
    text = "auto device = torch::cuda::is_available() ? at::kCUDA : at::kCPU;\n"
    assert text_of(text, FileKind.CPP)[1]


def test_a_kernel_module_is_named_in_the_report():
    _, said = ported("try:\n    import tensorrt\nexcept ImportError:\n    pass\n")
    assert re.match(r"TR084 tensorrt: it is guarded already", said[0])


def test_determinism_of_cudnn_is_said_once():
    _, said = ported("""
        import torch
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    """)
    assert [each.partition(" ")[0] for each in said] == ["TR074b"]


def test_accelerator_of_lightning_is_chosen_by_lightning():
    after, said = ported("""
        import torch
        import pytorch_lightning as pl

        one = pl.Trainer(accelerator="gpu" if torch.cuda.is_available() else "cpu")
        two = pl.Trainer(accelerator="gpu" if str(device).startswith("cuda") else "cpu")
        three = pl.Trainer(gpus=1 if torch.cuda.is_available() else 0)
    """)
    assert 'one = pl.Trainer(accelerator="auto")' in after
    assert 'two = pl.Trainer(accelerator="gpu" if str(device).startswith("cuda") else "cpu")' in after
    assert "three = pl.Trainer(gpus=1 if torch.cuda.is_available() else 0)" in after
    assert sum(each.startswith("TR104 ") for each in said) == 2


def test_a_name_that_holds_a_device_is_no_number():
    after, _ = ported("""
        import torch

        gpu = torch.device("cuda")
        y = x.to(gpu)
    """)
    assert "x.to(gpu)" in after


def test_a_choice_of_a_name_that_stays_stays():
    after, _ = ported("""
        import torch

        CUDA = "cuda:0"
        number = int(CUDA.split(":")[-1])
        DEVICE = torch.device(CUDA if torch.cuda.is_available() else "cpu")
    """)
    assert "portable" not in after


def test_branches_that_set_switches_of_cudnn_alone_are_left():
    after, said = ported("""
        import torch

        if torch.cuda.is_available():
            torch.backends.cudnn.benchmark = True
    """)
    assert "portable" not in after
    assert said == []


def test_a_choice_between_builds_of_a_package_stays():
    for line in (
        'check(("onnxruntime-gpu" if cuda else "onnxruntime",))',
        "check(f\"tensorflow{'' if cuda else '-macos' if mac else '-cpu'}<=2.15.1\")",
        'check("paddlepaddle-gpu>=3" if cuda else "paddlepaddle")',
    ):
        after, _ = ported(f"import torch\n\ncuda = torch.cuda.is_available()\n{line}\n")
        assert "portable" not in after


def test_a_backend_behind_the_question_for_nccl():
    after, _ = ported("""
        import torch.distributed as dist

        dist.init_process_group(backend="nccl" if dist.is_nccl_available() else "gloo")
    """)
    assert 'portable.dist_backend() if portable.kind() != "cuda" or dist.is_nccl_available() else "gloo"' in after


def test_a_method_that_gives_nothing_is_not_the_one_that_is_called():
    after, _ = ported("""
        import torch

        class Embedder:
            def cuda(self):
                self.model.cuda()

        def move(*args):
            return [None if each is None else each.cuda() for each in args]

        def start(embedder):
            embedder.cuda()
    """)
    assert "else each.to(portable.device()) for" in after
    assert "    embedder.cuda()" in after


def test_cuda_in_the_type_of_a_device_is_a_question():
    after, _ = ported("""
        if "cuda" in device.type:
            work()
    """)
    assert "if portable.is_accelerator(device):" in after


def test_a_summary_that_knows_cuda_and_cpu_alone_is_reported():
    after, said = ported("""
        from torchsummary import summary
        summary(model, (3, 8, 8), device="cuda")
    """)
    assert "portable" not in after
    assert any(each.startswith("TR101") for each in said)


def test_an_environment_of_conda_is_known_by_what_is_in_it():
    text = "name: dl\nchannels:\n  - pytorch\ndependencies:\n  - pytorch-cuda=11.8\n  - pytorch=2.1.0\n"
    assert text_of(text, FileKind.CONFIG, "dl_gpu.yml")[1]


def test_the_text_of_an_answer_names_no_package():
    assert text_of("  see [CUDNN](https://example.org/cudnn)\n", FileKind.WORKFLOW)[1] == []


def test_lines_of_a_notebook_are_named_by_their_cell():
    import json

    from toprope.port.notebook import port_notebook

    cells = ["import torch\n", "gpu = torch.cuda.is_available()\n", "if gpu:\n    g = torch.cuda.CUDAGraph()\n"]
    book = {
        "cells": [
            {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": [each]}
            for each in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    done = port_notebook(json.dumps(book).encode(), "a.ipynb")
    held = [each.held_back for each in done.findings if each.held_back]
    assert any("in line 2 of cell 3" in each for each in held), held


def test_devoxelization_is_no_voxelization():
    from toprope.support.replacements import for_kernels

    assert for_kernels("trilinear_devoxelize_kernel") == []
    assert for_kernels("voxelize_kernel")
    assert for_kernels("grouping_kernel")


@pytest.mark.parametrize(
    "location",
    [
        "lambda storage, place: storage.cuda(gpu) if gpu >= 0 else storage",
        "lambda s, l: s.cuda() if torch.cuda.is_available() else s",
        "lambda s, l: s.cuda(0) if fast else s.cpu()",
        "move",
    ],
)
def test_a_storage_is_not_moved_as_a_tensor_is(location):
    after, said = ported(f"""
        import torch

        def move(storage, location):
            return storage.cuda(0)

        state = torch.load(path, map_location={location})
    """)
    assert ".to(" not in after
    assert any("default_restore_location" in each for each in said)


def test_the_second_argument_of_load_is_a_device():
    after, _ = ported('import torch\nx = torch.load(path, f"cuda:{torch.cuda.current_device()}")\n')
    assert "torch.load(path, portable.device(portable.current_device()))" in after


def test_what_follows_an_early_return_without_the_package_is_guarded():
    after, _ = ported("""
        import torch
        try:
            from flash_attn import flash_attn_varlen_func
        except ImportError:
            flash_attn_varlen_func = None

        def attend(q, k, v):
            if not torch.cuda.is_available():
                return plain(q, k, v)
            torch.cuda.synchronize()
            if flash_attn_varlen_func is None:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return flash_attn_varlen_func(q, k, v)
    """)
    assert "if not portable.is_available():" in after


def test_a_scripted_program_that_is_loaded_is_reported():
    _, said = ported("import torch\nmodel = torch.jit.load('a.pt')\n")
    assert [each.partition(" ")[0] for each in said] == ["TR088a"]


def test_an_option_that_a_branch_sets_is_resolved_behind_the_branch():
    after, _ = ported("""
        import argparse
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")

        def main():
            args = parser.parse_args()
            if args.device == "cuda" and not torch.cuda.is_available():
                args.device = "cpu"
            device = torch.device(args.device)
            return x.to(device)
    """)
    assert "torch.device(portable.resolve(args.device))" in after


def test_a_function_of_another_package_is_no_extension():
    _, said = ported("from webdataset.tariterators import base_plus_ext\n")
    assert said == []


def test_a_device_for_another_engine_stays():
    after, _ = ported("""
        import torch
        from faster_whisper import WhisperModel

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = WhisperModel(path, device=device)
    """)
    assert "portable" not in after


def test_a_package_with_a_build_for_the_cpu_is_replaced():
    text = 'onnxruntime-gpu==1.18; platform_machine == "x86_64"\ntorch\n'
    done, _ = text_of(text, FileKind.REQUIREMENTS, "requirements.txt")
    assert done.companion is not None
    assert 'onnxruntime==1.18; platform_machine == "x86_64"\n' in done.companion[1].decode()


def test_a_configuration_of_a_model_holds_no_options():
    _, said = ported("""
        import argparse

        def options():
            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda")
            return parser.parse_args()
    """)
    assert said
    import ast

    from toprope.port.project.facts import facts_of, project_of

    project = project_of([facts_of(ast.parse('parser.add_argument("--device", default="cuda")'))])
    done = port(b'names = vars(audio_cfg)\nx = "cuda"\n', project=project)
    assert not any(each.rule.code == "TR019" for each in done.findings)


def test_a_name_that_is_cut_by_position_stays():
    after, said = ported("""
        import torch

        class Wrapper:
            def __init__(self, number):
                self.device = "cuda:" + str(number)

            def run(self, x):
                with torch.autocast(device_type=self.device[:4]):
                    return x
    """)
    assert 'self.device = "cuda:" + str(number)' in after
    assert any("cut by position" in each for each in said)


def test_a_folder_is_no_device():
    _, said = ported('import os\nfiles = glob(os.path.join(here, "cuda", "*.cpp"))\n')
    assert said == []


def test_the_order_of_imports_is_no_list_of_packages():
    text = "[options]\ninstall_requires =\n    apex\n[isort]\nknown_deeplearning = torch,apex,tensorrt\n"
    _, said = text_of(text, FileKind.PROJECT, "setup.cfg")
    assert len(said) == 1


VALUES = ["0", "0,1", '"$1"', "'0'", "$GPU", "${GPUS}", "${1:-0}", '"${list},3"', ""]
MADE = [
    "$(($i + 1))",
    "$(expr $i + 1)",
    '"$(seq 0 3)"',
    "$(echo 0 | tr a b)",
    "`seq 1`",
    "${A:-$(seq 1)}",
    '"`seq 1`"',
    "$[ 1 ]",
]


@pytest.mark.parametrize("value", [*VALUES, *MADE])
@pytest.mark.parametrize("form", ["CUDA_VISIBLE_DEVICES={} python x.py\n", "export CUDA_VISIBLE_DEVICES={}\n"])
def test_a_value_that_a_command_makes_was_cut_at_its_first_blank(form, value):
    """`CUDA_VISIBLE_DEVICES=$(($i ASCEND_RT_VISIBLE_DEVICES=$(($i + 1)) x`: no shell could read the script any more."""
    done, said = text_of(form.format(value), FileKind.SHELL, "run.sh")
    after = done.after.decode()
    twin = form.format(f"{value} ASCEND_RT_VISIBLE_DEVICES={value}")
    assert after == (twin if value in VALUES else form.format(value))
    assert any(each.startswith("TR108 ") for each in said)
    assert subprocess.run(["bash", "-n", "-c", after], check=False).returncode == 0
