"""Rows 34 to 38 and 44: what the memory of a card is asked and told."""

from __future__ import annotations

from toprope.port.rule import Example, Family, Kind

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
            from torch import cuda as gpu
            from toprope.device import portable

            held = portable.memory_reserved(device=None)
            """,
        ),
    ],
)

_NAMES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats")
FAMILY.drop_in(FIGURES, _NAMES)
FAMILY.drop_in(FIGURES, _NAMES, below="torch.cuda.memory")
