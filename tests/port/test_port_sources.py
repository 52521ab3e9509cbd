"""CUDA and C++ sources, compiled extensions, and the table of what replaces them.

Holds `port.files.sources` and `port.rules.extensions`.
"""

import re

import pytest

from toprope.port.files import FileKind, port_text
from toprope.port.project.context import Context
from toprope.port.scan import find, port_files
from toprope.support import replacements

KERNELS = """// ms_deform_attn
#include <cuda_runtime.h>
template <typename scalar_t>
__global__ void ms_deformable_im2col_gpu_kernel(const int n) {}
__global__ void __launch_bounds__(256) other(float* x) {}
void launch() { other<<<1, 2>>>(nullptr); }
"""
BINDING = """/* at::cuda is not used in this comment */
#ifdef WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("nms_forward", &nms_forward); }
"""


def messages(folder):
    return {
        (each.path.removeprefix(f"{folder}/"), finding.rule.code, finding.line): finding.message
        for each in port_files(find([folder]))
        for finding in each.findings
    }


def test_cuda_and_cpp_sources_are_counted_and_reported_once_each(tmp_path):
    (tmp_path / "k.cu").write_text(KERNELS)
    (tmp_path / "b.cpp").write_text(BINDING)
    (tmp_path / "plain.h").write_text("int two();\n")
    (tmp_path / "a.py").write_text("print(1)\n")
    assert len(find([tmp_path])) == 4
    said = messages(tmp_path)
    assert set(said) == {("k.cu", "TR120", 2), ("b.cpp", "TR120a", 3)}
    assert "2 kernels: ms_deformable_im2col_gpu_kernel, other, 1 launch" in said["k.cu", "TR120", 2]
    assert "mx_driving.multi_scale_deformable_attn" in said["k.cu", "TR120", 2]
    assert (
        "1 line of CUDA in a C++ source: operators for Python: nms_forward, partly behind #ifdef"
        in (said["b.cpp", "TR120a", 3])
    )
    assert "torchvision_npu" in said["b.cpp", "TR120a", 3]


@pytest.mark.parametrize("comment", ["// toprope: ignore", "// toprope: ignore[TR120]"])
def test_a_comment_leaves_a_source_out(comment):
    found = port_text(f"#include <cuda.h>  {comment}\n".encode(), "a.cpp", FileKind.CPP)
    assert (list(found.findings), found.ignored) == ([], 1)


def test_a_module_that_the_project_builds_is_known_by_its_name(tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "ms_deform_attn_cuda.cu").write_text(KERNELS)
    (tmp_path / "setup.py").write_text(
        "from torch.utils.cpp_extension import CUDAExtension\n"
        'ext = CUDAExtension("pack._kernels", ["csrc/ms_deform_attn_cuda.cu"])\n'
    )
    (tmp_path / "a.py").write_text("from pack import _kernels\n")
    (tmp_path / "b.py").write_text("import my_tools_cuda\n")
    (tmp_path / "my_tools_cuda.py").write_text("def f(): pass\n")  # the project's own, in Python
    (tmp_path / "c.py").write_text("import prebuilt\n")
    (tmp_path / "prebuilt.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    said = messages(tmp_path)
    assert {key[:2] for key in said if key[0] in ("a.py", "b.py", "c.py")} == {("a.py", "TR121"), ("c.py", "TR121")}
    assert "_kernels (the project builds it) is compiled for CUDA" in said["a.py", "TR121", 1]
    files = find([tmp_path])
    assert Context.of(files).extensions == {"_kernels", "prebuilt"}
    (tmp_path / "prebuilt.cpython-311-x86_64-linux-gnu.so").unlink()
    assert "multi_scale_deformable_attn" in messages(tmp_path)["a.py", "TR121", 1]  # by its only extension's kernels


def test_packages_for_cuda_say_what_replaces_them(tmp_path):
    (tmp_path / "a.py").write_text("import bitsandbytes\nimport apex\nimport flash_attn_interface\nimport vllm\n")
    said = {key[1]: message for key, message in messages(tmp_path).items()}
    assert "bitsandbytes-npu-beta" in said["TR081"]
    assert "NpuFusedAdam" in said["TR080"]
    assert "npu_fusion_attention" in said["TR077a"]
    assert "vllm-ascend" in said["TR121a"]


def test_each_row_of_the_table_has_a_source_and_no_name_twice():
    for kind in ("modules", "kernels"):
        names = [name for row in replacements.rows() for name in getattr(row, kind)]
        assert len(names) == len(set(names))
    for row in replacements.rows():
        assert row.modules or row.kernels
        assert row.instead
        assert "https://" in row.source
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.read)
        assert all(word.removeprefix("=") == re.sub(r"[_\W]", "", word.lower()) for word in row.kernels)
    assert replacements.for_module("xformers.ops").modules == ("xformers",)
    assert replacements.for_module("spconv.utils") is not replacements.for_module("spconv.pytorch")
    assert replacements.for_module("numpy") is None
