"""Kernels as the vendor's profiler names them, translated to calls of operators; pure, from vendor_kernels.toml.

Used by calibrate.py. The names and the order of a kernel's tensors are the vendor's; a new kernel is a row of the
table. A kernel that is not in the table, or whose layout its shapes do not decide, is not used for the fit. Tests:
tests/estimate/test_profile_reading.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from toprope.estimate.record.calls import OperatorCall, TensorShape

__all__ = ["call_of", "operator_of"]


@cache
def _table() -> dict[str, dict[str, str]]:
    """Operators by kernel, and torch's dtypes by the profiler's."""
    text = resources.files("toprope.estimate.measured").joinpath("vendor_kernels.toml").read_text(encoding="utf-8")
    return {
        name: {kernel: operator for operator, kernels in rows.items() for kernel in kernels.split()}
        for name, rows in tomllib.loads(text).items()
    }


_PRODUCTS = frozenset({"mm", "bmm"})
_ATTENTION = frozenset(
    {
        "npu_fusion_attention",
        "npu_fusion_attention_grad",
        "npu_fused_infer_attention_score",
        "npu_prompt_flash_attention",
    }
)
_VERSION = re.compile(r"(V\d+|\d+)$|D$")


def operator_of(kind: str) -> str:
    """The operator that a kernel of this type computes: "mm"; "" where it is not known."""
    if kind.startswith("aclnn"):
        kind = kind.removeprefix("aclnn").split("_", 1)[0]
    operators = _table()["operators"]
    plain = _VERSION.sub("", kind)
    if found := operators.get(kind) or operators.get(plain):
        return found
    if plain.startswith("Foreach"):
        return "_foreach_" + plain.removeprefix("Foreach").lower()
    return ""


def _shapes(text: str) -> list[tuple[int, ...]]:
    """Shapes as the profiler writes them: "1024,4096;4096" with quotes; an empty one is a scalar."""
    return [tuple(int(size) for size in part.split(",") if size.strip()) for part in text.strip('"; ').split(";")]


def call_of(
    kind: str, input_shapes: str, input_dtypes: str, output_shapes: str, output_dtypes: str
) -> OperatorCall | None:
    """A row of kernel_details.csv as a call; None where the type or a shape is not known.

    Args:
        kind: the column Type.
        input_shapes, output_shapes: such as "1024,4096;4096,4096".
        input_dtypes, output_dtypes: such as "FLOAT16;FLOAT16".
    """
    name = operator_of(kind)
    if not name or not output_shapes.strip('"; ') or "N/A" in (input_shapes, output_shapes):
        return None
    made = [
        *_tensors(input_shapes, input_dtypes.split(";"), "read"),
        *_tensors(output_shapes, output_dtypes.split(";"), "result"),
    ]
    if name in _PRODUCTS:
        made = _oriented(made)
    operations = _convolved(made) if name == "convolution" else 0
    if name in _ATTENTION:
        made, operations = _attention(name, made)
    return OperatorCall(f"npu::{name}", tuple(made), operations)


def _tensors(shapes: str, dtypes: Sequence[str], role: str) -> list[TensorShape]:
    if not shapes.strip('"; '):
        return []
    found = _shapes(shapes)
    known = [_table()["dtypes"].get(each.strip().upper(), "float32") for each in dtypes] or ["float32"]
    return [
        TensorShape(known[min(place, len(known) - 1)], sizes, "read" if role == "read" else "result")
        for place, sizes in enumerate(found)
    ]


def _oriented(tensors: list[TensorShape]) -> list[TensorShape]:
    """The factors of a product with the rows of the first one in front: kernels take transposed ones as they are."""
    read = [each for each in tensors if each.role == "read"]
    result = tensors[-1].sizes
    if len(read) < 2 or len(read[0].sizes) < 2 or len(result) < 2:
        return tensors
    left = read[0].sizes
    if left[-2] != result[-2] and left[-1] == result[-2]:
        left = (*left[:-2], left[-1], left[-2])
    return [replace(read[0], sizes=left), *tensors[1:]]


def _convolved(tensors: list[TensorShape]) -> int:
    """Operations of a convolution forward."""
    if len(tensors) < 3:
        return 0
    weight, result = tensors[1], tensors[-1]
    if len(weight.sizes) < 3 or not weight.sizes[0]:
        return 0
    return 2 * result.elements * (weight.elements // weight.sizes[0])


_COMPRESSED = (2048, 2048)
"""Shape of the mask that stands for a causal one of any length, in npu_fusion_attention's sparse modes 2 to 4."""


def _attention(name: str, tensors: list[TensorShape]) -> tuple[list[TensorShape], int]:
    """Tensors of fused attention with queries of (batch, heads, length, head), and the operations; 0 if not known.

    The profiler does not say the layout. The statistics of the softmax (batch, heads, length, 8), which the kernel for
    training returns or takes, do; four sizes do where queries and keys agree in all but one.
    """
    read = [each for each in tensors if each.role == "read"]
    if len(read) < 3:
        return tensors, 0
    query, key = read[0].sizes, read[1].sizes
    statistics = [each.sizes for each in tensors if len(each.sizes) == 4 and each.sizes[-1] == 8 and each.elements]
    if statistics:
        batch, heads, length, _ = statistics[0]
        head, left = divmod(read[0].elements, batch * heads * length)
        if left or not head:
            return tensors, 0
        keys = _keys(key, batch, heads, length, head)
    elif len(query) == len(key) == 4 and query[0] == key[0] and query[3] == key[3] and query[1] <= 128:
        (batch, heads, length, head), keys = query, key[2]
        if heads % max(key[1], 1) or heads > max(length, keys):
            return tensors, 0
    else:
        return tensors, 0
    operations = 4 * batch * heads * length * keys * head
    masks = [each.sizes for each in read[3:] if each.sizes[-2:] == _COMPRESSED]
    if masks and (length, keys) == _COMPRESSED:
        return tensors, 0  # a whole mask, or a causal one
    if masks:
        operations //= 2
    shaped = replace(read[0], sizes=(batch, heads, length, head))
    return [shaped, *tensors[1:]], operations * (5 if name.endswith("_grad") else 2) // 2 if keys else 0


def _keys(key: tuple[int, ...], batch: int, heads: int, length: int, head: int) -> int:
    """Length of the keys; 0 where it is not known."""
    if len(key) == 4 and key[3] == head and key[0] == batch:
        of_heads = [size for size in key[1:3] if size <= heads and heads % size == 0]
        if len(of_heads) == 1:
            return key[1] * key[2] // of_heads[0]
        if heads in key[1:3] and length in key[1:3]:
            return length
    if len(key) == 3:  # (batch, length, heads x head) or (length, batch, ...): as many heads as the queries have
        return key[0] * key[1] // batch if key[2] == heads * head else 0
    return 0
