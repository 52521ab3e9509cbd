"""Rules TR085 and TR106b: what is compiled for CUDA, and packages for it in a setup.py.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family
from toprope.port.file import File, is_vendored_runtime
from toprope.port.files.packages import PACKAGES
from toprope.port.files.pins import old_pins
from toprope.port.files.rules import PIN
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "builds", "Extensions and packages for CUDA",
    words=[b"cpp_extension", b"create_extension", b"extra_cuda_cflags", b"nvcc", b'.cu"', b".cu'", b"install_requires",
           b"extras_require", b"cudart", b"cublas", b"cudnn", b"nccl", b"cufft", b"curand", b"cusparse", b"cusolver",
           b"CUDA=ON", b"-DCMAKE_CUDA"],
)  # fmt: skip

EXTENSION = FAMILY.rule(
    "TR085", Kind.NOT_CONVERTIBLE, "CUDAExtension, cpp_extension.load of .cu files, nvcc: code compiled for CUDA",
    why="""Another card needs kernels of its own (Ascend C and an operator plugin for NPUs). Build it only where
    CUDA_HOME is set, and keep a version in torch for the others.""",
    source="torch.utils.cpp_extension",
    examples=[
        Example(
            """
            from torch.utils.cpp_extension import CUDAExtension

            extension = CUDAExtension("ops", ["ops.cu"])
            """
        ),
        Example(
            """
            from torch.utils.cpp_extension import load

            ops = load("ops", ["ops.cpp", "ops.cu"])
            """
        ),
        Example(
            """
            import torch
            from torch.utils.ffi import create_extension

            sources, with_cuda = ["ops.c"], False
            if torch.cuda.is_available():
                sources, with_cuda = [*sources, "ops_cuda.c"], True
            ffi = create_extension("_ext.ops", headers=[], sources=sources, with_cuda=with_cuda)
            """
        ),
        Example('plugin = get_plugin("act", sources=["act.cpp", "act.cu"], extra_cuda_cflags=["--use_fast_math"])'),
        Example(
            """
            import subprocess

            print(subprocess.check_output([home + "/bin/nvcc", "-V"]))
            """
        ),
        Example('import os\n\nos.system(f"{home}/bin/nvcc -shared -o libops.so ops.cu")'),
        Example('from setuptools import Extension\n\nops = Extension("ops", ["ops.cpp"], libraries=["cudart"])'),
        Example('from setuptools import Extension\n\nops = Extension("o", ["o.cpp"], libraries=["z"])', reported=False),
        Example(
            """
            from torch.utils.cpp_extension import load

            ops = load("ops", ["ops.cpp"])
            print("nvcc was not found")
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
PACKAGE = FAMILY.rule(
    "TR106b", Kind.REVIEW,
    "triton, flash-attn, nvidia-*-cu12 in a setup.py: an extra is a place for what is for CUDA alone",
    why="""They cannot be installed, or do nothing, on a machine without CUDA. Put them into an extra of their own
    ("cuda"), so that the others' installation does not fail.""",
    source="the packages' pages on PyPI",
    examples=[
        Example(
            """
            from setuptools import setup

            setup(name="ops", install_requires=["torch", "triton>=3.0"])
            """
        ),
        Example(
            """
            from setuptools import setup

            setup(name="ops", install_requires=["torch"], keywords=["triton"])
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
_PACKAGES = re.compile(rf"(?:{PACKAGES}|nvidia-[a-z0-9-]+)\s*(?:[<>=!~;@\[].*)?", re.I | re.X)


@FAMILY.call("torch.utils.cpp_extension.CUDAExtension")
def _called(file: File, node: ast.Call) -> bool:
    file.report(EXTENSION, node)
    file.done(node.func)
    return False


@FAMILY.call("torch.utils.ffi.create_extension")
def _created(file: File, node: ast.Call) -> bool:
    file.report(EXTENSION, node, "torch.utils.ffi went with torch 1.0: no newer torch builds this extension")
    return False


@FAMILY.reference("torch.utils.cpp_extension.CUDAExtension", "torch.utils.cpp_extension.CUDA_HOME")
def _extension(file: File, node: ast.expr) -> bool:
    file.report(EXTENSION, node)
    return True


@FAMILY.call("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")
def _load(file: File, node: ast.Call) -> bool:
    if any((each.arg or "").startswith("cuda_") or each.arg == "with_cuda" for each in node.keywords) or any(
        _has_source(file, each) for each in (*node.args, *node.keywords)
    ):
        file.report(EXTENSION, node)
    return False


def _has_source(file: File, node: ast.AST) -> bool:
    """Return whether a value names a source in CUDA C++, itself or by a name that is given one in the file."""
    parts = list(nodes_of(node))
    parts += [
        inner
        for each in parts
        if isinstance(each, ast.Name)
        for binding in file.bindings(each)
        if binding.value is not None
        for inner in nodes_of(binding.value)
    ]
    return any(isinstance(each, ast.Constant) and str(each.value).endswith((".cu", ".c*")) for each in parts)


@FAMILY.string("CUDAExtension")
def _by_name(file: File, node: ast.Constant) -> bool:
    """`getattr(cpp_extension, kind)` of a name that is chosen."""
    is_seen = any(each.rule is EXTENSION and each.line <= node.lineno <= each.end_line for each in file.findings)
    if b"cpp_extension" in file.source.data and not is_seen:
        file.report(EXTENSION, node)
    return False


@FAMILY.string("-DUSE_CUDA=ON", "-DWITH_CUDA=ON", "-DENABLE_CUDA=ON", "-DCMAKE_CUDA_*")
def _option(file: File, node: ast.Constant) -> bool:
    """Arguments of CMake in a setup.py; one line a file."""
    if not any(each.rule is EXTENSION for each in file.findings):
        file.report(EXTENSION, node)
    return False


@FAMILY.keyword("sources")
def _sources(file: File, node: ast.keyword) -> bool:
    if _has_source(file, node.value):
        _report_once(file, node)
    return False


@FAMILY.call("setuptools.Extension", "distutils.core.Extension", "distutils.extension.Extension")
def _plain(file: File, node: ast.Call) -> bool:
    """`Extension("gpu_nms", ["nms_kernel.cu", "gpu_nms.pyx"])`: a compiler that the setup.py changes takes nvcc."""
    sources = node.args[1] if len(node.args) > 1 else None
    if sources is not None and any(
        isinstance(each, ast.Constant) and str(each.value).endswith(".cu") for each in nodes_of(sources)
    ):
        file.report(EXTENSION, node)
    return False


_LIBRARIES = re.compile(r"(?:cudart(?:_static)?|cublas(?:Lt)?|cudnn|nccl|cufft|curand|cusparse|cusolver|nvrtc)")


@FAMILY.keyword("libraries")
def _libraries(file: File, node: ast.keyword) -> bool:
    if any(isinstance(each, ast.Constant) and _LIBRARIES.fullmatch(str(each.value)) for each in nodes_of(node.value)):
        _report_once(file, node)
    return False


_RUNS_COMPILER = re.compile(r"(?:^|[/;&]\s*)nvcc\s")


@FAMILY.call(
    "os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "subprocess.Popen", "subprocess.getoutput", "subprocess.getstatusoutput",
)  # fmt: skip
def _command(file: File, node: ast.Call) -> bool:
    """`os.system("nvcc -shared ...")`; a list that begins with "nvcc" is found by its text."""
    texts = [each.value for part in node.args[:1] for each in nodes_of(part) if isinstance(each, ast.Constant)]
    if any(isinstance(each, str) and _RUNS_COMPILER.search(each) for each in texts):
        file.report(EXTENSION, node)
    return False


@FAMILY.keyword("extra_cuda_cflags")
def _flags(file: File, node: ast.keyword) -> bool:
    _report_once(file, node)
    return False


def _report_once(file: File, node: ast.keyword) -> None:
    """The call around a keyword, unless it is reported already."""
    call = file.parent(node)
    line = call.lineno if isinstance(call, ast.Call) else 0
    if isinstance(call, ast.Call) and not any(
        each.rule is EXTENSION and each.line <= line <= each.end_line for each in file.findings
    ):
        file.report(EXTENSION, call)


@FAMILY.string("nvcc", "/bin/nvcc", "bin/nvcc")
def _compiler(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    reported = any(
        each.rule is EXTENSION and each.line <= node.lineno <= each.end_line and each.before != file.text(node)
        for each in file.findings
    )  # the extension itself, whose flags these are
    is_key = (isinstance(around, ast.Dict) and node in around.keys) or isinstance(around, ast.Subscript)
    flags = is_key and "Extension" in file.source.text  # of the extension that is reported itself
    if not isinstance(around, ast.Expr | ast.JoinedStr) and not reported and not flags:
        file.report(EXTENSION, node)
    return True


@FAMILY.keyword("install_requires", "extras_require")
def _requires(file: File, node: ast.keyword) -> bool:
    given = [binding.value for binding in file.bindings(node.value)] if isinstance(node.value, ast.Name) else []
    vendored = is_vendored_runtime(file.runtime)
    for each in (part for value in (given or [node.value]) if value is not None for part in nodes_of(value)):
        if not isinstance(each, ast.Constant) or not isinstance(each.value, str) or file.is_done(each):
            continue
        if _PACKAGES.fullmatch(each.value):
            file.report(PACKAGE, each)
        elif next(old_pins(each.value, vendored=vendored), None):
            file.report(PIN, each)
        file.done(each)
    return False
