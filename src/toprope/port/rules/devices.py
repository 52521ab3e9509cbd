"""Rules TR002 to TR004, TR009, TR010, TR015, TR101 and TR103: how a program names its device.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
"""

from __future__ import annotations

import ast

from toprope.port.analysis import places
from toprope.port.analysis.own_options import names_option
from toprope.port.analysis.places import Said, Use, begins_device, function_for, is_listed, is_template, said, use
from toprope.port.analysis.receivers import is_for_own_to
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.registry import table
from toprope.port.rule import Example, Kind, Rule
from toprope.port.rules.device_types import KIND
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family("devices", "Names of devices", words=[b"cuda"])

_P, _R = Kind.PRESERVING, Kind.REVIEW
_TRIED = "tried: torch.device and Tensor.to in a torch without CUDA"

DEVICE = FAMILY.rule(
    "TR002", _P, 'torch.device("cuda"): the device in use',
    why="""A tensor cannot be made on "cuda" where there is no GPU. The device in use is torch.device("cuda") on CUDA,
    so that nothing changes there, without an index where the program gave none.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            device = torch.device("cuda")
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.device()
            """,
        ),
        Example(
            """
            import torch as th

            def dev():
                return th.device(f"cuda")
            """,
            """
            import torch as th
            from toprope.device import portable

            def dev():
                return portable.device()
            """,
        ),
        Example(
            """
            import torch

            device = torch.device("cpu")
            print("cuda is fast")
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
NAME = FAMILY.rule(
    "TR002a", _P, 'device = "cuda": the name of the device in use, still a text',
    why="""A text that the program keeps may be compared, printed or handed to other libraries, so it stays a text.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            device = "cuda"
            model = load(path, torch_device="cuda:1")
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.name()
            model = load(path, torch_device=portable.name(1))
            """,
        ),
        Example(
            """
            from setuptools import setup

            device = "cuda"
            setup(name="built where only torch is installed")
            """,
        ),
        Example(
            """
            from enum import Enum

            class Backend(Enum):
                device = "cuda"
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
CHOICE = FAMILY.rule(
    "TR003", _P, '"cuda" if torch.cuda.is_available() else "cpu": the device in use',
    why="""The most common way to choose a device knows two of them. The whole choice becomes one call, which gives the
    CPU where there is nothing else.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            where = "cpu" if not torch.cuda.is_available() else "cuda"
            device = "cuda:1" if torch.cuda.is_available() else "cpu"
            this = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.device()
            where = portable.name()
            device = portable.name(1)
            this = portable.device()
            """,
        ),
        Example(
            """
            import torch

            device = torch.device("cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu")
            """,
            """
            import torch
            from toprope.device import portable

            device = torch.device(portable.name() if portable.is_available() and not args.no_cuda else "cpu")
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
INDEX = FAMILY.rule(
    "TR004", _P, 'torch.device("cuda", i), "cuda:0", f"cuda:{i}", "cuda:%d" % i: that device of the kind in use',
    why="""The number is kept as the program computes it, once; on the CPU, where there is one device, it is
    dropped.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            for i in range(2):
                a = torch.device("cuda", i)
                b = torch.device(f"cuda:{i:d}")
                c = torch.device("cuda:%d" % i)
                d = torch.device("cuda:{}".format(i))
                e = torch.device("cuda:" + str(i))
                g, h = torch.device("cuda:{:d}".format(i)), torch.device("cuda:{n}".format(n=i))
                f = torch.device("cuda" + ":0")
                x.to(f"cuda:{i + 1}", non_blocking=True)
            """,
            """
            import torch
            from toprope.device import portable

            for i in range(2):
                a = portable.device(i)
                b = portable.device(i)
                c = portable.device(i)
                d = portable.device(i)
                e = portable.device(i)
                g, h = portable.device(i), portable.device(i)
                f = portable.device(0)
                x.to(portable.device(i + 1), non_blocking=True)
            """,
        ),
        Example(
            """
            import torch

            map_location = {"cuda:%d" % 0: "cuda:%d" % rank}
            """,
            """
            import torch
            from toprope.device import portable

            map_location = {"cuda:%d" % 0: portable.name(rank)}
            """,
        ),
    ],
)  # fmt: skip
MOVE = FAMILY.rule(
    "TR009", _P, 'x.to("cuda"): x.to the device in use',
    why="""The text becomes the device in use; everything else of the call stays as it is and where it is. A method `to`
    that may be one of the program's own is given the name, which is still a text.""",
    source=_TRIED,
    examples=[
        Example(
            """
            y = x.to("cuda", dtype=half)
            z = x.to(dtype=half, device="cuda:0")
            """,
            """
            from toprope.device import portable
            y = x.to(portable.device(), dtype=half)
            z = x.to(dtype=half, device=portable.device(0))
            """,
        ),
    ],
)  # fmt: skip
FACTORY = FAMILY.rule(
    "TR010", _P, 'torch.zeros(..., device="cuda"): on the device in use',
    why="""Functions that make tensors, of torch and of other libraries, take the device by this keyword. torch's are
    given the device in use, others its name.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            x = torch.zeros(2, device="cuda")
            y = make(device="cuda")
            """,
            """
            import torch
            from toprope.device import portable

            x = torch.zeros(2, device=portable.device())
            y = make(device=portable.name())
            """,
        ),
    ],
)  # fmt: skip
DEFAULT = FAMILY.rule(
    "TR015", _P, 'torch.set_default_device("cuda"): the device in use',
    why="""New tensors are made on the device in use from then on.""",
    source=_TRIED,
    examples=[
        Example(
            """
            import torch

            torch.set_default_device("cuda")
            """,
            """
            import torch
            from toprope.device import portable

            torch.set_default_device(portable.device())
            """,
        ),
    ],
)  # fmt: skip
UNUSED = FAMILY.rule(
    "TR101", _R, 'the text "cuda" that is not seen to be a device: left as it is',
    why="""Keys, members of an Enum, names of columns and texts for a person only look like devices. What is exactly a
    device's name is reported, so that a person can say what it is; longer texts, paths and addresses are not.""",
    source="tried with other tools, which rewrite such texts", once=True,
    examples=[
        Example(
            """
            versions = {"cuda": 11.8}
            print("cuda:0 is fast", "https://example.org/cu118", "model_cuda.pt")
            """,
        ),
        Example('name = "cuda:{:02d}".format(1)\n'),
        Example(
            """
            use_cuda = "cuda_version"
            print(f"{x.device} cuda")
            """,
            reported=False,
        ),
    ],
)  # fmt: skip
MESSAGE = FAMILY.rule(
    "TR103", _R, "messages, comments and docstrings about CUDA: left as they are, not reported",
    why="""They change nothing that the program computes.""",
    source="a rule of this port",
    examples=[
        Example(
            '''
            """Runs on cuda."""
            print(f"on {x.device}, not cuda:1")  # cuda
            ''',
            reported=False,
        ),
    ],
)  # fmt: skip


@FAMILY.call("torch.device")
def _torch_device(file: File, call: ast.Call) -> bool:
    first = file.argument(call, 0, "type") or file.argument(call, 0, "device")
    second = file.argument(call, 1, "index")
    if first is None or len(call.args) + len(call.keywords) > 2:
        return False
    if second is not None:
        if not (isinstance(first, ast.Constant) and first.value == "cuda"):
            return False
        file.report(INDEX, call, edits=file.replace(call, *Said(second).pieces(file.portable("device"))))
        file.done(call.func)
        file.done(first)
        return False
    named = said(file, first)
    if named is None:
        if begins := [each for each in nodes_of(first) if begins_device(file, each, first)]:
            file.report(INDEX, call, "its text is put together", edits=file.rename(call, "device"))
            for each in (call.func, *begins):
                file.done(each)
        return False
    rule = CHOICE if named.chosen else INDEX if named.index is not None else DEVICE
    file.report(rule, call, edits=file.replace(call, *named.pieces(file.portable("device"))))
    return _but_for(file, call, named)


def _but_for(file: File, node: ast.expr, named: Said) -> bool:
    """All of the node is done but what stays of it, which may hold more."""
    if not isinstance(named.index, ast.expr):
        return True
    file.done_but(node, named.index)
    return False


@FAMILY.node(ast.IfExp, ast.JoinedStr, ast.BinOp)
@FAMILY.method("format")
@FAMILY.string("cuda", "cuda:*")
def _text(file: File, node: ast.expr) -> bool:
    named = said(file, node)
    if _is_for_runtime(file, node):
        return isinstance(node, ast.Constant) or (named is not None and _but_for(file, node, named))
    if named is None:
        if is_template(file, node):
            file.report(UNUSED, node, "a device's name is made of it in a way that is not known: left as it is")
        return False
    how = use(file, node)
    if how is Use.UNKNOWN and not named.chosen:
        if isinstance(node, ast.Constant) and names_option(file, node):
            return False
        if not is_listed(file, node) and not _is_taken_by_runtime(file, node):
            file.report(UNUSED, node, f"{file.text(node)} {places.why_unknown(file, node)}: left as it is")
            return _but_for(file, node, named)
        return False
    rule = _rule(file, node, named, how)
    if how is Use.KIND and named.index is not None:
        file.report(rule, node, held_back="it is the type of a device, and no number belongs to it")
        return _but_for(file, node, named)
    how = Use.TEXT if how is Use.DEVICE and is_for_own_to(file, node) else how
    function = file.portable("device" if named.is_device else function_for(how))
    file.report(rule, node, edits=file.replace(node, *named.pieces(function)))
    return _but_for(file, node, named)


def _is_for_runtime(file: File, node: ast.expr) -> bool:
    """Return whether a function of the runtime is given the text, and makes of it the device in use."""
    inner, around = node, file.parent(node)
    while (
        isinstance(around, ast.BoolOp | ast.keyword)
        or (isinstance(around, ast.IfExp) and inner is not around.test)
        or (isinstance(around, ast.BinOp) and inner is around.left)
    ):
        inner, around = around, file.parent(around)  # type: ignore[assignment]
    return isinstance(around, ast.Call) and inner is not around.func and file.of_runtime(around.func) is not None


def _is_taken_by_runtime(file: File, node: ast.expr) -> bool:
    """Return whether it is for a function that becomes the runtime's, which takes "cuda:0" for the device in use."""
    call = file.parent(node)
    return isinstance(call, ast.Call) and node in call.args and file.dotted(call.func) in table().drop_ins


def _rule(file: File, node: ast.expr, named: Said, how: Use) -> Rule:
    if named.chosen:
        return CHOICE
    if how is Use.KIND:
        return KIND
    around = file.parent(node)
    call = file.parent(around) if isinstance(around, ast.keyword) else around
    if isinstance(call, ast.Call):
        if file.dotted(call.func) == "torch.set_default_device":
            return DEFAULT
        if isinstance(named.index, ast.expr):
            return INDEX
        if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
            return MOVE
        if isinstance(around, ast.keyword) and around.arg == "device":
            return FACTORY
    return NAME if named.index is None or isinstance(named.index, str) else INDEX
