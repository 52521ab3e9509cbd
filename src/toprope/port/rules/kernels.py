"""Rules TR077 to TR086: packages of kernels that are written for CUDA.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen_silent.py.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind, Rule
from toprope.port.runtime.stand_ins import refused, signatures
from toprope.port.syntax.nodes import nodes_of
from toprope.support.replacements import for_kernels, for_module

__all__ = ["FAMILY"]

FAMILY = Family(
    "kernels", "Kernels for CUDA",
    words=[b"flash_attn", b"flash_attention", b"xformers", b"apex", b"amp_C", b"bitsandbytes", b"triton", b"mamba_ssm",
           b"causal_conv1d", b"selective_scan", b"cupy", b"pycuda", b"numba", b"cudf", b"cuml", b"tensorrt",
           b"deep_gemm", b"flashinfer", b"fla"],
)  # fmt: skip

FLASH = FAMILY.rule(
    "TR077",
    Kind.REVIEW,
    "from flash_attn import flash_attn_func: torch's own attention where the package is not there",
    why="""flash_attn is for NVIDIA's and AMD's cards. torch's scaled_dot_product_attention computes the same with the
    other order of dimensions, on every device; the last digits differ. window_size, softcap, alibi_slopes and
    return_attn_probs are taken with their defaults alone: other calls are class N (TR077a).""",
    source="flash_attn's interface; tried against torch's attention",
    examples=[
        Example(
            """
            from flash_attn import flash_attn_func

            y = flash_attn_func(q, k, v, causal=True, deterministic=True)
            """,
            """
            try:
                from flash_attn import flash_attn_func
            except ImportError:
                from toprope.device.portable import flash_attn_func

            y = flash_attn_func(q, k, v, causal=True, deterministic=True)
            """,
        ),
        Example(
            """
            try:
                from flash_attn import flash_attn_func
            except ImportError:
                flash_attn_func = None
            """
        ),
        Example(
            """
            try:
                try:
                    from flash_attn_interface import flash_attn_func
                except ImportError:
                    from flash_attn import flash_attn_func
            except ImportError:
                flash_attn_func = None
            """
        ),
    ],
)

FLASH_OTHER = FAMILY.rule(
    "TR077a",
    Kind.NOT_CONVERTIBLE,
    "flash_attn's functions for packed or windowed sequences, and its layers",
    why="""flash_attn_varlen_func, windows, ALiBi and the log-sum-exp that it returns have no counterpart of the same
    form in torch. NPUs have npu_fusion_attention with actual_seq_qlen, which must be called in another way.""",
    source="flash_attn's interface; torch_npu's documentation",
    examples=[
        Example("from flash_attn import flash_attn_varlen_func"),
        Example(
            """
            from flash_attn import flash_attn_func

            def attend(q, k, v):
                return flash_attn_func(q, k, v, causal=True, window_size=(128, 0))
            """
        ),
        Example("import flash_attn_interface"),
        Example("from ring_flash_attn import substitute_hf_flash_attn"),
    ],
)
_CONVERTED = {"flash_attn": "flash_attn_func", "flash_attn.flash_attn_interface": "flash_attn_func",
              "xformers.ops": "memory_efficient_attention"}  # fmt: skip


def _fall_back(file: File, node: ast.ImportFrom, name: str) -> str:
    """The import, and the runtime's function where it fails."""
    start, _ = file.source.span(node)
    line, _ = file.source.place(start)
    text = file.source.text[file.source.starts[line - 1] : start]
    if text.strip():
        return ""  # something else is on its line
    alias = node.names[0].asname
    named = f"{name} as {alias}" if alias else name
    indent = text + ("\t" if text.endswith("\t") else "    ")
    new = file.source.newline
    return new.join(
        [
            "try:",
            f"{indent}{file.text(node)}",
            f"{text}except ImportError:",
            f"{indent}from {file.runtime} import {named}",
        ]
    )


@FAMILY.module("flash_attn", "flash_attn_interface", "flash_attn_3", "flashinfer", "ring_flash_attn")
def _flash(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == ["flash_attn_func"]:
        return _convert(file, node)
    found = _replaced(node)
    file.report(FLASH_OTHER, node, f"known to replace it: {'; '.join(found)}" if found else _NO_ATTENTION)
    return False


_NO_ATTENTION = "flash_attn's own layers and losses: write them in torch, nothing is known to replace them"


def _replaced(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return replacements of an import: attention, but for another kernel of the package and its helpers."""
    names = [each.name for each in node.names]
    rows = for_kernels(" ".join(names)) if isinstance(node, ast.ImportFrom) else []
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    is_attention = "." not in module or any(_IS_ATTENTION.search(each) for each in (*names, module))
    whole = for_module("flash_attn") if not rows and is_attention else None
    return [each.text for each in (*rows, *([whole] if whole is not None else []))]


_IS_ATTENTION = re.compile(r"attn_|attention|interface|padding|mha|MHA")


def _convert(file: File, node: ast.ImportFrom) -> bool:
    name = _CONVERTED.get(node.module or "")
    rule = XFORMERS if (node.module or "").startswith("xformers") else FLASH
    if name is None or file.is_tried(node):
        file.report(rule, node, "it is guarded already" if name else "")
        return False
    uses = [(use, file.parent(use)) for use in file.reads(node.names[0].asname or name, node)]
    calls = [around for use, around in uses if isinstance(around, ast.Call) and around.func is use]
    reasons = [f"{reason} (line {each.lineno})" for each in calls if (reason := refused(name, each))]
    if reasons:
        file.report(FLASH_OTHER if rule is FLASH else XFORMERS_OTHER, node, reasons[0])
        return False
    unseen = len(calls) < len(uses) or any(keyword.arg is None for each in calls for keyword in each.keywords)
    taken = ", ".join(sorted(signatures()[name].names))
    message = f"not all of its arguments are seen here: portable.{name} takes {taken}" if unseen else ""
    text = _fall_back(file, node, name)
    file.report(rule, node, message, edits=[file.replace(node, text)] if text else [])
    return False


XFORMERS = FAMILY.rule(
    "TR079",
    Kind.REVIEW,
    "from xformers.ops import memory_efficient_attention: torch's own where the package is not there",
    why="""xformers is built for CUDA. Without biases of its own classes the function is what torch's attention
    computes. Models of diffusers use torch's attention without being asked to.""",
    source="xformers.ops.fmha",
    once=True,
    examples=[
        Example(
            """
            def attend(q, k, v):
                from xformers.ops import memory_efficient_attention
                return memory_efficient_attention(q, k, v)
            """,
            """
            def attend(q, k, v):
                try:
                    from xformers.ops import memory_efficient_attention
                except ImportError:
                    from toprope.device.portable import memory_efficient_attention
                return memory_efficient_attention(q, k, v)
            """,
        ),
        Example("import xformers.ops"),
        Example("pipe.enable_xformers_memory_efficient_attention()"),
    ],
)


XFORMERS_OTHER = FAMILY.rule(
    "TR079a",
    Kind.NOT_CONVERTIBLE,
    "other functions of xformers, and memory_efficient_attention with arguments that torch's attention does not have",
    why="""`op` names a kernel of xformers, `output_dtype` another dtype than the input's. Leave them out, or keep
    xformers where there is CUDA and write the call in torch for the others. Sparse matrices, masked_matmul and fused
    layers have no function of the runtime: write them in torch.""",
    source="xformers.ops.fmha",
    examples=[
        Example(
            """
            from xformers.ops import memory_efficient_attention

            def attend(q, k, v):
                return memory_efficient_attention(q, k, v, op=kernel)
            """
        ),
        Example("from xformers.sparse import SparseCSRTensor"),
        Example(
            """
            def product(a, b, mask):
                from xformers.ops import masked_matmul
                return masked_matmul(a, b, mask)
            """
        ),
    ],
)


@FAMILY.module("xformers")
def _xformers(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == ["memory_efficient_attention"]:
        return _convert(file, node)
    names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
    others = [name for name in names if name not in ("memory_efficient_attention", "ops")]
    if others:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        guarded = "; it is guarded already" if file.is_tried(node) else ""
        file.report(XFORMERS_OTHER, node, f"{module}{', '.join(others)} has no counterpart in the runtime{guarded}")
    if len(others) < len(names) or not names:
        said = "of its functions portable.memory_efficient_attention alone is there, through torch's attention"
        file.report(XFORMERS, node, said)
    return False


@FAMILY.method("enable_xformers_memory_efficient_attention", "set_use_memory_efficient_attention_xformers")
def _enable(file: File, node: ast.Call) -> bool:
    file.report(XFORMERS, node, "leave it out where there is no xformers: torch's attention is the default")
    return False


_PACKAGES = (
    ("TR080", "apex, amp_C: NVIDIA's extensions for training",
     """torch has what they brought: torch.autocast and GradScaler for apex.amp, torch.optim.AdamW(fused=True) for
     FusedAdam, torch.nn.LayerNorm for FusedLayerNorm, in other code and with other rounding.""",
     ("apex", "amp_C", "apex_C"), "from apex.optimizers import FusedAdam"),
    ("TR081", "bitsandbytes: kernels for 8 and 4 bits",
     """They are for CUDA; on NPUs there are none, on the CPU few. Load the weights unquantised there, or with
     torchao.""",
     ("bitsandbytes",), "import bitsandbytes as bnb"),
    ("TR082", "triton: kernels in Triton's language",
     """They are compiled for the vendor's card by a backend of its own (triton-ascend for NPUs), or not at all. Keep a
     version in torch next to them, and choose by what can be imported.""",
     ("triton",), "import triton.language as tl"),
    ("TR083", "mamba_ssm, causal_conv1d, selective_scan_cuda: state-space kernels for CUDA",
     """The packages have a slow version in torch (selective_scan_ref, causal_conv1d_ref) that runs everywhere.""",
     ("mamba_ssm", "causal_conv1d", "causal_conv1d_cuda", "selective_scan_cuda", "selective_scan", "fla"),
     "import causal_conv1d_cuda"),
    ("TR084", "cupy, pycuda, numba.cuda, RAPIDS, TensorRT, Isaac Gym: NVIDIA's libraries",
     """There is no counterpart of the same form elsewhere; what they compute can often be said in torch.""",
     ("cupy", "cupyx", "pycuda", "cudf", "cuml", "cugraph", "tensorrt", "torch_tensorrt", "torch2trt", "nvdiffrast",
      "kaolin", "deep_gemm", "transformer_engine", "pytorch3d", "cuda", "tinycudann", "nvidia",
      "rmm", "cutlass", "cuquantum", "isaacgym", "isaacgymenvs", "isaaclab", "isaacsim", "warp", "omni",
      "tutel", "fmoe", "megablocks", "ring_flash_attn"),
     "import cupy as cp"),
)  # fmt: skip


def _add(code: str, title: str, why: str, names: tuple[str, ...], example: str) -> Rule:
    rule = FAMILY.rule(
        code,
        Kind.NOT_CONVERTIBLE,
        title,
        why=why,
        source="the package's own documentation",
        examples=[Example(example)],
    )

    @FAMILY.module(*names)
    def report(file: File, node: ast.Import | ast.ImportFrom) -> bool:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        found = for_module(module)
        known = "" if found is None else found.text
        guarded = "it is guarded already" if file.is_tried(node) else ""
        file.report(rule, node, _said(module, guarded, known and f"known to replace it: {known}"))
        return False

    return rule


def _said(module: str, *facts: str) -> str:
    """Put the name of a module in front of what is known of it; "" where there is nothing."""
    known = "; ".join(each for each in facts if each)
    return f"{module}: {known}" if known else ""


_RULES = {package[0]: _add(*package) for package in _PACKAGES}
for _package in _PACKAGES:
    FAMILY.words += tuple(name.encode() for name in _package[3])  # a file may have no other word of CUDA

FAMILY.words += (b"getPlatformByName",)


@FAMILY.method("getPlatformByName")
def _platform(file: File, node: ast.Call) -> bool:
    """`openmm.Platform.getPlatformByName("CUDA" if use_gpu else "CPU")`."""
    if any(isinstance(each, ast.Constant) and each.value == "CUDA" for part in node.args for each in nodes_of(part)):
        file.report(
            _RULES["TR084"],
            node,
            'OpenMM computes by itself: no platform of it runs on NPUs; "CPU" is on every machine',
        )
    return False


ASKED = FAMILY.rule(
    "TR084b",
    Kind.REVIEW,
    'pytest.importorskip("triton"), find_spec("flash_attn"): whether a package for CUDA is there',
    why="""Where the package is missing the program goes another way, or a test is not run: see that there is one for
    every device.""",
    source="importlib; pytest",
    examples=[
        Example(
            """
            import pytest

            pytest.importorskip("triton")
            """
        ),
        Example(
            """
            from importlib.util import find_spec

            has_flash = find_spec("flash_attn") is not None
            other = find_spec("einops")
            """
        ),
    ],
)
_PACKAGE_NAMES = {name for package in _PACKAGES for name in package[3]} | {"flash_attn", "flash_attn_3", "xformers"}


@FAMILY.call(
    "pytest.importorskip", "importlib.util.find_spec", "importlib.import_module", "importlib.metadata.version",
    "importlib.metadata.distribution",
)  # fmt: skip
def _asked(file: File, node: ast.Call) -> bool:
    first = node.args[0] if node.args else None
    name = str(first.value).partition(".")[0] if isinstance(first, ast.Constant) else ""
    if name.replace("-", "_") in _PACKAGE_NAMES:
        file.report(ASKED, node)
    return False


NUMBA = FAMILY.rule(
    "TR084a",
    Kind.NOT_CONVERTIBLE,
    "numba.cuda: kernels in Python for NVIDIA's cards",
    why="""There is no counterpart for other cards. numba's other half, for the CPU, stays as it is.""",
    source="numba's documentation",
    examples=[
        Example("from numba import cuda"),
        Example("import numba as nb\n\n@nb.cuda.jit\ndef kernel(x):\n    pass\n"),
        Example("from numba import njit", reported=False),
    ],
)


@FAMILY.module("numba")
def _numba(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    names = [each.name for each in node.names]
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    if module.startswith("numba.cuda") or "cuda" in names or any(each.startswith("numba.cuda") for each in names):
        file.report(NUMBA, node)
    return False


@FAMILY.reference("numba.cuda.*")
def _numba_name(file: File, node: ast.expr) -> bool:
    """`nb.cuda.jit` behind a plain `import numba as nb`: the first of a file that no import says it in."""
    if not any(each.rule is NUMBA for each in file.findings):
        file.report(NUMBA, node)
    return False


FAMILY.words += (b"taichi",)


@FAMILY.reference("taichi.cuda")
def _taichi(file: File, node: ast.expr) -> bool:
    """`ti.init(arch=ti.cuda)`."""
    file.report(_RULES["TR084"], node, "taichi compiles by itself, and not for NPUs; ti.cpu is on every machine")
    return True
