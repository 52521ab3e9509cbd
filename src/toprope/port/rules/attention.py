"""Attention: where the card's fused kernel is reached, and where products and a softmax are written out instead.

Found by `port.registry`. Tests: its examples (tests/port/test_port_rules.py), tests/port/test_port_operators.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from toprope import chips
from toprope.port.analysis.tensor_facts import dtype_of, is_unpacked
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

_WORDS = [b"scaled_dot_product_attention", b"softmax", b"Softmax", b"flash", b"get_kernel"]
FAMILY = Family("attention", "Attention", words=_WORDS)

_PAGE = "torch_npu's page of npu_fusion_attention"
FUSED = FAMILY.rule(
    "TR111",
    Kind.REVIEW,
    "F.scaled_dot_product_attention: reaches npu_fusion_attention only for some arguments",
    hint=True,
    why="""On a 910B and newer torch_npu's own scaled_dot_product_attention calls the fused kernel
    (npu_fusion_attention) for query, key and value of four dimensions in float16, bfloat16 or float32 whose mask is
    None or boolean. With a mask of numbers (0 and -inf), three dimensions, float64 or more than 512 channels a head it
    computes the products and the softmax as single operators: slower, and with the whole matrix of scores in memory.
    Give a boolean mask, or is_causal=True. On chips before the 910B it is never fused. Ignore the line where the
    arguments are right.""",
    source="op-plugin: ScaledDotProductAttentionKernelNpuOpApi.cpp; " + _PAGE,
    examples=[
        Example(
            """
            import torch.nn.functional as F

            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            """
        ),
        Example(
            """
            import torch

            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            """
        ),
    ],
)  # fmt: skip
BY_HAND = FAMILY.rule(
    "TR112",
    Kind.REVIEW,
    "softmax(q @ k.T) @ v: attention written out by hand",
    hint=True,
    why="""The matrix of all scores is computed and kept, on every device. torch's scaled_dot_product_attention computes
    the same in one kernel on CUDA, and on NPUs from the 910B on through npu_fusion_attention, where its mask is boolean
    or None. Write it with that function where nothing else needs the scores; the last digits differ. Leave it where the
    probabilities themselves are returned or changed.""",
    source=_PAGE + "; torch's page of scaled_dot_product_attention",
    examples=[
        Example(
            """
            import torch

            def attend(q, k, v, mask):
                scores = torch.matmul(q, k.transpose(-2, -1)) / 8
                scores = scores.masked_fill(mask == 0, float("-inf"))
                weights = torch.softmax(scores, dim=-1)
                return torch.matmul(weights, v)
            """
        ),
        Example(
            """
            import torch

            def attend(self, q, k, v):
                sim = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale
                attn = self.dropout(sim.softmax(dim=-1))
                return torch.einsum("b i j, b j d -> b i d", attn, v)
            """
        ),
        Example(
            """
            import torch

            def eager_attention(q, k, v):
                return torch.softmax(q @ k.mT, dim=-1) @ v
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            def gradient(hidden, weight, onehot):
                probabilities = torch.softmax(hidden @ weight.t(), dim=-1)
                return (probabilities - onehot) @ weight
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            def classify(x, weights, table):
                logits = x @ weights
                return torch.softmax(logits, dim=-1)
            """,
            reported=False,
        ),
    ],
)
_SDPA = "torch.nn.functional.scaled_dot_product_attention"


@FAMILY.call(_SDPA, "torch.scaled_dot_product_attention")
def _fused(file: File, node: ast.Call) -> bool:
    mask = file.argument(node, 3, "attn_mask")
    chip = file.context.target.chip
    if mask is not None and not (isinstance(mask, ast.Constant) and mask.value is None):
        if dtype_of(file, mask) == "bool" or isinstance(mask, ast.Compare):
            said = "the mask is boolean: npu_fusion_attention is reached with four dimensions"
        else:
            said = "npu_fusion_attention is reached with a boolean mask only; one of numbers takes single operators"
    else:
        said = "npu_fusion_attention is reached with four dimensions in float16, bfloat16 or float32"
    if chips.get(chip).family.startswith(("Ascend 910 (", "Ascend 310P")):
        said = f"a {chip} computes it by single operators: npu_fusion_attention needs a 910B or newer"
    file.report(FUSED, node, said)
    return False


@FAMILY.node(ast.FunctionDef, ast.AsyncFunctionDef)
def _by_hand(file: File, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if not _ON_PURPOSE.search(node.name.lower()):
        _Search(file).statements(node.body)
    return False


_ON_PURPOSE = re.compile(r"eager|naive|reference|_ref(?:_|$)|_math(?:_|$)")
"""Names of functions that are the slow version next to a fused one, as each model of transformers has."""


@FAMILY.call("torch.nn.functional.softmax", "torch.softmax")
def _at_top(file: File, node: ast.Call) -> bool:
    """Attention outside of functions, as in notebooks: looked at from the first softmax of the file."""
    inside = any(
        isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for each in file.ancestors(node)
    )
    tree = file.walk.module.node
    if not inside and isinstance(tree, ast.Module) and not any(each.rule is BY_HAND for each in file.findings):
        _Search(file).statements(tree.body)
    return False


@dataclass(frozen=True)
class _Value:
    """Scores, or probabilities made of them; the line of the scores, and whether something was added to them."""

    probabilities: bool
    line: int
    biased: bool = False


_PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}
_KEEP = {
    "masked_fill", "masked_fill_", "float", "half", "bfloat16", "to", "type", "type_as", "contiguous", "view",
    "reshape", "permute", "transpose", "add", "add_", "mul", "mul_", "div", "div_", "sub", "clamp",
    "clamp_", "nan_to_num", "clone", "unsqueeze", "squeeze", "flatten", "where", "dropout", "cast",
    "tril", "triu", "repeat", "expand", "rearrange",
}  # fmt: skip


class _Search:
    """Follows scores from their product through a softmax to the second product, statement by statement."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.names: dict[str, _Value | None] = {}
        self.found: set[int] = set()

    def statements(self, body: list[ast.stmt]) -> None:
        """Follow statements in their order; both branches of a condition one after the other."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                value = self.value(statement.value)
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.names[target.id] = value
            elif isinstance(statement, ast.AugAssign | ast.Return | ast.Expr) and statement.value is not None:
                self.value(statement.value)
                if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                    scores = self.names.get(statement.target.id)
                    if scores is not None and isinstance(statement.op, ast.Add | ast.Sub):
                        self.names[statement.target.id] = _Value(scores.probabilities, scores.line, biased=True)
            for inner in ("body", "orelse", "finalbody"):
                branch = getattr(statement, inner, None)
                if isinstance(branch, list):
                    before = dict(self.names)
                    self.statements(branch)
                    for name, value in before.items():
                        if self.names.get(name) is None:
                            self.names[name] = value

    def value(self, node: ast.expr) -> _Value | None:
        """Return the part that an expression is; report the second product of an attention."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(node.op, ast.MatMult):
                return self.product(node, [left, right])
            changed = left or right
            scaled = isinstance(node.op, ast.Mult | ast.Div)
            if isinstance(node.op, ast.Add | ast.Sub) and changed is not None and not changed.probabilities:
                return _Value(False, changed.line, biased=True)
            return changed if changed is None or not changed.probabilities or scaled else None
        if isinstance(node, ast.IfExp):
            return self.value(node.body) or self.value(node.orelse)
        if isinstance(node, ast.Subscript | ast.Starred | ast.Await):
            return self.value(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            for each in node.elts:
                self.value(each)
            return None
        return self.call(node) if isinstance(node, ast.Call) else None

    def call(self, node: ast.Call) -> _Value | None:
        """Return the part that a call gives: a product, a softmax, or its argument where the call keeps that."""
        function = node.func
        full = self.file.dotted(function)
        name = _last_name(function)
        receiver = self.value(function.value) if isinstance(function, ast.Attribute) and full is None else None
        given = [receiver, *(self.value(each) for each in node.args)]
        first = next((each for each in given if each is not None), None)
        if name in _PRODUCTS:
            return self.product(node, given)
        if "softmax" in name.lower():
            if first is not None and not first.probabilities:
                return _Value(True, first.line, first.biased)
            return None
        if first is not None and name in ("add", "add_", "sub") and not first.probabilities:
            return _Value(False, first.line, biased=True)
        kept = name in _KEEP or any(word in name.lower() for word in ("drop", "mask", "bias"))
        return first if kept else None

    def product(self, node: ast.expr, given: list[_Value | None]) -> _Value | None:
        """Scores from what is no attention yet; the end of one from probabilities."""
        first = next((each for each in given if each is not None and each.probabilities), None)
        if first is None:
            return _Value(False, node.lineno)
        if first.line not in self.found:
            self.found.add(first.line)
            if any(self.is_used(name, node) for name, each in self.names.items() if each == first):
                return None
            above = node.lineno - first.line
            said = (
                f"attention by hand, its scores {above} lines above: scaled_dot_product_attention of "
                "torch.nn.functional reaches npu_fusion_attention, with a boolean mask or none"
            )
            if first.biased:
                said += "; what is added to the scores here is none: with a bias of floats it takes single operators"
            if any(self.is_returned(name, node) for name, each in self.names.items() if each == first):
                said += "; the probabilities are returned: leave it where the program uses them"
            self.file.report(BY_HAND, node, said)
        return None

    def is_returned(self, name: str, product: ast.expr) -> bool:
        """Return whether the function returns the probabilities next to the product."""
        around = self.file.function(product) or product
        returns = [each for each in nodes_of(around) if isinstance(each, ast.Return)]
        return any(isinstance(each, ast.Name) and each.id == name for one in returns for each in nodes_of(one))

    def is_used(self, name: str, product: ast.expr) -> bool:
        """Return whether the probabilities are used for more than the second product and a return."""
        around = self.file.function(product)
        for each in nodes_of(around or product):
            if not isinstance(each, ast.Name) or each.id != name or not isinstance(each.ctx, ast.Load):
                continue
            outer = [*self.file.ancestors(each)]
            if product in outer or each.lineno < product.lineno:
                continue
            statement = self.file.statement(each)
            returned = isinstance(statement, ast.Return) and isinstance(self.file.parent(each), ast.Tuple | ast.Return)
            if returned and not (around is not None and is_unpacked(self.file, name, around)):
                continue  # the callers of most models do not look at them
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if not any(isinstance(one, ast.Name) and one.id == name for one in targets):
                return True
        return False


def _last_name(function: ast.expr) -> str:
    """The last name of a function; for `nn.Softmax(dim=1)(x)` the class's name."""
    if isinstance(function, ast.Call):
        return _last_name(function.func)
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


KERNEL = FAMILY.rule(
    "TR077b",
    Kind.NOT_CONVERTIBLE,
    'get_kernel("...flash-attn"), _flash_attention_forward: flash attention by another name',
    why="""The kernels of that hub are compiled for CUDA, and transformers' own function needs the package flash_attn.
    Choose attn_implementation="sdpa", call torch's scaled_dot_product_attention, or take what the line names.""",
    source="Hugging Face's kernels; transformers' modeling_flash_attention_utils",
    examples=[
        Example(
            """
            from kernels import get_kernel

            flash = get_kernel("kernels-community/flash-attn3").flash_attn_interface
            """
        ),
        Example("from transformers.modeling_flash_attention_utils import _flash_attention_forward"),
        Example('KERNELS = ["sdpa", "kernels-community/flash-attn", "kernels-community/flash-attn3"]'),
        Example('model = get_kernel("rbf")', reported=False),
    ],
)
DEFAULT = FAMILY.rule(
    "TR078a",
    Kind.REVIEW,
    'attn_implementation: str = "flash_attention_2" as a default, in a dictionary or on a configuration',
    why="""transformers raises where the package flash_attn is missing. Make "sdpa" the default: it is torch's own
    attention, which is fused on CUDA and reaches the card's kernel on NPUs; or ask for the package first.""",
    source="transformers' documentation of attention",
    examples=[
        Example(
            """
            def load(name, attn_implementation="flash_attention_2"):
                return name
            """
        ),
        Example(
            """
            config._attn_implementation = "flash_attention_2"
            """
        ),
        Example(
            """
            if config._attn_implementation == "flash_attention_2":
                print("fast")
            """,
            reported=False,
        ),
    ],
)


@FAMILY.node(ast.Call)
def _kernel(file: File, node: ast.Call) -> bool:
    if _last_name(node.func) == "get_kernel" and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and "flash" in str(first.value):
            from toprope.support.replacements import for_module

            found = for_module("kernels")
            file.report(KERNEL, node, "" if found is None else f"known to replace it: {found.text}")
    return False


@FAMILY.string("kernels-community/*")
def _listed(file: File, node: ast.Constant) -> bool:
    """The name of such a kernel in a list or as a default; once a file."""
    around = file.parent(node)
    if isinstance(around, ast.Expr) or "flash" not in str(node.value):
        return False
    called = isinstance(around, ast.Call) and _last_name(around.func) == "get_kernel"
    if not called and not any(each.rule is KERNEL for each in file.findings):
        file.report(KERNEL, node, f'{file.text(node)} is compiled for CUDA; "sdpa" runs on every device')
    return False


@FAMILY.module("transformers")
def _forward(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    if any(each.name in ("_flash_attention_forward", "flash_attn_supports_top_left_mask") for each in node.names):
        file.report(KERNEL, node)
    return False


@FAMILY.string("flash_attention_2", "flash_attention_3")
def _default(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    said = (
        (isinstance(around, ast.Assign | ast.AnnAssign) and around.value is node)
        or isinstance(around, ast.arguments)
        or (isinstance(around, ast.Dict) and node in around.values)
        or (isinstance(around, ast.keyword) and around.arg == "default")
    )
    if said:
        file.report(DEFAULT, node, f'{file.text(node)} needs the package flash_attn; "sdpa" runs on every device')
    return False
