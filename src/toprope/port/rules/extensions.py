"""Compiled extensions and Triton kernels: modules that a compiler for CUDA made, and kernels in Python.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of
from toprope.support.replacements import for_kernels, for_module

__all__ = ["FAMILY"]

FAMILY = Family(
    "extensions", "Compiled extensions and Triton kernels",
    words=[b"_cuda", b"cuda_", b"CUDA", b"MultiScaleDeformable", b"import _C", b"_ext", b"triton", b"vllm", b"mmcv",
           b"spconv", b"torch_scatter", b"pointnet2", b"sgl_kernel", b"deep_ep", b"grouped_gemm", b"rotary_emb",
           b"torchsparse", b"MinkowskiEngine", b"load_in_8bit", b"load_in_4bit", b"diff_gaussian_rasterization",
           b"simple_knn", b"raster", b"raymarching", b"DCN", b"cudnn", b"cublas", b"cusparse", b"cufft", b"nvrtc",
           b"8bit", b"paged_", b"_bnb_", b"apex_fused", b"rmsprop_32bit",
           b"torch.ops", b"from torch import ops", b"load_library", b"CDLL", b"LoadLibrary", b"PyDLL", b"dlopen",
           b"torch.library"],
)  # fmt: skip

IMPORTED = FAMILY.rule(
    "TR121",
    Kind.NOT_CONVERTIBLE,
    "import my_ops_cuda, import MultiScaleDeformableAttention: a module that was compiled for CUDA",
    why="""The module is built by the project's setup.py, or lies next to it as a binary file, or its name says that it
    is for CUDA. Nothing of it runs elsewhere, and the import fails without its build. The line names what is known
    to replace it; else put the import into a try, and keep a version in torch for the other devices: many projects have
    one in their tests. Ignore it where the module is built for other devices as well.""",
    source="torch.utils.cpp_extension; toprope's replacements.toml",
    once=True,
    examples=[
        Example("import my_ops_cuda"),
        Example("import MultiScaleDeformableAttention as MSDA"),
        Example("from groundingdino import _C"),
        Example("import fastcudnnlib"),
        Example("from raymarchingcuda.ops import march"),
        Example("from diff_surfel_rasterization import GaussianRasterizer"),
        Example('import importlib\n\nops = importlib.import_module("my_ops_cuda")\n'),
        Example("from ._ext import dcn_v2"),
        Example("from utils.cuda_tools import timer", reported=False),
        Example("from rasterio import open as open_raster", reported=False),
        Example("from torch import cuda", reported=False),
        Example("import importlib\n\nkernel = importlib.import_module('attn_core_inplace_cuda')"),
    ],
)
PLUGIN = FAMILY.rule(
    "TR121a",
    Kind.REVIEW,
    "import vllm, mmcv.ops, torch_scatter: packages with another build, plug-in or replacement for NPUs",
    why="""What is installed by default is compiled for CUDA. The line says which package, build or operator is known to
    take its place on NPUs; the program itself may stay as it is. Not each of their operators is there.""",
    source="the packages' and the vendor's documentation, row by row: replacements.toml",
    examples=[
        Example("import vllm"),
        Example("from mmcv.ops import nms"),
        Example("from mmcv import Config", reported=False),
    ],
)
KERNEL = FAMILY.rule(
    "TR082a",
    Kind.NOT_CONVERTIBLE,
    "@triton.jit: a kernel in Triton's language",
    why="""triton-ascend compiles such kernels for NPUs; its tile sizes, atomics and memory differ, so that each kernel
    has to be tried and tuned there. Keep a version in torch as well, for devices without Triton.""",
    source="https://github.com/triton-lang/triton-ascend",
    examples=[
        Example(
            """
            import triton

            @triton.jit
            def add_kernel(x_ptr):
                pass
            """
        ),
    ],
)
QUANTISED = FAMILY.rule(
    "TR081a",
    Kind.NOT_CONVERTIBLE,
    "from_pretrained(load_in_8bit=True), BnbQuantizationConfig(load_in_4bit=True): weights for bitsandbytes",
    why="""transformers, diffusers and accelerate load such weights through bitsandbytes, whose kernels are for CUDA.
    Load them unquantised where they fit, or with torchao; the line names what is known to replace the
    package.""",
    source="transformers' documentation of quantisation",
    once=True,
    examples=[
        Example("model = AutoModel.from_pretrained(name, load_in_8bit=True)"),
        Example("config = BitsAndBytesConfig(load_in_4bit=args.small)"),
        Example("config = BnbQuantizationConfig(load_in_4bit=True)"),
        Example("model = AutoModel.from_pretrained(name, load_in_8bit=False)", reported=False),
    ],
)
OPTIMIZER = FAMILY.rule(
    "TR081b",
    Kind.NOT_CONVERTIBLE,
    'optim="adamw_bnb_8bit", optim="adamw_apex_fused": an optimizer of a package for CUDA',
    why="""transformers makes such an optimizer from bitsandbytes or apex, and raises where the package is missing.
    "adamw_torch" is on every device, "adamw_torch_npu_fused" is torch_npu's own.""",
    source="transformers.training_args.OptimizerNames",
    examples=[
        Example('args = TrainingArguments(optim="adamw_bnb_8bit")'),
        Example('args = TrainingArguments(optim="paged_adamw_32bit" if small else "adamw_torch")'),
        Example('args = TrainingArguments(optim="adamw_torch")', reported=False),
    ],
)
_OPTIMIZERS = re.compile(r"paged_\w+|\w+_(?:bnb_)?8bit|\w*_bnb_\w+|adamw_apex_fused|rmsprop_32bit|\w+_8bit\w*")


@FAMILY.keyword("optim", "optimizer", "optim_type")
def _optimizer(file: File, node: ast.keyword) -> bool:
    for each in nodes_of(node.value):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and _OPTIMIZERS.fullmatch(each.value):
            file.report(OPTIMIZER, each)
    return False


_NAME = re.compile(
    r"(?:.+_)?cuda(?:_(?:ext|extension|kernels?|ops|lib|module|backend))?|.+_gpu_ext|.*CUDA.*", re.DOTALL
)
_EXTENSION = re.compile(r"_C|.+_ext|_ext")
_RASTERIZER = re.compile(r"diff_\w*raster\w*|\w+_rasteriz(?:ation|er)|\w*raymarching|\w*gaussian_?raster\w*")
"""Kernels of renderers, which exist for CUDA alone, by names that they have in many forks."""
_KNOWN_BINARY = {"MultiScaleDeformableAttention", "MultiScaleDeformableAttn", "diff_gaussian_rasterization",
                 "simple_knn", "DCN", "gsplat", "fused_ssim"}  # fmt: skip
_PLUGINS = {"vllm", "torch_scatter", "spconv", "torchsparse", "MinkowskiEngine", "sgl_kernel", "deep_ep",
            "pointnet2_ops", "grouped_gemm", "rotary_emb", "torch_sparse", "torch_cluster", "torch_spline_conv",
            "pyg_lib", "cumm", "dgl", "natten", "lietorch", "warpctc_pytorch", "warprnnt_pytorch",
            "warp_rnnt"}  # fmt: skip
FAMILY.words += tuple(name.encode() for name in (*_KNOWN_BINARY, *_PLUGINS))
_SAYS_CUDA = re.compile(r".*(?:cuda|cudnn|cublas|cusparse|cufft|nvrtc).*", re.IGNORECASE)
"""Names of packages that say what they are for; a module inside another package may be about CUDA in another way."""
_OTHERS = {"torch", "numba", "cuda", "cupy", "triton", "pycuda", "tensorflow", "jax", "torchvision", "torchaudio",
           "tinycudann"}  # fmt: skip
"""Packages that say something of CUDA, or have modules of such names, and that other rules look at."""


@FAMILY.node(ast.Import, ast.ImportFrom)
def _imported(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    relative = isinstance(node, ast.ImportFrom) and node.level > 0
    for each in node.names:
        full = f"{module}.{each.name}" if module else each.name
        top = full.partition(".")[0]
        if top in _OTHERS and not relative:
            return False
        own = relative or _own(file, module.partition(".")[0])
        binary = _binary(file, module, each.name, from_import=isinstance(node, ast.ImportFrom), own=own)
        if not binary and not relative and _SAYS_CUDA.fullmatch(top) and not _own(file, top):
            binary = top
        if binary:
            _report(file, node, binary)
            return False
        if not relative and (top in _PLUGINS or full.startswith(("mmcv.ops", "mmcv._ext"))) and not _own(file, top):
            found = for_module(full)
            known = found.text if found is not None else "what is installed by default is compiled for CUDA"
            file.report(PLUGIN, node, f"{full.partition('.')[0]}: {known}")
            return False
    return False


def _binary(file: File, module: str, name: str, *, from_import: bool, own: bool) -> str:
    """The name of the binary module that an import brings; "" where it brings none."""
    last = module.rpartition(".")[2]
    names = list(dict.fromkeys(each for each in (last, name.rpartition(".")[2], module.partition(".")[0]) if each))
    if from_import and f"{last}.{name}" in file.project.assigned:
        return ""  # a name that a file of the project gives a value: `_C = CfgNode()`
    if from_import and last == "_ext" and last not in file.project.modules:
        return name  # torch.utils.ffi and its like put what they build into a package of this name
    names = [each for each in names if each not in file.project.modules]
    for each in names:
        if each in file.context.extensions or each in _KNOWN_BINARY or _RASTERIZER.fullmatch(each):
            return each
    for each in (each for each in names if each in (last, name.rpartition(".")[2])):
        # a name out of a module of the project is a function of it more often than a module of its own
        is_module = each == last or not from_import or last in ("", "ops", "src", "lib", "_C", "ext", "extensions")
        if is_module and _NAME.fullmatch(each):
            return each
        if from_import and (own or each.startswith("_")) and each == name and _EXTENSION.fullmatch(each):
            return each
    return ""


def _own(file: File, name: str) -> bool:
    return name in file.project.modules


@FAMILY.call("importlib.import_module")
def _loaded(file: File, node: ast.Call) -> bool:
    """`importlib.import_module("my_ops_cuda")`."""
    first = file.argument(node, 0, "name")
    name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    top = name.partition(".")[0]
    if top in _PLUGINS and not _own(file, top) and (found := for_module(name)) is not None:
        file.report(PLUGIN, node, f"{top}: {found.text}")
    if name and not name.startswith(".") and name.partition(".")[0] not in {*_OTHERS, *_PLUGINS}:
        module, _, last = name.rpartition(".")
        binary = _binary(file, module, last, from_import=False, own=_own(file, name.partition(".")[0]))
        if binary:
            _report(file, node, binary)
    return False


@FAMILY.node(ast.Call)
def _by_name(file: File, node: ast.Call) -> bool:
    """`__import__("triton")`."""
    if not isinstance(node.func, ast.Name) or node.func.id != "__import__" or not node.args:
        return False
    first = node.args[0]
    name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    top = name.partition(".")[0]
    if top in _OTHERS and not _own(file, top) and (found := for_module(name)) is not None:
        file.report(IMPORTED, node, f"{top} is compiled for CUDA; known to replace it: {found.text}")
    else:
        _loaded(file, node)
    return False


def _report(file: File, node: ast.stmt | ast.Call, name: str) -> None:
    """Report a module, with what replaces it by its name, by what the file uses of it, or by the project's sources.

    One module may hold all kernels of a project: what a file uses says which of them are meant.
    """
    used = " ".join(_used(file, node))
    named = for_module(name)
    found = [named] if named is not None else for_kernels(f"{name} {used}")[:2]
    if not found and len(file.context.extensions) <= 1:  # by the kernels that the project's only extension has
        rows = for_kernels(file.context.sources)
        found = rows[:1] if len(rows) == 1 or not used else []
    built = " (the project builds it)" if name in file.context.extensions else ""
    known = "; ".join(each.text for each in found)
    said = f"known to replace it: {known}" if known else "nothing is known to replace it"
    file.report(IMPORTED, node, f"{name}{built} is compiled for CUDA; {said}")


def _used(file: File, node: ast.stmt | ast.Call) -> list[str]:
    """The names that a file uses of a module that it imports: `_C.roi_align_forward`."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    reads = [file.parent(use) for each in node.names for use in file.reads(each.asname or each.name, node)]
    return list(dict.fromkeys(each.attr for each in reads if isinstance(each, ast.Attribute)))


@FAMILY.node(ast.FunctionDef)
def _kernel(file: File, node: ast.FunctionDef) -> bool:
    for each in node.decorator_list:
        if file.dotted(each.func if isinstance(each, ast.Call) else each) in ("triton.jit", "triton.runtime.jit"):
            file.report(KERNEL, each, f"the Triton kernel {node.name}: triton-ascend compiles it for NPUs, or does not")
            break
    return False


@FAMILY.call("triton.jit")
def _made(file: File, node: ast.Call) -> bool:
    """`kernel = triton.jit(function)`; a decorator has no function as its argument."""
    if node.args:
        file.report(
            KERNEL, node, f"the Triton kernel {file.text(node.args[0])}: triton-ascend compiles it, or does not"
        )
    return False


@FAMILY.keyword("load_in_8bit", "load_in_4bit")
def _quantised(file: File, node: ast.keyword) -> bool:
    if not isinstance(node.value, ast.Constant) or node.value.value:
        found = for_module("bitsandbytes")
        file.report(QUANTISED, node, f"{node.arg} needs bitsandbytes; {found.text}" if found is not None else "")
    return False


OPERATORS = FAMILY.rule(
    "TR086",
    Kind.NOT_CONVERTIBLE,
    "torch.ops.<library>...: operators of a library of its own",
    why="""What torch itself does not have was registered by an extension, mostly for CUDA. Keep a version in torch for
    devices that it has no kernel for.""",
    source="torch.library",
    once=True,
    examples=[
        Example(
            """
            import torch

            out = torch.ops.my_kernels.scan(x)
            """
        ),
        Example(
            """
            import torch

            out = torch.ops.aten.add(x, y)
            """,
            reported=False,
        ),
    ],
)
_TORCHS = ("aten", "prim", "prims", "quantized", "torch", "c10d", "c10d_functional", "_c10d_functional", "higher_order",
           "npu", "mkldnn", "inductor", "profiler", "rngprims", "sparse", "load_library", "import_module")  # fmt: skip


@FAMILY.reference("torch.ops.*")
def _operators(file: File, node: ast.expr) -> bool:
    name = (file.dotted(node) or "").split(".")
    if len(name) < 3 or name[2] in _TORCHS:
        return False
    library = ".".join(name[:3])
    file.report(OPERATORS, node, f"{library}: operators of a library of its own, which an extension registers")
    return True


LIBRARY = FAMILY.rule(
    "TR086a",
    Kind.NOT_CONVERTIBLE,
    "torch.ops.load_library, ctypes.CDLL: a library of CUDA's toolkit, or one that the project compiles",
    why="""A library of CUDA's is missing on other machines: HCCL is in NCCL's place on NPUs, and CANN's libraries in
    the place of cuBLAS and cuDNN, all with other functions. What a project compiles itself and loads by its file
    is compiled by nvcc where the project has sources in CUDA C++. torch.ops.load_library loads operators that are
    mostly for CUDA.""",
    source="torch/_ops.py; ctypes' and cffi's documentation",
    examples=[
        Example('import torch\n\ntorch.ops.load_library("build/liboperators.so")'),
        Example('import ctypes\n\nlibrary = ctypes.CDLL("libnccl.so.2")'),
        Example('import ctypes\n\nlibrary = ctypes.CDLL("libm.so.6")', reported=False),
    ],
)
_TOOLKITS = re.compile(r"cuda(?!_?is)|cudnn|cublas|cufft|curand|cusparse|cusolver|nccl|nvrtc|nvjpeg|nvshmem|nvml", re.I)
_NAMED_ELSEWHERE = re.compile(r"libcuda\.|libcudart|libnvidia-ml|libnvrtc|nvcuda\.dll")
"""Beginnings of texts that TR097 reports wherever they are."""
_SYSTEMS = re.compile(
    r"find_library|\blib(?:c|m|dl|rt|gomp|omp|iomp5|pthread|stdc\+\+|X11|GL|numa|ibverbs)\b|^None$|hip|rocm"
)


@FAMILY.call("torch.ops.load_library", "torch.classes.load_library")
def _registered(file: File, node: ast.Call) -> bool:
    file.report(LIBRARY, node, "operators of a library of its own, mostly for CUDA: nothing of it runs elsewhere")
    return False


@FAMILY.call("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary")
def _dynamic(file: File, node: ast.Call) -> bool:
    _opened(file, node)
    return False


@FAMILY.method("dlopen")
def _by_cffi(file: File, node: ast.Call) -> bool:
    _opened(file, node)
    return False


@FAMILY.call("torch.library.Library", "torch.library.impl")
def _implemented(file: File, node: ast.Call) -> bool:
    """`Library("ops", "IMPL", "CUDA")`: the dispatcher's name, which stays; NPUs have another one."""
    given = [*node.args, *(each.value for each in node.keywords)]
    if any(isinstance(each, ast.Constant) and each.value in ("CUDA", "AutogradCUDA") for each in given):
        file.report(OPERATORS, node, "operators for the dispatch key of CUDA: the key of NPUs is PrivateUse1")
    return False


def _opened(file: File, node: ast.Call) -> None:
    """Report a library of CUDA's, by what its name or what gives it says, or one of a project that has CUDA sources."""
    first = file.argument(node, 0, "name")
    if first is None:
        return
    values = [each.value for each in file.bindings(first)] if isinstance(first, ast.Name) else []
    parts = [first, *(each for each in values if each is not None)]
    texts = [each.value for part in parts for each in nodes_of(part) if isinstance(each, ast.Constant)]
    if any(isinstance(each, str) and _NAMED_ELSEWHERE.match(each) for each in texts):
        return
    said = " ".join(file.text(each) for each in parts)
    if _TOOLKITS.search(said):
        file.report(LIBRARY, node, "a library of CUDA's, or compiled for it: it is missing on other machines")
    elif file.context.sources and not any(_SYSTEMS.search(file.text(each)) for each in parts):
        file.report(LIBRARY, node, "the project has CUDA sources: a library that it compiles of them is CUDA's")
