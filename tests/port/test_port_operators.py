"""Operators that the tables decide without a run: on the host, refused, slow, or unknown.

Holds `port.rules.operators`; the tables are those of `toprope.support`.
"""

import ast

import pytest

from toprope import port
from toprope.errors import UsageError
from toprope.port.finding import DEPENDS, KNOWN
from toprope.port.project.context import Context, target
from toprope.port.report.summary import unknown_operators
from toprope.support import torch_operators
from toprope.support.operators_on_card import Kind, status


def ported(text, chip=None, torch_npu=None):
    return port.port(
        f"import torch\nimport torch.nn.functional as F\n{text}\n".encode(), context=Context(target(chip, torch_npu))
    )


def codes(text, **card):
    return [finding.rule.code for finding in ported(text, **card).findings if finding.rule.family == "operators"]


def test_the_release_decides():
    call = "y = torch.isin(x, values)"
    assert codes(call) == []
    assert codes(call, torch_npu="2.1.0") == ["TR113"]
    (finding,) = ported(call, torch_npu="2.1.0").findings
    assert finding.message.startswith("aten::isin.Tensor_Tensor ")
    assert "910B3, torch_npu 2.1.0" in finding.message
    assert "op-plugin" in finding.message


@pytest.mark.parametrize(
    "call",
    [
        "torch.ops.aten._weight_int4pack_mm(x, w, 32, s)",
        "torch.ops.aten._weight_int4pack_mm.default(x, w, 32, s)",
        "torch._weight_int4pack_mm(x, w, 32, s)",
    ],
)
def test_an_operator_by_its_plainest_name_was_not_looked_up(call):
    """gpt-fast calls it so; neither a card nor the CPU has it."""
    assert codes(call) == ["TR113"]
    assert codes("torch.ops.aten.mm(x, y)") == codes("torch._assert(x, 'text')") == []


def test_the_chip_decides_a_dtype():
    call = "y = F.gelu(x.bfloat16())"
    assert codes(call) == []
    assert codes(call, chip="310P3") == ["TR114"]
    with pytest.raises(UsageError):
        target(torch_npu="1.2.3")


@pytest.mark.parametrize(
    "expression",
    [
        "x.double() @ y", "torch.matmul(x.to(torch.float64), y)", "torch.einsum('ij,jk->ik', x.double(), y.double())",
        "torch.bmm(x.to(device, torch.double), y)", "(x.double() * 2.0).tanh()", "F.silu(x.double().reshape(-1))",
    ],
)  # fmt: skip
def test_float64_where_the_text_says_it(expression):
    assert codes(f"z = {expression}") == ["TR114"]


def test_a_name_that_is_assigned_twice_has_no_dtype():
    assert codes("x = a.double()\ny = x @ b") == ["TR114"]
    assert codes("x = a.double()\nx = x.float()\ny = x @ b") == []


@pytest.mark.parametrize(
    "text",
    [
        "y = other.inverse()", "y = frame.mode()", "y = image.histogram()", "y = torch.linalg.inv(torch.from_numpy(m))",
        "m = torch.tensor(rows)\ny = torch.linalg.inv(m)", "y = x.cpu().lgamma()", "y = torch.linalg.inv(torch.eye(3))",
        "import math\ny = math.lgamma(x)", "y = torch.load(path)", "x = x.to('cpu')\ny = x.to('cpu').lgamma()",
    ],
)  # fmt: skip
def test_what_is_no_tensor_or_on_the_host_is_no_finding(text):
    assert codes(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "y = torch.inverse(x)", "y = x.lgamma_()", "def f(x: torch.Tensor):\n    return x.inverse()",
        "y = torch.eye(3, device='npu').inverse()", "loss = torch.nn.modules.loss.HuberLoss()",
        "from torch.linalg import inv\ny = inv(x)",
    ],
)  # fmt: skip
def test_what_is_a_tensor_on_the_card_is_one(text):
    assert codes(text) == ["TR113"]


def test_unknown_names_are_counted_and_never_called_supported():
    found = ported(
        "torch.sort(x)\ntorch.quantize_per_tensor(x, 1, 2, 3)\ntorch.std(x)\ntorch.load(p)\nprint(torch.save)"
    )
    assert found.operators == {KNOWN: 1, "quantize_per_tensor": 1, DEPENDS: 1}
    unknown, depends, calls = unknown_operators([found])
    assert (dict(unknown), depends, calls) == ({"quantize_per_tensor": 1}, 1, 3)


def test_the_table_of_torchs_names_has_only_operators_that_the_releases_know():
    lacking = {
        name: operator
        for name in ("linalg.inv", "nn.functional.gelu", "matmul", "nn.Linear", "std", "fft.fft", "nn.GRU", "unique")
        for operator in (*torch_operators.function(name).every, *torch_operators.function(name).some)
        if status(operator).kind is Kind.UNKNOWN
    }
    assert lacking == {}
    assert torch_operators.function("no_such") is None
    assert not torch_operators.is_function("load")
    assert torch_operators.is_function("nn.SyncBatchNorm")


ATTENTION = {
    "operators": "def f(q, k, v):\n    return (q @ k.transpose(-2, -1)).softmax(-1) @ v",
    "rebound": (
        "def f(self, q, k, v, mask):\n    a = torch.bmm(q, k.mT) * self.scale\n    if mask is not None:\n"
        "        a = a.masked_fill(mask, -1e9)\n    a = F.softmax(a.float(), dim=-1).type_as(q)\n"
        "    a = F.dropout(a, 0.1)\n    out = torch.bmm(a, v)\n    return out, a"
    ),
    "bias": (
        "def f(self, q, k, v):\n    a = q @ k.mT\n    a += self.bias\n    a = self.softmax(a)\n"
        "    a = self.attn_drop(a)\n    return (a @ v).transpose(1, 2)"
    ),
    "module": (
        "s = torch.einsum('bid,bjd->bij', q, k)\nw = torch.softmax(s, -1)\no = torch.einsum('bij,bjd->bid', w, v)"
    ),
    "layer": "def f(q, k, v):\n    p = torch.nn.Softmax(dim=-1)(torch.matmul(q, k) / 8)\n    return torch.matmul(p, v)",
}


@pytest.mark.parametrize("text", ATTENTION.values(), ids=ATTENTION)
def test_attention_by_hand_is_one_hint(text):
    ast.parse(text)
    found = [finding for finding in ported(text).findings if finding.rule.code == "TR112"]
    assert len(found) == 1
    assert not found[0].converted
    assert "npu_fusion_attention" in found[0].message
    assert " lines above" in found[0].message  # in a notebook a line counts from its cell


@pytest.mark.parametrize(
    "text",
    [
        "def f(x, w):\n    return torch.softmax(x @ w, -1)", "def f(a, v):\n    return torch.softmax(a, -1) @ v",
        "def f(q, k, v):\n    s = q @ k\n    s = v\n    return torch.softmax(s, -1) @ v",
        "def f(x, w, y):\n    p = (x @ w).softmax(-1)\n    return (p - y) @ w",
    ],
)  # fmt: skip
def test_products_and_softmax_that_are_no_attention(text):
    assert "TR112" not in [finding.rule.code for finding in ported(text).findings]


def test_fused_attention_says_what_decides():
    def message(text, **card):
        (finding,) = ported(f"o = F.scaled_dot_product_attention({text})", **card).findings
        return finding.message

    assert "four dimensions" in message("q, k, v")
    assert "boolean mask only" in message("q, k, v, bias")
    assert "the mask is boolean" in message("q, k, v, attn_mask=lengths > 0")
    assert "needs a 910B or newer" in message("q, k, v", chip="310P3")
