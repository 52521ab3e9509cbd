"""Work of a call of an operator: operations of the cube cores, and bytes that pass the memory; pure.

Counted from shapes alone, as torch.utils.flop_counter does: a multiply-add is two operations. Reads of tables (embedding,
gather) count what is taken, not the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from toprope.estimate.calls import OperatorCall, TensorShape, item_bits

__all__ = ["KINDS", "Cost", "Kind", "cost_of"]

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


_PRODUCTS = {
    "mm": 0, "bmm": 0, "mv": 0, "_int_mm": 0, "matmul": 0, "linear": 0, "npu_linear": 0, "npu_bmmV2": 0,
    "npu_quant_matmul": 0, "npu_weight_quant_batchmatmul": 0, "npu_grouped_matmul": 0, "npu_grouped_matmul_finalize_routing": 0,
    "npu_grouped_matmul_swiglu_quant": 0, "npu_transpose_batchmatmul": 0, "npu_mm_all_reduce_base": 0,
    "npu_all_gather_base_mm": 0, "npu_mm_reduce_scatter_base": 0,
    "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1, "_addmm_activation": 1,
}  # fmt: skip
"""Products of matrices, and the place of the first factor among the tensors that are read."""

_CONVOLUTIONS = frozenset((
    "convolution", "convolution_backward", "convolution_overrideable", "convolution_backward_overrideable",
    "_convolution", "npu_conv2d", "npu_conv3d", "npu_conv_transpose2d", "npu_convolution",
))  # fmt: skip
_ATTENTION = ("scaled_dot_product", "attention", "flash")

_WRITES_ONLY = frozenset((
    "fill", "zero", "uniform", "normal", "random", "bernoulli", "exponential", "zeros", "ones", "full", "arange",
    "zeros_like", "ones_like", "full_like", "eye", "linspace", "randperm", "_efficientzerotensor",
))  # fmt: skip
_TAKES = frozenset((
    "embedding", "index_select", "gather", "index", "take", "take_along_dim", "masked_select",
))  # fmt: skip
_PUTS = frozenset((
    "scatter", "scatter_add", "index_put", "index_add", "index_copy", "index_fill", "_index_put_impl", "scatter_reduce",
    "npu_scatter_nd_update", "scatter_update", "masked_scatter",
))  # fmt: skip
_SOFTMAX = ("softmax", "cross_entropy", "logsumexp", "nll_loss")
_NORMS = ("layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm", "normalize", "weight_norm")
_SUMS = frozenset((
    "sum", "mean", "prod", "amax", "amin", "max", "min", "all", "any", "norm", "linalg_vector_norm", "var", "std",
    "var_mean", "std_mean", "argmax", "argmin", "cumsum", "cumprod", "dot", "mse_loss", "l1_loss", "aminmax",
    "_foreach_norm", "isnan", "equal", "count_nonzero", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "avg_pool2d",
    "max_pool2d_with_indices", "avg_pool2d_backward", "max_pool2d_with_indices_backward",
    "_adaptive_avg_pool2d_backward", "smooth_l1_loss", "binary_cross_entropy_with_logits",
))  # fmt: skip
_COPIES = frozenset((
    "copy", "clone", "contiguous", "cat", "stack", "_to_copy", "npu_dtype_cast", "npu_format_cast", "roll", "flip", "repeat",
    "constant_pad_nd", "tril", "triu", "split_with_sizes_copy", "im2col", "col2im", "npu_transpose",
    "transpose_copy", "slice_copy", "upsample_nearest2d", "upsample_nearest2d_backward", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
))  # fmt: skip
_SORTS = frozenset(
    (
        "sort",
        "topk",
        "kthvalue",
        "argsort",
        "unique2",
        "_unique2",
        "nonzero",
        "histc",
        "bincount",
        "multinomial",
        "median",
    )
)
_OPTIMIZERS = ("_fused_adam", "_fused_sgd", "npu_apply_adam", "_fused_adagrad", "apply_adam")
_ELEMENTWISE = frozenset("""
    add sub rsub mul div true_divide neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal pow square sin cos
    tan sinh cosh tanh asin acos atan atan2 erf erfc sinc floor ceil round trunc frac sign signbit floor_divide fmod
    remainder maximum minimum clamp clamp_min clamp_max lerp addcmul addcdiv xlogy logaddexp nan_to_num eq ne lt le gt ge
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isinf isfinite isclose
    where masked_fill relu gelu silu sigmoid leaky_relu elu hardswish hardsigmoid hardtanh softplus mish selu celu
    threshold tanh_backward sigmoid_backward gelu_backward silu_backward threshold_backward hardswish_backward
    hardsigmoid_backward leaky_relu_backward elu_backward hardtanh_backward softplus_backward native_dropout
    native_dropout_backward dropout npu_silu npu_swiglu npu_swiglu_backward npu_rotary_mul npu_rotary_mul_backward
    npu_gelu fast_gelu npu_fast_gelu mse_loss_backward smooth_l1_loss_backward polar complex real imag view_as_real
    npu_dropout_do_mask npu_dropout npu_apply_rotary_pos_emb npu_geglu glu glu_backward _amp_foreach_non_finite_check_and_unscale
    _amp_update_scale npu_dynamic_quant npu_quantize npu_anti_quant dequantize isneginf isposinf heaviside
""".split())  # fmt: skip


def cost_of(call: OperatorCall) -> Cost:
    """The work of a call."""
    name = call.base
    if name in _PRODUCTS:
        return _product(call, _PRODUCTS[name])
    if name in _CONVOLUTIONS:
        return _of_bytes(call, "convolution", call.operations)
    if any(part in name for part in _ATTENTION):
        cost = _of_bytes(call, "attention", call.operations)
        query = call.tensors[0].sizes if call.tensors else ()
        return replace(cost, rows_of_queries=prod(query[:-1]), head=query[-1] if query else 0)
    if name == "embedding_dense_backward":
        return _of_bytes(call, "indexing")
    for kind, names in _BY_NAME:
        if name.removeprefix("_foreach_") in names:
            return _of_bytes(call, kind, moved=_MOVED.get(kind, _all)(call, name))
    if name.startswith(_OPTIMIZERS):
        return _of_bytes(call, "optimizer")
    if any(part in name for part in _NORMS):
        return _of_bytes(call, "normalisation")
    if any(part in name for part in _SOFTMAX):
        return _of_bytes(call, "softmax")
    return _of_bytes(call, "other", call.operations)


_BY_NAME: tuple[tuple[Kind, frozenset[str]], ...] = (
    ("copy", _WRITES_ONLY | _COPIES),
    ("indexing", _TAKES | _PUTS),
    ("reduction", _SUMS),
    ("sorting", _SORTS),
    ("elementwise", _ELEMENTWISE),
)


def _product(call: OperatorCall, first: int) -> Cost:
    read, made = call.of("read"), call.of("written", "result")
    if call.base.startswith("add") or call.base == "baddbmm":
        first = min(first, len(read) - 2)  # in place, what is added to is written
    if len(read) < first + 2 or not made or not read[first].sizes:
        return _of_bytes(call, "matmul", call.operations)
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
    return Cost("matmul", operations, dtype, _all(call, ""), result.elements, rows, columns, depth, products)


def _narrowness(dtype: str) -> int:
    return -item_bits(dtype)


def _of_bytes(call: OperatorCall, kind: Kind, operations: float = 0, moved: float = -1) -> Cost:
    largest = max(call.tensors, key=lambda each: each.elements, default=TensorShape("float32", ()))
    dtype = call.tensors[0].dtype if operations and call.tensors else largest.dtype
    moved = _all(call, "") if moved < 0 else moved
    made = max((each.elements for each in call.of("written", "result")), default=0)
    elements = made if call.base in _TAKES and made else largest.elements
    cost = Cost(kind, operations, dtype, moved, elements, operator=call.base)
    return cost if kind in ("convolution", "attention") else _with_layout(cost, call)


_LAYOUTS = frozenset(("transpose_copy", "npu_format_cast", "slice_copy", "npu_transpose", "im2col", "col2im"))
"""Operators that give elements other places."""


def _with_layout(cost: Cost, call: OperatorCall) -> Cost:
    """The cost with the rearrangement of strided operands, which the vendor's kernels make contiguous first."""
    moving = [each for each in call.tensors if each.strided and each.elements > 1]
    if call.base in _LAYOUTS and call.tensors:
        moving = [call.tensors[-1]]
    if not moving:
        return cost
    last = min((each.sizes[-1] if each.sizes else 1) * item_bits(each.dtype) // 8 for each in moving)
    return replace(cost, rearranged=sum(each.elements for each in moving), row_bytes=last)


def _all(call: OperatorCall, _: str) -> float:
    """Each tensor once, and what is written in place twice."""
    moved = sum(each.bytes * (2 if each.role == "written" else 1) for each in call.tensors)
    return float(moved + call.more_read + 2 * call.more_written)


def _of_copy(call: OperatorCall, name: str) -> float:
    made = sum(each.bytes for each in call.of("written", "result"))
    if name in _WRITES_ONLY:
        return float(made)
    return float(made + sum(each.bytes for each in call.of("read")) + call.more_read + call.more_written)


def _of_indexing(call: OperatorCall, name: str) -> float:
    read, made = call.of("read"), call.of("written", "result")
    if name in _TAKES:  # the table, then the indices
        taken = sum(each.bytes for each in call.of("result")) or sum(each.bytes for each in made)
        table = min(taken, read[0].bytes) if read else taken
        return float(taken + table + sum(each.bytes for each in read[1:]))
    put = sum(each.bytes for each in read)  # indices and values; the places are read and written
    copied = 2 * sum(each.bytes for each in call.of("result"))
    return float(3 * put + copied)


_MOVED: dict[Kind, Callable[[OperatorCall, str], float]] = {"copy": _of_copy, "indexing": _of_indexing}
