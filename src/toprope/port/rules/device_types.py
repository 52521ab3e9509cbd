"""Rule TR002b: the type of a device as a text, which has no number.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import TAKES_KIND, before_number, names_kind, said, texts_of
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.scopes import with_defaults

__all__ = ["FAMILY"]

FAMILY = Family("device_types", "Types of devices", words=[b"cuda"])

KIND = FAMILY.rule(
    "TR002b", Kind.PRESERVING, 'device_type = "cuda": the type of the device in use, which has no number',
    why="""torch.autocast, torch.amp.GradScaler, torch.device(type, index) and others take the type of a device and
    refuse a number behind it. portable.name() has the number where TOPROPE_DEVICE names one, portable.kind() never.""",
    source="tried: torch.autocast raises for a device with a number",
    examples=[
        Example(
            """
            import torch

            device_type = "cuda" if "cuda" in device else "cpu"
            kind = "cuda" if torch.cuda.is_available() else "cpu"
            with torch.autocast(device_type=kind):
                run(device_type="cuda")
            second = torch.device("cuda" if torch.cuda.is_available() else "cpu", 1)
            """,
            """
            import torch
            from toprope.device import portable

            device_type = portable.kind() if portable.is_accelerator(device) else "cpu"
            kind = portable.kind()
            with torch.autocast(device_type=kind):
                run(device_type=portable.kind())
            second = torch.device(portable.kind(), 1)
            """,
        ),
        Example(
            """
            import torch

            def run(x, device_type="cuda"):
                return torch.autocast(device_type)

            class Options:
                device_type = "cuda"
            """,
            """
            import torch
            from toprope.device import portable

            def run(x, device_type="cuda"):
                device_type = portable.resolve_kind(device_type)
                return torch.autocast(device_type)

            class Options:
                device_type = portable.attribute("cuda", portable.resolve_kind)
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            device = "cuda"
            x = torch.ones(2).to(device)
            with torch.autocast(device_type=device, dtype=torch.bfloat16):
                run(x)
            """,
            """
            import torch
            from toprope.device import portable

            device = portable.name()
            x = torch.ones(2).to(device)
            with torch.autocast(device_type=portable.kind(device), dtype=torch.bfloat16):
                run(x)
            """,
        ),
        Example(
            """
            import torch

            DEVICE = "cuda"

            def run(device="cuda"):
                with torch.autocast(device), torch.autocast(device_type=DEVICE):
                    return torch.ones(1, device=device)
            """,
            """
            import torch
            from toprope.device import portable

            DEVICE = "cuda"

            def run(device="cuda"):
                device = portable.resolve(device)
                with torch.autocast(portable.kind(device)), torch.autocast(device_type=portable.kind(DEVICE)):
                    return torch.ones(1, device=device)
            """,
        ),
        Example(
            """
            import torch

            def place(rank):
                device = "cuda" if torch.cuda.is_available() else "cpu"
                first = f"{'cuda' if torch.cuda.is_available() else 'cpu'}:{rank}"
                second, third = device + ":0", f"{device}:{rank}"
                print("%s:%d" % (device, rank))
                return first, second, third, torch.device(device, rank)
            """,
            """
            import torch
            from toprope.device import portable

            def place(rank):
                device = portable.name()
                first = f"{portable.kind()}:{rank}"
                second, third = portable.kind(device) + ":0", f"{portable.kind(device)}:{rank}"
                print("%s:%d" % (portable.kind(device), rank))
                return first, second, third, torch.device(portable.kind(device), rank)
            """,
        ),
        Example('device_name = "cuda"\n', reported=False),
    ],
)  # fmt: skip


@FAMILY.call(*TAKES_KIND)
def _given(file: File, call: ast.Call) -> bool:
    """A name that holds a device's name, and is given to a function that takes a type."""
    given = file.argument(call, TAKES_KIND[file.dotted(call.func) or ""], "device_type")
    if (
        isinstance(given, ast.Name)
        and not names_kind(given.id)
        and not _is_edited(file, given)
        and _holds_name(file, given)
        and _is_read_elsewhere(file, given)
    ):
        file.report(KIND, given, edits=file.replace(given, f"{file.portable('kind')}(", given, ")"))
        file.done(given)
    return False


def _is_edited(file: File, node: ast.expr) -> bool:
    """Return whether another rule resolves the name here already."""
    start, _ = file.source.span(node)
    return any(edit.start == start for finding in file.findings for edit in finding.edits)


def _default(file: File, parameter: ast.arg) -> ast.expr | None:
    arguments = file.parent(parameter)
    return dict(with_defaults(arguments)).get(parameter) if isinstance(arguments, ast.arguments) else None


def _holds_name(file: File, node: ast.Name) -> bool:
    """Return whether a name is given the name of a device."""
    bindings = file.bindings(node)
    values = [_default(file, each.node) if isinstance(each.node, ast.arg) else each.value for each in bindings]
    named = [None if each is None else said(file, each) for each in values]
    return bool(named) and not any(each is None or each.is_device for each in named)


def _is_read_elsewhere(file: File, node: ast.Name) -> bool:
    """Return whether a name is used for more than its type."""
    bound_by = [each.node for each in file.bindings(node)]
    return any(file.parent(each) is not file.parent(node) for each in file.reads(node.id, *bound_by))


@FAMILY.node(ast.JoinedStr, ast.BinOp)
def _numbered(file: File, node: ast.expr) -> bool:
    """A name that holds a device's name, which may have a number, and another number that is put behind it."""
    given = before_number(file, node)
    if not isinstance(given, ast.Name | ast.Attribute) or _is_edited(file, given):
        return False
    name = given.id if isinstance(given, ast.Name) else given.attr
    holds = isinstance(given, ast.Name) and _holds_name(file, given)
    if not names_kind(name) and (holds or "cuda" in (texts_of(file, given) or ())):
        file.report(KIND, given, edits=file.replace(given, f"{file.portable('kind')}(", given, ")"))
    return False


@FAMILY.method("format", "join")
@FAMILY.call("torch.device")
def _numbered_by_a_call(file: File, node: ast.Call) -> bool | None:
    return _numbered(file, node)
