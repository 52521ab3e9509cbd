"""Rows 67 and 70: NCCL's own options, questions and variables."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("nccl", "NCCL's own", words=[b"nccl", b"NCCL"])

OWN = FAMILY.rule(
    "TR067",
    Kind.NOT_CONVERTIBLE,
    "ProcessGroupNCCL, torch.cuda.nccl: NCCL's own",
    why="""What they set or ask belongs to NCCL. HCCL has options of its own
    (torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options).""",
    source="torch/distributed/distributed_c10d.py",
    examples=[
        Example(
            """
            import torch.distributed as dist

            options = dist.ProcessGroupNCCL.Options()
            """
        ),
        Example(
            """
            import torch

            print(torch.cuda.nccl.version())
            """
        ),
    ],
)


@FAMILY.reference(
    "torch.distributed.ProcessGroupNCCL", "torch.distributed.ProcessGroupNCCL.*",
    "torch.distributed.distributed_c10d.ProcessGroupNCCL", "torch.distributed.distributed_c10d.ProcessGroupNCCL.*",
    "torch.cuda.nccl", "torch.cuda.nccl.*",
)  # fmt: skip
def _own(file: File, node: ast.expr) -> bool:
    file.report(OWN, node)
    return True


VARIABLES = FAMILY.rule(
    "TR070",
    Kind.REVIEW,
    "NCCL_DEBUG and other variables of NCCL: left, they say nothing to others",
    why="""HCCL has variables of its own: HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT, HCCL_BUFFSIZE;
    ASCEND_GLOBAL_LOG_LEVEL for what it logs.""",
    source="CANN's list of environment variables",
    once=True,
    examples=[
        Example(
            """
            import os

            os.environ["NCCL_DEBUG"] = "INFO"
            """
        ),
    ],
)


@FAMILY.string("NCCL_*", "TORCH_NCCL_*")
def _variable(file: File, node: ast.Constant) -> bool:
    file.report(VARIABLES, node)
    return True
