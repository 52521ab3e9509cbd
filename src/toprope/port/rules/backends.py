"""Rules TR074 to TR076, TR087, TR088 and TR098 to TR100: switches of backends, compilers, dtypes and layouts.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
"""

from __future__ import annotations

import ast
import re

from toprope.port.analysis.tensor_facts import dtype_of, on_host
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import last_name
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "backends", "Switches of backends, compilers, dtypes",
    words=[b"cudnn", b"backends.cuda", b"torch.compile", b"jit.script", b"jit.load", b"float64", b"double", b"complex",
           b"polar", b"channels_last", b"fused"],
)  # fmt: skip

TF32 = FAMILY.rule(
    "TR075",
    Kind.REVIEW,
    "allow_tf32: left as it is",
    why="""It is about NVIDIA's tensor cores and does no harm elsewhere. torch.set_float32_matmul_precision says the
    same for every device.""",
    source="PyTorch's notes on CUDA",
    once=True,
    examples=[
        Example(
            """
            import torch

            torch.backends.cuda.matmul.allow_tf32 = True
            """
        ),
    ],
)


@FAMILY.reference("torch.backends.cuda.matmul.*", "torch.backends.cudnn.allow_tf32", "torch.backends.cudnn.conv.*")
def _tf32(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute) or file.by_star(node):  # a name that keeps the old value says nothing new
        file.report(TF32, node)
    return True


ATTENTION = FAMILY.rule(
    "TR076",
    Kind.REVIEW,
    "torch.backends.cuda.sdp_kernel(...), enable_flash_sdp(...): they choose among CUDA's kernels alone",
    why="""They choose among CUDA's ways to compute attention. Elsewhere enable_... does no harm; sdp_kernel is
    deprecated: torch.nn.attention.sdpa_kernel([SDPBackend.MATH, ...]) is its heir, for every device that has one.""",
    source="torch.nn.attention",
    examples=[
        Example(
            """
            import torch

            with torch.backends.cuda.sdp_kernel(enable_math=False):
                attend()
            """
        ),
        Example(
            """
            import torch

            torch.backends.cuda.enable_flash_sdp(False)
            """
        ),
    ],
)


@FAMILY.reference("torch.backends.cuda.*")
def _attention(file: File, node: ast.expr) -> bool:
    name = file.dotted(node) or ""
    if "sdp" not in name:
        return False
    file.report(ATTENTION, node)
    return True


OTHER = FAMILY.rule(
    "TR076a",
    Kind.NOT_CONVERTIBLE,
    "torch.backends.cuda..., torch.backends.cudnn...: CUDA's own",
    why="""Whatever is asked or set here belongs to CUDA's libraries.""",
    source="torch/backends/cuda",
    examples=[
        Example(
            """
            import torch

            built = torch.backends.cuda.is_built()
            """
        ),
    ],
)


@FAMILY.reference("torch.backends.cuda.*", "torch.backends.cudnn.flags", "torch.backends.cudnn.is_available")
def _other(file: File, node: ast.expr) -> bool:
    file.report(OTHER, node)
    return True


COMPILE = FAMILY.rule(
    "TR087",
    Kind.REVIEW,
    'torch.compile(mode="max-autotune"), mode="reduce-overhead", backend="cudagraphs": CUDA\'s own ways to compile',
    why="""These ask for Triton's tuning or CUDA's graphs. Another device compiles with its own backend (torchair for
    NPUs), or not at all.""",
    source="torch.compile; torch_npu's documentation",
    examples=[
        Example(
            """
            import torch

            model = torch.compile(model, mode="reduce-overhead")
            """
        ),
        Example(
            """
            import torch

            model = torch.compile(model)
            """,
            reported=False,
        ),
    ],
)
_TUNES = "Triton's tuning and CUDA's graphs: give the mode on CUDA alone, and no mode to other devices"
_OF_CUDA = "is a backend for CUDA alone: leave it out on other devices, or give theirs (torchair for NPUs)"
_ASKED = {
    "max-autotune": f'"max-autotune" asks for {_TUNES}', "reduce-overhead": f'"reduce-overhead" asks for {_TUNES}',
    "max-autotune-no-cudagraphs": '"max-autotune-no-cudagraphs" asks for Triton\'s tuning: give it on CUDA alone',
    "cudagraphs": f'"cudagraphs" {_OF_CUDA}', "tensorrt": f'"tensorrt" {_OF_CUDA}',
    "inductor": '"inductor" compiles for CUDA and the CPU: NPUs have a backend of their own (torchair)',
}  # fmt: skip


@FAMILY.call("torch.compile")
def _compile(file: File, node: ast.Call) -> bool:
    for name in ("mode", "backend"):
        value = file.argument(node, None, name)
        if isinstance(value, ast.Constant) and value.value in _ASKED:
            file.report(COMPILE, value, _ASKED[value.value])
    return False


SCRIPT = FAMILY.rule(
    "TR088",
    Kind.REVIEW,
    "torch.jit.script, torch.jit.trace: left; a device in the code is frozen in what it makes",
    why="""A program that was traced on one device names it. TorchScript is kept by torch and gets no new features.""",
    source="PyTorch's documentation of TorchScript",
    examples=[
        Example(
            """
            import torch

            scripted = torch.jit.trace(model, torch.zeros(1, device="cuda"))
            """,
            """
            import torch
            from toprope.device import portable

            scripted = torch.jit.trace(model, torch.zeros(1, device=portable.device()))
            """,
        ),
        Example(
            """
            import torch

            scripted = torch.jit.script(model)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("torch.jit.trace", "torch.jit.script")
def _script(file: File, node: ast.Call) -> bool:
    texts = [each.value for each in nodes_of(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if any(each.partition(":")[0] == "cuda" for each in texts):
        file.report(SCRIPT, node.func)
    return False


LOADED = FAMILY.rule(
    "TR088a",
    Kind.REVIEW,
    "torch.jit.load(path): give map_location",
    why="""A program that was saved on CUDA is put there again, and torch.jit.load takes no function as map_location,
    which could leave other programs where they were. Devices that were traced into the program stay CUDA's: save it
    again on the other card.""",
    source="PyTorch's documentation of torch.jit.load",
    examples=[
        Example("import torch\n\nmodel = torch.jit.load(path)"),
        Example("import torch\n\nmodel = torch.jit.load(path, map_location='cpu')", reported=False),
    ],
)


@FAMILY.call("torch.jit.load")
def _loaded(file: File, node: ast.Call) -> bool:
    if file.argument(node, 1, "map_location") is None and not any(each.arg is None for each in node.keywords):
        file.report(LOADED, node, "give it map_location=portable.device() where it was saved on CUDA")
    return False


DTYPE = FAMILY.rule(
    "TR098",
    Kind.REVIEW,
    "float64, complex64, torch.polar, view_as_complex: dtypes that not every card computes in",
    hint=True,
    why="""Many kernels of NPUs have no float64 and no complex numbers (EZ1001); rotary embeddings that multiply complex
    numbers are the usual place. float32, or pairs of real numbers, work everywhere, with other rounding. A tensor that
    is made on the host and is not seen to be moved is not reported, nor is a comparison with such a dtype.""",
    source="the vendor's tables of operators: toprope explain refusals",
    examples=[
        Example(
            """
            import torch

            frequencies = torch.polar(torch.ones_like(angles), angles)
            """
        ),
        Example(
            """
            import torch

            angles = torch.arange(8, dtype=torch.float64)
            angles = angles.to(device)
            """
        ),
        Example("import torch\n\nx = x.to(torch.float64)"),
        Example(
            "import torch\n\ndef rates(steps):\n    return torch.linspace(0, 1, steps, dtype=torch.float64)",
            reported=False,
        ),
        Example("import torch\n\nx = y.cpu().to(dtype=torch.float64)", reported=False),
        Example("import torch\n\nif x.dtype == torch.float64:\n    x = x.float()", reported=False),
        Example(
            """
            import numpy as np

            angles = np.arange(8, dtype=np.float64)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.reference(
    "torch.float64", "torch.double", "torch.complex64", "torch.complex128", "torch.cfloat", "torch.cdouble",
    "torch.polar", "torch.view_as_complex", "torch.complex",
)  # fmt: skip
def _dtype(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    if not isinstance(around, ast.Compare) and not file.calls_runtime(around, "reduced_dtype"):
        made = file.parent(around) if isinstance(around, ast.keyword) else around
        if not (isinstance(made, ast.Call) and node is not made.func and _stays_on_host(file, made)):
            file.report(DTYPE, node)
    return True


_KEEPS = (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.IfExp, ast.Starred)


def _stays_on_host(file: File, made: ast.Call) -> bool:
    """Return whether the text says that a tensor is made on the host, and does not say that it leaves it."""
    if _is_script_for_host(file):
        return True
    if not on_host(file, made) or {"set_default_device", "set_default_tensor_type"} & _attributes(file):
        return False
    return not _leaves(file, made, set())


def _leaves(file: File, node: ast.expr, seen: set[ast.AST]) -> bool:
    """Return whether a value, or what is computed of it, is moved or becomes a buffer or parameter of a module."""
    inner, around = node, file.parent(node)
    while isinstance(around, (*_KEEPS, ast.Attribute, ast.Call, ast.keyword)):
        if isinstance(around, ast.Call):
            name = getattr(around.func, "attr", "") or getattr(around.func, "id", "")
            if name in ("cuda", "npu", "to") and around.func is inner:
                return dtype_of(file, around) in ("float64", "complex64", "complex128", None)
            if name in ("register_buffer", "Parameter"):
                return True
        inner, around = around, file.parent(around)  # type: ignore[assignment]
    if not isinstance(around, ast.Assign) or around in seen:
        return False
    seen.add(around)
    reads: list[ast.expr] = []
    for target in around.targets:
        if isinstance(target, ast.Name):
            reads += [read for read in file.reads(target.id, around) if read.lineno > around.lineno]
        elif isinstance(target, ast.Attribute):
            same = (each for each in file.walk.scopes if isinstance(each, ast.Attribute) and each.attr == target.attr)
            reads += [each for each in same if isinstance(each.ctx, ast.Load)]
    return any(_leaves(file, read, seen) for read in reads)


def _attributes(file: File) -> set[str]:
    return {each.attr for each in file.walk.scopes if isinstance(each, ast.Attribute)}


def _is_script_for_host(file: File) -> bool:
    """Return whether a file is a program of its own that names no device but the CPU: to convert checkpoints, say."""
    return "__main__" in file.source.text and not _CARD.search(file.source.text)


_CARD = re.compile(r"cuda|npu\b|device|gpu|accelerat|distributed", re.IGNORECASE)

LAYOUT = FAMILY.rule(
    "TR099",
    Kind.REVIEW,
    "x.to(memory_format=torch.channels_last): a format that NPUs refuse",
    hint=True,
    why="""torch_npu has torch's contiguous format alone: `to`, `contiguous` and `empty` raise ERR01007 ("Only
    contiguous_format or preserve_format is supported") for a tensor of the card or one that goes there, and so does
    `to` of a module whose weights are there. `clone` and `empty_like` take the format and make contiguous tensors. NPUs
    choose formats of their own, so that nothing is lost: leave memory_format out where the device is an NPU. What is
    seen to stay on the host, and the question is_contiguous, are not reported.""",
    source="torch_npu: ToKernelNpu.cpp, TensorFactories.cpp; tried on the simulated card",
    examples=[
        Example(
            """
            import torch

            model = model.to(memory_format=torch.channels_last)
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            """
        ),
        Example("import torch\n\nx = x.clone(memory_format=torch.channels_last)"),
        Example(
            """
            import torch

            x = torch.from_numpy(picture).to(memory_format=torch.channels_last)
            known = x.is_contiguous(memory_format=torch.channels_last)
            """,
            reported=False,
        ),
    ],
)
_REFUSES = "an NPU refuses it with ERR01007: leave memory_format out where the device is an NPU"
_PASSES_OVER = "an NPU makes a contiguous tensor: what asks for the format afterwards gets another answer"


@FAMILY.reference("torch.channels_last", "torch.channels_last_3d")
def _layout(file: File, node: ast.expr) -> bool:
    call = next((each for each in file.ancestors(node) if isinstance(each, ast.Call | ast.stmt)), None)
    name = last_name(call.func) if isinstance(call, ast.Call) else ""
    if name == "is_contiguous":
        return True
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and on_host(file, call.func.value):
        moved = name != "contiguous" and (call.args or file.keyword(call, "device") is not None)
        if name in ("to", "contiguous") and not moved:
            return True
    file.report(LAYOUT, node, _PASSES_OVER if name == "clone" or name.endswith("_like") else _REFUSES)
    return True


FUSED = FAMILY.rule(
    "TR100",
    Kind.REVIEW,
    "torch.optim.AdamW(fused=True): not every device has the fused kernel",
    hint=True,
    why="""torch raises where the parameters' device has none. The results differ in the last digits.""",
    source="torch.optim; torch_npu has optimizers of its own (NpuFusedAdamW)",
    examples=[
        Example(
            """
            import torch

            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            """
        ),
        Example("cook(fused=True)", reported=False),
    ],
)


@FAMILY.keyword("fused")
def _fused(file: File, node: ast.keyword) -> bool:
    call = file.parent(node)
    name = file.dotted(call.func) if isinstance(call, ast.Call) else None
    if (name or "").startswith("torch.optim.") and isinstance(node.value, ast.Constant) and node.value.value is True:
        file.report(FUSED, node.value)
    return False
