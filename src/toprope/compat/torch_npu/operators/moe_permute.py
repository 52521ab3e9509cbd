"""Permutation of tokens to the order of their experts, and back: npu_moe_token_permute and its relatives.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_moe_permute.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.

Both directions are gathers: a token of K experts has K slots, slot i * K + k for the expert k of token i, and
`sorted_indices` gives the row of each slot among the permuted rows. A slot whose row is not there (a dropped token)
counts as zero. Sums over the slots of a token are taken in float32.

Source: moe/moe_token_permute, moe_token_unpermute and their variants `_with_routing_map` and `_grad` of
hicann/ops-transformer; op_plugin/utils/KernelNpuOutputSize.cpp for the shapes and their checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode
from .checks import compute_dtype, floating, refuse
from .moe_checks import require
from .registry import operator

__all__ = [
    "npu_moe_token_permute",
    "npu_moe_token_permute_grad",
    "npu_moe_token_permute_grad_v2",
    "npu_moe_token_permute_with_routing_map",
    "npu_moe_token_permute_with_routing_map_grad",
    "npu_moe_token_unpermute",
    "npu_moe_token_unpermute_and_keep",
    "npu_moe_token_unpermute_grad",
    "npu_moe_token_unpermute_grad_v2",
    "npu_moe_token_unpermute_with_routing_map",
    "npu_moe_token_unpermute_with_routing_map_and_order",
    "npu_moe_token_unpermute_with_routing_map_grad",
]

_MAX_TOP_K = 512
"""Experts of a token that the kernels take (op-plugin's pages of the family)."""


@operator("npu_moe_token_permute")
def npu_moe_token_permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy each token to the rows of its experts, in the order of the experts.

    With order = argsort(indices) (stable) over all slots: permuted[j] = tokens[order[j] // K], and
    sorted_indices = argsort(order).

    Args:
        tokens: (N, H); float16, bfloat16 or float32.
        indices: (N, K) or (N,) experts of each token; int32 or int64.
        num_out_tokens: how many permuted rows are kept; None or 0 for all, a negative number counts from the end.
        padded_mode: the kernel takes only False.

    Returns:
        (permuted_tokens, sorted_indices): (rows kept, H), and (N * K,) in int32.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_moe_token_permute"
    _dims(tokens.dim() == 2, "tokens", tokens.dim(), "2")
    _dims(indices.dim() in (1, 2), "indices", indices.dim(), "2 or 1")
    floating(name, tokens=tokens)
    _integers(name, indices=indices)
    _not_padded(name, padded_mode)
    top_k = 1 if indices.dim() == 1 else indices.shape[1]
    _top_k(name, top_k)
    slots = indices.numel()
    wanted = num_out_tokens or 0
    rows = min(wanted, slots) if wanted > 0 else max(wanted + slots, 0)
    order = torch.argsort(indices.reshape(-1), stable=True)
    return _rows_of_slots(tokens, order[:rows], top_k), torch.argsort(order).to(torch.int32)


@operator("npu_moe_token_permute_grad")
def npu_moe_token_permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> torch.Tensor:
    """Gradient of npu_moe_token_permute for `tokens`: the sum of the gradients of a token's rows.

    Args:
        tokens: (N, H).
        grad_permuted_tokens: (rows, H).
        indices: (N, K) or (N,).
        sorted_indices: (N * K,), from npu_moe_token_permute.
        padded_mode: the kernel takes only False.

    Returns:
        (N, H) in the dtype of `tokens`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_moe_token_permute_grad"
    _dims(tokens.dim() == 2, "tokens", tokens.dim(), "2")
    _dims(indices.dim() in (1, 2), "indices", sorted_indices.dim(), "2 or 1")
    _not_padded(name, padded_mode)
    top_k = 1 if indices.dim() == 1 else indices.shape[1]
    return _grad_tokens(grad_permuted_tokens, sorted_indices, tokens.shape[0], top_k).to(tokens.dtype)


@operator("npu_moe_token_permute_grad_v2")
def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # noqa: N803
    padded_mode: bool = False,
) -> torch.Tensor:
    """npu_moe_token_permute_grad, with the shape and dtype of the tokens in place of the tokens.

    Args:
        grad_permuted_tokens: (rows, H).
        sorted_indices: (N * K,), from npu_moe_token_permute.
        tokens_size_0: N.
        tokens_dtype: dtype of the result.
        num_topK: K.
        padded_mode: the kernel takes only False.

    Returns:
        (N, H).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _not_padded("npu_moe_token_permute_grad_v2", padded_mode)
    return _grad_tokens(grad_permuted_tokens, sorted_indices, tokens_size_0, num_topK).to(tokens_dtype)


@operator("npu_moe_token_unpermute")
def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """Bring permuted rows back to their tokens, and sum those of a token, weighted with its probabilities.

    out[i] = sum over k of permuted[sorted_indices[i * K + k]] * probs[i, k]; without `probs`, K is 1.

    Args:
        permuted_tokens: (rows, H); float16, bfloat16 or float32.
        sorted_indices: (N * K,) row of each slot, from npu_moe_token_permute; int32 (int64 is cast).
        probs: (N, K); float16, bfloat16 or float32.
        padded_mode: the kernel takes only False.
        restore_shape: of padded mode; not looked at.

    Returns:
        (N, H) in the dtype of `permuted_tokens`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    return _unpermuted("npu_moe_token_unpermute", permuted_tokens, sorted_indices, probs, padded_mode)


@operator("_npu_moe_token_unpermute")
def npu_moe_token_unpermute_and_keep(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_moe_token_unpermute, which also gives its input for a backward pass, as before CANN 9.1.

    Returns:
        (unpermuted_tokens, permuted_tokens_for_backward); the second has no gradient.
    """
    out = _unpermuted("_npu_moe_token_unpermute", permuted_tokens, sorted_indices, probs, padded_mode)
    return out, permuted_tokens.detach()


@operator("npu_moe_token_unpermute_grad")
def npu_moe_token_unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of npu_moe_token_unpermute.

    grad_permuted[sorted_indices[i * K + k]] = grad[i] * probs[i, k];
    grad_probs[i, k] = sum over h of grad[i, h] * permuted[sorted_indices[i * K + k], h].

    Args:
        permuted_tokens: (rows, H).
        grad_unpermuted_tokens: (N, H).
        sorted_indices: (N * K,).
        probs: (N, K), or None.
        padded_mode: the kernel takes only False.
        restore_shape: of padded mode; not looked at.

    Returns:
        (grad_permuted_tokens, grad_probs): in the dtypes of `permuted_tokens` and `probs`; the second is None
        without `probs`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    require(permuted_tokens.dim() == 2, f"permuted_tokens should be 2D (got {permuted_tokens.dim()}D).", ErrCode.PARAM)
    _not_padded("npu_moe_token_unpermute_grad", padded_mode)
    rows, dtype = permuted_tokens.shape[0], permuted_tokens.dtype
    return _unpermute_grads(grad_unpermuted_tokens, sorted_indices, rows, dtype, probs, permuted_tokens)


@operator("npu_moe_token_unpermute_grad_v2")
def npu_moe_token_unpermute_grad_v2(
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
    permuted_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """npu_moe_token_unpermute_grad; the permuted tokens are needed only with `probs`.

    Args:
        grad_unpermuted_tokens: (N, H).
        sorted_indices: (N * K,).
        permuted_tokens_size_0: number of permuted rows.
        permuted_tokens_dtype: their dtype.
        probs: (N, K), or None.
        padded_mode: the kernel takes only False.
        restore_shape: of padded mode; not looked at.
        permuted_tokens: (rows, H), or None without `probs`.

    Returns:
        (grad_permuted_tokens, grad_probs), as npu_moe_token_unpermute_grad.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _not_padded("npu_moe_token_unpermute_grad_v2", padded_mode)
    if probs is not None and permuted_tokens is None:
        refuse("npu_moe_token_unpermute_grad_v2", "with probs, permuted_tokens is needed for their gradient")
    return _unpermute_grads(
        grad_unpermuted_tokens, sorted_indices, permuted_tokens_size_0, permuted_tokens_dtype, probs, permuted_tokens
    )


@operator("npu_moe_token_permute_with_routing_map")
def npu_moe_token_permute_with_routing_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    *,
    probs: torch.Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """npu_moe_token_permute for a map of which expert takes which token.

    Without `drop_and_pad`, every token has K = num_out_tokens // N experts; its row among the permuted ones is
    sorted_indices[i * K + k]. With it, every expert takes capacity = num_out_tokens // E tokens, first those of its
    map, in their order, then others; sorted_indices gives the token of each row.

    Args:
        tokens: (N, H); float16, bfloat16 or float32.
        routing_map: (N, E); bool or int8; without `drop_and_pad`, every row has K ones.
        probs: (N, E), or None.
        num_out_tokens: number of rows, cut to a multiple of N (of E with `drop_and_pad`); None for N.
        drop_and_pad: see above.

    Returns:
        (permuted_tokens, permuted_probs, sorted_indices): (rows, H), (rows,) or None, and (rows,) in int32.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_moe_token_permute_with_routing_map"
    floating(name, tokens=tokens, probs=probs)
    _map(name, routing_map)
    count, experts = routing_map.shape
    total = tokens.shape[0] if num_out_tokens is None else num_out_tokens
    if drop_and_pad:
        chosen = _first_of_experts(routing_map, total // experts)
        rows = chosen.reshape(-1)
        wide = tokens.to(compute_dtype(tokens)) if tokens.requires_grad else tokens
        permuted_probs = None if probs is None else probs.T.gather(1, chosen).reshape(-1)
        return wide.index_select(0, rows).to(tokens.dtype), permuted_probs, rows.to(torch.int32)
    top_k = total // count if count else 0
    _top_k(name, top_k)
    order = _by_expert(routing_map)[: top_k * count]
    sorted_indices = torch.argsort(order % max(count, 1), stable=True)
    permuted = _rows_of_slots(tokens, torch.argsort(sorted_indices), top_k)
    permuted_probs = None if probs is None else probs.T.reshape(-1)[order]
    return permuted, permuted_probs, sorted_indices.to(torch.int32)


@operator("npu_moe_token_permute_with_routing_map_grad")
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: torch.Tensor,
    probs_grad: torch.Tensor | None,
    sorted_indices: torch.Tensor,
    routing_map: torch.Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of npu_moe_token_permute_with_routing_map.

    Args:
        permuted_token_out_grad: (rows, H).
        probs_grad: (rows,), or None.
        sorted_indices: (rows,), from the forward pass.
        routing_map: (N, E).
        experts_num: E.
        tokens_num: N.
        drop_and_pad: as in the forward pass.

    Returns:
        (tokens_grad, probs_grad_out): (N, H), and (N, E) or None; in the dtypes of the gradients given.
    """
    name = "npu_moe_token_permute_with_routing_map_grad"
    _map(name, routing_map)
    grad, index = permuted_token_out_grad, sorted_indices.long()
    if drop_and_pad:
        sums = grad.new_zeros((tokens_num, grad.shape[1]), dtype=compute_dtype(grad))
        tokens_grad = sums.index_add(0, index, grad.to(sums.dtype)).to(grad.dtype)
        where = _experts_of_rows(index, experts_num) * tokens_num + index
    else:
        top_k = grad.shape[0] // tokens_num if tokens_num else 0
        tokens_grad = _grad_tokens(grad, sorted_indices, tokens_num, top_k).to(grad.dtype)
        where = _by_expert(routing_map)[: grad.shape[0]]
    if probs_grad is None:
        return tokens_grad, None
    flat = probs_grad.new_zeros(experts_num * tokens_num).index_put((where,), probs_grad.reshape(-1))
    return tokens_grad, flat.view(experts_num, tokens_num).T.contiguous()


@operator("npu_moe_token_unpermute_with_routing_map")
def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: Sequence[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> torch.Tensor:
    """Bring rows of npu_moe_token_permute_with_routing_map back to their tokens, weighted, and sum those of a token.

    Args:
        permuted_tokens: (rows, H); float16, bfloat16 or float32.
        sorted_indices: (rows,), from the forward pass.
        restore_shape: (N, H).
        probs: (N, E) weights, or None.
        routing_map: (N, E); needed with `probs` where `drop_and_pad` is False.
        drop_and_pad: as for the permutation.

    Returns:
        (N, H) in the dtype of `permuted_tokens`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    return _unpermuted_with_map(
        "npu_moe_token_unpermute_with_routing_map",
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs,
        routing_map,
        drop_and_pad,
    )[0]


@operator("_npu_moe_token_unpermute_with_routing_map")
def npu_moe_token_unpermute_with_routing_map_and_order(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: Sequence[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """npu_moe_token_unpermute_with_routing_map, with what its backward pass needs.

    Returns:
        (unpermuted_tokens, out_index, permuted_token_id, permute_probs): the tokens; with `drop_and_pad`, the stable
        sort of `sorted_indices` (order and values), else zeros; the weight of each row (with `drop_and_pad`) or slot,
        None without `probs`. Only the first has a gradient.
    """
    out, order, tokens, weights = _unpermuted_with_map(
        "_npu_moe_token_unpermute_with_routing_map",
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs,
        routing_map,
        drop_and_pad,
    )
    return out, order, tokens, None if weights is None else weights.detach()


@operator("npu_moe_token_unpermute_with_routing_map_grad")
def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: torch.Tensor,
    out_index: torch.Tensor,
    permuted_token_id: torch.Tensor,
    routing_map: torch.Tensor | None,
    permuted_tokens: torch.Tensor | None,
    probs: torch.Tensor | None,
    drop_and_pad: bool,
    restore_shape: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of npu_moe_token_unpermute_with_routing_map.

    Args:
        unpermuted_tokens_grad: (N, H).
        out_index: with `drop_and_pad` the order of the rows by token, else `sorted_indices`.
        permuted_token_id: with `drop_and_pad` the tokens in that order, else not looked at.
        routing_map: (N, E); needed with `probs` where `drop_and_pad` is False.
        permuted_tokens: (rows, H); needed with `probs`.
        probs: (N, E), or None.
        drop_and_pad: as in the forward pass.
        restore_shape: (N, H).

    Returns:
        (permuted_tokens_grad, probs_grad): (rows, H), and (N, E) or None; both in the dtype of the gradient given.

    Raises:
        RuntimeError: an argument is missing.
    """
    name = "npu_moe_token_unpermute_with_routing_map_grad"
    grad, rows = unpermuted_tokens_grad, out_index.shape[0]
    wide = grad.to(compute_dtype(grad))
    if probs is not None and permuted_tokens is None:
        refuse(name, "with probs, permuted_tokens is needed for their gradient")
    if drop_and_pad:
        token_of_row = torch.empty_like(permuted_token_id, dtype=torch.int64)
        token_of_row = token_of_row.index_put((out_index.long(),), permuted_token_id.long())
        of_rows = wide[token_of_row]
        if probs is None:
            return of_rows.to(grad.dtype), None
        where = token_of_row * probs.shape[1] + _experts_of_rows(token_of_row, probs.shape[1])
        weights = probs.reshape(-1)[where].to(wide.dtype)
    else:
        top_k = rows // grad.shape[0] if grad.shape[0] else 0
        slots = torch.argsort(out_index.long(), stable=True)
        of_rows = wide[slots // max(top_k, 1)]
        if probs is None:
            return of_rows.to(grad.dtype), None
        where = _by_token(_needed(name, routing_map))[:rows][slots]
        weights = probs.reshape(-1)[where].to(wide.dtype)
    assert permuted_tokens is not None
    products = (of_rows * permuted_tokens.to(wide.dtype)).sum(-1)
    probs_grad = wide.new_zeros(probs.numel()).index_put((where,), products).view(probs.shape)
    return (of_rows * weights.unsqueeze(-1)).to(grad.dtype), probs_grad.to(grad.dtype)


def _unpermuted(
    name: str, permuted: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None, padded_mode: bool
) -> torch.Tensor:
    if probs is not None:
        _dims(probs.dim() == 2, "probs", probs.dim(), "2")
    _dims(permuted.dim() == 2, "permuted_tokens", permuted.dim(), "2")
    _dims(sorted_indices.dim() == 1, "sorted_indices", sorted_indices.dim(), "1")
    top_k = 1 if probs is None else probs.shape[1]
    text = f"The topk should be greater than zero in npu_moe_token_unpermute_out_size, but got {top_k}"
    require(top_k > 0, text, ErrCode.PARAM)
    floating(name, permuted_tokens=permuted, probs=probs)
    _not_padded(name, padded_mode)
    _top_k(name, top_k)
    count = sorted_indices.shape[0] // top_k
    if probs is not None and probs.shape[0] != count:
        refuse(name, f"probs has {probs.shape[0]} rows for the {count} tokens of sorted_indices")
    rows = _slots(permuted, sorted_indices[: count * top_k], top_k)
    if probs is None:
        return rows.squeeze(1)
    weights = probs.to(compute_dtype(permuted)).unsqueeze(-1)
    wide = rows.to(weights.dtype) * weights
    if not wide.requires_grad:  # the kernel does not read a row of weight 0, which may hold anything
        wide = wide.masked_fill(weights == 0, 0)
    return wide.sum(1).to(permuted.dtype)


def _unpermuted_with_map(
    name: str,
    permuted: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: Sequence[int],
    probs: torch.Tensor | None,
    routing_map: torch.Tensor | None,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    floating(name, permuted_tokens=permuted, probs=probs)
    count, width = restore_shape[0], permuted.shape[-1]
    if len(restore_shape) != 2 or restore_shape[1] != width:
        refuse(name, f"restore_shape {list(restore_shape)} does not fit tokens of {width} elements")
    wide, index = permuted.to(compute_dtype(permuted)), sorted_indices.long()
    if drop_and_pad:
        weights = None
        if probs is not None:
            weights = probs.T.gather(1, index.view(probs.shape[1], -1)).reshape(-1)
            wide = wide * weights.to(wide.dtype).unsqueeze(-1)
        tokens, order = torch.sort(index, stable=True)
        out = wide.new_zeros((count, width)).index_add(0, index, wide)
        dtype = sorted_indices.dtype
        return out.to(permuted.dtype), order.to(dtype), tokens.to(dtype), weights
    top_k = sorted_indices.shape[0] // count if count else 0
    _top_k(name, top_k)
    rows = _slots(wide, index[: count * top_k], max(top_k, 1))
    weights = None
    if probs is not None:
        weights = probs.reshape(-1)[_by_token(_needed(name, routing_map))[: count * top_k]]
        rows = rows * weights.to(wide.dtype).view(-1, max(top_k, 1), 1)
    out = rows.sum(1) if top_k else wide.new_zeros((count, width))
    return out.to(permuted.dtype), torch.zeros_like(sorted_indices), torch.zeros_like(sorted_indices), weights


def _rows_of_slots(tokens: torch.Tensor, slots: torch.Tensor, top_k: int) -> torch.Tensor:
    """tokens[slots // K]. The view with an axis of K lets autograd sum the gradients of a token in float32."""
    count = max(top_k, 1)
    expanded = tokens.unsqueeze(1).expand(-1, count, -1)
    return expanded[slots // count, slots % count]


def _slots(rows: torch.Tensor, index: torch.Tensor, top_k: int) -> torch.Tensor:
    """rows[index] as (tokens, K, H); zeros where there is no such row, as for a dropped token."""
    index = index.long()
    if rows.shape[0] == index.shape[0]:
        return rows[index].view(-1, top_k, rows.shape[-1])
    padded = torch.cat([rows, rows.new_zeros((1, rows.shape[-1]))])
    return padded[index.clamp(max=rows.shape[0])].view(-1, top_k, rows.shape[-1])


def _grad_tokens(grad: torch.Tensor, sorted_indices: torch.Tensor, count: int, top_k: int) -> torch.Tensor:
    _dims(grad.dim() == 2, "grad_permuted_tokens", grad.dim(), "2")
    _dims(sorted_indices.dim() in (1, 2), "sorted_indices", sorted_indices.dim(), "2 or 1")
    if not top_k:
        return grad.new_zeros((count, grad.shape[1]))
    return _slots(grad, sorted_indices.reshape(-1)[: count * top_k], top_k).to(compute_dtype(grad)).sum(1)


def _unpermute_grads(
    grad: torch.Tensor,
    sorted_indices: torch.Tensor,
    rows: int,
    dtype: torch.dtype,
    probs: torch.Tensor | None,
    permuted: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    require(grad.dim() == 2, f"grad_unpermuted_tokens should be 2D (got {grad.dim()}D).", ErrCode.PARAM)
    require(sorted_indices.dim() == 1, f"sorted_indices should be 1D (got {sorted_indices.dim()}D).", ErrCode.PARAM)
    wide, index = grad.to(compute_dtype(grad)), sorted_indices.long()
    top_k = 1
    if probs is not None:
        _dims(probs.dim() == 2, "probs", probs.dim(), "2")
        top_k = probs.shape[1]
    of_slots = wide.unsqueeze(1).expand(-1, top_k, -1)
    grad_probs = None
    if probs is not None and permuted is not None:
        products = _slots(permuted, index, top_k).to(wide.dtype) * of_slots
        grad_probs = products.sum(-1).to(probs.dtype)
        of_slots = of_slots * probs.to(wide.dtype).unsqueeze(-1)
    # one row more takes the slots of dropped tokens
    out = torch.zeros((rows + 1, grad.shape[1]), dtype=dtype, device=grad.device)
    out = out.index_put((index.clamp(max=rows),), of_slots.reshape(index.shape[0], -1).to(dtype))
    return out[:rows].clone(), grad_probs


def _by_expert(routing_map: torch.Tensor) -> torch.Tensor:
    """Places of the ones in the map, expert by expert: expert * N + token; then those of the zeros."""
    return torch.argsort(routing_map.T.reshape(-1).to(torch.int8), descending=True, stable=True)


def _by_token(routing_map: torch.Tensor) -> torch.Tensor:
    """Places of the ones in the map, token by token: token * E + expert; then those of the zeros."""
    return torch.argsort(routing_map.reshape(-1).to(torch.int8), descending=True, stable=True)


def _first_of_experts(routing_map: torch.Tensor, capacity: int) -> torch.Tensor:
    return torch.argsort(routing_map.T.to(torch.int8), dim=-1, descending=True, stable=True)[:, :capacity]


def _experts_of_rows(rows: torch.Tensor, experts: int) -> torch.Tensor:
    capacity = max(rows.shape[0] // experts, 1) if experts else 1
    return torch.arange(rows.shape[0], device=rows.device) // capacity


def _needed(name: str, routing_map: torch.Tensor | None) -> torch.Tensor:
    if routing_map is None:
        refuse(name, "with probs, and without drop_and_pad, routing_map is needed")
    _map(name, routing_map)
    return routing_map


def _map(name: str, routing_map: torch.Tensor) -> None:
    if routing_map.dim() != 2 or routing_map.dtype not in (torch.bool, torch.int8):
        found = f"{routing_map.dim()} dimensions and {routing_map.dtype}"
        refuse(name, f"routing_map has {found}; the kernel takes 2 and bool or int8")


def _integers(name: str, **tensors: torch.Tensor) -> None:
    for key, tensor in tensors.items():
        if tensor.dtype not in (torch.int32, torch.int64):
            refuse(name, f"{key} is {tensor.dtype}; the kernel takes int32 and int64")


def _not_padded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        refuse(name, "padded_mode is True; the kernel takes only False")


def _top_k(name: str, top_k: int) -> None:
    if top_k > _MAX_TOP_K:
        refuse(name, f"a token has {top_k} experts; the kernel takes at most {_MAX_TOP_K}")


def _dims(right: bool, name: str, found: int, wanted: str) -> None:
    require(
        right, f"The dims of input {name} should be {wanted} dimensional, but got {found}-dimensional.", ErrCode.PARAM
    )
