"""The gated delta rule: linear attention whose state forgets and corrects itself.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_delta_rule.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

S_t = a_t S_{t-1} + b_t (v_t - a_t S_{t-1} k_t) k_t^T and o_t = S_t q_t * scale, with a = exp(g) and b = beta. The
kernels of chunks give the same; here every step is computed in float32.

Source: torch_npu-npu_recurrent_gated_delta_rule.md and torch_npu-npu_chunk_gated_delta_rule.md of op-plugin.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .attention import list_of, traced
from .checks import refuse
from .registry import operator

__all__ = [
    "npu_chunk_gated_delta_rule",
    "npu_recurrent_gated_delta_rule",
    "npu_recurrent_gated_delta_rule_functional",
]


class _Steps:
    """Inputs of one call in float32, with the heads of query and key repeated for those of value."""

    def __init__(
        self,
        name: str,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        beta: torch.Tensor | None,
        scale: float | None,
        g: torch.Tensor | None,
        gk: torch.Tensor | None,
    ) -> None:
        _check_inputs(name, query, key, value, beta, g, gk)
        if scale is None:
            raise RuntimeError("scale cannot be empty" + ops_error(ErrCode.PARAM))
        group = value.shape[1] // query.shape[1]
        self.query = query.float().repeat_interleave(group, dim=1) * scale
        self.key = key.float().repeat_interleave(group, dim=1)
        self.value = value.float()
        rows = value.shape[:2]
        self.beta = value.new_ones(rows, dtype=torch.float32) if beta is None else beta.float()
        decay = value.new_zeros((*rows, 1, 1), dtype=torch.float32) if g is None else g.float()[..., None, None]
        self.decay = (decay if gk is None else decay + gk.float().unsqueeze(2)).exp()

    def step(self, state: torch.Tensor, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """State [Nv, Dv, Dk] and result [Nv, Dv] after one token."""
        key, query = self.key[row].unsqueeze(-2), self.query[row].unsqueeze(-2)
        state = state * self.decay[row]
        change = (self.value[row] - (state * key).sum(dim=-1)) * self.beta[row].unsqueeze(-1)
        state = state + change.unsqueeze(-1) * key
        return state, (state * query).sum(dim=-1)


@operator("npu_recurrent_gated_delta_rule")
def npu_recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gated delta rule, token by token; the state after every token is written.

    Args:
        query: [T, Nk, Dk], bfloat16.
        key: like query.
        value: [T, Nv, Dv], bfloat16; Nv is a multiple of Nk.
        state: [blocks, Nv, Dv, Dk], bfloat16; written.
        beta: strength of the update, [T, Nv] in bfloat16; one without it.
        scale: factor of the query.
        actual_seq_lengths: length of every sequence, 1 to 8, [B] in int32.
        ssm_state_indices: block of the state for every token, [T] in int32.
        num_accepted_tokens: token of each sequence whose state it starts from, counted from one, [B] in int32; the
            first without it.
        g: logarithm of the decay, [T, Nv] in float32; zeros without it.
        gk: a further one for every element of the key, [T, Nv, Dk] in float32.

    Returns:
        [T, Nv, Dv] in bfloat16.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    return _recurrent(
        "npu_recurrent_gated_delta_rule", query, key, value, state, beta, scale, actual_seq_lengths,
        ssm_state_indices, num_accepted_tokens, g, gk,
    )  # fmt: skip


@operator("npu_recurrent_gated_delta_rule_functional")
def npu_recurrent_gated_delta_rule_functional(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_recurrent_gated_delta_rule with a state that it does not write: it returns (out, new state)."""
    if state.dim() != 4:
        raise RuntimeError("initial_state dim should be 4" + ops_error(ErrCode.PARAM))
    state = state.clone()
    out = _recurrent(
        "npu_recurrent_gated_delta_rule_functional", query, key, value, state, beta, scale, actual_seq_lengths,
        ssm_state_indices, num_accepted_tokens, g, gk,
    )  # fmt: skip
    return out, state


@operator("npu_chunk_gated_delta_rule")
def npu_chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    g: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated delta rule of whole sequences.

    Args:
        query: [T, Nk, Dk], bfloat16; Nk up to 64, Dk up to 128.
        key: like query.
        value: [T, Nv, Dv], bfloat16; Nv a multiple of Nk up to 64, Dv up to 128.
        beta: strength of the update, [T, Nv] in bfloat16.
        initial_state: [B, Nv, Dv, Dk] in bfloat16.
        actual_seq_lengths: length of every sequence, [B] in int32.
        scale: factor of the query.
        g: logarithm of the decay, [T, Nv] in float32; zeros without it.

    Returns:
        (out [T, Nv, Dv] in bfloat16, final state like initial_state).

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_chunk_gated_delta_rule"
    if not value.numel():
        raise RuntimeError("value cannot be empty" + ops_error(ErrCode.PARAM))
    if value.dim() != 3:
        raise RuntimeError("value dim should be 3" + ops_error(ErrCode.PARAM))
    if beta is None or initial_state is None or actual_seq_lengths is None:
        given = {"beta": beta, "initial_state": initial_state, "actual_seq_lengths": actual_seq_lengths}
        missing = next(what for what, tensor in given.items() if tensor is None)
        raise RuntimeError(f"{missing} cannot be empty" + ops_error(ErrCode.PARAM))
    steps = _Steps(name, query, key, value, beta, scale, g, None)
    if max(value.shape[1], query.shape[1]) > 64 or max(value.shape[2], query.shape[2]) > 128:
        sizes = f"{query.shape[1]} and {value.shape[1]} heads of {query.shape[2]} and {value.shape[2]} elements"
        refuse(name, f"there are {sizes}; the kernel takes up to 64 heads of up to 128 elements")
    if initial_state.dtype != torch.bfloat16:
        refuse(name, f"initial_state is {initial_state.dtype}; the kernel takes bfloat16")
    _check_state(name, initial_state, query, value)
    if traced(query) or traced(actual_seq_lengths):
        return torch.empty_like(value), torch.empty_like(initial_state)
    lengths = list_of(actual_seq_lengths) or []
    if len(lengths) != initial_state.shape[0] or sum(lengths) > value.shape[0] or min(lengths) < 0:
        refuse(
            name, f"actual_seq_lengths {lengths} do not fit {initial_state.shape[0]} states and {value.shape[0]} tokens"
        )
    out = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    states, row = [], 0
    for index, length in enumerate(lengths):
        state = initial_state[index].float()
        for _ in range(length):
            state, out[row] = steps.step(state, row)
            row += 1
        states.append(state)
    return out.bfloat16(), torch.stack(states).to(initial_state.dtype)


def _recurrent(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    beta: torch.Tensor | None,
    scale: float | None,
    actual_seq_lengths: torch.Tensor | None,
    ssm_state_indices: torch.Tensor | None,
    num_accepted_tokens: torch.Tensor | None,
    g: torch.Tensor | None,
    gk: torch.Tensor | None,
) -> torch.Tensor:
    if value.dim() != 3:
        raise RuntimeError("value dim should be 3" + ops_error(ErrCode.PARAM))
    steps = _Steps(name, query, key, value, beta, scale, g, gk)
    if state.dtype != torch.bfloat16:
        refuse(name, f"state is {state.dtype}; the kernel takes bfloat16")
    _check_state(name, state, query, value)
    if actual_seq_lengths is None or ssm_state_indices is None:
        refuse(name, "actual_seq_lengths and ssm_state_indices must be given")
    if traced(query) or traced(actual_seq_lengths):
        return value.new_empty(value.shape, dtype=torch.bfloat16)
    lengths, blocks = list_of(actual_seq_lengths) or [], list_of(ssm_state_indices) or []
    accepted = list_of(num_accepted_tokens) or [1] * len(lengths)
    if sum(lengths) > value.shape[0] or any(not 1 <= length <= 8 for length in lengths):
        refuse(name, f"actual_seq_lengths {lengths}: the kernel takes 1 to 8, {value.shape[0]} together")
    if any(not 0 <= block < state.shape[0] for block in blocks):
        refuse(name, f"ssm_state_indices {blocks} are beyond the {state.shape[0]} blocks of state")
    if any(not 1 <= count <= length for count, length in zip(accepted, lengths, strict=True)):
        refuse(name, f"num_accepted_tokens {accepted} are beyond the lengths {lengths}")
    out = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    row = 0
    for length, count in zip(lengths, accepted, strict=True):
        current = state[blocks[row + count - 1]].float()
        for _ in range(length):
            current, out[row] = steps.step(current, row)
            state[blocks[row]] = current.to(state.dtype)
            row += 1
    return out.bfloat16()


def _check_inputs(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor | None,
    g: torch.Tensor | None,
    gk: torch.Tensor | None,
) -> None:
    for what, tensor in (("query", query), ("key", key), ("value", value), ("beta", beta)):
        if tensor is not None and tensor.dtype != torch.bfloat16:
            refuse(name, f"{what} is {tensor.dtype}; the kernel takes bfloat16")
    for what, tensor in (("g", g), ("gk", gk)):
        if tensor is not None and tensor.dtype != torch.float32:
            refuse(name, f"{what} is {tensor.dtype}; the kernel takes float32")
    if query.dim() != 3 or key.shape != query.shape or query.shape[0] != value.shape[0]:
        shapes = f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        refuse(name, f"query, key and value have shapes {shapes}; the kernel takes [T, Nk, Dk] twice and [T, Nv, Dv]")
    if not query.shape[1] or value.shape[1] % query.shape[1]:
        refuse(name, f"value has {value.shape[1]} heads, which is no multiple of the {query.shape[1]} of query")
    expected = {"beta": (beta, [*value.shape[:2]]), "g": (g, [*value.shape[:2]])}
    expected["gk"] = (gk, [*value.shape[:2], query.shape[2]])
    for what, (tensor, shape) in expected.items():
        if tensor is not None and list(tensor.shape) != shape:
            refuse(name, f"{what} has shape {list(tensor.shape)}; these inputs take {shape}")


def _check_state(name: str, state: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> None:
    shape = [value.shape[1], value.shape[2], query.shape[2]]
    if state.dim() != 4 or list(state.shape[1:]) != shape:
        refuse(
            name, f"the state has shape {list(state.shape)}; these inputs take [blocks, {', '.join(map(str, shape))}]"
        )
