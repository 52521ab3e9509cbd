"""Rules TR034 to TR038 and TR044: calls that read or set the memory of a card.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("memory", "Memory of the device", words=[b"cuda"])

FIGURES = FAMILY.rule(
    "TR034",
    Kind.PRESERVING,
    "torch.cuda.memory_allocated() and its like: the same question to the device in use",
    why="""torch.cuda answers for GPUs alone: with another card every figure is 0. The rewrite asks the card in use, and
    answers 0 on the CPU, as torch.cuda does where there is no GPU.""",
    source="tried: torch.cuda.memory_allocated() is 0 in a torch without CUDA, torch.accelerator's raises there",
    examples=[
        Example(
            """
            import torch

            print(torch.cuda.memory_allocated() / 2**20, torch.cuda.max_memory_allocated(0))
            """,
            """
            import torch
            from toprope.device import portable

            print(portable.memory_allocated() / 2**20, portable.max_memory_allocated(0))
            """,
        ),
        Example(
            """
            from torch import cuda as gpu

            held = gpu.memory_reserved(device=None)
            """,
            """
            from toprope.device import portable

            held = portable.memory_reserved(device=None)
            """,
        ),
    ],
)

_ROUTINES = "tried: torch.cuda.reset_peak_memory_stats raises in a torch without CUDA"


def _one(before: str, after: str) -> Example:
    """An example of one line in a program that imports torch."""
    return Example(f"import torch\n\n{before}\n", f"import torch\nfrom toprope.device import portable\n\n{after}\n")


PEAK = FAMILY.rule(
    "TR035", Kind.PRESERVING, "torch.cuda.reset_peak_memory_stats() and its like: the same for the device in use",
    why="They raise where there is no GPU; the rewrite does nothing on the CPU.", source=_ROUTINES,
    examples=[
        _one("torch.cuda.reset_peak_memory_stats()", "portable.reset_peak_memory_stats()"),
        _one("torch.cuda.reset_max_memory_allocated(0)", "portable.reset_max_memory_allocated(0)"),
    ],
)  # fmt: skip
FREE = FAMILY.rule(
    "TR036", Kind.REVIEW, "torch.cuda.mem_get_info(): the same for the device in use",
    why="""On the CPU it tells the machine's memory, which other programs and the operating system share: look what the
    program decides by it.""",
    source=_ROUTINES,
    examples=[_one("free, total = torch.cuda.mem_get_info()", "free, total = portable.mem_get_info()")],
)  # fmt: skip
SUMMARY = FAMILY.rule(
    "TR037", Kind.PRESERVING, "torch.cuda.memory_summary(): the same for the device in use",
    why="""It is an empty text on the CPU, where the original fails on the missing figures.""", source=_ROUTINES,
    examples=[_one('print(torch.cuda.memory_summary(device="cuda"))',
                   "print(portable.memory_summary(device=portable.device()))")],
)  # fmt: skip
SNAPSHOT = FAMILY.rule(
    "TR038", Kind.NOT_CONVERTIBLE, "torch.cuda.memory_snapshot(), memory._record_memory_history()",
    why="""Pictures of the allocator's history are made by CUDA's allocator. Keep the call for CUDA alone; on
    an NPU torch.npu has calls of the same names.""",
    source="https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
    examples=[Example("import torch\n\ntorch.cuda.memory._record_memory_history()\n")],
)  # fmt: skip
FRACTION = FAMILY.rule(
    "TR044", Kind.REVIEW, "torch.cuda.set_per_process_memory_fraction(f): the same where the device has it",
    why="""NPUs have it too; on the CPU it does nothing, so that a limit the program counts on is not there.""",
    source=_ROUTINES,
    examples=[_one("torch.cuda.set_per_process_memory_fraction(0.5)", "portable.set_per_process_memory_fraction(0.5)")],
)  # fmt: skip

_NAMES = {
    FIGURES: ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats"],
    PEAK: [
        "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
        "reset_accumulated_memory_stats",
    ],
    FREE: ["mem_get_info"],
    SUMMARY: ["memory_summary"],
    FRACTION: ["set_per_process_memory_fraction"],
}  # fmt: skip
for _rule, _its in _NAMES.items():
    FAMILY.drop_in(_rule, _its)
    FAMILY.drop_in(_rule, _its, below="torch.cuda.memory")
# The names that these had before torch 1.4.
FAMILY.drop_in(
    FIGURES,
    {"torch.cuda.memory_cached": "memory_reserved", "torch.cuda.max_memory_cached": "max_memory_reserved"},
)


@FAMILY.reference(
    *(f"torch.cuda.memory.{name}" for name in ("_record_memory_history", "_dump_snapshot", "_snapshot")),
    "torch.cuda.memory_snapshot", "torch.cuda.memory.memory_snapshot", "torch.cuda.memory.CUDAPluggableAllocator",
    "torch.cuda.MemPool", "torch.cuda.use_mem_pool", "torch.cuda.memory.MemPool",
)  # fmt: skip
def _snapshot(file: File, node: ast.expr) -> bool:
    file.report(SNAPSHOT, node)
    return True
