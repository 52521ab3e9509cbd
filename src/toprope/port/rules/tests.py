"""Rules TR016, TR017 and TR018: questions whether something is on a GPU.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen.py.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import TWO_KINDS, texts_of
from toprope.port.analysis.receivers import why_left
from toprope.port.conditions.compiled import why_asked_as_it_is
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.rules.device_texts import NAMED, ask_in_text, asked_names, device_of, is_cuda_text, report_question
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = ["FAMILY"]

FAMILY = Family("tests", "Questions about a device", words=[b"is_cuda", b"cuda"])

IS_CUDA = FAMILY.rule(
    "TR016",
    Kind.REVIEW,
    "x.is_cuda: whether it is on an accelerator",
    why="""On another card it is False, and the branch for the CPU is taken. Where the branch calls a kernel that is
    written for CUDA it must stay as it was.""",
    source="tried on the simulated card",
    examples=[
        Example(
            """
            import torch

            if x.is_cuda and not y.is_cuda:
                y = y.to(x.device)
            """,
            """
            import torch
            from toprope.device import portable

            if portable.is_accelerator(x) and not portable.is_accelerator(y):
                y = y.to(x.device)
            """,
        ),
        Example(
            """
            import torch

            use_cuda = x.is_cuda
            y = torch.zeros(2)
            if use_cuda:
                y = y.cuda()
            """,
            """
            import torch
            from toprope.device import portable

            use_cuda = portable.is_accelerator(x)
            y = torch.zeros(2)
            if use_cuda:
                y = y.to(portable.device())
            """,
        ),
        Example(
            """
            def forward(self, input):
                if input.is_cuda and self.gpus > 1:
                    return nn.parallel.data_parallel(self.main, input, range(self.gpus))
                return self.main(input)
            """
        ),
        Example(
            """
            def scan(x, kernel_size=3):
                assert x.is_cuda
                _scan_kernel[(1,)](x)
            """
        ),
        Example(
            """
            import cutlass

            def step(tensors):
                assert all(t.is_cuda for t in tensors)
            """
        ),
        Example(
            """
            class Settings:
                def __init__(self):
                    self.is_cuda = False
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            class Batch:
                @property
                def is_cuda(self):
                    return self.kind == "gpu"

            def ask(batch):
                return batch.is_cuda, torch.stack(batch.parts).is_cuda
            """,
            """
            import torch
            from toprope.device import portable

            class Batch:
                @property
                def is_cuda(self):
                    return self.kind == "gpu"

            def ask(batch):
                return batch.is_cuda, portable.is_accelerator(torch.stack(batch.parts))
            """,
        ),
        Example("import torch\n\nassert torch.version.is_cuda", reported=False),
    ],
)


@FAMILY.attribute("is_cuda")
def _is_cuda(file: File, node: ast.Attribute) -> bool:
    if not isinstance(node.ctx, ast.Load) or file.dotted(node.value) is not None:
        return False
    parent = file.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return False
    if isinstance(node.value, ast.Name) and node.value.id == "self" and _is_assigned(file, node):
        return False
    if why := why_asked_as_it_is(file, node, node.value):
        file.report(IS_CUDA, node, why)
        return False
    edits = file.replace(node, f"{file.portable('is_accelerator')}(", node.value, ")")
    file.report(IS_CUDA, node, edits=edits, held_back=why_left(file, node.value, "is_cuda"))
    return False


def _is_assigned(file: File, node: ast.Attribute) -> bool:
    """Return whether a class of the file sets the attribute itself: it is no tensor's."""
    around = next((each for each in file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
    return around is not None and any(
        isinstance(each, ast.Attribute) and each.attr == "is_cuda" and isinstance(each.ctx, ast.Store)
        for each in nodes_of(around)
    )


TYPE = FAMILY.rule(
    "TR017",
    Kind.REVIEW,
    'device.type == "cuda": whether it is an accelerator',
    why="""Is a GPU of NVIDIA meant, or any accelerator? Mostly the second. Where the program tells several kinds of
    device apart, the question stays as it is.""",
    source="seen in public code",
    examples=[
        Example(
            """
            if device.type == "cuda":
                work()
            elif x.device.type != "cuda":
                rest()
            """,
            """
            from toprope.device import portable
            if portable.is_accelerator(device):
                work()
            elif not portable.is_accelerator(x.device):
                rest()
            """,
        ),
        Example(
            """
            if device.type in ("cuda",):
                work()
            """,
            """
            from toprope.device import portable
            if portable.is_accelerator(device):
                work()
            """,
        ),
        Example(
            """
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            amp = device == "cuda"

            class Runner:
                def __init__(self):
                    self.device = "cpu" if not torch.cuda.is_available() else "cuda"
                    self.slow = self.device != "cuda"
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.name()
            amp = portable.is_accelerator(device)

            class Runner:
                def __init__(self):
                    self.device = portable.name()
                    self.slow = not portable.is_accelerator(self.device)
            """,
        ),
        Example(
            """
            if device.type == "cuda":
                work()
            elif device.type == "mps":
                other()
            """
        ),
        Example(
            """
            def main(gpu, device):
                if gpu is not None and device.type == "cuda":
                    model.to(device)
                else:
                    model = torch.nn.DataParallel(model)
            """,
            """
            from toprope.device import portable
            def main(gpu, device):
                if gpu is not None and portable.is_accelerator(device):
                    model.to(device)
                else:
                    model = torch.nn.DataParallel(model)
            """,
        ),
        Example(
            """
            def _should_use_custom_op(x):
                return x.device.type == "cuda"
            """
        ),
        Example(
            """
            def bias_act(x, impl="cuda"):
                if impl == "cuda" and x.device.type == "cuda" and _init():
                    return _bias_act_cuda(x)
                return _bias_act_ref(x)
            """
        ),
        Example('if event.type == "click":\n    pass', reported=False),
    ],
)


def _named(file: File, node: ast.expr) -> bool:
    """Return whether it is "cuda", or a tuple, list or set of nothing else."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return len(node.elts) == 1 and is_cuda_text(file, node.elts[0])
    return is_cuda_text(file, node)


@FAMILY.node(ast.Compare)
def _compare(file: File, node: ast.Compare) -> bool:
    if len(node.ops) != 1 or _is_about_type(file, node):
        return False
    if (asked := asked_names(file, node)) is not None:
        report_question(file, node, asked[0], isinstance(node.ops[0], ast.NotEq | ast.NotIn), NAMED, asked[1])
    return False


def _is_about_type(file: File, node: ast.Compare) -> bool:
    """Report a question about the type of a device; return whether it is one."""
    operator, left, right = node.ops[0], node.left, node.comparators[0]
    if isinstance(operator, ast.Eq | ast.NotEq):
        if is_cuda_text(file, left):
            left, right = right, left
        return is_cuda_text(file, right) and _of_type(file, node, left, isinstance(operator, ast.NotEq))
    if not isinstance(operator, ast.In | ast.NotIn):
        return False
    if is_cuda_text(file, left):
        return ask_in_text(file, node, right, isinstance(operator, ast.NotIn))
    return _named(file, right) and _of_type(file, node, left, isinstance(operator, ast.NotIn))


def _of_type(file: File, node: ast.Compare, asked: ast.expr, is_not: bool) -> bool:
    """`device.type == "cuda"`, with its sides in this order, or `device == "cuda"` of what holds a device's name."""
    named = device_of(file, asked) if isinstance(asked, ast.Call) else asked
    if isinstance(named, ast.Name | ast.Attribute) and texts_of(file, named) in TWO_KINDS:
        report_question(file, node, named, is_not, TYPE)
        return True
    if not isinstance(asked, ast.Attribute) or asked.attr not in ("type", "device_type"):
        return False
    value = asked.value
    name = name_of(value)
    if "dev" not in name.lower() and not isinstance(value, ast.Call):
        return False
    report_question(file, node, value if asked.attr == "type" else asked, is_not, TYPE)
    return True
