"""Kernels as the vendor's profiler names them, as calls of operators; pure, from vendor_kernels.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from toprope.estimate.calls import OperatorCall, TensorShape

__all__ = ["call_of", "operator_of"]


@cache
def _table() -> dict[str, dict[str, str]]:
    """Operators by kernel, and torch's dtypes by the profiler's."""
    text = resources.files("toprope.estimate").joinpath("vendor_kernels.toml").read_text(encoding="utf-8")
    return {
        name: {kernel: operator for operator, kernels in rows.items() for kernel in kernels.split()}
        for name, rows in tomllib.loads(text).items()
    }


_SHAPE = re.compile(r"[\d,]+")
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
    return OperatorCall(f"npu::{name}", tuple(made), _operations(name, kind, made))


def _tensors(shapes: str, dtypes: Sequence[str], role: str) -> list[TensorShape]:
    if not shapes.strip('"; '):
        return []
    found = _shapes(shapes)
    known = [_table()["dtypes"].get(each.strip().upper(), "float32") for each in dtypes] or ["float32"]
    return [
        TensorShape(known[min(place, len(known) - 1)], sizes, "read" if role == "read" else "result")
        for place, sizes in enumerate(found)
    ]


def _operations(name: str, kind: str, tensors: list[TensorShape]) -> int:
    """Operations that shapes alone do not say: of convolutions."""
    if name == "convolution" and len(tensors) > 2:
        weight, result = tensors[1], tensors[-1]
        if len(weight.sizes) < 3 or not weight.sizes[0]:
            return 0
        return 2 * result.elements * (weight.elements // weight.sizes[0])
    return 0
