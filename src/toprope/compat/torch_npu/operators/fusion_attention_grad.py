"""The backward operators of npu_fusion_attention, which programs with ring attention call themselves.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_fusion_attention_training.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toprope.sim.npu.graph_capture import in_graph

from .._error_codes import ErrCode, ops_error
from .attention import Dropout, Gradients, traced
from .checks import refuse
from .fusion_attention import lengths_on_cpu
from .fusion_attention_call import Arguments, prepare, without_rope
from .registry import operator

__all__ = [
    "npu_fusion_attention_grad",
    "npu_fusion_attention_grad_v2",
    "npu_fusion_attention_grad_v3",
    "npu_fusion_attention_grad_v3_infer_output",
    "npu_fusion_attention_grad_v3_out",
]

_NO_LIMIT = 2147483647

_Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Seven = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor
]


@operator("npu_fusion_attention_grad")
def npu_fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> _Five:
    """Gradients of npu_fusion_attention: see `attention_grad` for the formula.

    Args:
        query: as for npu_fusion_attention, and so what is not listed here.
        key: like query.
        value: like key.
        dy: gradient of the result.
        head_num: number of heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: position bias.
        padding_mask: torch_npu does not take it.
        atten_mask: True leaves a score out.
        softmax_max: maximum of the rows, as the forward operator gives it. With it, softmax_sum and attention_in of all
            keys together, key and value may be a part of them.
        softmax_sum: sum of the rows.
        softmax_in: the forward operator gives it empty; without effect.
        attention_in: result of the forward operator.
        scale_value: factor of the scores.
        keep_prob: probability that dropout kept a weight.
        pre_tockens: keys before the diagonal that are computed.
        next_tockens: keys after the diagonal that are computed.
        inner_precise: as for npu_fusion_attention.
        seed: of the dropout, as the forward operator gives it.
        offset: of the dropout.
        numels: number of scores; it follows from the other arguments.
        prefix: not in this facade.
        actual_seq_qlen: running sums of the lengths of the queries, for TND.
        actual_seq_kvlen: the same for key and value.
        sparse_mode: as for npu_fusion_attention.
        gen_mask_parallel: without effect here.
        sync: without effect here.
        softmax_layout: "TND" where maximum and sum of a TND call lie by row.
        sink: one more score for every head.

    Returns:
        gradients of query, key, value, pse and sink; the last two are empty where there was none.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.

    Source: FlashAttentionKernelNpuOpApi.cpp of op-plugin, aclnnFlashAttentionScoreGrad.md of ops-transformer.
    """
    arguments = Arguments(
        "npu_fusion_attention_grad", query, key, value, head_num, input_layout, pse, padding_mask, atten_mask,
        scale_value, keep_prob, pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen,
        sparse_mode, softmax_layout, sink,
    )  # fmt: skip
    gradients = _gradients(arguments, dy, softmax_max, softmax_sum, attention_in, Dropout(keep_prob, seed, offset))
    return gradients.query, gradients.key, gradients.value, *_of_bias_and_sink(gradients, query)


@operator("npu_fusion_attention_grad_v2")
def npu_fusion_attention_grad_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Sequence[int] | None = None,
    kv_start_idx: Sequence[int] | None = None,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> _Seven:
    """Gradients of npu_fusion_attention_v2.

    The arguments and errors are those of npu_fusion_attention_grad and npu_fusion_attention_v2.

    Returns:
        gradients of query, key, value, pse, query_rope, key_rope and sink. Those of pse and sink are empty where there
        was none, those of the rotated parts None. Slopes of pse_type 2 and 3 get zeros.
    """
    arguments = Arguments(
        "npu_fusion_attention_grad_v2", query, key, value, head_num, input_layout, pse, padding_mask, atten_mask,
        scale_value, keep_prob, pre_tokens, next_tokens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen,
        sparse_mode, softmax_layout, sink, query_rope, key_rope, pse_type, q_start_idx, kv_start_idx,
    )  # fmt: skip
    whole = _gradients(arguments, dy, softmax_max, softmax_sum, attention_in, Dropout(keep_prob, seed, offset))
    rope = query_rope.shape[-1] if query_rope is not None else 0
    gradients, of_query_rope, of_key_rope = without_rope(whole, rope)
    of_bias, of_sink = _of_bias_and_sink(gradients, query)
    return gradients.query, gradients.key, gradients.value, of_bias, of_query_rope, of_key_rope, of_sink


@operator("npu_fusion_attention_grad_v3")
def npu_fusion_attention_grad_v3(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    seed: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: torch.Tensor | None = None,
    actual_seq_kvlen: torch.Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> _Five:
    """Gradients of npu_fusion_attention_v3, with seed, offset and lengths in tensors on the CPU.

    While a graph is captured, seed and offset may be on the card.

    The other arguments, the results and the errors are those of npu_fusion_attention_grad.
    """
    name = "npu_fusion_attention_grad_v3"
    if any(tensor is not None and traced(tensor) for tensor in (query, actual_seq_qlen, actual_seq_kvlen, seed)):
        return npu_fusion_attention_grad_v3_infer_output(query, key, value, pse, sink)
    numbers: list[int | torch.Tensor] = [0, 0]
    if keep_prob < 1.0:
        if seed is None or offset is None:
            refuse(name, "keep_prob below 1 takes the seed and offset that the forward operator gave")
        numbers = [_number(seed), _number(offset)]
    arguments = Arguments(
        name, query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale_value, keep_prob,
        pre_tockens, next_tockens, inner_precise, prefix, lengths_on_cpu(actual_seq_qlen),
        lengths_on_cpu(actual_seq_kvlen), sparse_mode, softmax_layout, sink,
    )  # fmt: skip
    gradients = _gradients(arguments, dy, softmax_max, softmax_sum, attention_in, Dropout(keep_prob, *numbers))
    return gradients.query, gradients.key, gradients.value, *_of_bias_and_sink(gradients, query)


@operator("npu_fusion_attention_grad_v3.out")
def npu_fusion_attention_grad_v3_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    seed: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: torch.Tensor | None = None,
    actual_seq_kvlen: torch.Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
) -> _Five:
    """npu_fusion_attention_grad_v3 into tensors that are there; `workspace` has no effect here.

    The other arguments and the errors are those of npu_fusion_attention_grad_v3.
    """
    results = npu_fusion_attention_grad_v3(
        query, key, value, dy, head_num, input_layout, pse=pse, padding_mask=padding_mask, atten_mask=atten_mask,
        softmax_max=softmax_max, softmax_sum=softmax_sum, softmax_in=softmax_in, attention_in=attention_in,
        scale_value=scale_value, keep_prob=keep_prob, pre_tockens=pre_tockens, next_tockens=next_tockens,
        inner_precise=inner_precise, seed=seed, offset=offset, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, gen_mask_parallel=gen_mask_parallel, sync=sync,
        softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    if len(out) != 5:
        refuse("npu_fusion_attention_grad_v3", f"out must have 5 tensors (dq, dk, dv, dpse, dsink), but has {len(out)}")
    for target, result in zip(out, results, strict=True):
        if target.numel() == result.numel():
            target.copy_(result.reshape(target.shape))
    first, second, third, fourth, fifth = out
    return first, second, third, fourth, fifth


@operator("_npu_fusion_attention_grad_v3_infer_output")
def npu_fusion_attention_grad_v3_infer_output(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pse: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
) -> _Five:
    """Tensors without values for the results of npu_fusion_attention_grad_v3, whose arguments these are."""
    like = [query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)]
    of_bias = query.new_empty(0) if pse is None else pse.new_empty(pse.shape)
    of_sink = query.new_empty(0 if sink is None else sink.shape, dtype=torch.float32)
    return like[0], like[1], like[2], of_bias, of_sink


def _number(tensor: torch.Tensor) -> int | torch.Tensor:
    if tensor.numel() != 1:
        raise RuntimeError("Tensor must contain exactly one element" + ops_error(ErrCode.PARAM))
    if in_graph() and tensor.device.type == "npu":
        return tensor.reshape(()).long()
    if tensor.device.type != "cpu":
        raise RuntimeError("Tensor must be on CPU to call .item()" + ops_error(ErrCode.PARAM))
    if tensor.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"Expected integer dtype, got {tensor.dtype}" + ops_error(ErrCode.PARAM))
    return int(tensor.item())


def _gradients(
    arguments: Arguments,
    dy: torch.Tensor,
    softmax_max: torch.Tensor | None,
    softmax_sum: torch.Tensor | None,
    attention_in: torch.Tensor | None,
    dropout: Dropout,
) -> Gradients:
    name = arguments.operator
    if softmax_max is None or softmax_sum is None or attention_in is None:
        refuse(name, "softmax_max, softmax_sum and attention_in, results of the forward operator, must be given")
    call = prepare(arguments)
    if dy.dim() not in (3, 4):
        text = f"The shapes of the input dy should be 3 or 4 dimensional, but got {dy.dim()}-dimensional"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if dy.shape != attention_in.shape:
        refuse(
            name, f"dy has shape {list(dy.shape)} and attention_in {list(attention_in.shape)}; they must be the same"
        )
    count, found = softmax_max.shape[:-1].numel(), call.found
    if softmax_max.shape != softmax_sum.shape or count != found.batch * found.heads * found.queries:
        shapes = f"{list(softmax_max.shape)} and {list(softmax_sum.shape)}"
        refuse(name, f"softmax_max and softmax_sum have shapes {shapes}, which are not those of the forward operator")
    return call.gradients(dy, attention_in, softmax_max, softmax_sum, dropout)


def _of_bias_and_sink(gradients: Gradients, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    of_bias = query.new_empty(0) if gradients.bias is None else gradients.bias
    of_sink = query.new_empty(0, dtype=torch.float32) if gradients.sink is None else gradients.sink
    return of_bias, of_sink
