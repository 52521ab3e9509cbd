"""Rules TR001, TR022 to TR029, TR039 to TR043 and TR045: questions about devices, and which one is current.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family, report_not_called
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("cards", "Questions about devices", words=[b"cuda"])

_P, _R, _N = Kind.PRESERVING, Kind.REVIEW, Kind.NOT_CONVERTIBLE
_DOCS = "https://docs.pytorch.org/docs/stable/cuda.html"
_RULE_0 = "tried: torch.accelerator's functions raise on a machine without one, torch.cuda's are silent"


def _one(before: str, after: str) -> Example:
    """An example of one line in a program that imports torch."""
    return Example(f"import torch\n\n{before}\n", f"import torch\nfrom toprope.device import portable\n\n{after}\n")


AVAILABLE = FAMILY.rule(
    "TR001", _P, "torch.cuda.is_available(): whether the device in use is not the CPU",
    why="""The question decides what a program runs on; asked of CUDA alone, it sends every other accelerator
    to the CPU. It is converted only together with all that it guards: where a branch keeps something of CUDA alone,
    the question and that branch stay as they are, since the other branch is right off CUDA. So they do where the branch
    imports a module that is not seen with it, starts a program, or holds nothing that is converted.""",
    source=_DOCS,
    examples=[
        _one("use = torch.cuda.is_available()", "use = portable.is_available()"),
        Example(
            """
            from torch.cuda import is_available

            use = is_available()
            """,
            """
            from toprope.device.portable import is_available

            use = is_available()
            """,
        ),
        Example(
            """
            import torch

            graph = torch.cuda.CUDAGraph() if torch.cuda.is_available() else None
            cuda = torch.cuda.is_available()
            if cuda:
                model.cuda()
                print(torch.cuda.nccl.version())
            """
        ),
        Example(
            """
            import torch

            if not torch.cuda.is_available():
                backend, graph = "gloo", None
            elif torch.version.cuda:
                graph = torch.cuda.CUDAGraph()
            else:
                torch.cuda.synchronize()
            """,
            """
            import torch
            from toprope.device import portable

            if not portable.is_available():
                backend, graph = "gloo", None
            elif torch.version.cuda:
                graph = torch.cuda.CUDAGraph()
            else:
                portable.synchronize()
            """,
        ),
        Example(
            """
            import pytest
            import torch

            @pytest.mark.skipif(not torch.cuda.is_available, reason="No CUDA device")
            def test_it():
                pass
            """
        ),
        Example(
            """
            def f(torch):
                return torch.cuda.is_available()
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
FEATURE = FAMILY.rule(
    "TR001a", _R, "torch.cuda.is_available() next to a feature of CUDA: look whether other devices have it",
    why="""Where the condition asks for flash attention, bfloat16, a compute capability or a library of CUDA, "there
    is an accelerator" may not be what is meant.""",
    source=_DOCS,
    examples=[
        _one(
            "flash = torch.cuda.is_available() and has_flash_attention",
            "flash = portable.is_available() and has_flash_attention",
        ),
    ],
)  # fmt: skip
SET = FAMILY.rule(
    "TR022", _P, "torch.cuda.set_device(i): the same for the kind of device in use",
    why="Nothing happens on the CPU, where the original fails.", source=_RULE_0,
    examples=[_one("torch.cuda.set_device(rank)", "portable.set_device(rank)")],
)  # fmt: skip
CURRENT = FAMILY.rule(
    "TR023", _P, "torch.cuda.current_device(): the same for the kind of device in use",
    why="It is 0 on the CPU; torch.cpu.current_device() would be a text.", source=_RULE_0,
    examples=[_one("index = torch.cuda.current_device()", "index = portable.current_device()")],
)  # fmt: skip
COUNT = FAMILY.rule(
    "TR024", _R, "torch.cuda.device_count(): the same for the kind of device in use",
    why="It is 0 on the CPU, as torch.cuda's is there: look whether something is divided by it.", source=_RULE_0,
    examples=[_one("world_size = torch.cuda.device_count()", "world_size = portable.device_count()")],
)  # fmt: skip
CONTEXT = FAMILY.rule(
    "TR025", _P, "with torch.cuda.device(i), device_of(x): the same for the kind of device in use",
    why="The context changes nothing on the CPU, where the original fails.", source=_RULE_0,
    examples=[
        _one("with torch.cuda.device(1), torch.cuda.device_of(x):\n    run()",
             "with portable.device_index(1), portable.device_of(x):\n    run()"),
        Example("import torch\n\ndef run(where: torch.cuda.device | None = None):\n    pass\n"),
        Example('import torch\n\ntorch.device("cpu"), torch.cuda.device("cuda"), print(torch.cuda.device(1))\n'),
    ],
)  # fmt: skip
SYNCHRONIZE = FAMILY.rule(
    "TR026", _P, "torch.cuda.synchronize(): the same for the kind of device in use",
    why="Nothing is left to wait for on the CPU, where the original fails.", source=_RULE_0,
    examples=[_one("torch.cuda.synchronize()", "portable.synchronize()")],
)  # fmt: skip
EMPTY = FAMILY.rule(
    "TR027", _P, "torch.cuda.empty_cache(): the same for the kind of device in use",
    why="torch.cuda's empties nothing on another card; torch.accelerator's raises on the CPU.", source=_RULE_0,
    examples=[
        _one("torch.cuda.empty_cache()", "portable.empty_cache()"),
        Example(
            """
            T = __import__("torch").cuda
            import torch as t
            getattr(t, "cuda").empty_cache()
            """,
            """
            T = __import__("torch").cuda
            import torch as t
            from toprope.device import portable
            portable.empty_cache()
            """,
        ),
    ],
)  # fmt: skip
COLLECT = FAMILY.rule(
    "TR028", _P, "torch.cuda.ipc_collect(): the same where the device has it",
    why="It gives back memory that other processes no longer use; it does nothing on devices without such memory.",
    source=_RULE_0, examples=[_one("torch.cuda.ipc_collect()", "portable.ipc_collect()")],
)  # fmt: skip
INIT = FAMILY.rule(
    "TR029", _R, "torch.cuda.init(), is_initialized(): the same for the kind of device in use",
    why="Devices are made ready at their first use; look whether the program needs to force or to ask it.",
    source=_RULE_0,
    examples=[_one("if not torch.cuda.is_initialized():\n    torch.cuda.init()",
                   "if not portable.is_initialized():\n    portable.init()")],
)  # fmt: skip
NAME = FAMILY.rule(
    "TR039", _P, "torch.cuda.get_device_name(): the same for the kind of device in use",
    why='It is "CPU" on the CPU, where the original fails.', source=_RULE_0,
    examples=[_one("print(torch.cuda.get_device_name(0))", "print(portable.get_device_name(0))")],
)  # fmt: skip
CAPABILITY = FAMILY.rule(
    "TR040", _R, "torch.cuda.get_device_capability(): (0, 0) on what is no GPU",
    why="""Other devices have no compute capability. (0, 0) is less than every one that a program asks for, so the path
    for older GPUs is taken; look whether the device can do what is asked about.""",
    source="torch.npu.get_device_capability returns None in torch_npu's source",
    examples=[_one("fast = torch.cuda.get_device_capability() >= (8, 0)",
                   "fast = portable.get_device_capability() >= (8, 0)")],
)  # fmt: skip
PROPERTIES = FAMILY.rule(
    "TR041", _R, "torch.cuda.get_device_properties(i): the figures that the device in use tells, else None",
    why="""Name and memory are there on every device; major, minor and multi_processor_count are None where the device
    has no such thing.""",
    source=_DOCS,
    examples=[_one("cores = torch.cuda.get_device_properties(0).multi_processor_count",
                   "cores = portable.get_device_properties(0).multi_processor_count")],
)  # fmt: skip
BFLOAT16 = FAMILY.rule(
    "TR042", _P, "torch.cuda.is_bf16_supported(): the same for the kind of device in use",
    why="It is True on the CPU, which computes in bfloat16; older versions of torch fail there.",
    source="https://github.com/karpathy/nanoGPT/issues/304",
    examples=[_one("half = torch.cuda.is_bf16_supported()", "half = portable.is_bf16_supported()")],
)  # fmt: skip
CUDA_ONLY = FAMILY.rule(
    "TR043", _N, "torch.cuda.get_arch_list(), cudart(), current_blas_handle(), can_device_access_peer()",
    why="These ask CUDA itself. Keep them behind a condition on CUDA, or leave them out.", source=_DOCS,
    examples=[Example("import torch\n\nprint(torch.cuda.get_arch_list())\n")],
)  # fmt: skip
VERSION = FAMILY.rule(
    "TR045", _R, "torch.version.cuda: None where CUDA is not in use",
    why="""A torch that was built for CUDA says so on every machine; a program that decides by it takes its CUDA path on
    another device too. At the import of a module it asks how torch was built, to compare that with an extension, say:
    there it stays, and chooses no device before the program does.""",
    source=_DOCS,
    examples=[
        _one("def show():\n    print(torch.version.cuda)", "def show():\n    print(portable.version())"),
        Example(
            """
            import torch

            if torch.version.cuda is not None and built_for != int(torch.version.cuda.split(".")[0]):
                raise RuntimeError("built for another CUDA")
            """
        ),
    ],
)  # fmt: skip

FAMILY.drop_in(SET, ["set_device"])
FAMILY.drop_in(CURRENT, ["current_device"])
FAMILY.drop_in(COUNT, ["device_count"])
FAMILY.drop_in(CONTEXT, {"torch.cuda.device": "device_index", "torch.cuda.device_of": "device_of"}, function=True)
FAMILY.drop_in(SYNCHRONIZE, ["synchronize"])
FAMILY.drop_in(EMPTY, ["empty_cache"])
FAMILY.drop_in(EMPTY, ["empty_cache"], below="torch.cuda.memory")
FAMILY.drop_in(COLLECT, ["ipc_collect"])
FAMILY.drop_in(INIT, {"torch.cuda.init": "init", "torch.cuda._lazy_init": "init"})
FAMILY.drop_in(INIT, ["is_initialized"])
FAMILY.drop_in(NAME, ["get_device_name"])
FAMILY.drop_in(CAPABILITY, ["get_device_capability"])
FAMILY.drop_in(PROPERTIES, ["get_device_properties"])
FAMILY.drop_in(BFLOAT16, ["is_bf16_supported"])

_FEATURE = re.compile(r"flash|bf16|bfloat|capability|xformers|fused|tf32|triton|apex|nccl|compile", re.IGNORECASE)


@FAMILY.reference("torch.cuda.is_available")
def _available(file: File, node: ast.expr) -> bool:
    parent = file.parent(node)
    if not (isinstance(parent, ast.Call) and parent.func is node) and file.decides(node):
        report_not_called(file, AVAILABLE, node)
    elif isinstance(node, ast.Attribute) or file.by_star(node):
        around: ast.AST = node
        for each in file.ancestors(node):
            if isinstance(each, ast.stmt | ast.IfExp | ast.arguments | ast.comprehension):
                break
            around = each
        rule = FEATURE if _FEATURE.search(file.text(around)) else AVAILABLE
        file.report(rule, node, edits=file.replace(node, file.portable("is_available")))
    return True


FAMILY.drop_ins["torch.cuda.is_available"] = (AVAILABLE, "is_available")


@FAMILY.reference(
    *(f"torch.cuda.{name}" for name in (
        "get_arch_list", "get_gencode_flags", "cudart", "current_blas_handle", "can_device_access_peer", "check_error",
        "get_sync_debug_mode", "set_sync_debug_mode", "cudaStatus", "CudaError", "memory_usage", "clock_rate",
    ))
)  # fmt: skip
def _cuda_only(file: File, node: ast.expr) -> bool:
    file.report(CUDA_ONLY, node)
    return True


@FAMILY.reference("torch.version.cuda")
def _version(file: File, node: ast.expr) -> bool:
    if file.at_import(node) and not _in_main(file, node):
        file.report(VERSION, node, held_back="at the import it asks how torch was built")
    elif isinstance(node, ast.Attribute) or file.by_star(node):
        file.report(VERSION, node, edits=file.replace(node, f"{file.portable('version')}()"))
    else:
        file.report(VERSION, node, held_back="the name is imported from torch.version")
    return True


def _in_main(file: File, node: ast.expr) -> bool:
    """Return whether it is inside `if __name__ == "__main__":`."""
    around = [each for each in file.ancestors(node) if isinstance(each, ast.If)]
    return bool(around) and "__name__" in file.text(around[-1].test)
