"""The gated delta rule and causal convolutions, against loops over every token.

Holds causal_conv1d.py and delta_rule.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def normal(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def uniform(*shape, seed=0, dtype=torch.bfloat16):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual, expected, tolerance=1e-2):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def step(state, query, key, value, beta, decay, scale):
    """One head: S = S decay (I - beta k k^T) + beta v k^T, by matrices; `decay` is one number, or one a column."""
    state = state * decay
    state = state @ (np.eye(len(key)) - beta * np.outer(key, key)) + beta * np.outer(value, key)
    return state, state @ query * scale


def inputs(rows=7, shared=2, heads=4, head=6, value_head=5):
    query, key = normal(rows, shared, head), normal(rows, shared, head, seed=1)
    query, key = (torch.nn.functional.normalize(part.float(), dim=-1).bfloat16() for part in (query, key))
    value = normal(rows, heads, value_head, seed=2)
    return query, key, value, uniform(rows, heads, seed=3), -uniform(rows, heads, seed=4, dtype=torch.float32)


@pytest.mark.parametrize("with_g", [True, False])
def test_sequences(facade, with_g):
    query, key, value, beta, g = inputs()
    states = uniform(2, 4, 5, 6, seed=5)
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    out, final = facade.npu_chunk_gated_delta_rule(
        query,
        key,
        value,
        beta=beta,
        initial_state=states,
        actual_seq_lengths=lengths,
        scale=0.4,
        g=g if with_g else None,
    )
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.bfloat16)
    for n in range(4):
        row = 0
        for index, length in enumerate((3, 4)):
            state = states[index, n].double().numpy()
            for _ in range(length):
                parts = [part.double().numpy() for part in (query[row, n // 2], key[row, n // 2], value[row, n])]
                decay = np.exp(g[row, n].item()) if with_g else 1.0
                state, one = step(state, *parts, beta[row, n].item(), decay, 0.4)
                close(out[row, n], one)
                row += 1
            close(final[index, n], state)


@pytest.mark.parametrize("accepted", [None, [2, 1, 3]])
@pytest.mark.parametrize("with_gk", [True, False])
def test_token_by_token(facade, accepted, with_gk):
    query, key, value, beta, g = inputs(rows=6)
    gk = -uniform(6, 4, 6, seed=8, dtype=torch.float32) if with_gk else None
    state = uniform(8, 4, 5, 6, seed=5)
    lengths, slots = [2, 1, 3], [7, 0, 3, 2, 5, 1]
    keywords = {
        "beta": beta,
        "scale": 0.4,
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32),
        "ssm_state_indices": torch.tensor(slots, dtype=torch.int32),
        "num_accepted_tokens": None if accepted is None else torch.tensor(accepted, dtype=torch.int32),
        "g": g,
        "gk": gk,
    }
    before = state.clone()
    out, functional = facade.npu_recurrent_gated_delta_rule_functional(query, key, value, state, **keywords)
    assert torch.equal(state, before)
    again = facade.npu_recurrent_gated_delta_rule(query, key, value, state, **keywords)
    assert torch.equal(out, again)
    assert torch.equal(state, functional)
    row = 0
    for index, length in enumerate(lengths):
        start = row + (accepted[index] if accepted else 1) - 1
        for n in range(4):
            current = before[slots[start], n].double().numpy()
            for token in range(row, row + length):
                parts = [part.double().numpy() for part in (query[token, n // 2], key[token, n // 2], value[token, n])]
                decay = np.exp(g[token, n].item())
                decay = decay * gk[token, n].exp().double().numpy() if with_gk else decay
                current, one = step(current, *parts, beta[token, n].item(), decay, 0.4)
                close(out[token, n], one)
                close(state[slots[token], n], current)
        row += length
    unused = [slot for slot in range(8) if slot not in slots]
    assert torch.equal(state[unused], before[unused])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scale": None}, "scale cannot be empty"),
        ({"beta": None}, "beta cannot be empty"),
        ({"initial_state": None}, "initial_state cannot be empty"),
        ({"actual_seq_lengths": None}, "actual_seq_lengths cannot be empty"),
        ({"value": torch.zeros(7, 4).bfloat16()}, "value dim should be 3"),
        ({"value": torch.zeros(0, 4, 5).bfloat16()}, "value cannot be empty"),
        ({"value": torch.zeros(7, 3, 5).bfloat16()}, "no multiple"),
        ({"query": torch.zeros(7, 2, 6)}, "the kernel takes bfloat16"),
        ({"g": torch.zeros(7, 4).bfloat16()}, "the kernel takes float32"),
        ({"actual_seq_lengths": torch.tensor([3, 5])}, "do not fit"),
        ({"initial_state": torch.zeros(2, 4, 6, 5).bfloat16()}, "the state has shape"),
    ],
)
def test_chunks_refuse(facade, changes, text):
    query, key, value, beta, g = inputs()
    arguments = {"query": query, "value": value, "beta": beta, "g": g, "scale": 1.0}
    arguments |= {"initial_state": uniform(2, 4, 5, 6), "actual_seq_lengths": torch.tensor([3, 4]), **changes}
    first, third = arguments.pop("query"), arguments.pop("value")
    with pytest.raises(RuntimeError, match=text):
        facade.npu_chunk_gated_delta_rule(first, key, third, **arguments)


def test_steps_refuse(facade):
    query, key, value, _, _ = inputs(rows=3)
    state, slots = uniform(3, 4, 5, 6), torch.arange(3, dtype=torch.int32)
    for lengths, indices, accepted, text in (
        ([3], None, None, "must be given"),
        ([4], slots, None, "the kernel takes 1 to 8"),
        ([3], slots + 1, None, "beyond the 3 blocks"),
        ([1, 2], slots, [1, 3], "beyond the lengths"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_recurrent_gated_delta_rule(
                query,
                key,
                value,
                state,
                scale=1.0,
                actual_seq_lengths=torch.tensor(lengths),
                ssm_state_indices=indices,
                num_accepted_tokens=None if accepted is None else torch.tensor(accepted),
            )


# --- causal convolutions


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("length", [1, 2, 6])
def test_masked_convolution(facade, masked, length):
    x, weight = normal(length, 2, 8, dtype=torch.float16), normal(3, 8, seed=1, dtype=torch.float16)
    mask = uniform(2, length, dtype=torch.float64) < 0.6 if masked else None
    leaves = x.requires_grad_(), weight.requires_grad_()
    out = facade.npu_masked_causal_conv1d(*leaves, mask=mask)
    wide = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    rows = []
    for s in range(length):
        total = sum((wide[0][s - 2 + w] * wide[1][w] for w in range(3) if s - 2 + w >= 0), torch.zeros(2, 8))
        rows.append(total if mask is None else total * mask[:, s, None])
    expected = torch.stack(rows)
    close(out, expected.detach())
    grad = normal(*out.shape, seed=3, dtype=torch.float16)
    out.backward(grad)
    expected.backward(grad.double())
    found = facade.npu_masked_causal_conv1d_backward(grad, x.detach(), weight.detach(), mask=mask)
    for gradient, leaf, other in zip(found, leaves, wide, strict=True):
        close(gradient, other.grad)
        close(leaf.grad, other.grad)


def convolved(history, tokens, weight):
    """Results of the tokens that follow `history` [at least 2, dim], in float64."""
    rows = np.concatenate((history[-2:], tokens))
    return np.stack([sum(weight[w] * rows[i + w] for w in range(3)) for i in range(len(tokens))])


@pytest.mark.parametrize("version", ["", "_v2"])
@pytest.mark.parametrize("residual", [0, 1])
def test_convolution_with_a_cache(facade, residual, version):
    lengths, lines = [5, 1, 3], [2, 0, -1]
    x, weight = normal(9, 64, dtype=torch.float16), normal(3, 64, seed=1, dtype=torch.float16)
    states = normal(3, 4, 64, seed=2, dtype=torch.float16)
    before, own = states.clone(), x.clone()
    operator = getattr(facade, f"npu_fused_causal_conv1d{version}")
    out = operator(
        x,
        weight,
        states,
        query_start_loc=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        cache_indices=torch.tensor(lines, dtype=torch.int32),
        residual_connection=residual,
    )
    if version:
        assert out is None
        out = x
        assert torch.equal(x[6:], own[6:])
    start = 0
    for length, line in zip(lengths, lines, strict=True):
        tokens = own[start : start + length].double().numpy()
        if line >= 0:
            history = before[line].double().numpy()
            expected = convolved(history, tokens, weight.double().numpy()) + residual * tokens
            close(out[start : start + length], expected)
            close(states[line], np.concatenate((history, tokens))[-4:])
        start += length
    assert torch.equal(states[1], before[1])


def test_convolution_after_speculation(facade):
    """Every sequence goes on after the tokens that were accepted; "pangu" clears results whose window is not full."""
    x, weight = normal(3, 3, 64, dtype=torch.float16), normal(3, 64, seed=1, dtype=torch.float16)
    states = normal(3, 4, 64, seed=2, dtype=torch.float16)
    before, accepted, computed = states.clone().double().numpy(), [1, 3, 2], [5, 1, 0]
    out = facade.npu_fused_causal_conv1d(
        x,
        weight,
        states,
        num_accepted_tokens=torch.tensor(accepted),
        num_computed_tokens=torch.tensor(computed),
        conv_mode="pangu",
    )
    for row in range(3):
        tokens = x[row].double().numpy()
        history = before[row][: accepted[row] + 1] if computed[row] else np.zeros((2, 64))
        expected = convolved(history, tokens, weight.double().numpy())
        expected[: max(2 - computed[row], 0)] = 0
        close(out[row], expected)
        whole = np.concatenate((history, tokens))[-4:]
        close(states[row, 4 - len(whole) :], whole)


def test_convolution_with_a_cache_of_prefixes(facade):
    """Blocks of 4 tokens: the last two tokens of every block that this step fills go to the block's own line."""
    x, weight = normal(7, 64, dtype=torch.float16), normal(3, 64, seed=1, dtype=torch.float16)
    states = normal(6, 2, 64, seed=2, dtype=torch.float16)
    before = states.clone()
    one = {name: torch.tensor([value], dtype=torch.int32) for name, value in (
        ("num_computed_tokens", 3), ("block_idx_first_scheduled_token", 0), ("block_idx_last_scheduled_token", 2),
        ("initial_state_idx", 0),
    )}  # fmt: skip
    out = facade.npu_fused_causal_conv1d(
        x, weight, states, query_start_loc=torch.tensor([0, 7]), block_size=4,
        cache_indices=torch.tensor([[4, 1, 3]], dtype=torch.int32), **one,
    )  # fmt: skip
    tokens = x.double().numpy()
    close(out, convolved(before[4].double().numpy(), tokens, weight.double().numpy()))
    history = np.concatenate((before[4].double().numpy(), tokens))
    # Tokens 3 to 9 of the sequence: block 0 ends after the first of them, block 1 after the fifth.
    close(states[4], history[1:3])
    close(states[1], history[5:7])
    close(states[3], history[-2:])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x": torch.zeros(4, 64)}, "float16 or bfloat16 for all"),
        ({"x": torch.zeros(4, 32).half()}, "and .3, dim"),
        ({"query_start_loc": None}, "takes query_start_loc"),
        ({"conv_mode": "pangu"}, "num_computed_tokens"),
        ({"conv_states": torch.zeros(2, 1, 64).half()}, "at least 2"),
    ],
)
def test_convolution_refuses(facade, changes, text):
    arguments = {"x": torch.zeros(4, 64).half(), "conv_states": torch.zeros(2, 2, 64).half()}
    arguments |= {"query_start_loc": torch.tensor([0, 4]), **changes}
    first, states = arguments.pop("x"), arguments.pop("conv_states")
    with pytest.raises(RuntimeError, match=text):
        facade.npu_fused_causal_conv1d(first, torch.zeros(3, 64).half(), states, **arguments)
