"""Causal convolution along a sequence, of every channel on its own: with a mask, or continued from a cache.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_delta_rule.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from .attention import list_of, traced
from .checks import refuse
from .registry import operator

__all__ = [
    "npu_fused_causal_conv1d",
    "npu_fused_causal_conv1d_v2",
    "npu_masked_causal_conv1d",
    "npu_masked_causal_conv1d_backward",
]

_WIDTH = 3
_HALVES = (torch.float16, torch.bfloat16)
_MODES = {"default": 0, "pangu": 1}


@operator("npu_masked_causal_conv1d")
def npu_masked_causal_conv1d(
    input: torch.Tensor, weight: torch.Tensor, *, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """out[s] = sum over w of weight[w] * input[s - 2 + w], zeros where the mask is False.

    Args:
        input: [S, B, H]; float16 or bfloat16.
        weight: [3, H], of the same dtype.
        mask: [B, S], bool.

    Returns:
        like input.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_masked_causal_conv1d.md of op-plugin.
    """
    _check_masked("npu_masked_causal_conv1d", input, weight, mask)
    length = input.shape[0]
    padded = torch.nn.functional.pad(input.float(), (0, 0, 0, 0, _WIDTH - 1, 0))
    wide = weight.float()
    out = sum((padded[w : w + length] * wide[w] for w in range(_WIDTH)), torch.zeros_like(padded[:length]))
    if mask is not None:
        out = out.masked_fill(~mask.T.unsqueeze(-1), 0.0)
    return out.to(input.dtype)


@operator("npu_masked_causal_conv1d_backward")
def npu_masked_causal_conv1d_backward(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight of npu_masked_causal_conv1d, in the dtype of `grad_output`.

    The arguments are those of the forward operator and the gradient of its result.
    """
    _check_masked("npu_masked_causal_conv1d_backward", input, weight, mask)
    length = input.shape[0]
    grad = grad_output.float()
    if mask is not None:
        grad = grad.masked_fill(~mask.T.unsqueeze(-1), 0.0)
    later = torch.nn.functional.pad(grad, (0, 0, 0, 0, 0, _WIDTH - 1))
    earlier = torch.nn.functional.pad(input.float(), (0, 0, 0, 0, _WIDTH - 1, 0))
    wide = weight.float()
    shifts = range(_WIDTH)
    of_input = sum((later[s : s + length] * wide[_WIDTH - 1 - s] for s in shifts), torch.zeros_like(grad))
    of_weight = torch.stack([(grad * earlier[w : w + length]).sum(dim=(0, 1)) for w in shifts])
    return of_input.to(grad_output.dtype), of_weight.to(grad_output.dtype)


@operator("npu_fused_causal_conv1d")
def npu_fused_causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_states: torch.Tensor,
    *,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    initial_state_mode: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    activation: str | None = "None",
    pad_slot_id: int | None = -1,
    run_mode: int | None = 0,
    residual_connection: int | None = 0,
    max_query_len: int | None = -1,
    num_computed_tokens: torch.Tensor | None = None,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    block_size: int | None = 128,
    conv_mode: str | None = "default",
) -> torch.Tensor:
    """Causal convolution of sequences, continued from a cache, which is brought up to date.

    Args:
        x: the sequences one after the other, [T, dim], or [B, S, dim]; float16 or bfloat16.
        weight: [3, dim].
        conv_states: last tokens of every sequence, [lines, at least 2, dim]; written.
        query_start_loc: where every sequence starts, [B + 1] in int32; [T, dim] needs it.
        cache_indices: line of every sequence, [B] in int32; with a cache of prefixes [B, blocks].
        initial_state_mode: without effect.
        bias: without effect.
        num_accepted_tokens: tokens of the last step that were accepted, [B] in int32.
        activation: without effect.
        pad_slot_id: sequences with this line are left out. Their results have no value; here they are zeros.
        run_mode: without effect.
        residual_connection: 1 adds x to the result.
        max_query_len: without effect here.
        num_computed_tokens: tokens that came before, [B] in int32: with none the cache is not read.
        block_idx_first_scheduled_token: first block of the step, [B] in int32, for a cache of prefixes.
        block_idx_last_scheduled_token: last block of the step.
        initial_state_idx: block to start from.
        block_size: tokens of a block.
        conv_mode: "default", or "pangu": the first results, whose window is not full, are zeros.

    Returns:
        like x.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_fused_causal_conv1d.md of op-plugin.
    """
    return _fused(
        "npu_fused_causal_conv1d", x, weight, conv_states, query_start_loc, cache_indices, num_accepted_tokens,
        -1 if pad_slot_id is None else pad_slot_id, bool(residual_connection), num_computed_tokens,
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, block_size or 128,
        conv_mode,
    )  # fmt: skip


@operator("npu_fused_causal_conv1d_v2")
def npu_fused_causal_conv1d_v2(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_states: torch.Tensor,
    *,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    initial_state_mode: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    activation: str | None = "None",
    pad_slot_id: int | None = -1,
    run_mode: int | None = 0,
    residual_connection: int | None = 0,
    max_query_len: int | None = -1,
    num_computed_tokens: torch.Tensor | None = None,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    block_size: int | None = 128,
    conv_mode: str | None = "default",
) -> None:
    """npu_fused_causal_conv1d that writes its result to `x`; sequences that are left out stay as they are."""
    if traced(x):
        return
    out = _fused(
        "npu_fused_causal_conv1d_v2", x, weight, conv_states, query_start_loc, cache_indices, num_accepted_tokens,
        -1 if pad_slot_id is None else pad_slot_id, bool(residual_connection), num_computed_tokens,
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, block_size or 128,
        conv_mode, x,
    )  # fmt: skip
    x.copy_(out)


def _fused(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    cache_indices: torch.Tensor | None,
    num_accepted_tokens: torch.Tensor | None,
    pad_slot_id: int,
    residual: bool,
    num_computed_tokens: torch.Tensor | None,
    first_blocks: torch.Tensor | None,
    last_blocks: torch.Tensor | None,
    initial_blocks: torch.Tensor | None,
    block_size: int,
    conv_mode: str | None,
    left_out: torch.Tensor | None = None,
) -> torch.Tensor:
    mode = _MODES.get(conv_mode or "default", 0)
    _check_fused(name, x, weight, states, query_start_loc, num_computed_tokens, mode)
    if traced(x):
        return torch.empty_like(x)
    flat = x.reshape(-1, x.shape[-1])
    starts = list_of(query_start_loc)
    if starts is None:
        starts = [row * x.shape[1] for row in range(x.shape[0] + 1)]
    prefixes = None
    if last_blocks is not None:
        if cache_indices is None or cache_indices.dim() != 2 or first_blocks is None or initial_blocks is None:
            refuse(name, "a cache of prefixes takes cache_indices of 2 dimensions and the numbers of the blocks")
        if num_computed_tokens is None:
            refuse(name, "a cache of prefixes takes num_computed_tokens")
        prefixes = (first_blocks.tolist(), last_blocks.tolist(), initial_blocks.tolist())
    lines = None if cache_indices is None else cache_indices.tolist()
    accepted, computed = list_of(num_accepted_tokens), list_of(num_computed_tokens)
    out = (torch.zeros_like(flat) if left_out is None else left_out.reshape(flat.shape).clone()).float()
    for row, (start, end) in enumerate(pairwise(starts)):
        own = flat[start:end]
        if prefixes is not None and lines is not None:
            read, write = lines[row][prefixes[2][row]], lines[row][prefixes[1][row]]
        else:
            read = write = row if lines is None else lines[row]
        if read == pad_slot_id:
            continue
        offset = 0
        if computed is not None and computed[row] == 0:
            cached = own.new_zeros((_WIDTH - 1, own.shape[1]))
        else:
            offset = accepted[row] - 1 if accepted is not None else states.shape[1] - (_WIDTH - 1)
            cached = states[read, : offset + _WIDTH - 1]
        padded = torch.cat((cached, own))
        kept = min(states.shape[1], padded.shape[0])
        states[write, states.shape[1] - kept :] = padded[padded.shape[0] - kept :]
        padded = padded[offset:]
        if prefixes is not None and computed is not None and lines is not None:
            first, last = prefixes[0][row], prefixes[1][row]
            for chunk, boundary in enumerate(_boundaries(end - start, computed[row], block_size, last - first)):
                states[lines[row][first + chunk], 1 - _WIDTH :] = padded[boundary : boundary + _WIDTH - 1]
        wide = padded.float()
        result = torch.zeros_like(wide[: end - start])
        for w in range(_WIDTH):
            result += wide[w : w + end - start] * weight[w].float()
        if mode and computed is not None:
            result[: min(max(_WIDTH - 1 - computed[row], 0), end - start)] = 0
        out[start:end] = result + own.float() if residual else result
    return out.to(x.dtype).reshape(x.shape)


def _boundaries(length: int, computed: int, block: int, count: int) -> list[int]:
    """Ends, in the sequence, of the blocks that this step fills."""
    rest = (length - (block - computed % block)) % block
    last = length - rest - (block if rest == 0 else 0)
    return [last - (count - chunk - 1) * block for chunk in range(count)]


def _check_masked(name: str, input: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor | None) -> None:
    if input.dtype not in _HALVES or weight.dtype != input.dtype:
        refuse(name, f"input is {input.dtype} and weight {weight.dtype}; the kernel takes float16 or bfloat16 for both")
    if input.dim() != 3 or list(weight.shape) != [_WIDTH, input.shape[-1]]:
        shapes = f"{list(input.shape)} and {list(weight.shape)}"
        refuse(name, f"input and weight have shapes {shapes}; the kernel takes [S, B, H] and [3, H]")
    if mask is not None and (mask.dtype != torch.bool or list(mask.shape) != [input.shape[1], input.shape[0]]):
        shape = f"{list(mask.shape)} {mask.dtype}"
        refuse(name, f"mask is {shape}; these inputs take [{input.shape[1]}, {input.shape[0]}] in bool")


def _check_fused(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    starts: torch.Tensor | None,
    computed: torch.Tensor | None,
    mode: int,
) -> None:
    if x.dtype not in _HALVES or weight.dtype != x.dtype or states.dtype != x.dtype:
        dtypes = f"{x.dtype}, {weight.dtype} and {states.dtype}"
        refuse(name, f"x, weight and conv_states are {dtypes}; the kernel takes float16 or bfloat16 for all")
    if x.dim() not in (2, 3) or list(weight.shape) != [_WIDTH, x.shape[-1]]:
        shapes = f"{list(x.shape)} and {list(weight.shape)}"
        refuse(name, f"x and weight have shapes {shapes}; the kernel takes [T, dim] or [B, S, dim], and [3, dim]")
    if states.dim() != 3 or states.shape[1] < _WIDTH - 1 or states.shape[2] != x.shape[-1]:
        refuse(name, f"conv_states has shape {list(states.shape)}; x takes [lines, at least 2, {x.shape[-1]}]")
    if x.dim() == 2 and starts is None:
        refuse(name, "x of 2 dimensions takes query_start_loc")
    if mode and computed is None:
        refuse(name, 'conv_mode "pangu" takes num_computed_tokens')
