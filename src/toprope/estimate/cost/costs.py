"""Work of an operator's call: operations of the cube cores, and bytes that pass the memory; pure.

rates.py turns it into time; traces record it. Counted from shapes alone, as torch.utils.flop_counter does: a
multiply-add is two operations. Reads of tables (embedding, gather) count the rows that are read, not the table.
Operators' names are those of torch and torch_npu; their kinds are data (costs.toml). The rates were fitted to these
counts: another way of counting needs new rates. Tests: tests/estimate/test_costs.py.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import prod
from typing import Literal

from toprope.estimate.record.calls import OperatorCall, TensorShape, item_bits

__all__ = ["KINDS", "Cost", "cost_of"]

Kind = Literal[
    "matmul", "convolution", "attention", "elementwise", "softmax", "normalisation", "reduction", "indexing", "copy",
    "optimizer", "sorting", "other",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "matmul", "convolution", "attention", "elementwise", "softmax", "normalisation", "reduction", "indexing", "copy",
    "optimizer", "sorting", "other",
)  # fmt: skip
"""Kinds of operators, each with rates of its own. "other" is what no rule here names."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call.

    Attributes:
        kind: which rates hold for it.
        operations: multiplications and additions of the cube cores; 0 for an operator of the vector cores.
        dtype: of the factors of a product, else of the largest tensor.
        bytes: read from and written to the device's memory.
        cold: of those, bytes that the level-2 cache does not hold: nothing touched them for too long.
        elements: results of the vector cores.
        rows, columns, depth: of one product of matrices; 0 where it is none.
        products: how many such products.
        rows_of_queries: of fused attention, over all heads; 0 elsewhere.
        head: of fused attention, the size of a head.
        operator: its name without namespace, for rates of its own.
        rearranged: elements that change their places: of operands that are strided, and of changes of the layout.
        row_bytes: of a rearrangement, bytes that stay together.
    """

    kind: Kind
    operations: float = 0
    dtype: str = "float32"
    bytes: float = 0
    elements: float = 0
    rows: int = 0
    columns: int = 0
    depth: int = 0
    products: int = 1
    rows_of_queries: int = 0
    head: int = 0
    operator: str = ""
    rearranged: int = 0
    row_bytes: int = 0
    cold: float = 0


class _Table:
    """costs.toml: operators by kind."""

    def __init__(self) -> None:
        text = resources.files("toprope.estimate.cost").joinpath("costs.toml").read_text(encoding="utf-8")
        data = tomllib.loads(text)
        self.first_factor = {
            name: place for place, key in enumerate(("first", "second")) for name in data["products"][key].split()
        }
        self.kinds: dict[str, Kind] = {name: kind for kind, names in data["kinds"].items() for name in names.split()}
        self.parts: list[tuple[str, Kind]] = [
            (part, kind) for kind, parts in data["parts"].items() for part in parts.split()
        ]
        self.writes, self.takes, self.puts, self.rearranges = (
            frozenset(data["moves"][key].split()) for key in ("writes", "takes", "puts", "rearranges")
        )


@cache
def _table() -> _Table:
    return _Table()


def cost_of(call: OperatorCall) -> Cost:
    """The work of a call."""
    table, name = _table(), call.base
    if name in table.first_factor:
        return _product(call, table.first_factor[name])
    by_part: Kind = next((kind for part, kind in table.parts if part in name), "other")
    plain = name.removeprefix("_foreach_")
    gradient_of = plain.removesuffix("_backward").removesuffix("_grad")
    kind = table.kinds.get(name) or table.kinds.get(plain) or table.kinds.get(gradient_of) or by_part
    if kind == "attention":
        query = call.tensors[0].sizes if call.tensors else ()
        cost = _of_bytes(call, kind)
        return replace(cost, rows_of_queries=prod(query[:-1]), head=query[-1] if query else 0)
    return _of_bytes(call, kind)


def _product(call: OperatorCall, first: int) -> Cost:
    read, made = call.of("read"), call.of("written", "result")
    if call.base.startswith("add") or call.base == "baddbmm":
        first = min(first, len(read) - 2)  # in place, what is added to is written
    if len(read) < first + 2 or not made or not read[first].sizes:
        return _of_bytes(call, "matmul")
    left, right, result = read[first], read[first + 1], made[-1]
    depth = left.sizes[-1]
    columns = result.sizes[-1] if len(right.sizes) > 1 and result.sizes else 1
    products = 1
    if len(right.sizes) > 2 and len(result.sizes) > 2 and "grouped" not in call.base:
        for size in result.sizes[:-2]:
            products *= size
    rows = result.elements // max(columns * products, 1)
    operations = call.operations or 2.0 * result.elements * depth
    dtype = min((left.dtype, right.dtype), key=_narrowness) if "weight_quant" not in call.base else left.dtype
    return Cost("matmul", operations, dtype, _all(call), result.elements, rows, columns, depth, products)


def _narrowness(dtype: str) -> int:
    return -item_bits(dtype)


def _of_bytes(call: OperatorCall, kind: Kind) -> Cost:
    largest = max(call.tensors, key=lambda each: each.elements, default=TensorShape("float32", ()))
    dtype = call.tensors[0].dtype if call.operations and call.tensors else largest.dtype
    made = max((each.elements for each in call.of("written", "result")), default=0)
    elements = largest.elements
    if call.base in _table().takes and made:
        elements = made
    elif call.base in _table().puts and not call.of("result"):
        elements = max((each.elements for each in call.of("read")), default=0)
    moved = _moved(call, kind)
    cold = min(moved, _cold(call, kind))
    cost = Cost(kind, call.operations, dtype, moved, elements, operator=call.base, cold=cold)
    return cost if kind in ("convolution", "attention") else _with_layout(cost, call)


def _with_layout(cost: Cost, call: OperatorCall) -> Cost:
    """The cost with the rearrangement of strided operands, which the vendor's kernels make contiguous first."""
    moving = [each for each in call.tensors if each.strided and each.elements > 1]
    if call.base in _table().rearranges and call.tensors:
        moving = [call.tensors[-1]]
    if not moving:
        return cost
    last = min((each.sizes[-1] if each.sizes else 1) * item_bits(each.dtype) // 8 for each in moving)
    return replace(cost, rearranged=sum(each.elements for each in moving), row_bytes=last)


def _cold(call: OperatorCall, kind: Kind) -> float:
    """Bytes that are read and that the level-2 cache does not hold; what is overwritten whole is not read."""
    table, name = _table(), call.base
    if name in table.writes:
        return 0.0
    overwrites = kind == "copy" or name in table.puts
    read = call.of("read") if overwrites else call.of("read", "written")
    if name in table.takes:  # of the table what is taken
        taken = sum(each.bytes for each in call.of("written", "result"))
        return float(sum(min(taken, each.bytes) if not place else each.bytes
                         for place, each in enumerate(read) if each.cold))  # fmt: skip
    return float(sum(each.bytes for each in read if each.cold))


def _moved(call: OperatorCall, kind: Kind) -> float:
    """Bytes that are read and written."""
    table, name = _table(), call.base
    read, made = call.of("read"), call.of("written", "result")
    written = sum(each.bytes for each in made)
    if name in table.writes:
        return float(written)
    if kind == "copy":
        return float(written + sum(each.bytes for each in read) + call.more_read + call.more_written)
    if name in table.takes:  # the table, then the indices
        return float(written + min(written, read[0].bytes if read else 0) + sum(each.bytes for each in read[1:]))
    if name in table.puts:  # indices and values; the places are read and written
        copied = sum(each.bytes for each in call.of("result"))
        return float(3 * sum(each.bytes for each in read) + 2 * copied)
    return _all(call)


def _all(call: OperatorCall) -> float:
    """Each tensor once, and what is written in place twice."""
    moved = sum(each.bytes * (2 if each.role == "written" else 1) for each in call.tensors)
    return float(moved + call.more_read + 2 * call.more_written)
