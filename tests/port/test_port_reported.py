"""Reports on a place: only true sentences, with the file's own text, and only where there is something to do."""

import subprocess
import sys

import pytest

from toprope.port import port
from toprope.port.files import kind_of, port_text
from toprope.port.project.context import Context
from toprope.port.registry import all_rules, python_rules
from toprope.port.report import summary
from toprope.port.runtime.dependency import missing_requirement
from toprope.port.scan import find, port_files

IMPORT = "from toprope.device import portable\n"


def said(text, name=""):
    """Codes and messages of the findings of a file."""
    kind = kind_of(name) if name else None
    done = port(text.encode()) if kind is None else port_text(text.encode(), name, kind)
    assert done.skipped == ""
    return {each.rule.code: each.said for each in done.findings}


def after(text):
    return port(text.encode()).after.decode()


# The line of a report


@pytest.mark.parametrize("rule", all_rules().values(), ids=all_rules())
def test_a_line_without_a_message_shows_the_text_of_the_file_and_no_example(rule):
    assert 0 < len(rule.consequence) <= len(rule.title)
    for example in rule.examples if rule.code in python_rules() else ():
        for each in port(example.before.encode()).findings:
            if each.rule is rule and not each.message:
                assert each.said.startswith(" ".join(each.before.split())[:40])
                assert each.said.endswith(rule.consequence)


def test_a_pin_and_a_package_are_named_as_the_file_has_them(tmp_path):
    assert said("torch<=1.9.2\n", "requirements.txt") == {
        "TR106c": "torch<=1.9.2: ported code needs torch 2.10 or newer"
    }
    assert said("import pyg_lib\n")["TR121a"].startswith("pyg_lib: ")
    (tmp_path / "a.py").write_text("import torch\n\ncap = torch.cuda.get_device_capability(0)\n")
    (line,) = [each for each in summary.text("x", list(port_files(find([tmp_path])))).split("\n") if " TR040 " in each]
    assert line.endswith("  torch.cuda.get_device_capability: (0, 0) on what is no GPU")


# Lines that were not so


@pytest.mark.parametrize(("end", "guarded"), [
    ("print(e)", True), ("np = None", True), ("exit()", False), ("sys.exit(1)", False), ("raise", False),
    ("raise RuntimeError('no') from e", False),
])  # fmt: skip
def test_an_import_whose_handler_ends_the_program_is_not_guarded(end, guarded):
    text = f"try:\n    import tinycudann\nexcept ImportError as e:\n    print(e)\n    {end}\n"
    assert ("guarded already" in said(text)["TR084"]) is guarded


def test_a_handler_of_other_errors_guards_no_import():
    text = "try:\n    import cupy\nexcept ValueError:\n    cupy = None\n"
    assert "guarded already" not in said(text)["TR084"]


def test_a_function_of_xformers_that_the_runtime_lacks_is_not_said_to_be_there():
    assert said("from xformers.ops import masked_matmul\n") == {
        "TR079a": "xformers.ops.masked_matmul has no counterpart in the runtime"
    }
    assert said("from xformers.sparse import SparseCSRTensor\n").keys() == {"TR079a"}
    both = said("from xformers.ops import fmha, memory_efficient_attention\n")
    assert both.keys() == {"TR079", "TR079a"}


@pytest.mark.parametrize("call", ["to", "contiguous"])
def test_channels_last_is_said_to_be_refused(call):
    text = f"import torch\n\nx = x.{call}(memory_format=torch.channels_last)\n"
    assert "ERR01007" in said(text)["TR099"]


@pytest.mark.process
def test_the_card_refuses_channels_last_as_the_hint_says(tmp_path):
    program = tmp_path / "a.py"
    program.write_text(
        "import torch\n"
        "from torch import channels_last as last\n"
        "h = torch.ones(2, 3, 4, 4)\n"
        "d = h.npu()\n"
        "f = {'memory_format': last}\n"
        "calls = {'to': lambda: h.to(device='npu', **f), 'here': lambda: d.to(**f),\n"
        "         'contiguous': lambda: d.contiguous(**f), 'clone': lambda: d.clone(**f)}\n"
        "for name, call in calls.items():\n"
        "    try:\n"
        "        call(); print(name, 'done')\n"
        "    except RuntimeError as error:\n"
        "        print(name, 'ERR01007' in str(error))\n"
    )
    command = [sys.executable, "-m", "toprope", "run", "--quiet", "--chip", "910B3", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[:4] == ["to True", "here True", "contiguous True", "clone done"], done.stderr


def test_a_text_for_a_function_that_becomes_the_runtimes_is_not_reported():
    text = 'import torch\n\nwith torch.cuda.device("cuda:1"):\n    torch.cuda.synchronize("cuda:1")\n'
    assert "TR101" not in said(text)
    assert after(text).count('"cuda:1"') == 2


# Edits that are not needed


@pytest.mark.parametrize("text", [
    "import pytest, torch\n\n@pytest.mark.skipif(not torch.cuda.is_available, reason='x')\ndef test():\n    pass\n",
    "import torch\n\nif torch.cuda.is_available and x:\n    pass\n",
    "import torch\n\nassert torch.cuda.is_bf16_supported\n",
])  # fmt: skip
def test_a_question_that_is_not_called_is_reported_and_stays(text):
    assert after(text) == text
    (finding,) = port(text.encode()).findings
    assert "not called" in finding.held_back


def test_a_function_that_is_handed_on_is_still_converted():
    assert "ask(portable.is_available)" in after("import torch\n\nask(torch.cuda.is_available)\n")


@pytest.mark.parametrize("text", [
    "import torch\n\nx = torch.arange(4)\ntorch.save(x, 'x')\ny = torch.load('x')\n",
    "import torch\n\ntorch.save({'a': torch.ones(2), 'b': x.cpu()}, path)\ny = torch.load(path)\n",
    "import torch\n\npicture = torch.load(path).numpy()\n",
])  # fmt: skip
def test_a_file_with_tensors_of_the_cpu_alone_needs_no_map_location(text):
    assert after(text) == text


@pytest.mark.parametrize("text", [
    "import torch\n\ntorch.save(net.state_dict(), 'x')\ny = torch.load('x')\n",
    "import torch\n\ntorch.save(torch.ones(2), 'y')\ny = torch.load('x')\n",
    "import torch\n\ntorch.set_default_device('cuda')\ntorch.save(torch.ones(2), 'y')\ny = torch.load('y')\n",
    "import torch\n\ny = torch.load('x')\ntorch.save(torch.ones(2), 'x')\n",
])  # fmt: skip
def test_any_other_file_gets_a_map_location(text):
    assert "map_location=portable.map_location" in after(text)


def test_a_check_of_the_build_at_the_import_stays():
    text = "import torch\n\nif torch.version.cuda is not None:\n    major = int(torch.version.cuda.split('.')[0])\n"
    assert after(text) == text


def test_a_backend_that_is_set_above_is_not_resolved_again():
    text = (
        "import torch.distributed as dist\n\n\ndef init(args):\n    args.dist_backend = 'nccl'\n"
        "    dist.init_process_group(backend=args.dist_backend)\n"
    )
    assert after(text).count("resolve") == 0
    assert "args.dist_backend = portable.dist_backend()" in after(text)
    elsewhere = text.replace("'nccl'", "settings['backend']")
    assert "backend=portable.resolve(args.dist_backend)" in after(elsewhere)


def test_a_loader_keeps_its_pinned_memory_and_a_factory_asks():
    text = "loader = DataLoader(data, pin_memory=True)\n"
    assert after(text) == text
    assert not said(text)
    assert "pin_memory=portable.is_available()" in after("import torch\n\nx = y.new_zeros(3, pin_memory=True)\n")


# Lines of no use


@pytest.mark.parametrize("text", [
    "import torch.backends.cudnn as cudnn\n\ncudnn.benchmark = True\n",
    "parser.add_argument('--no-cuda', action='store_true')\n",
    "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--device', default='cuda')\n"
    "args = parser.parse_args()\nprint(vars)\nrun(portable.resolve(args.device))\n",
])  # fmt: skip
def test_what_asks_for_nothing_is_not_reported(text):
    assert not said(IMPORT + text if "portable" in text else text)


# Places that were silent


@pytest.mark.parametrize(("text", "code"), [
    ("from diff_surfel_rasterization import GaussianRasterizer\n", "TR121"),
    ("from gaussian_rasterizer import render\n", "TR121"),
    ("import os\n\nos.system(f'CUDA_VISIBLE_DEVICES={gpu} python train.py')\n", "TR071"),
    ("jobs = ['CUDA_VISIBLE_DEVICES=0 python a.py', 'CUDA_VISIBLE_DEVICES=1 python b.py']\n", "TR071"),
    ("total = sum(each.self_cuda_time_total for each in events)\n", "TR091a"),
    ("key = 'cuda_time_total'\n", "TR091a"),
    ("from torch._six import string_classes\n", "TR122"),
    ("import torch._six\n", "TR122"),
    ("from torch import _six\n", "TR122"),
    ("import torch\n\nstate = torch.hub.load_state_dict_from_url(url)\n", "TR057"),
    ("from torch.utils.model_zoo import load_url\n\nstate = load_url(url, folder)\n", "TR057"),
    ("BACKENDS = ['kernels-community/flash-attn', 'kernels-community/vllm-flash-attn3']\n", "TR077b"),
    ("import onnxruntime\n\nproviders = ['CUDAExecutionProvider', 'CPUExecutionProvider']\n", "TR104b"),
])  # fmt: skip
def test_what_was_silent_is_reported_once(text, code):
    findings = [each for each in port(text.encode()).findings if each.rule.code == code]
    assert len(findings) == 1
    done = after(text)
    assert after(done) == done


@pytest.mark.parametrize("text", [
    "print('try CUDA_VISIBLE_DEVICES=0')\n",
    '"""Run with CUDA_VISIBLE_DEVICES=0."""\n',
    "parser.add_argument('--x', help='as CUDA_VISIBLE_DEVICES=0')\n",
    "cmd = f'CUDA_VISIBLE_DEVICES={g} ASCEND_RT_VISIBLE_DEVICES={g} python a.py'\n",
    "self.cuda_time = 3\nprint(self.cuda_time)\n",
    "try:\n    from torch._six import inf\nexcept ImportError:\n    from torch import inf\n",
])  # fmt: skip
def test_its_look_alikes_are_not(text):
    assert not said(text)


def test_a_function_of_an_extension_is_named_by_the_extension():
    assert said("from simple_knn._C import distCUDA2\n")["TR121"].startswith("simple_knn is compiled for CUDA")


def test_what_is_downloaded_goes_to_the_device_in_use():
    text = "import torch\n\nstate = torch.hub.load_state_dict_from_url(url, check_hash=True)\n"
    assert after(text).endswith("(url, check_hash=True, map_location=portable.map_location)\n")
    given = "import torch\n\nstate = torch.hub.load_state_dict_from_url(url, folder, 'cpu')\n"
    assert after(given) == given


@pytest.mark.parametrize(("name", "text", "codes"), [
    ("README.md", "```sh\ndocker run --gpus all image\n```\n", {"TR110"}),
    ("README.md", "```dockerfile\nFROM nvidia/cuda:12.4.0-base\n```\n", {"TR110"}),
    ("compose.yaml", "services:\n  a:\n    runtime: nvidia\n", {"TR107"}),
    ("train.yaml", "model:\n  device: 'cuda:0'\n", {"TR110a"}),
    ("train.json", '{"lr": 1, "device": "cuda", "dist_backend": "nccl"}\n', {"TR110a"}),
    ("train.toml", 'device = "cuda"\n', {"TR110a"}),
    ("train.cfg", "[run]\ndevice=cuda\n", {"TR110a"}),
    ("train.yaml", "cuda: 11.8\n# device: cuda\nname: cuda\n", set()),
    ("requirements.txt", "torchvision==0.15.2\n", {"TR106c"}),
    ("requirements.txt", "torchaudio>=0.8,<2.2\n", {"TR106c"}),
    ("requirements.txt", "torchvision>=0.15\ntorchaudio\n", set()),
    ("requirements.txt", "git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch\n", {"TR106"}),
    ("requirements.txt", "tcnn @ git+https://github.com/NVlabs/tiny-cuda-nn.git@v1.6\n", {"TR106"}),
    ("requirements.txt", "git+https://github.com/openai/CLIP.git\n", set()),
    ("environment.yml", "  - pip:\n    - submodules/diff-surfel-rasterization\n", {"TR106"}),
    ("run.sh", "pip install git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch\n", {"TR106"}),
    ("run.sh", 'for s in a b; do\n  cmd="CUDA_VISIBLE_DEVICES=0 python train.py -s $s"\ndone\n', {"TR108"}),
])  # fmt: skip
def test_files_that_are_not_python(name, text, codes):
    assert said(text, name).keys() == codes


def test_a_configuration_is_reported_once_and_data_is_not_read(tmp_path):
    (line,) = said("a:\n  device: cuda\nb:\n  device: cuda:1\n", "a.yaml").values()
    assert line.startswith("device: cuda, and 1 more in this file: ")
    (tmp_path / "data.json").write_text('{"device": "cuda"}' + " " * 300_000)
    (done,) = port_files(find([tmp_path]))
    assert not done.findings
    assert not done.skipped


def test_a_submodule_for_cuda_is_known_by_its_setup_and_by_its_name(tmp_path):
    (tmp_path / ".gitmodules").write_text(
        '[submodule "a"]\n\tpath = submodules/fast-render\n[submodule "b"]\n\tpath = submodules/my-cuda-ops\n'
        '[submodule "c"]\n\tpath = submodules/words\n'
    )
    (tmp_path / "submodules/fast-render").mkdir(parents=True)
    (tmp_path / "submodules/fast-render/setup.py").write_text(
        "setup(ext_modules=[CUDAExtension(name='fast_render._C', sources=['a.cu'])])\n"
    )
    (tmp_path / "a.py").write_text("import fast_render\nimport my_cuda_ops\nimport words\n")
    assert {"fast_render", "my_cuda_ops"} <= Context.of([tmp_path / "a.py"]).extensions
    (done,) = port_files([tmp_path / "a.py"])
    assert [each.line for each in done.findings if each.rule.code == "TR121"] == [1, 2]


def test_the_report_says_where_toprope_must_be_added(tmp_path):
    (tmp_path / "a.py").write_text("import torch\n\nx = torch.ones(2).cuda()\n")
    assert "install it with the program" in missing_requirement(list(port_files(find([tmp_path]))))
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "pyproject.toml").write_text("[tool.toprope.port]\nchip = '910B3'\n")
    line = missing_requirement(list(port_files(find([tmp_path]))))
    assert f"add it to {tmp_path / 'requirements.txt'}" in line
    (tmp_path / "requirements.txt").write_text("torch\ntoprope\n")
    assert missing_requirement(list(port_files(find([tmp_path])))) == ""
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "a.py").write_text("print(1)\n")
    assert missing_requirement(list(port_files(find([tmp_path])))) == ""


# A full device


def test_a_full_npu_of_an_older_torch_npu_is_caught(monkeypatch):
    import torch

    from toprope.device import _portable_runtime as runtime

    def caught(error):
        try:
            try:
                raise error
            except runtime.OutOfMemoryError:
                return True
        except RuntimeError:
            return False

    full = RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity)")
    monkeypatch.setattr(runtime, "_device", torch.device("cpu"))
    assert caught(torch.OutOfMemoryError("full"))
    assert not caught(full)
    monkeypatch.setattr(runtime, "_device", torch.device("meta"))
    monkeypatch.setattr(runtime, "kind", lambda spec=None: "npu")
    assert caught(torch.OutOfMemoryError("full"))
    assert caught(full)
    assert not caught(RuntimeError("shape"))
    assert runtime.OutOfMemoryError is torch.OutOfMemoryError


def test_a_class_that_is_imported_is_asked_for_in_the_except():
    text = "from torch.cuda import OutOfMemoryError\n\ntry:\n    run()\nexcept OutOfMemoryError:\n    halve()\n"
    assert "except portable.OutOfMemoryError:" in after(text)
    assert after(after(text)) == after(text)


def test_a_command_of_a_notebook_keeps_the_cell_that_it_is_in():
    import json

    from toprope.port.notebook import port_notebook

    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": [each]}
             for each in ("!nvidia-smi", "device = 'cuda'")]  # fmt: skip
    data = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    done = json.loads(port_notebook(data, "a.ipynb").after)
    assert "".join(done["cells"][0]["source"]) == "!nvidia-smi"
    assert "".join(done["cells"][1]["source"]).startswith("from toprope.device import portable\n")
