"""Rule TR014a: tensors of the old constructors in a program that sets the default tensor type of CUDA.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("default_types", "The old constructor torch.Tensor", words=[b"Tensor("])

OLD = FAMILY.rule(
    "TR014a",
    Kind.REVIEW,
    "torch.Tensor(...) where the default tensor type is CUDA's: on the CPU with another device",
    why="""torch.Tensor makes what torch.set_default_tensor_type says, which is a tensor of CUDA there. It does not
    follow the default device, which is all that other devices have: the tensor is on the CPU, and device=... is
    refused. Make it with torch.tensor(data, dtype=torch.get_default_dtype()) or torch.empty(sizes), which follow the
    default device, or give them the device of another tensor.""",
    source="tried on the simulated card: legacy constructor expects device type: cpu",
    once=True,
    examples=[
        Example(
            """
            import torch

            torch.set_default_tensor_type("torch.cuda.FloatTensor")
            far = torch.Tensor([1e10])
            """,
            """
            import torch
            from toprope.device import portable

            portable.set_default_tensor_type(torch.float32)
            far = torch.Tensor([1e10])
            """,
        ),
        Example("import torch\n\nfar = torch.Tensor([1e10])\n", reported=False),
    ],
)


@FAMILY.call("torch.Tensor")
def _made(file: File, node: ast.Call) -> bool:
    if file.project.has_type_of_cuda:
        file.report(
            OLD,
            node,
            f"{file.text(node.func)}(...) is on the CPU with another device than CUDA: torch.tensor and torch.empty "
            "follow the default device",
        )
    return False
