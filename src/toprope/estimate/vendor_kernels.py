"""Kernels as the vendor's profiler names them, as calls of operators; pure.

Names are the "Type" of kernel_details.csv and op_summary.csv (CANN's operators), without their version: "MatMulV3" is
"MatMul".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toprope.estimate.calls import OperatorCall, TensorShape

__all__ = ["DTYPES", "call_of", "operator_of"]

DTYPES = {
    "FLOAT": "float32", "FLOAT16": "float16", "DT_BF16": "bfloat16", "BFLOAT16": "bfloat16", "BF16": "bfloat16",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool",
    "DOUBLE": "float64", "INT4": "int4", "DT_INT4": "int4", "COMPLEX64": "complex64", "HIFLOAT8": "float8_e4m3fn",
    "FLOAT8_E4M3FN": "float8_e4m3fn", "FLOAT8_E5M2": "float8_e5m2", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip
"""torch's name of each dtype as the profiler writes it."""

_OPERATORS = {
    "MatMul": "mm", "MatMulCommon": "mm", "Matmul": "mm", "BatchMatMul": "bmm", "BatchMatmul": "bmm", "GemmV": "mm",
    "QuantBatchMatmul": "npu_quant_matmul", "WeightQuantBatchMatmul": "npu_weight_quant_batchmatmul",
    "TransposeBatchMatMul": "bmm", "GroupedMatmul": "npu_grouped_matmul", "GroupedMatmulSwigluQuant": "npu_grouped_matmul",
    "Conv2D": "convolution", "Conv3D": "convolution", "Conv2DBackpropInput": "convolution_backward",
    "Conv2DBackpropFilter": "convolution_backward", "Conv3DBackpropInput": "convolution_backward",
    "Conv3DBackpropFilter": "convolution_backward", "DepthwiseConv2D": "convolution",
    "FlashAttentionScore": "npu_fusion_attention", "FlashAttentionScoreGrad": "npu_fusion_attention_grad",
    "FusedInferAttentionScore": "npu_fused_infer_attention_score", "PromptFlashAttention": "npu_prompt_flash_attention",
    "IncreFlashAttention": "npu_incre_flash_attention",
    "Add": "add", "Adds": "add", "Axpy": "add", "Sub": "sub", "Mul": "mul", "Muls": "mul", "Div": "div", "RealDiv": "div",
    "Swish": "silu", "SwishGrad": "silu_backward", "Gelu": "gelu", "GeluGrad": "gelu_backward", "GeluV": "gelu",
    "Relu": "relu", "ReluGrad": "threshold_backward", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log",
    "Neg": "neg", "Pow": "pow", "Pows": "pow", "Rsqrt": "rsqrt", "Sqrt": "sqrt", "Square": "square", "Cos": "cos",
    "Sin": "sin", "SwiGlu": "npu_swiglu", "SwiGluGrad": "npu_swiglu_backward", "Select": "where", "MaskedFill": "masked_fill",
    "Equal": "eq", "Less": "lt", "Greater": "gt", "LogicalAnd": "logical_and", "LogicalNot": "logical_not",
    "RotaryPositionEmbedding": "npu_rotary_mul", "RotaryMul": "npu_rotary_mul", "ApplyRotaryPosEmb": "npu_apply_rotary_pos_emb",
    "DropOutDoMask": "npu_dropout_do_mask", "DropOutGenMask": "bernoulli", "StatelessDropOutGenMask": "bernoulli",
    "Cast": "npu_dtype_cast", "TensorMove": "clone", "Transpose": "transpose_copy", "ViewCopy": "copy_", "ConcatD": "cat",
    "Concat": "cat", "Slice": "slice_copy", "StridedSlice": "slice_copy", "AsStrided": "transpose_copy", "Pack": "stack", "Tile": "repeat",
    "BroadcastTo": "repeat", "Fill": "fill_", "ZerosLike": "zeros_like", "OnesLike": "ones_like", "TransData": "npu_format_cast",
    "Identity": "clone", "Tril": "tril", "Triu": "triu", "Range": "arange", "PadV": "constant_pad_nd", "Split": "clone",
    "SplitV": "clone",
    "LayerNorm": "native_layer_norm", "LayerNormV": "native_layer_norm", "LayerNormGrad": "native_layer_norm_backward",
    "RmsNorm": "npu_rms_norm", "RmsNormGrad": "npu_rms_norm_backward", "AddRmsNorm": "npu_add_rms_norm", "InplaceAddRmsNorm": "npu_add_rms_norm",
    "AddLayerNorm": "npu_add_layer_norm",
    "GroupNorm": "native_group_norm", "BatchNorm": "native_batch_norm", "BNInfer": "native_batch_norm",
    "BNTrainingReduce": "native_batch_norm", "BNTrainingUpdate": "native_batch_norm",
    "Softmax": "_softmax", "SoftmaxGrad": "_softmax_backward_data", "LogSoftmax": "_log_softmax",
    "LogSoftmaxGrad": "_log_softmax_backward_data", "NLLLoss": "nll_loss_forward", "NLLLossGrad": "nll_loss_backward",
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "amax", "ReduceMin": "amin", "ReduceAll": "all",
    "ReduceAny": "any", "ReduceProd": "prod", "ArgMax": "argmax", "ReduceStd": "std", "Cumsum": "cumsum", "LpNorm": "norm",
    "Gather": "index_select", "GatherElements": "gather", "Embedding": "embedding", "Index": "index",
    "EmbeddingDenseGrad": "embedding_dense_backward", "ScatterElements": "scatter", "ScatterNdUpdate": "npu_scatter_nd_update",
    "InplaceIndexAdd": "index_add_", "IndexPutWithSort": "index_put_", "ScatterUpdate": "npu_scatter_nd_update",
    "Sort": "sort", "TopK": "topk", "Unique": "_unique2", "NonZero": "nonzero",
    "ApplyAdamW": "_fused_adamw_", "ApplyAdam": "_fused_adam_", "ApplyFusedEmaAdam": "_fused_adam_",
    "ForeachAddcdivScalar": "_foreach_addcdiv_", "ForeachAddcmulScalar": "_foreach_addcmul_",
    "MoeGatingTopKSoftmax": "npu_moe_gating_top_k_softmax",
}  # fmt: skip

_SHAPE = re.compile(r"[\d,]+")
_VERSION = re.compile(r"(V\d+|\d+)$|D$")


def operator_of(kind: str) -> str:
    """The operator that a kernel of this type computes: "mm"; "" where it is not known."""
    if kind.startswith("aclnn"):
        kind = kind.removeprefix("aclnn").split("_", 1)[0]
    if kind in _OPERATORS:
        return _OPERATORS[kind]
    plain = _VERSION.sub("", kind)
    if plain in _OPERATORS:
        return _OPERATORS[plain]
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
    known = [DTYPES.get(each.strip().upper(), "float32") for each in dtypes] or ["float32"]
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
