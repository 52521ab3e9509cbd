"""Older fused attention: npu_fused_attention_score, npu_multi_head_attention, their parts and npu_attn_softmax_.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_attention_legacy.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Their kernels are no longer kept up; npu_fusion_attention takes their place. They take float16.

Source: FusedAttentionScoreKernelNpu.cpp, MultiHeadAttentionKernelNpu.cpp, FusedAttentionLnQKV.cpp,
FusedAttentionQKVGradKernelNpu.cpp and AttnSoftMaxBackwardKernelNpuOpApi.cpp of op-plugin, and their tests.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .attention import Dropout, drawn_seed, kept_weights, traced
from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = [
    "npu_attn_softmax_",
    "npu_attn_softmax_backward_",
    "npu_fused_attention_layernorm_qkv_fwd",
    "npu_fused_attention_qkv_grad",
    "npu_fused_attention_score",
    "npu_fused_attention_score_backward",
    "npu_fused_attention_score_fwd",
    "npu_fused_attention_score_grad",
    "npu_multi_head_attention",
    "npu_multi_head_attention_backward",
]

_ALIGNED = 16
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_Number = float | int


# --- softmax in place


@operator("npu_attn_softmax_")
def npu_attn_softmax_(self: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis, in place.

    Args:
        self: scores; float16, bfloat16 or float32; written.

    Returns:
        self.

    Raises:
        RuntimeError: the kernel would not take the dtype.
    """
    floating("npu_attn_softmax_", self=self)
    return self.copy_(self.to(compute_dtype(self)).softmax(dim=-1))


@operator("npu_attn_softmax_backward_")
def npu_attn_softmax_backward_(self: torch.Tensor, grad_output: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Gradient of the scores of softmax(scores) values, written over the weights.

    Args:
        self: the weights, results of npu_attn_softmax_, [B, Sq, Sk]; written.
        grad_output: gradient of the result, [B, Sq, D].
        values: [B, Sk, D].

    Returns:
        self.

    Raises:
        RuntimeError: the kernel would not take the dtype.
    """
    floating("npu_attn_softmax_backward_", self=self, grad_output=grad_output, values=values)
    dtype = compute_dtype(self)
    weights = self.to(dtype)
    of_weights = grad_output.to(dtype) @ values.to(dtype).transpose(-2, -1)
    return self.copy_(weights * (of_weights - (weights * of_weights).sum(dim=-1, keepdim=True)))


# --- npu_fused_attention_score


@operator("npu_fused_attention_score_fwd")
def npu_fused_attention_score_fwd(
    query_layer: torch.Tensor,
    key_layer: torch.Tensor,
    value_layer: torch.Tensor,
    attention_mask: torch.Tensor,
    scale: _Number,
    keep_prob: float,
    query_transpose: bool = False,
    key_transpose: bool = False,
    bmm_score_transpose_a: bool = False,
    bmm_score_transpose_b: bool = False,
    value_transpose: bool = False,
    dx_transpose: bool = False,
) -> _Three:
    """dropout(softmax(scale * query key^T + mask)) value, its weights and its dropout mask.

    Args:
        query_layer: [B, N, S, D], float16.
        key_layer: like query_layer.
        value_layer: like query_layer.
        attention_mask: added to the scores; broadcasts to [B, N, S, S].
        scale: factor of the scores.
        keep_prob: probability that dropout keeps a weight.
        query_transpose: this facade has False alone, as for the other five.
        key_transpose: False.
        bmm_score_transpose_a: False.
        bmm_score_transpose_b: False.
        value_transpose: False.
        dx_transpose: False.

    Returns:
        (out [B * S, N * D], weights before dropout [B, N, S, S], mask of one byte for each weight). Only the first has
        a gradient.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.
    """
    name = "npu_fused_attention_score_fwd"
    transposes = (query_transpose, key_transpose, bmm_score_transpose_a, bmm_score_transpose_b, value_transpose)
    _check_score(name, query_layer, key_layer, value_layer, (*transposes, dx_transpose))
    scores = query_layer.float() @ key_layer.float().transpose(-2, -1) * scale + attention_mask.float()
    weights = scores.softmax(dim=-1)
    kept = _drawn(name, weights, keep_prob)
    out = (weights * kept / keep_prob if keep_prob < 1.0 else weights) @ value_layer.float()
    batch, heads, length, head = out.shape
    out = out.transpose(1, 2).reshape(batch * length, heads * head).to(query_layer.dtype)
    return out, weights.detach().to(query_layer.dtype), kept.reshape(-1).to(torch.uint8)


@operator("npu_fused_attention_score", composite=True)
def npu_fused_attention_score(
    query_layer: torch.Tensor,
    key_layer: torch.Tensor,
    value_layer: torch.Tensor,
    attention_mask: torch.Tensor,
    scale: _Number,
    keep_prob: float,
    query_transpose: bool = False,
    key_transpose: bool = False,
    bmm_score_transpose_a: bool = False,
    bmm_score_transpose_b: bool = False,
    value_transpose: bool = False,
    dx_transpose: bool = False,
) -> torch.Tensor:
    """The first result of npu_fused_attention_score_fwd, whose arguments and errors these are."""
    if query_layer.dim() < 4:
        raise RuntimeError("query_layer must be at least 4-dimensional" + ops_error(ErrCode.PARAM))
    packet = torch.ops.npu.npu_fused_attention_score_fwd
    out: torch.Tensor = packet(
        query_layer, key_layer, value_layer, attention_mask, scale, keep_prob, query_transpose, key_transpose,
        bmm_score_transpose_a, bmm_score_transpose_b, value_transpose, dx_transpose,
    )[0]  # fmt: skip
    return out


@operator("npu_fused_attention_score_backward")
def npu_fused_attention_score_backward(
    grad_output: torch.Tensor,
    softmax_output: torch.Tensor,
    query_layer: torch.Tensor,
    key_layer: torch.Tensor,
    value_layer: torch.Tensor,
    mask: torch.Tensor,
    scale: _Number,
    keep_prob: float,
    query_transpose: bool = False,
    key_transpose: bool = False,
    value_transpose: bool = False,
    dx_transpose: bool = False,
) -> _Three:
    """Gradients of query, key and value of npu_fused_attention_score_fwd, [B, N, S, D].

    Args:
        grad_output: gradient of the result, [B * S, N * D].
        softmax_output: weights before dropout.
        query_layer: [B, N, S, D].
        key_layer: like query_layer.
        value_layer: like query_layer.
        mask: one byte for each weight, as the forward operator gives it.
        scale: factor of the scores.
        keep_prob: probability that dropout kept a weight.
        query_transpose: this facade has False alone, as for the other three.
        key_transpose: False.
        value_transpose: False.
        dx_transpose: False.

    Raises:
        RuntimeError: this facade does not have that form of the operator.
    """
    transposes = (query_transpose, key_transpose, value_transpose, dx_transpose)
    _check_score("npu_fused_attention_score_backward", query_layer, key_layer, value_layer, transposes)
    return _score_gradients(grad_output, softmax_output, query_layer, key_layer, value_layer, mask, scale, keep_prob)


@operator("npu_fused_attention_score_grad")
def npu_fused_attention_score_grad(
    grad_output: torch.Tensor,
    softmax_output: torch.Tensor,
    query_layer: torch.Tensor,
    key_layer: torch.Tensor,
    value_layer: torch.Tensor,
    mask: torch.Tensor,
    scale: _Number,
    keep_prob: float,
    query_transpose: bool = False,
    key_transpose: bool = False,
    value_transpose: bool = False,
    dx_transpose: bool = False,
) -> _Three:
    """npu_fused_attention_score_backward with gradients like `grad_output`, [B * S, N * D]."""
    if query_layer.dim() < 4:
        raise RuntimeError("query_layer must be at least 4-dimensional" + ops_error(ErrCode.PARAM))
    transposes = (query_transpose, key_transpose, value_transpose, dx_transpose)
    _check_score("npu_fused_attention_score_grad", query_layer, key_layer, value_layer, transposes)
    found = _score_gradients(grad_output, softmax_output, query_layer, key_layer, value_layer, mask, scale, keep_prob)
    one, two, three = (part.transpose(1, 2).reshape(grad_output.shape) for part in found)
    return one, two, three


# --- npu_multi_head_attention


@operator("npu_multi_head_attention")
def npu_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    attn_mask: torch.Tensor,
    out_proj_weight: torch.Tensor,
    query_bias: torch.Tensor | None,
    key_bias: torch.Tensor | None,
    value_bias: torch.Tensor | None,
    out_proj_bias: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]:
    """Attention with its projections: out = dropout(softmax(q k^T + mask)) v, projected.

    Args:
        query: [B * tgt_len, H]; float16.
        key: [B * src_len, H].
        value: [B * src_len, H].
        query_weight: [H, H], and so the other weights; q = (query weight^T + bias) / sqrt(attn_dim_per_head).
        key_weight: weight of the keys.
        value_weight: weight of the values.
        attn_mask: added to the scores; broadcasts to [B, attn_head_num, tgt_len, src_len].
        out_proj_weight: weight of the result.
        query_bias: [H], and so the other biases.
        key_bias: bias of the keys.
        value_bias: bias of the values.
        out_proj_bias: bias of the result.
        dropout_mask: bits of the weights that dropout keeps; None draws them.
        attn_head_num: number of heads, a multiple of 16, as the three that follow.
        attn_dim_per_head: elements of a head.
        src_len: number of keys.
        tgt_len: number of queries.
        dropout_prob: probability that dropout drops a weight.
        softmax_use_float: whether the weights before dropout come in float32.

    Returns:
        (y, dropout_mask, q, k, v, weights before and after dropout, the result before its projection). Only the first
        has a gradient.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_multi_head_attention"
    _check_multi_head(name, query, key, value, (tgt_len, src_len, attn_head_num, attn_dim_per_head), ErrCode.PARAM)
    batch, width, dtype = query.shape[0] // tgt_len, attn_head_num * attn_dim_per_head, query.dtype
    q, k, v = (
        torch.nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float().reshape(-1))
        .reshape(batch, -1, attn_head_num, attn_dim_per_head)
        .transpose(1, 2)
        for x, weight, bias in (
            (query, query_weight, query_bias),
            (key, key_weight, key_bias),
            (value, value_weight, value_bias),
        )
    )
    q = q * attn_dim_per_head**-0.5
    weights = (q @ k.transpose(-2, -1) + attn_mask.float()).softmax(dim=-1)
    keep = 1.0 - dropout_prob
    if dropout_mask is None:
        kept = _drawn(name, weights, keep)
    else:
        given = kept_weights(name, weights.numel(), Dropout(keep), dropout_mask, weights.device)
        kept = torch.ones_like(weights, dtype=torch.bool) if given is None else given.reshape(weights.shape)
    dropped = weights * kept / keep if dropout_prob > 0 else weights
    context = (dropped @ v).transpose(1, 2).reshape(batch * tgt_len, width)
    bias = None if out_proj_bias is None else out_proj_bias.float().reshape(-1)
    y = torch.nn.functional.linear(context, out_proj_weight.float(), bias).to(dtype)
    bits = (kept.reshape(-1, 8).int() << torch.arange(8, dtype=torch.int32, device=kept.device)).sum(dim=1)
    scores = weights.detach() if softmax_use_float else weights.detach().to(dtype)
    parts = [part.detach().to(dtype).contiguous() for part in (q, k, v)]
    return (
        y,
        bits.to(torch.uint8),
        parts[0],
        parts[1],
        parts[2],
        scores,
        dropped.detach().to(dtype),
        context.detach().to(dtype),
    )


@operator("npu_multi_head_attention_backward")
def npu_multi_head_attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    out_proj_weight: torch.Tensor,
    query_bias: torch.Tensor | None,
    key_bias: torch.Tensor | None,
    value_bias: torch.Tensor | None,
    out_proj_bias: torch.Tensor | None,
    query_res: torch.Tensor,
    key_res: torch.Tensor,
    value_res: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_res: torch.Tensor,
    context: torch.Tensor,
    y_grad: torch.Tensor,
    dropout_mask: torch.Tensor,
    attn_head_num: int,
    attn_dim_per_head: int,
    src_len: int,
    tgt_len: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]:
    """Gradients of npu_multi_head_attention, from its results.

    The arguments are those of the forward operator, its results in their order and the gradient of the first.

    Returns:
        gradients of the weights of query, key, value and result; of query, key and value; and of the biases of query,
        key, value and result, [1, H].

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_multi_head_attention_backward"
    _check_multi_head(name, query, key, value, (tgt_len, src_len, attn_head_num, attn_dim_per_head), ErrCode.VALUE)
    batch, keep = query.shape[0] // tgt_len, 1.0 - dropout_prob
    grad, weights = y_grad.float(), attn_scores.float()
    of_context = (grad @ out_proj_weight.float()).reshape(batch, tgt_len, attn_head_num, attn_dim_per_head)
    of_context = of_context.transpose(1, 2)
    of_weights = of_context @ value_res.float().transpose(-2, -1)
    if dropout_prob > 0:
        kept = kept_weights(name, weights.numel(), Dropout(keep), dropout_mask, weights.device)
        if kept is not None:
            of_weights = of_weights * kept.reshape(weights.shape) / keep
    of_scores = weights * (of_weights - (weights * of_weights).sum(dim=-1, keepdim=True))
    heads = (
        of_scores @ key_res.float() * attn_dim_per_head**-0.5,
        of_scores.transpose(-2, -1) @ query_res.float(),
        attn_res.float().transpose(-2, -1) @ of_context,
    )
    flat = [part.transpose(1, 2).reshape(-1, attn_head_num * attn_dim_per_head) for part in heads]
    inputs, kernels = (query, key, value), (query_weight, key_weight, value_weight)
    of_kernels = [part.T @ x.float() for part, x in zip(flat, inputs, strict=True)]
    of_inputs = [part @ kernel.float() for part, kernel in zip(flat, kernels, strict=True)]
    of_biases = [part.sum(dim=0, keepdim=True) for part in (*flat, grad)]
    found = [*of_kernels, grad.T @ context.float(), *of_inputs, *of_biases]
    return tuple(part.to(query.dtype) for part in found)  # type: ignore[return-value]


# --- projections of query, key and value


@operator("npu_fused_attention_layernorm_qkv_fwd")
def npu_fused_attention_layernorm_qkv_fwd(
    x: torch.Tensor,
    kernel_query: torch.Tensor,
    kernel_key: torch.Tensor,
    kernel_value: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    bias_query: torch.Tensor | None = None,
    bias_key: torch.Tensor | None = None,
    bias_value: torch.Tensor | None = None,
    seq_len: int = 128,
    num_heads: int = 12,
    eps: float = 1e-05,
) -> list[torch.Tensor]:
    """Layer normalisation, and query, key and value of its result.

    Args:
        x: [B * seq_len, H]; float16.
        kernel_query: [H, H]: query = norm kernel_query + bias.
        kernel_key: [H, H].
        kernel_value: [H, H].
        gamma: scale of the normalisation, [H].
        beta: its shift.
        bias_query: [H].
        bias_key: [H].
        bias_value: [H].
        seq_len: tokens of a sequence.
        num_heads: number of heads.
        eps: added to the variance.

    Returns:
        [norm, query, key, value, mean, variance]: norm like x, the three [B, num_heads, seq_len, H / num_heads], the
        last two [B * seq_len].

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    if seq_len == 0 or num_heads == 0:
        raise RuntimeError("seq_len and num_heads cannot be equal to 0." + ops_error(ErrCode.VALUE))
    if x.dim() < 2:
        raise RuntimeError(f"x must be at least 2 dimensions, but got {x.dim()}" + ops_error(ErrCode.PARAM))
    if x.shape[0] % seq_len or x.shape[1] % num_heads:
        text = "In npu_fused_attention_layernorm_qkv_fwd, x.size(0) should be divisible by seq_len"
        raise RuntimeError(text + "and x.size(1) should be divisible by num_heads." + ops_error(ErrCode.PARAM))
    wide = x.float()
    mean, variance = wide.mean(dim=1, keepdim=True), wide.var(dim=1, correction=0, keepdim=True)
    norm = (wide - mean) * (variance + eps).rsqrt() * gamma.float() + beta.float()
    found = [norm.to(x.dtype)]
    for kernel, bias in ((kernel_query, bias_query), (kernel_key, bias_key), (kernel_value, bias_value)):
        product = norm @ kernel.float()
        product = product if bias is None else product + bias.float()
        split = product.reshape(-1, seq_len, num_heads, x.shape[1] // num_heads)
        found.append(split.transpose(1, 2).contiguous().to(kernel.dtype))
    return [*found, *(part.squeeze(1).to(kernel_query.dtype) for part in (mean, variance))]


@operator("npu_fused_attention_qkv_grad")
def npu_fused_attention_qkv_grad(
    grad_output_query: torch.Tensor,
    grad_output_key: torch.Tensor,
    grad_output_value: torch.Tensor,
    query_kernel: torch.Tensor,
    key_kernel: torch.Tensor,
    value_kernel: torch.Tensor,
    hidden_states: torch.Tensor,
    grad_output_ln: torch.Tensor,
) -> list[torch.Tensor]:
    """Gradients of the projections of query, key and value.

    Args:
        grad_output_query: gradient of the query, [T, H].
        grad_output_key: gradient of the key.
        grad_output_value: gradient of the value.
        query_kernel: [H, H]: query = hidden_states query_kernel + bias.
        key_kernel: [H, H].
        value_kernel: [H, H].
        hidden_states: [T, H].
        grad_output_ln: added to the gradient of hidden_states.

    Returns:
        gradients of hidden_states, of the three kernels and of the three biases.

    Raises:
        RuntimeError: a kernel has no dimension.
    """
    kernels = {"query_kernel": query_kernel, "key_kernel": key_kernel, "value_kernel": value_kernel}
    for name, kernel in kernels.items():
        if kernel.dim() < 1:
            text = f"{name} must be at least 1 dimensions, but got {kernel.dim()}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    grads = [grad.float() for grad in (grad_output_query, grad_output_key, grad_output_value)]
    of_hidden = grad_output_ln.float()
    for grad, kernel in zip(grads, kernels.values(), strict=True):
        of_hidden = of_hidden + grad @ kernel.float().T
    hidden = hidden_states.float().T
    of_kernels = [(hidden @ grad).to(kernel.dtype) for grad, kernel in zip(grads, kernels.values(), strict=True)]
    of_biases = [grad.sum(dim=0).to(kernel.dtype) for grad, kernel in zip(grads, kernels.values(), strict=True)]
    return [of_hidden.to(hidden_states.dtype), *of_kernels, *of_biases]


# --- parts


def _drawn(name: str, weights: torch.Tensor, keep: float) -> torch.Tensor:
    """Mask of the weights that dropout keeps, of their shape."""
    if keep == 1.0:
        return torch.ones_like(weights, dtype=torch.bool)
    dropout = Dropout(keep) if traced(weights) else Dropout(keep, *drawn_seed(weights.device))
    kept = kept_weights(name, weights.numel(), dropout, None, weights.device)
    return torch.ones_like(weights, dtype=torch.bool) if kept is None else kept.reshape(weights.shape)


def _check_score(
    name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, transposes: tuple[bool, ...]
) -> None:
    if any(transposes):
        refuse(name, "toprope's facade does not have its transposes yet")
    for what, tensor in (("query_layer", query), ("key_layer", key), ("value_layer", value)):
        if tensor.dtype != torch.float16:
            refuse(name, f"{what} is {tensor.dtype}; the kernel takes float16")
        if tensor.dim() != 4 or tensor.shape != query.shape:
            refuse(name, f"{what} has shape {list(tensor.shape)}; the kernel takes [B, N, S, D] for all three")


def _score_gradients(
    grad_output: torch.Tensor,
    softmax_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: _Number,
    keep: float,
) -> _Three:
    batch, heads, length, head = query.shape
    grad = grad_output.float().reshape(batch, length, heads, head).transpose(1, 2)
    weights = softmax_output.float()
    kept = mask.reshape(weights.shape).bool() / keep if keep < 1.0 else torch.ones_like(weights)
    of_weights = grad @ value.float().transpose(-2, -1) * kept
    of_scores = weights * (of_weights - (weights * of_weights).sum(dim=-1, keepdim=True)) * scale
    found = (
        of_scores @ key.float(),
        of_scores.transpose(-2, -1) @ query.float(),
        (weights * kept).transpose(-2, -1) @ grad,
    )
    one, two, three = (part.to(grad_output.dtype) for part in found)
    return one, two, three


def _check_multi_head(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sizes: tuple[int, int, int, int],
    code: ErrCode,
) -> None:
    what = "tgt_len, src_len, attn_head_num, attn_dim_per_head"
    if min(sizes) <= 0:
        raise RuntimeError(f"{what} should not equal zero." + ops_error(code))
    if any(size % _ALIGNED for size in sizes):
        raise RuntimeError(f"{what} should align to 16." + ops_error(ErrCode.VALUE))
    if min(query.dim(), key.dim(), value.dim()) < 1:
        raise RuntimeError("query, key, value should be at least 1d." + ops_error(ErrCode.PARAM))
    if query.dtype != torch.float16:
        refuse(name, f"query is {query.dtype}; the kernel takes float16")
