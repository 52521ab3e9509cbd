"""Rules TR074, TR074a and TR074b: switches and questions of cuDNN.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family("cudnn", "cuDNN", words=[b"cudnn"])

CUDNN = FAMILY.rule(
    "TR074",
    Kind.REVIEW,
    "if torch.backends.cudnn.enabled: a switch of cuDNN that decides a branch",
    why="""The switch says True where there is no cuDNN too, so that the branch for cuDNN runs on every device. Ask for
    the device where it is meant. A write does no harm elsewhere and is not reported, nor is a value that is only kept
    to be written back.""",
    source="tried on CPU and simulated card",
    examples=[
        Example(
            """
            import torch

            if torch.backends.cudnn.enabled:
                torch.backends.cudnn.benchmark = True
            """
        ),
        Example(
            "import torch\n\nbefore = torch.backends.cudnn.benchmark\ntorch.backends.cudnn.benchmark = True",
            reported=False,
        ),
    ],
)


@FAMILY.reference(*(f"torch.backends.cudnn.{name}" for name in ("benchmark", "deterministic", "enabled", "fastest")))
def _cudnn(file: File, node: ast.expr) -> bool:
    if file.decides(node):
        file.report(CUDNN, node)
    return isinstance(getattr(node, "ctx", None), ast.Load)


PAIR = FAMILY.rule(
    "TR074a",
    Kind.REVIEW,
    "torch.cuda.is_available() and torch.backends.cudnn.is_available(): cuDNN is asked for on CUDA alone",
    why="""cuDNN is never there on another card, so that the question for both sends it to the CPU. Restoration programs
    choose their only device so. With the rewrite another card needs no cuDNN, and CUDA still does.""",
    source="seen in public code",
    examples=[
        Example(
            """
            import torch

            there = torch.cuda.is_available() and torch.backends.cudnn.is_available()
            device = "cuda" if there else "cpu"
            """,
            """
            import torch
            from toprope.device import portable

            there = portable.is_available() and (portable.kind() != "cuda" or torch.backends.cudnn.is_available())
            device = portable.name() if there else "cpu"
            """,
        ),
        Example(
            """
            import torch

            there = torch.cuda.is_available() or torch.backends.cudnn.is_available()
            """,
            """
            import torch
            from toprope.device import portable

            there = portable.is_available() or torch.backends.cudnn.is_available()
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("torch.backends.cudnn.is_available")
def _pair(file: File, node: ast.Call) -> bool:
    around = file.parent(node)
    if isinstance(around, ast.BoolOp) and file.calls_runtime(getattr(around.values[0], "left", None), "kind"):
        file.done(node.func)  # asked on CUDA alone
        return False
    others = around.values if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And) else []
    if not any(isinstance(each, ast.Call) and file.dotted(each.func) == "torch.cuda.is_available" for each in others):
        return False
    edits = file.replace(node, f'({file.portable("kind")}() != "cuda" or ', node, ")")
    file.report(PAIR, node, edits=edits)
    file.done(node.func)
    return False


DETERMINISTIC = FAMILY.rule(
    "TR074b",
    Kind.REVIEW,
    "torch.backends.cudnn.deterministic = True: torch.use_deterministic_algorithms(True) asks every device",
    why="""The switch reaches cuDNN alone: on another card two runs with one seed may differ, and nothing says so.
    torch.use_deterministic_algorithms(True) asks every kind of device, and raises where a kernel has no such version.
    A file is reported once, and not where it asks so already.""",
    source="PyTorch's notes on reproducibility; torch_npu's documentation",
    examples=[
        Example("import torch\n\ntorch.manual_seed(0)\ntorch.backends.cudnn.deterministic = True"),
        Example(
            """
            import torch

            torch.backends.cudnn.deterministic = True
            torch.use_deterministic_algorithms(True)
            """,
            reported=False,
        ),
        Example("import torch\n\ntorch.backends.cudnn.deterministic = False", reported=False),
    ],
)


@FAMILY.node(ast.Assign)
def _deterministic(file: File, node: ast.Assign) -> bool:
    for target in node.targets:
        if (
            isinstance(node.value, ast.Constant)
            and node.value.value is True
            and file.dotted(target) == "torch.backends.cudnn.deterministic"
            and not _asks_every_device(file)
        ):
            file.report(DETERMINISTIC, target)
    return False


def _asks_every_device(file: File) -> bool:
    """Return whether the file asks torch for determinism, or its switch of cuDNN is reported already."""
    return "use_deterministic_algorithms" in file.source.text or any(
        each.rule is DETERMINISTIC for each in file.findings
    )


@FAMILY.node(ast.If)
def _switches(file: File, node: ast.If) -> bool:
    """A branch that sets switches of cuDNN alone does nothing elsewhere: its question stays, and nothing is said."""
    statements = [*node.body, *node.orelse]
    asked = [file.dotted(each.func) for each in nodes_of(node.test) if isinstance(each, ast.Call)]
    sets = [isinstance(each, ast.Assign) and all(_is_switch(file, one) for one in each.targets) for each in statements]
    if asked == ["torch.cuda.is_available"] and all(sets):
        file.done(node.test)
    return False


def _is_switch(file: File, node: ast.expr) -> bool:
    return (file.dotted(node) or "").startswith(("torch.backends.cudnn.", "torch.backends.cuda."))
