"""Rules TR071 to TR073 and TR097: variables that CUDA reads, and NVIDIA's tools.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind, Rule
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "environment",
    "Environment and tools",
    words=[b"CUDA", b"NVIDIA_", b"nvidia", b"nvml", b"nvsmi", b"GPUtil", b"gpustat", b"cuda"],
)

MASK = FAMILY.rule(
    "TR071",
    Kind.REVIEW,
    'os.environ["CUDA_VISIBLE_DEVICES"] = x: the NPUs\' variable too',
    why="""Another card is masked by another variable (ASCEND_RT_VISIBLE_DEVICES, ZE_AFFINITY_MASK). Both are set to
    one value, which is read when the device is first used. A list of NPUs must be ascending; where the program reads
    the variable, a person should look.""",
    source="torch_npu's documentation; toprope.visible",
    examples=[
        Example(
            """
            import os

            os.environ["CUDA_VISIBLE_DEVICES"] = args.gpus
            """,
            """
            import os

            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["ASCEND_RT_VISIBLE_DEVICES"] = args.gpus
            """,
        ),
        Example(
            """
            import os

            count = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
            """
        ),
        Example(
            """
            import os

            cmd = f"OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES={gpu} python train.py -s {scene}"
            os.system(cmd)
            """
        ),
        Example('print("try it with CUDA_VISIBLE_DEVICES=0")', reported=False),
    ],
)

BLOCKING = FAMILY.rule(
    "TR072",
    Kind.REVIEW,
    'os.environ["CUDA_LAUNCH_BLOCKING"] = "1": ASCEND_LAUNCH_BLOCKING too',
    why="""It makes every launch wait, so that an error is raised where it was made.""",
    source="torch_npu's documentation",
    examples=[
        Example(
            """
            import os

            os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
            """,
            """
            import os

            os.environ["CUDA_LAUNCH_BLOCKING"] = os.environ["ASCEND_LAUNCH_BLOCKING"] = "1"
            """,
        ),
    ],
)

ALLOCATOR = FAMILY.rule(
    "TR073",
    Kind.REVIEW,
    'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = x: PYTORCH_NPU_ALLOC_CONF too',
    why="""torch_npu knows max_split_size_mb, garbage_collection_threshold and expandable_segments, and refuses
    others.""",
    source="torch_npu's documentation",
    examples=[
        Example(
            """
            import os

            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            """,
            """
            import os

            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_NPU_ALLOC_CONF"] = "expandable_segments:True"
            """,
        ),
    ],
)

OTHERS = FAMILY.rule(
    "TR072a",
    Kind.NOT_CONVERTIBLE,
    "CUDA_HOME, CUDA_DEVICE_ORDER, TORCH_CUDA_ARCH_LIST and other variables of CUDA",
    why="""They tell CUDA's compiler and runtime something that others do not ask.""",
    source="NVIDIA's documentation",
    once=True,
    examples=[
        Example(
            """
            import os

            home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
            """
        ),
        Example(
            """
            import os

            in_container = os.environ.get("NVIDIA_PRODUCT_NAME", "") == "PyTorch"
            version = os.environ.get("CUDA_VERSION", "")
            """
        ),
    ],
)

_TWINS: dict[str, tuple[Rule, str]] = {
    "CUDA_VISIBLE_DEVICES": (MASK, "ASCEND_RT_VISIBLE_DEVICES"),
    "CUDA_LAUNCH_BLOCKING": (BLOCKING, "ASCEND_LAUNCH_BLOCKING"),
    "PYTORCH_CUDA_ALLOC_CONF": (ALLOCATOR, "PYTORCH_NPU_ALLOC_CONF"),
}


_OTHER_FRAMEWORK = re.compile(rb"^\s*(?:import|from)\s+(?:tensorflow|jax)\b", re.MULTILINE)
"""Programs of TensorFlow or JAX: the variable for NPUs has no reader in them."""


@FAMILY.node(ast.Assign)
def _set(file: File, node: ast.Assign) -> bool:
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or file.dotted(target.value) != "os.environ":
            continue
        name = target.slice.value if isinstance(target.slice, ast.Constant) else None
        if not isinstance(name, str) or name not in _TWINS:
            continue
        rule, twin = _TWINS[name]
        file.done(target.slice)
        if rule is MASK and _OTHER_FRAMEWORK.search(file.source.data) and b"torch" not in file.source.data:
            continue
        if any(isinstance(each, ast.Subscript) and _is_text(each.slice, twin) for each in node.targets):
            continue
        quote = file.text(target.slice)[-1]
        twins = f"{file.text(target.value)}[{quote}{twin}{quote}]"
        held = (
            "CUDA's own value is put back here: the NPUs' variable has another one"
            if _is_put_back(file, node, name)
            else ""
        )
        edits = file.replace(target, target.value, "[", target.slice, f"] = {twins}")
        file.report(rule, target, edits=edits, held_back=held)
    return False


def _is_put_back(file: File, node: ast.Assign, name: str) -> bool:
    """Return whether the function puts the variable's own value back: no other variable may be given that."""
    scope = file.scope(node)
    sets = [
        each for each in file.walk.parents if isinstance(each, ast.Assign) and file.scope(each) is scope
        and any(isinstance(target, ast.Subscript) and _is_text(target.slice, name) for target in each.targets)
    ]  # fmt: skip
    return any(_is_of(file, each.value, name) for each in sets)


def _is_of(file: File, node: ast.expr, name: str, depth: int = 2) -> bool:
    """Return whether a value is read from a variable."""
    for each in nodes_of(node):
        if isinstance(each, ast.expr) and _is_text(each, name):
            return True
        if isinstance(each, ast.Name) and depth:
            values = [binding.value for binding in file.bindings(each)]
            if any(value is not None and _is_of(file, value, name, depth - 1) for value in values):
                return True
    return False


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


@FAMILY.string(*_TWINS)
def _read(file: File, node: ast.Constant) -> bool:
    rule, twin = _TWINS[str(node.value)]
    file.report(rule, node, f"another device has another variable: {twin} for NPUs")
    return True


_UNREAD = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
"""Variables that nothing reads elsewhere: a write does no harm."""
_MASKED = re.compile(r"\bCUDA_VISIBLE_DEVICES=")
_SHOWN = {"print", "debug", "info", "warning", "warn", "error", "log", "write", "add_argument", "echo", "fail", "skip"}


@FAMILY.node(ast.Constant)
def _in_command(file: File, node: ast.Constant) -> bool:
    """A command in a text, also in a part of an f-string: the first of a file, since the others are its like."""
    if not isinstance(node.value, str) or not _MASKED.search(node.value):
        return False
    around = file.parent(node)
    text = around if isinstance(around, ast.JoinedStr) else node
    if "ASCEND_RT_VISIBLE_DEVICES" in file.text(text):
        return False
    if any(_TWINS["CUDA_VISIBLE_DEVICES"][0] is each.rule and each.message == _COMMAND for each in file.findings):
        return True
    if not isinstance(file.parent(text), ast.Expr) and not _is_for_a_reader(file, text):
        file.report(MASK, text, _COMMAND)
    return True


_COMMAND = "a command sets CUDA_VISIBLE_DEVICES: it masks no NPU; set ASCEND_RT_VISIBLE_DEVICES to the same as well"


def _is_for_a_reader(file: File, node: ast.AST) -> bool:
    """Return whether a text is printed, an error's, or help of an option."""
    for around in file.ancestors(node):
        if isinstance(around, ast.Raise):
            return True
        if isinstance(around, ast.Call):
            return (getattr(around.func, "attr", "") or getattr(around.func, "id", "")) in _SHOWN
        if isinstance(around, ast.stmt):
            break
    return False


@FAMILY.string(
    "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "TORCH_CUDA_ARCH_LIST", "CUDA_CACHE_PATH", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VERSION", "CUDA_MODULE_LOADING", "NVIDIA_PRODUCT_NAME", "NVIDIA_PYTORCH_VERSION", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
def _other(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    if node.value in _UNREAD and isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Store):
        return True
    file.report(OTHERS, node)
    return True


TOOLS = FAMILY.rule(
    "TR097",
    Kind.NOT_CONVERTIBLE,
    "nvidia-smi, pynvml, GPUtil, gpustat: NVIDIA's tools",
    why="""They know NVIDIA's cards alone. `npu-smi info` is the vendor's for NPUs; portable.memory_allocated() and
    mem_get_info() ask the device in use for its memory.""",
    source="NVIDIA's and the vendor's documentation",
    examples=[
        Example(
            """
            import subprocess

            text = subprocess.check_output(["nvidia-smi", "--query-gpu=memory.used"])
            """
        ),
        Example("import pynvml"),
        Example("import ctypes\n\ndriver = ctypes.CDLL('libcuda.so')"),
    ],
)


@FAMILY.module("pynvml", "GPUtil", "gpustat", "py3nvml", "nvidia_smi", "nvsmi")
def _tool(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    file.report(TOOLS, node)
    return False


@FAMILY.string("nvidia-smi*", "libcuda.*", "libcudart*", "libnvidia-ml*", "libnvrtc*", "nvcuda.dll")
def _command(file: File, node: ast.Constant) -> bool:
    file.report(TOOLS, node)
    return True


FIGURES = FAMILY.rule(
    "TR097a",
    Kind.NOT_CONVERTIBLE,
    "torch.cuda.utilization(), temperature() and its like: what NVIDIA's library measures",
    why="""They need pynvml and an NVIDIA card. `npu-smi info` has the same figures of an NPU.""",
    source="torch/cuda/__init__.py",
    examples=[
        Example(
            """
            import torch

            print(torch.cuda.utilization())
            """
        ),
    ],
)


@FAMILY.reference(*(f"torch.cuda.{name}" for name in (
    "utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "device_memory_used",
    "list_gpu_processes",
)))  # fmt: skip
def _figure(file: File, node: ast.expr) -> bool:
    file.report(FIGURES, node)
    return True
