"""Operators that the chosen chip and release run on the host, refuse, or run slowly: from the tables, without a run.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast
import re

from toprope import chips
from toprope.port.analysis.tensor_facts import dtype_of, is_tensor, on_host
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.finding import DEPENDS, KNOWN
from toprope.port.rule import Example, Kind
from toprope.support import operator_advice, refusals, torch_operators
from toprope.support.operators_on_card import Kind as Place
from toprope.support.operators_on_card import Status, status
from toprope.support.torch_operators import Calls

__all__ = ["FAMILY"]

FAMILY = Family("operators", "Operators of torch on the card", words=[b"torch"])

ON_HOST = FAMILY.rule(
    "TR113",
    Kind.REVIEW,
    "torch.linalg.inv, x.lgamma(), nn.HuberLoss: operators without a kernel on the card",
    hint=True,
    once=True,
    why="""torch_npu hands an operator that has no kernel to the host: its tensors are copied there and back, and the
    card waits for that. It matters in a loop, not in a set-up that runs once. Which operators these are depends on the
    release of torch_npu (--torch-npu) and on the chip (--chip). The line says what to write instead where a source
    says it; else compute it once outside of the loop, or on the CPU knowingly. Leave it where it runs seldom, or on
    tensors of the host. A method is reported where its name is one of tensors alone, or where the text says that its
    receiver is a tensor. Operators that only the backward pass needs are not looked up.""",
    source="op-plugin's and torch_npu's sources, by release: toprope explain operators_by_release",
    examples=[
        Example("import torch\n\ny = torch.linalg.inv(x)"),
        Example("import torch\n\nloss = torch.nn.HuberLoss()"),
        Example("import torch\n\ny = x.lgamma()"),
        Example("import torch\n\ny = torch.linalg.inv(x.cpu())", reported=False),
        Example("import torch\nimport numpy as np\n\ny = np.linalg.inv(x)", reported=False),
        Example("import torch\n\ny = torch.linalg.qr(x)", reported=False),
        Example("import torch\n\ny = rotation.inverse()", reported=False),
    ],
)
REFUSED = FAMILY.rule(
    "TR114",
    Kind.REVIEW,
    "x.double() @ y.double(), torch.bmm of float64: dtypes that the chip's kernels refuse",
    hint=True,
    why="""CANN's kernels check the dtypes of their operands and end the program with EZ1001 for another one, where CUDA
    computes. Use float32 (float64 has no kernel for most matrix products, norms and activations), or do that part on
    the CPU. Reported where the text itself says the dtype: a cast, a dtype= of a tensor that is made there, or the
    only assignment of a name.""",
    source="the checks of CANN's interfaces: toprope explain refusals",
    examples=[
        Example("import torch\n\ny = x.double() @ z.double()"),
        Example(
            """
            import torch

            x = torch.ones(2, 3, device="npu", dtype=torch.float64)
            y = torch.nn.functional.gelu(x)
            """
        ),
        Example("import torch\n\ny = x.float() @ z.float()", reported=False),
        Example("import torch\n\ny = x.double() + z.double()", reported=False),
        Example('import torch\n\ny = torch.einsum("i,d->id", x.double(), z.double())', reported=False),
        Example("import torch\n\ny = x.double().cpu() @ z.double().cpu()", reported=False),
    ],
)
SLOW = FAMILY.rule(
    "TR115",
    Kind.REVIEW,
    "torch.searchsorted, torch.bucketize: operators that are slow on the card",
    hint=True,
    why="""They have a kernel, but on the chip's own small CPU (AI CPU), one that is compiled when it is first used, or
    one that others measured as slow. Keep them out of loops, or compute the same with other operators.""",
    source="operator_kinds.toml and operator_advice.toml, each row with its source",
    examples=[
        Example("import torch\n\ny = torch.searchsorted(edges, x)"),
        Example("import torch\n\ny = torch.sort(x)", reported=False),
    ],
)
_TENSOR_ONLY = {
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "baddbmm", "bincount", "bmm", "cauchy_", "cumprod_", "digamma",
    "erfinv", "fmax", "fmin", "geqrf", "heaviside", "histc", "hypot", "igamma", "igammac", "lerp", "lgamma",
    "logcumsumexp", "logdet", "logsumexp", "multinomial", "mvlgamma", "nextafter", "orgqr", "ormqr", "polygamma",
    "pinverse", "slogdet",
}  # fmt: skip
_PRODUCTS = {"matmul": "mm", "linalg.multi_dot": "mm", "nn.functional.linear": "mm", "einsum": "bmm", "tensordot": "mm"}


@FAMILY.node(ast.Call)
def _called(file: File, node: ast.Call) -> bool:
    full = file.dotted(node.func)
    if full is None:
        if isinstance(node.func, ast.Attribute):
            _method(file, node, node.func)
        return False
    if not full.startswith("torch."):
        return False
    name = full.removeprefix("torch.")
    if name.startswith("nn.modules."):
        name = f"nn.{name.rpartition('.')[2]}"
    if name.startswith("Tensor."):
        calls = torch_operators.method(name.removeprefix("Tensor."))
    else:
        name, calls = _function(name)
    if name.startswith("_") and calls is not None and _is_unknown(file, calls):
        return False  # torch._assert is no operator
    if calls is None:
        if torch_operators.is_function(name):
            file.operators[name] += 1
        return False
    is_layer = name.startswith("nn.") and not name.startswith("nn.functional.")
    if not is_layer and node.args and all(on_host(file, each) for each in node.args[:1]):
        return False
    _look_up(file, node, name, calls, [] if is_layer else node.args)
    return False


def _function(name: str) -> tuple[str, Calls | None]:
    """A function, in whichever of its places the table has it: torch.relu is torch.nn.functional.relu."""
    found = torch_operators.function(name)
    own = re.fullmatch(r"ops\.aten\.(\w+)(?:\.(\w+))?|(_[a-z]\w+)", name)  # torch.ops.aten.mm.out, torch._private
    if found is None and own is not None:
        overload = own[2] if own[2] not in (None, "default") else ""
        return name, Calls((f"aten::{own[1] or own[3]}{f'.{overload}' if overload else ''}",), ())
    if found is None and name.startswith("nn.functional."):
        found = torch_operators.function(name.removeprefix("nn.functional."))
    elif found is None and "." not in name:
        found = torch_operators.function(f"nn.functional.{name}") or (
            torch_operators.method(name) if name.endswith("_") else None
        )
    return name, found


def _is_unknown(file: File, calls: Calls) -> bool:
    card = file.context.target
    return any(status(each, release=card.release, chip=card.chip).kind is Place.UNKNOWN for each in calls.every)


def _method(file: File, node: ast.Call, function: ast.Attribute) -> None:
    name, receiver = function.attr, function.value
    calls = torch_operators.method(name)
    if calls is None or on_host(file, receiver):
        return
    if name in _TENSOR_ONLY or (name.endswith("_") and not name.startswith("_")) or is_tensor(file, receiver):
        _look_up(file, node, name, calls, [receiver, *node.args])


def _look_up(file: File, node: ast.Call, name: str, calls: Calls, operands: list[ast.expr]) -> None:
    """Report what the tables say of a call, and count it."""
    card = file.context.target
    if _is_unknown(file, calls):
        file.operators[name] += 1
        return
    places = [status(each, release=card.release, chip=card.chip) for each in calls.every]
    pairs = zip(calls.every, places, strict=True)
    host = next(((operator, each) for operator, each in pairs if each.kind is Place.HOST), None)
    file.operators[KNOWN if host is not None or not _depends(file, calls, places) else DEPENDS] += 1
    if host is not None:
        file.report(ON_HOST, node, _on_host(file, *host))
        return
    if _refused(file, node, name, calls, operands):
        return
    for each in places:
        slow = operator_advice.slow(each.operator.partition(".")[0])
        if not slow and each.kind is Place.OLD_ROAD:
            slow = f"{each.reason}: compiled when it is first used, for each shape ({each.source})"
        if slow:
            file.report(SLOW, node, f"{each.operator} on {card.text}: {slow}")
            return


def _depends(file: File, calls: Calls, places: list[Status]) -> bool:
    card = file.context.target
    some = [status(each, release=card.release, chip=card.chip).kind for each in calls.some]
    return any(each.kind is Place.PARTLY_HOST for each in places) or any(
        each in (Place.HOST, Place.PARTLY_HOST, Place.UNKNOWN) for each in some
    )


def _on_host(file: File, operator: str, found: Status) -> str:
    card = file.context.target
    place = "fails on" if found.fails else "runs on the host with"
    said = f"{operator} {place} {card.text}: {found.reason}"
    instead = operator_advice.instead(found.operator)
    return f"{said}{f'; {instead}' if instead else ''} ({found.source})"


@FAMILY.node(ast.BinOp)
def _product(file: File, node: ast.BinOp) -> bool:
    if isinstance(node.op, ast.MatMult) and not (on_host(file, node.left) or on_host(file, node.right)):
        _refuse(file, node, "aten::mm", [node.left, node.right])
    return False


def _refused(file: File, node: ast.Call, name: str, calls: Calls, operands: list[ast.expr]) -> bool:
    """Report a refusal. Only operators of the call's own name take the operands in the same order."""
    if name in _PRODUCTS:
        if name == "einsum" and not (operands and _contracts(operands[0])):
            return False
        given = operands[1:] if name == "einsum" else operands
        return _refuse(file, node, f"aten::{_PRODUCTS[name]}", given[:2])
    own = name.rpartition(".")[2].strip("_") if name.startswith("nn.functional.") else name.replace(".", "_").strip("_")
    for operator in calls.every:
        if operator.removeprefix("aten::").partition(".")[0].strip("_") == own:
            return _refuse(file, node, operator, operands)
    return False


def _contracts(equation: ast.expr) -> bool:
    """Return True if an einsum sums over an index of both operands: only then is it a product of matrices."""
    text = equation.value if isinstance(equation, ast.Constant) else None
    if not isinstance(text, str) or "->" not in text:
        return False
    given, _, result = text.replace("...", "").partition("->")
    parts = [set(each) - {" "} for each in given.split(",")]
    return len(parts) == 2 and bool((parts[0] & parts[1]) - set(result))


def _refuse(file: File, node: ast.expr, operator: str, operands: list[ast.expr]) -> bool:
    dtypes = [None if isinstance(each, ast.Starred) else dtype_of(file, each) for each in operands]
    if not any(dtypes) or any(on_host(file, each) for each in operands):
        return False
    found = refusals.refusal(operator, dtypes, chips.get(file.context.target.chip))
    if found is None:
        return False
    taken = f"; it takes {', '.join(found.row.supported)}" if found.row.supported else ""
    file.report(
        REFUSED, node, f"{found.kernel} of a {found.chip} refuses {found.dtype}{taken} ({found.source})"
    )  # fmt: skip
    return True
