"""Conditions on CUDA in front of what only CUDA has: packages behind a tried import, Triton kernels, extensions.

Holds `port.conditions.compiled`.
"""

import pytest

from toprope.port.engine import port
from toprope.port.project.context import Context
from toprope.port.scan import find, port_files

TRIED = """import torch

try:
    {}
except ImportError:
    {} = None

"""
PACKAGES = [
    ("from flash_attn import flash_attn_func", "flash_attn_func", "flash_attn_func(q, q, q)"),
    ("import flash_attn", "flash_attn", "flash_attn.flash_attn_func(q, q, q)"),
    ("import xformers.ops as xops", "xops", "xops.memory_efficient_attention(q, q, q)"),
    ("import bitsandbytes as bnb", "bnb", "bnb.optim.AdamW8bit(q)"),
    ("from apex.optimizers import FusedAdam", "FusedAdam", "FusedAdam(q)"),
    ("from mamba_ssm import Mamba", "Mamba", "Mamba(q)"),
    ("import os, cupy", "cupy", "cupy.asarray(q)"),
    ("import pynvml", "pynvml", "pynvml.nvmlInit()"),
]
GUARDS = [
    "def f(q):\n    if q.is_cuda:\n        return {0}\n    return q\n",
    "def f(q):\n    if torch.cuda.is_available():\n        return {0}\n    return q\n",
    'def f(q):\n    if q.device.type == "cuda":\n        return {0}\n    return q\n',
    "def f(q):\n    return {0} if torch.cuda.is_available() else q\n",
    "def g(q):\n    with torch.no_grad():\n        return {0}\n\ndef f(q):\n    return g(q) if q.is_cuda else q\n",
    "class A:\n    def g(self, q):\n        return {0}\n\n    def f(self, q):\n"
    "        return self.g(q) if q.is_cuda else q\n",
]
KERNELS = [
    "from ext import _C\n\ndef f(x):\n    return _C.forward(x) if x.is_cuda else x\n",
    "import triton\n\n@triton.jit\ndef kernel(x):\n    pass\n\ndef f(x):\n    if x.is_cuda:\n        kernel[(1,)](x)\n"
    "    return x\n",
    "import triton\nfrom torch.autograd import Function\n\n@triton.jit\ndef kernel(x):\n    pass\n\n"
    "class Fused(Function):\n    @staticmethod\n    def forward(ctx, x):\n        kernel[(1,)](x)\n        return x\n\n"
    "def f(x):\n    return Fused.apply(x) if x.is_cuda else x\n",
    "from .kernels import fused\n\ndef f(x, grid):\n    if x.is_cuda:\n        fused[grid](x)\n    return x\n",
]


def body(text, **options):
    done = port(text.encode(), **options)
    assert not done.skipped
    assert port(done.after, **options).after == done.after
    return done.after.decode()


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    ("imported", "name", "use"), PACKAGES, ids=lambda each: each.split(" ")[1] if " " in each else ""
)
def test_a_guard_of_a_package_behind_a_tried_import_stays(imported, name, use, guard):
    text = TRIED.format(imported, name) + guard.format(use)
    assert body(text) == text


@pytest.mark.parametrize("text", KERNELS)
def test_a_guard_of_a_kernel_or_of_what_launches_it_stays(text):
    assert body(text) == text


def test_a_guard_of_a_kernel_in_another_module_stays(tmp_path):
    (tmp_path / "ops.py").write_text(
        "import triton\n\n@triton.jit\ndef kernel(x):\n    pass\n\ndef fused(x):\n    kernel[(1,)](x)\n    return x\n\n"
        "def either(x):\n    if not x.is_contiguous():\n        return x\n    kernel[(1,)](x)\n    return x\n"
    )
    text = "from ops import either, fused\n\ndef f(x):\n    return {}(x) if x.is_cuda else x\n"
    (tmp_path / "a.py").write_text(text.format("fused"))
    (tmp_path / "b.py").write_text(text.format("either"))
    files = find([tmp_path])
    assert Context.of(files).kernels == {"ops.kernel", "ops.fused"}
    done = {each.path.rpartition("/")[2]: each.after.decode() for each in port_files(files)}
    assert done["a.py"] == text.format("fused")
    assert "portable.is_accelerator(x)" in done["b.py"]


FLAGS = [
    "def f(q):\n    if q.is_cuda and flash_attn is not None:\n        return flash_attn.f(q)\n    return q\n",
    "def f(q):\n    if flash_attn is not None and q.is_cuda:\n        return flash_attn.f(q)\n    return q\n",
    "def f(q):\n    if HAS and q.is_cuda:\n        return flash_attn.f(q)\n    return q\n",
    "def f(q):\n    if q.is_cuda and is_flash_attn_available():\n        return flash_attn.f(q)\n    return q\n",
]


@pytest.mark.parametrize("text", FLAGS)
def test_a_question_is_converted_where_another_one_asks_for_the_package(text):
    begin = (
        "try:\n    import flash_attn\n    HAS = True\nexcept ImportError:\n    flash_attn = None\n    HAS = False\n\n"
    )
    assert "portable.is_accelerator(q)" in body(begin + text)


def test_a_name_with_another_implementation_may_be_called_everywhere():
    text = (
        "try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n"
        "    from mine import flash_attn_func\n\n"
        "def f(q):\n    return flash_attn_func(q) if q.is_cuda else q\n"
    )
    assert "portable.is_accelerator(q)" in body(text)
    assert "portable.is_accelerator(q)" in body(text.replace("from mine import", "def ").replace(
        "flash_attn_func\n\n", "flash_attn_func(q): return q\n\n"))  # fmt: skip
