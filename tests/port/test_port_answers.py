"""Answers that other devices do not give, code that runs on CUDA alone, and rules whose places run everywhere.

Holds `port.conditions.answers` and `guards`.
"""

import os
import subprocess
import sys

import pytest

from toprope.port.conditions.guards import RUNS
from toprope.port.engine import port
from toprope.port.scan import find, port_files

BEGIN = "import torch\n\n"


def after(text):
    return port((BEGIN + text).encode()).after.decode().removeprefix(BEGIN)


# What the runtime answers differently


NOT_GIVEN = [
    "p = torch.cuda.get_device_properties(0)\n    v = parse(f'{p.major}.{p.minor}')",
    "n = torch.cuda.get_device_properties(0).multi_processor_count * 2",
    "p = torch.cuda.get_device_properties(0)\n    tune(p)",
    "if torch.cuda.get_device_capability()[0] < 7:\n        raise OSError",
    "major, minor = torch.cuda.get_device_capability()\n    arch = f'sm_{major}{minor}'",
    "peak = PEAKS[torch.cuda.get_device_name()]",
    "name = torch.cuda.get_device_name()\n    if 'A100' not in name:\n        raise OSError",
]


@pytest.mark.parametrize("code", NOT_GIVEN)
def test_a_question_stays_with_answers_that_other_devices_do_not_give(code):
    text = f"if torch.cuda.is_available() and flash:\n    {code}\n"
    assert after(text) == text
    text = f"def f():\n    if not torch.cuda.is_available() or not flash:\n        return\n    {code}\n".replace(
        "    n", "    n"
    )
    assert after(text) == text


GIVEN = [
    "p = torch.cuda.get_device_properties(0)\n    print(p.name, p.total_memory / 2**30)",
    "print(torch.cuda.get_device_properties(0))",
    "fast = torch.cuda.get_device_capability() >= (8, 0)",
    "major, minor = torch.cuda.get_device_capability()\n    if (major, minor) >= (8, 0) or major > 7:\n        x = 1",
    "print('on %s' % torch.cuda.get_device_name(0))",
    "fast = 'A100' in torch.cuda.get_device_name()",
]


@pytest.mark.parametrize("code", GIVEN)
def test_a_question_is_converted_with_answers_that_every_device_gives(code):
    assert "torch.cuda" not in after(f"if torch.cuda.is_available() and flash:\n    {code}\n")


def test_what_is_set_behind_a_question_that_stays_is_used_on_cuda_alone():
    text = """\
class Attend:
    def __init__(self):
        self.on_cuda = None
        if torch.cuda.is_available():
            self.on_cuda = Config(torch.cuda.get_device_properties(0).major)

    def run(self, q):
        *_, is_cuda, device = *q.shape, q.is_cuda, q.device
        return self.on_cuda.run() if is_cuda else q
"""
    assert after(text) == text
    done = after(text.replace("= None", "= Config(0)"))
    assert "portable.is_accelerator(q)" in done
    assert "torch.cuda.is_available()" in done


# Code behind a question that asks for CUDA itself


ONLY_CUDA = [
    "def _has(x):\n    if x.device.type != 'cuda' and use_custom_op():\n        return False\n    return True\n\n"
    "def _kernel(x):\n    def run():\n        return torch.cuda.get_device_capability(x) < (8, 0)\n    return run\n\n"
    "def op(x):\n    if _has(x):\n        return _kernel(x)\n    return x\n",
    "def _f_cuda(x):\n    torch.cuda.synchronize()\n\ndef f(x, impl):\n"
    "    if x.device.type == 'cuda' and _init():\n        return _f_cuda(x)\n    return x\n",
    "def run(self, loader):\n    assert self.device != 'xpu'\n"
    "    if self.device == 'cuda':\n        s = torch.cuda.Stream()\n"
    "    for x in loader:\n        if self.device == 'cuda':\n            x = x.cuda()\n",
    "from torch.utils import cpp_extension\n\ndef _name():\n    return torch.cuda.get_device_name().lower()\n\n"
    "def build(sources):\n    return cpp_extension.load(name=_name(), sources=sources)\n",
]  # fmt: skip


@pytest.mark.parametrize("text", ONLY_CUDA)
def test_code_that_runs_behind_a_question_for_cuda_alone_is_left(text):
    assert after(text) == text


def test_a_function_that_is_used_elsewhere_too_is_ported():
    assert "portable.synchronize()" in after(ONLY_CUDA[1] + "\n\n_f_cuda(1)\n")
    public = ONLY_CUDA[1].replace("_f_cuda", "f_cuda")  # another file may import it
    assert "portable.synchronize()" in after(public)


# Matches by the last name


def test_a_function_of_torch_is_none_of_the_project_by_the_same_name():
    text = """\
@torch.jit.script
def pick(x: torch.Tensor, i: torch.Tensor):
    return torch.gather(x, 1, i) + x.scatter(1, i, x)


def gather(x):
    return x.cuda() if x.is_cuda else x


def scatter(x):
    return x.cuda()
"""
    done = after(text)
    assert ".cuda()" not in done
    assert "torch.gather(x, 1, i) + x.scatter(1, i, x)" in done


def test_a_function_of_the_project_is_compiled_under_each_way_of_importing_it(tmp_path):
    own = "import torch\n\n\ndef gather(x):\n    return x.cuda()\n"
    for line, call in (
        ("from ops import gather", "gather"), ("import ops", "ops.gather"), ("from . import ops", "ops.gather"),
        ("from .ops import gather as g", "g"),
    ):  # fmt: skip
        (tmp_path / "ops.py").write_text(own)
        (tmp_path / "net.py").write_text(
            f"import torch\n{line}\n\n\n@torch.jit.script\ndef f(x: torch.Tensor):\n    return {call}(x)\n"
        )
        done = {each.path.rpartition("/")[2]: each for each in port_files(find([tmp_path]))}
        assert done["ops.py"].after.decode() == own, line


def test_a_layer_that_is_called_as_torchs_own_is_a_module():
    text = "class Linear(torch.nn.Linear):\n    def to(self, *a):\n        return self\n\n\ndef f(m):\n    m.cuda()\n"
    assert after(text) == text


# Rules whose places run everywhere


RUN = {
    "TR045": "repr(torch.version.cuda)",
    "TR070": "os.environ['NCCL_DEBUG'] = 'INFO'",
    "TR071": "os.environ.get('CUDA_VISIBLE_DEVICES')",
    "TR072": "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'",
    "TR072a": "os.environ['TORCH_CUDA_ARCH_LIST'] = ''",
    "TR073": "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'",
    "TR074": "torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic",
    "TR075": "torch.backends.cuda.matmul.allow_tf32 = True",
    "TR076": "torch.backends.cuda.enable_flash_sdp(False)",
    "TR084b": "import importlib.util\nimportlib.util.find_spec('flash_attn')",
    "TR088": "torch.jit.trace(lambda x: x + len('cuda'), torch.zeros(1))",
    "TR091a": "order = 'self_cuda_time_total'",
    "TR102": "from torch import cuda",
    "TR102b": "from unittest import mock\nwith mock.patch('torch.cuda.device_count'):\n    pass",
}


@pytest.mark.process
def test_what_is_said_to_run_everywhere_runs_where_there_is_no_cuda():
    assert RUN.keys() == RUNS
    text = "import os\nimport torch\n" + "\n".join(RUN.values()) + "\nprint('done')\n"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr


FAILS = [
    "m = torch.nn.DataParallel(m)",
    "m = torch.compile(m, backend='cudagraphs')",
    "x = torch.zeros(1, dtype=torch.float64)\n    torch.distributed.all_reduce(x.double())",
    "with torch.backends.cuda.sdp_kernel(enable_math=False):\n        run()",
    "home = os.environ['CUDA_HOME']",
]


@pytest.mark.parametrize("code", FAILS)
def test_a_question_stays_with_what_its_page_says_fails_elsewhere(code):
    text = f"if torch.cuda.is_available():\n    {code}\n"
    assert after(text) == text
