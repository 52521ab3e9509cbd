"""Builds and libraries for CUDA that no import of torch's names: each has a line, and what is like them has none."""

from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.scan import find, port_files


def codes(text):
    return [each.rule.code for each in port(dedent(text).encode()).findings]


@pytest.mark.parametrize(("text", "code"), [
    ("import os\nos.system('nvcc -shared a.cu')", "TR085"),
    ("import subprocess\nsubprocess.run(f'{home}/bin/nvcc -o {out} a.cu', shell=True)", "TR085"),
    ("from setuptools import Extension\nExtension('a', ['a.pyx', 'a.cu'])", "TR085"),
    ("from distutils.extension import Extension as E\nE('a', ['a.pyx'], libraries=['stdc++', 'cudart'])", "TR085"),
    ("from torch.utils.cpp_extension import load\ns = ['a.cpp'] + glob('*.cu')\nload(name='a', sources=s)", "TR085"),
    ("from torch.utils.cpp_extension import load\ns = join(here, 'a.cu')\nload('a', [s])", "TR085"),
    ("from torch.utils import cpp_extension as c\ne = getattr(c, 'CUDAExtension' if gpu else 'CppExtension')", "TR085"),
    ("from skbuild import setup\nsetup(cmake_args=['-DUSE_CUDA=ON', '-DCMAKE_CUDA_ARCHITECTURES=80'])", "TR085"),
    ("import torch\nlib = torch.library.Library('a', 'IMPL', 'CUDA')", "TR086"),
    ("from torch.library import Library, impl\n@impl(lib, 'f', 'CUDA')\ndef f(a): pass", "TR086"),
    ("import torch\ntorch.ops.load_library(path)", "TR086a"),
    ("import torch\ntorch.classes.load_library('liba.so')", "TR086a"),
    ("from ctypes import cdll\ncdll.LoadLibrary('libnccl.so.2')", "TR086a"),
    ("import ctypes as c\nc.CDLL('libcudnn.so.8')", "TR086a"),
    ("import ctypes\nname = find_nccl_library()\nctypes.CDLL(name)", "TR086a"),
    ("import cffi\nffi = cffi.FFI()\nffi.dlopen('libcublas.so')", "TR086a"),
    ("import numba as nb\n@nb.cuda.jit\ndef f(a): pass\nnb.cuda.synchronize()", "TR084a"),
    ("import taichi as ti\nti.init(arch=ti.cuda)", "TR084"),
    ("__import__('triton')", "TR121"),
    ("__import__('my_ops_cuda')", "TR121"),
    ("import importlib\nimportlib.import_module('vllm')", "TR121a"),
])  # fmt: skip
def test_a_build_or_a_library_for_cuda_has_one_line(text, code):
    assert codes(text) == [code]


@pytest.mark.parametrize("text", [
    "import os\nos.system('echo nvcc')", "import os\nos.system('which gcc')",
    "from setuptools import Extension\nExtension('a', ['a.pyx'], libraries=['m'])",
    "from torch.utils.cpp_extension import load\ns = ['a.cpp']\nload('a', s)",
    "import torch\nlib = torch.library.Library('a', 'IMPL', 'CPU')",
    "from skbuild import setup\nsetup(cmake_args=['-DUSE_CUDA=OFF'])",
    "import ctypes\nctypes.CDLL('libm.so.6')", "import ctypes\nctypes.CDLL(None)", "import ctypes\nctypes.CDLL(path)",
    "ffi.dlopen('libz.so')", "from numba import njit\n@njit\ndef f(a): pass",
    "import taichi as ti\nti.init(arch=ti.cpu)", "__import__('json')",
    "import importlib\nimportlib.import_module('re')",
])  # fmt: skip
def test_what_is_like_them_has_none(text):
    assert codes(text) == []


def test_a_triton_kernel_that_is_made_by_a_call_is_named():
    assert codes("import triton\n\ndef f(a): pass\n\ng = triton.jit(f)\n") == ["TR082", "TR082a"]


def test_a_library_of_a_path_is_named_where_the_project_has_cuda_sources(tmp_path):
    (tmp_path / "a.py").write_text("import ctypes\n\nown = ctypes.CDLL(path)\nc = ctypes.CDLL('libc.so.6')\n")
    assert [each for done in port_files(find([tmp_path])) for each in done.findings] == []
    (tmp_path / "a.cu").write_text("__global__ void f() {}\n")
    lines = [(each.rule.code, each.line) for done in port_files(find([tmp_path])) for each in done.findings]
    assert sorted(lines) == [("TR086a", 3), ("TR120", 1)]


def test_scripts_that_differ_by_numbers_have_one_line_about_the_toolkit(tmp_path):
    script = 'CUDA_HOME=/usr/local/cuda-{0}\nexport FORCE_CUDA=1\nexport TORCH_CUDA_ARCH_LIST="{1}"\n'
    for name, *numbers in (("cu118", "11.8", "3.5;5.0+PTX"), ("cu121", "12.1", "5.0"), ("cu126", "12.6", "5.0;9.0")):
        (tmp_path / f"{name}.sh").write_text(script.format(*numbers))
    (tmp_path / "other.sh").write_text("export FORCE_CUDA=1\n")
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "cu118.sh").write_text(script.format("11.8", "5.0"))  # of another folder
    lines = {
        each.path.removeprefix(f"{tmp_path}/"): finding.said
        for each in port_files(find([tmp_path]))
        for finding in each.findings
        if finding.rule.code == "TR108c"
    }
    assert set(lines) == {"cu118.sh", "other.sh", "nested/cu118.sh"}
    assert lines["cu118.sh"].endswith("also in cu121.sh, cu126.sh, which differ by numbers alone")
    assert "also in" not in lines["other.sh"]
