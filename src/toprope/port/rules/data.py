"""Rules TR093, TR094 and TR094a: pinned memory, and copies that do not wait.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("data", "Pinned memory and copies", words=[b"pin_memory", b"non_blocking"])

FACTORY = FAMILY.rule(
    "TR094a",
    Kind.PRESERVING,
    "torch.empty(..., pin_memory=True), x.new_zeros(..., pin_memory=True): where there is an accelerator",
    why="""A factory that is asked for pinned memory raises where there is no accelerator. A DataLoader warns there and
    goes on: its pin_memory=True stays.""",
    source="tried: torch.empty(1, pin_memory=True) raises in a torch without CUDA",
    examples=[
        Example(
            """
            import torch

            buffer = torch.empty(16, pin_memory=True)
            """,
            """
            import torch
            from toprope.device import portable

            buffer = torch.empty(16, pin_memory=portable.is_available())
            """,
        ),
        Example(
            """
            from torch.utils.data import DataLoader

            loader = DataLoader(data, batch_size=8, pin_memory=True)
            """,
            reported=False,
        ),
        Example("import torch\n\nbuffer = torch.empty(16, pin_memory=False)", reported=False),
    ],
)
_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "tensor", "arange", "empty_like", "zeros_like")
_METHODS = {"new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"}


@FAMILY.keyword("pin_memory")
def _pin_memory(file: File, node: ast.keyword) -> bool:
    call = file.parent(node)
    if not isinstance(call, ast.Call) or not isinstance(node.value, ast.Constant) or node.value.value is not True:
        return False
    named = file.dotted(call.func)
    if named in {f"torch.{each}" for each in _FACTORIES} or getattr(call.func, "attr", "") in _METHODS:
        file.report(FACTORY, node.value, edits=file.replace(node.value, f"{file.portable('is_available')}()"))
    return True


DEVICE = FAMILY.rule(
    "TR093",
    Kind.PRESERVING,
    'DataLoader(pin_memory_device="cuda"): the device in use',
    why="""It names the kind of device that memory is pinned for; on the CPU it is left empty.""",
    source="torch.utils.data.DataLoader",
    examples=[
        Example(
            """
            from torch.utils.data import DataLoader

            loader = DataLoader(data, pin_memory_device="cuda")
            """,
            """
            from torch.utils.data import DataLoader
            from toprope.device import portable

            loader = DataLoader(data, pin_memory_device=portable.pin_memory_device())
            """,
        ),
        Example('DataLoader(data, pin_memory_device="")', reported=False),
    ],
)


@FAMILY.keyword("pin_memory_device")
def _device(file: File, node: ast.keyword) -> bool:
    value = node.value
    if not isinstance(value, ast.Constant) or str(value.value).partition(":")[0] != "cuda":
        return False
    file.report(DEVICE, value, edits=file.replace(value, f"{file.portable('pin_memory_device')}()"))
    return True


PINNED = FAMILY.rule(
    "TR094",
    Kind.PRESERVING,
    "x.pin_memory(): where there is an accelerator",
    why="""A tensor's pin_memory() raises where there is none. A class of the program may have a pin_memory of its own:
    the runtime's function calls the object's own method everywhere, and leaves out torch's alone.""",
    source="tried: RuntimeError in a torch without CUDA",
    examples=[
        Example(
            """
            import torch

            batch = torch.stack(images).pin_memory().to(device, non_blocking=True)
            """,
            """
            import torch
            from toprope.device import portable

            batch = portable.pin_memory(torch.stack(images)).to(device, non_blocking=True)
            """,
        ),
        Example(
            """
            class Batch:
                def pin_memory(self):
                    self.x = self.x.pin_memory()
                    return self
            """,
            """
            from toprope.device import portable
            class Batch:
                def pin_memory(self):
                    self.x = portable.pin_memory(self.x)
                    return self
            """,
        ),
        Example("super().pin_memory()", reported=False),
    ],
)


@FAMILY.method("pin_memory")
def _pinned(file: File, node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    receiver = node.func.value
    if node.args or node.keywords or file.dotted(receiver) is not None:
        return False
    if isinstance(receiver, ast.Call) and file.is_builtin(receiver.func, "super"):
        return False
    file.report(PINNED, node, edits=file.replace(node, file.portable("pin_memory"), "(", receiver, ")"))
    return False
