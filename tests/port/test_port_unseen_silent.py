"""Faults that a reader of fifteen unseen repositories found: places that are silent, false, needless or useless."""

import json
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.files import FileKind, kind_of, port_text
from toprope.port.notebook import port_notebook
from toprope.port.scan import find, port_files


def ported(text, **named):
    """The program afterwards, and what is said about it; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", **named)
    assert done.skipped == ""
    assert port(done.after, **named).after == done.after
    return done.after.decode(), said(done)


def said(done):
    return [f"{each.rule.code} {each.held_back or each.said}" for each in done.findings]


def text_of(text, name, **named):
    return port_text(text.encode(), name, kind_of(name), **named)


def files(tmp_path, **texts):
    """The port of several files: `a__b_py` is a/b.py."""
    for name, text in texts.items():
        parts = name.replace("__init__", "INIT").replace("__", "/")[::-1].replace("_", ".", 1)[::-1]
        path = tmp_path / parts.replace("INIT", "__init__")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).strip("\n") + "\n")
    return {each.path.rpartition("/")[2]: each for each in port_files(find([tmp_path]))}


# Silent


@pytest.mark.parametrize("name", [
    "apex", "cupy", "faiss-gpu", "tensorflow-gpu", "pynvml", "mamba-ssm", "causal-conv1d", "transformer-engine",
    "ring-flash-attn", "flashinfer-python", "tiny-cuda-nn", "torch2trt", "pycuda",
])  # fmt: skip
def test_a_package_for_cuda_is_seen_without_another_word_of_cuda(name):
    assert [each.rule.code for each in text_of(f"{name}\nnumpy\n", "requirements.txt").findings] == ["TR106"]
    setup = f"from setuptools import setup\nsetup(install_requires=['{name}'])\n"
    assert [each.rule.code for each in port(setup.encode()).findings] == ["TR106b"]


LINES = [
    ("requirements.txt", "faiss-gpu"), ("run.sh", "#SBATCH --gres=gpu:1"), ("run.sh", "pip install apex"),
    ("run.sh", "python t.py --accelerator gpu"), ("Dockerfile", "RUN pip install pynvml"),
    ("a.yaml", "accelerator: gpu"), ("README.md", "```\npip install apex\n```"), ("setup.cfg", "[options]\napex"),
    ("environment.yml", "  - faiss-gpu"), (".github/workflows/a.yml", "runs-on: [gpu]"),
    ("README.md", "```\ntrain --accelerator gpu\n```"), ("a.json", '{"cmd": "pip install torch==1.8"}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line"), LINES)
def test_what_is_said_of_a_line_does_not_depend_on_words_elsewhere_in_the_file(name, line):
    alone = [each.rule.code for each in text_of(f"{line}\n", name).findings]
    other = "nvidia cuda nccl flash xformers"
    assert alone
    assert [each.rule.code for each in text_of(f"{line}\n\n# {other}\n", name).findings] == alone


def test_variables_of_cuda_get_their_twins_in_scripts_as_in_python():
    done = text_of(
        "export CUDA_LAUNCH_BLOCKING=1\nexport PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128\n"
        "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python a.py\n", "run.sh",
    )  # fmt: skip
    assert done.after.decode().splitlines() == [
        "export CUDA_LAUNCH_BLOCKING=1 ASCEND_LAUNCH_BLOCKING=1",
        "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:128",
        "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python a.py",
    ]
    assert [each.rule.code for each in done.findings] == ["TR108"] * 3
    again = text_of(done.after.decode(), "run.sh")
    assert again.after == done.after


@pytest.mark.parametrize("text", [
    'import importlib\nfused = importlib.import_module("fused_mix_prec_layer_norm_cuda")\n',
    'from importlib import import_module\n\n\ndef f():\n    return import_module("attn_core_inplace_cuda").forward()\n',
])  # fmt: skip
def test_an_extension_that_is_imported_by_its_name_as_a_text_is_reported(text):
    _, lines = ported(text)
    assert [line[:5] for line in lines] == ["TR121"]


def test_an_extension_of_the_project_that_import_module_loads_is_one(tmp_path):
    done = files(
        tmp_path,
        setup_py="from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('inner_core', ['a.cu'])",
        model_py="""
            import importlib
            core = importlib.import_module('inner_core')
            other = importlib.import_module('json')
        """,
    )
    assert [line[:57] for line in said(done["model.py"])] == [
        "TR121 inner_core (the project builds it) is compiled for "
    ]


@pytest.mark.parametrize(("name", "line"), [
    ("Dockerfile", "ENV CUDA_VISIBLE_DEVICES=0"), ("Dockerfile", "ENV CUDA_LAUNCH_BLOCKING 1"),
    ("docker-compose.yml", "      CUDA_VISIBLE_DEVICES: '0,1'"),
    (".github/workflows/a.yml", "  CUDA_LAUNCH_BLOCKING: 1"),
])  # fmt: skip
def test_variables_of_cuda_that_an_image_or_a_job_is_given_are_reported(name, line):
    done = text_of(f"{line}\n# {line}\n", name)
    assert [(each.rule.code, each.line, each.edits) for each in done.findings] == [("TR108", 1, ())]
    assert text_of(f"{line} ASCEND_RT_VISIBLE_DEVICES=0 ASCEND_LAUNCH_BLOCKING=1\n", name).findings == []
    assert (
        text_of(
            "RUN echo $CUDA_VISIBLE_DEVICES and ${CUDA_LAUNCH_BLOCKING} are CUDA_VISIBLE_DEVICES here\n", name
        ).findings
        == []
    )


@pytest.mark.parametrize("line", ["!pip install faiss-gpu", "%pip install -q apex"])
def test_a_package_for_cuda_is_seen_in_a_notebook_without_another_word_of_cuda(line):
    cell = {"cells": [{"cell_type": "code", "source": [f"{line}\n", "import os"]}], "nbformat": 4}
    assert [each.rule.code for each in port_notebook(json.dumps(cell).encode()).findings] == ["TR106"]


def test_an_option_that_can_be_cuda_by_its_choices_is_resolved():
    after, _ = ported("""
        import argparse
        import torch
        p = argparse.ArgumentParser()
        p.add_argument("--device", default=None, choices=["cuda", "cpu"])
        p.add_argument("--dist-backend", default="gloo", choices=["nccl", "gloo"])
        p.add_argument("--kernel", default="torch", choices=["cuda", "torch"])
        args = p.parse_args()
        model = torch.nn.Linear(2, 2).to(args.device)
        start(args.dist_backend, args.kernel)
    """)
    assert ".to(portable.resolve(args.device))" in after
    assert "start(portable.resolve(args.dist_backend), args.kernel)" in after


def test_an_option_of_click_that_can_be_cuda_is_resolved():
    after, lines = ported("""
        import click
        @click.command()
        @click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]))
        def main(device):
            run(device)
    """)
    assert "    device = portable.resolve(device)\n    run(device)" in after
    assert [line[:5] for line in lines] == ["TR019"]


def test_lightnings_gpu_is_seen_where_it_is_no_argument_of_a_bare_trainer(tmp_path):
    done = files(
        tmp_path,
        train_py="""
            import argparse
            from pytorch_lightning import Trainer
            from own import Own
            p = argparse.ArgumentParser()
            p.add_argument("--accelerator", default="gpu", type=str)
            Trainer(accelerator=p.parse_args().accelerator, devices=1)
            Own(accelerator="gpu", devices=1).run()
            options = {"accelerator": "gpu"}
        """,
        own_py="from pytorch_lightning.lite import LightningLite\n\nclass Own(LightningLite):\n    pass\n",
        other_py="import quick\n\nquick.Trainer(accelerator='gpu')\n",
        run_sh="python train.py --accelerator gpu --devices 8\n",
        plan_yaml="trainer:\n  accelerator: gpu\n  backend: gpu\n",
    )
    assert [(each.line, each.rule.code) for each in done["train.py"].findings] == [
        (5, "TR104"),
        (7, "TR104"),
        (8, "TR104"),
    ]
    assert b'Own(accelerator="auto", devices=1)' in done["train.py"].after
    assert [each.rule.code for each in done["run.sh"].findings] == ["TR108b"]
    assert [(each.line, each.rule.code) for each in done["plan.yaml"].findings] == [(2, "TR110a")]
    assert done["other.py"].findings == []


def test_rays_resource_for_cuda_is_seen():
    _, lines = ported("""
        import ray
        from ray.util.placement_group import placement_group

        @ray.remote(num_gpus=1)
        class Worker:
            def cards(self):
                return ray.get_gpu_ids()

        group = placement_group([{"GPU": 1, "CPU": 1}])
        workers = [Worker.options(num_gpus=0.5).remote() for _ in range(2)]
        nothing = Worker.options(num_gpus=0).remote()
        print(count(num_gpus=2), {"GPUs": 1})
    """)
    assert [line[:6] for line in lines] == ["TR104c"] * 4
    assert port(b'print({"GPU": 1}, start(num_gpus=2))\n').findings == []


def test_a_plain_version_that_only_the_cpu_takes_is_reported():
    program = """
        import torch
        from torch.utils.cpp_extension import load

        fused = load("fused", sources=["fused.cpp", "fused.cu"])

        class Act(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return fused.act(x)

        def act(x):
            if x.device.type == "cpu":
                return x.relu()
            else:
                return Act.apply(x)

        def plain(x):
            return x.relu() if x.device.type == "cpu" else x.relu() + 0
    """
    _, lines = ported(program)
    assert [line for line in lines if line.startswith("TR018a")] == [
        'TR018a other devices than the CPU take CUDA\'s kernel: .type != "cuda" is the question'
    ]


def test_commands_and_containers_in_templates_are_looked_at():
    template = 'run: |\n  "$DIR/conda" install --yes cudatoolkit=11.8 cudnn\n  pip3 install torch --index-url https://download.pytorch.org/whl/cu118\n'
    assert [each.rule.code for each in text_of(template, "formation.yml").findings] == ["TR106", "TR106", "TR106a"]
    assert [each.rule.code for each in text_of(template, "install.sh").findings] == ["TR106", "TR106", "TR106a"]
    container = '{"runArgs": ["--runtime=nvidia", "--gpus=all"]}\n'
    done = text_of(container, ".devcontainer/devcontainer.json")
    assert [each.before for each in done.findings] == ["--runtime=nvidia", "--gpus=all"]


def test_the_driver_of_cuda_by_its_name_is_reported():
    _, lines = ported('import ctypes\n\nfor name in ("libcuda.so", "nvcuda.dll"):\n    ctypes.CDLL(name)\n')
    assert [line[:5] for line in lines] == ["TR097"] * 2


def test_a_platform_of_openmm_by_its_name_is_reported():
    _, lines = ported('import openmm\nopenmm.Platform.getPlatformByName("CUDA" if use_gpu else "CPU")\n')
    assert [line[:13] for line in lines] == ["TR084 OpenMM "]
    assert port(b'import openmm\nopenmm.Platform.getPlatformByName("OpenCL")\n').findings == []


# False


def test_attention_whose_probabilities_another_method_reads_is_left():
    program = """
        import torch
        class Attention:
            def forward(self, q, k, v):
                attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
                x = attn @ v
                x = self.proj(x)
                return x, attn
        class Block:
            def forward(self, x, return_attention=False):
                y, attn = self.attn(x)
                {}
                return y
    """
    _, used = ported(program.format("if return_attention: return attn"))
    _, unused = ported(program.format("y = y + x"))
    assert (used, [line[:5] for line in unused]) == ([], ["TR112"])


def test_a_name_of_extensions_that_a_module_of_the_project_defines_is_none(tmp_path):
    done = files(
        tmp_path,
        pk____init___py="",
        pk__config____init___py="from .defaults import _C as cfg\n",
        pk__config__defaults_py="from yacs.config import CfgNode as CN\n\n_C = CN()\n_C.SEED = 1\n",
        train_py="from pk.config.defaults import _C as cfg\n",
        pk__layers__nms_py="from pk import _C\n\nnms = _C.nms\n",
        pk__layers__guarded_py="try:\n    from . import _C\nexcept ImportError:\n    _C = None\n",
    )
    assert {name: [each.rule.code for each in one.findings] for name, one in done.items() if one.findings} == {
        "nms.py": ["TR121"], "guarded.py": ["TR121"],
    }  # fmt: skip


@pytest.mark.parametrize(("used", "wanted"), [
    ("_C.nms", "torchvision.ops.nms"), ("_C.roi_align_forward", "torchvision.ops.nms"),
    ("_C.sigmoid_focalloss_forward", "torchvision.ops.sigmoid_focal_loss"),
    ("_C.deform_conv_forward", "torchvision.ops.deform_conv2d"),
    ("_C.deform_psroi_pooling_forward", "nothing is known"),
])  # fmt: skip
def test_what_replaces_an_extension_is_chosen_by_what_the_file_uses_of_it(tmp_path, used, wanted):
    done = files(
        tmp_path,
        setup_py="from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('pk._C', ['csrc/nms.cu'])",
        pk____init___py="",
        pk__ops_py=f"from pk import _C\n\nrun = {used}\n",
        csrc__nms_cu="__global__ void nms_kernel(int x) {}",
        csrc__deform_conv_cu="__global__ void deform_conv(int x) {}",
    )
    (line,) = said(done["ops.py"])
    assert wanted in line
    assert ("deform_conv2d" in line) == ("deform_conv_" in used)


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("csrc/nms.h", "#include <ATen/cuda/CUDAContext.h>", "torchvision.ops.nms"),
    ("SigmoidFocalLoss.h", "#include <THC/THC.h>", "torchvision.ops.sigmoid_focal_loss"),
    ("deform_pool_kernel_cuda.cu", "__global__ void DeformablePSROIPoolForwardKernel(int n) {}", "nothing is known"),
    ("layer_norm_cuda_kernel.cu", "__global__ void cuApplyLayerNorm(int n) {}", "torch.nn.functional.layer_norm"),
    ("scaled_upper_triang_masked_softmax.h", "#include <cuda_fp16.h>", "torch_npu.npu_scaled_masked_softmax"),
    ("upfirdn2d_kernel.cu", "__global__ void upfirdn2d_kernel_large(int n) {}", "the version in torch"),
    ("names.cu", "__global__ void dynamsort(int n) {}", "nothing is known"),
])  # fmt: skip
def test_what_replaces_a_source_is_known_by_its_kernels_or_its_name(name, text, wanted):
    (finding,) = text_of(text + "\n", name).findings
    assert wanted in finding.said


def test_an_assertion_that_a_tensor_is_on_the_cpu_is_no_cuda():
    assertion = 'AT_ASSERTM(!input.type().is_cuda(), "input must be a CPU tensor");\n'
    assert text_of(assertion, "nms_cpu.cpp").findings == []
    assert text_of('#define CHECK_CPU(x) TORCH_CHECK(!x.is_cuda(), #x " on the CPU")\n', "a.h").findings == []
    for text in ("if (x.is_cuda()) { return cuda_nms(x); }", 'TORCH_CHECK(x.is_cuda(), "x")', "if (!x.is_cuda()) {}"):
        assert len(text_of(text + "\n", "nms.cpp").findings) == 1


def test_a_command_that_gives_cuda_to_an_option_which_is_resolved_is_right(tmp_path):
    program = """
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("--device", default={})
        args = p.parse_args()
        run(args.device)
    """
    commands = {"README_md": "```\nrun --device=cuda x\n```", "go_sh": "run --device cuda"}
    done = files(tmp_path / "a", train_py=program.format("'cuda'"), **commands)
    assert [done[name].findings for name in ("README.md", "go.sh")] == [[], []]
    done = files(tmp_path / "b", train_py=program.format("'cpu'"), **commands)
    assert [len(done[name].findings) for name in ("README.md", "go.sh")] == [1, 1]


def test_findings_of_other_rules_are_not_counted_among_the_settings_of_a_configuration():
    done = text_of(
        "- pip install torch==1.13\n- pip install torchvision==0.14\ndevice: cuda\nbackend: nccl\n", "a.yaml"
    )
    assert said(done) == [
        "TR106c torch==1.13: ported code needs torch 2.10 or newer",
        "TR106c torchvision==0.14: ported code needs torchvision 0.25 or newer",
        "TR110a device: cuda, and 1 more in this file: device: cuda, \"backend\": \"nccl\" in a configuration: "
        "resolve it where it is read",
    ]  # fmt: skip


def test_a_package_that_a_command_removes_is_not_one_that_it_installs():
    lines = "RUN pip uninstall -y transformer_engine \\\n  flash_attn && pip install apex\nRUN conda remove cudnn\n"
    assert [(each.line, each.before) for each in text_of(lines, "Dockerfile").findings] == [(2, "apex")]
    assert [each.before for each in text_of("pip uninstall apex -y; pip install xformers\n", "a.sh").findings] == [
        "xformers"
    ]


def test_a_module_of_a_package_has_its_own_replacement():
    _, (line,) = ported("from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator\n")
    assert "PyHcclCommunicator" in line


def test_an_option_that_is_not_read_is_named_in_its_report():
    _, (line,) = ported("parser.add_argument('--vllm.sync_backend', default='nccl')\n")
    assert line == "TR019 resolve it where it is read: portable.resolve(args.vllm.sync_backend)"


def test_a_device_that_a_function_of_the_project_compares_is_rewritten_with_the_comparison(tmp_path):
    done = files(
        tmp_path,
        a_py='def load(path, device="cuda"):\n    if device == "cuda":\n        go()\n    return path.to(device)\n',
        b_py='from a import load\nm = load(p, device="cuda")\nn = load(p, "cuda")\nload(p, key="cuda")\n',
    )
    assert said(done["b.py"]) == [
        'TR010 "cuda": on the device in use',
        'TR101 "cuda" is not seen to be a device: left as it is; also in line 4',
    ]  # fmt: skip


# Needless and useless


def test_an_option_that_is_compared_with_another_accelerator_is_not_resolved():
    after, _ = ported("""
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("--device", default="cuda", choices=["cpu", "cuda", "mps", "xpu"])
        args = p.parse_args()
        if args.device == "xpu":
            start()
        start(args.device)
    """)
    assert 'if args.device == "xpu":' in after
    assert "start(portable.resolve(args.device))" in after


def test_a_mask_of_a_program_of_another_library_stays():
    after, lines = ported('import os\nimport tensorflow as tf\nos.environ["CUDA_VISIBLE_DEVICES"] = "-1"\n')
    assert ("ASCEND" in after, lines) == (False, [])
    after, _ = ported('import os\nimport tensorflow as tf\nimport torch\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n')
    assert "ASCEND_RT_VISIBLE_DEVICES" in after


def test_places_that_say_the_same_are_one_line_of_the_report():
    done = port(
        b"import torch\ntorch.backends.cudnn.allow_tf32 = True\n\ndef f(x):\n"
        b"    torch.backends.cudnn.allow_tf32 = False\n    torch.ops.wkv.forward(x)\n    torch.ops.wkv.backward(x)\n"
    )
    assert said(done) == [
        "TR075 torch.backends.cudnn.allow_tf32: left as it is; also in line 5",
        "TR086 torch.ops.wkv: operators of a library of its own, which an extension registers; also in line 7",
    ]
    ignored = port(b"import torch\ntorch.ops.wkv.a(x)  # toprope: ignore\ntorch.ops.wkv.b(x)\n")
    assert [each.line for each in ignored.findings] == [3]


def test_a_word_of_a_command_in_a_document_is_reported_once():
    done = text_of("```\nconda install pytorch cudatoolkit=9.0\n```\n", "INSTALL.md")
    assert [each.rule.code for each in done.findings] == ["TR106"]


def test_flags_for_nvcc_belong_to_the_extension_that_is_reported():
    _, lines = ported("""
        from torch.utils.cpp_extension import CUDAExtension
        flags = {"cxx": []}
        flags["nvcc"] = ["-O3"]
        CUDAExtension("a", ["a.cu"], extra_compile_args=flags)
    """)
    assert [line[:5] for line in lines] == ["TR085"]


def test_a_line_at_the_beginning_of_a_function_goes_above_the_comment_of_its_first_statement():
    after, _ = ported('''
        def run(x, device="cuda"):
            """Run."""
            # Where it runs,
            # and how.
            return x.to(device)
    ''')
    assert '    """Run."""\n    device = portable.resolve(device)\n    # Where it runs,\n' in after


def test_comments_of_cells_that_are_no_python_are_no_places():
    lines = ["%%writefile a.sh\n", "# for CUDA 9\n", "pip install x-cuda"]
    cell = json.dumps({"cells": [{"cell_type": "code", "source": lines}], "nbformat": 4})
    assert [each.line for each in port_notebook(cell.encode()).findings] == [3]


def test_kinds_of_files_that_may_be_large_are_still_passed_over_by_their_bytes():
    assert port_text(b"\xff", "a.json", FileKind.CONFIG).skipped == ""
    assert port_text(b"\xff", "a.sh", FileKind.SHELL).skipped


@pytest.mark.parametrize("bound", [
    "from torch.utils.cpp_extension import load\nwkv_cuda = load(name='wkv', sources=['wkv.cu'])", "import wkv_cuda",
])  # fmt: skip
def test_buffers_for_a_kernel_in_a_function_of_autograd_stay_with_it(bound):
    program = f"import torch\n{bound}\n" + dedent("""
        class WKV(torch.autograd.Function):
            @staticmethod
            def forward(ctx, w):
                y = torch.empty(w.shape, device="cuda")
                wkv_cuda.forward(w, y)
                return y

        class Plain(torch.autograd.Function):
            @staticmethod
            def forward(ctx, w):
                if w.shape[0] > 3:
                    return torch.empty(w.shape, device="cuda")
                return wkv_cuda.forward(w)

        x = torch.ones(2, device="cuda")
    """)
    after, lines = ported(program)
    assert after.count('device="cuda"') == 1
    assert after.count("device=portable.device()") == 2
    assert any("it is for wkv_cuda.forward in line" in line for line in lines)


@pytest.mark.parametrize(("program", "resolved"), [
    ("assert backend in ['gloo', 'mpi']\n    ", False), ("assert backend == 'gloo'\n    ", False), ("", True),
    ("assert backend in ['gloo', 'nccl']\n    ", True), ("assert backend in known\n    ", True),
])  # fmt: skip
def test_a_backend_that_an_assertion_excludes_is_not_resolved(program, resolved):
    text = f"import torch.distributed as dist\n\ndef start(backend):\n    {program}dist.init_process_group(backend)\n"
    assert ("portable.resolve(backend)" in ported(text)[0]) == resolved


@pytest.mark.parametrize(("use", "wanted"), [
    ("print(vars(args))", 0), ("json.dump(vars(args), f)", 0), ("wandb.init(config=vars(args))", 0),
    ("for k, v in sorted(vars(args).items()):\n    print(f'{k}: {v}')", 0),
    ("for k in vars(args):\n    writer.add_text(k, str(getattr(args, k)))", 0),
    ("run(**vars(args))", 1), ("for k, v in vars(args).items():\n    print(k)\n    setattr(model, k, v)", 1),
])  # fmt: skip
def test_options_that_are_only_shown_are_not_handed_on(use, wanted):
    program = (
        "import argparse, json, wandb\np = argparse.ArgumentParser()\np.add_argument('--device', default='cuda')\n"
    )
    _, lines = ported(f"{program}args = p.parse_args()\nx = x.to(args.device)\n{use}\n")
    assert len([line for line in lines if "hands device on" in line]) == wanted


def test_a_package_of_the_project_hides_one_for_cuda_of_the_same_name(tmp_path):
    done = files(
        tmp_path,
        warp____init___py="def f(): return 1\n",
        kaolin_py="def g(): return 1\n",
        tools__cupy_py="def h(): return 1\n",
        triton__readme_md="no package\n",
        main_py="from warp import f\nimport kaolin\nimport cupy\nimport triton\n",
    )
    assert [(each.line, each.rule.code) for each in done["main.py"].findings] == [(3, "TR084"), (4, "TR082")]
