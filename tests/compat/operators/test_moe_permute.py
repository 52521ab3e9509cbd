"""npu_moe_token_permute and its relatives against loops over tokens.

Holds moe_permute.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROUTING = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)


def choices(count=5, top_k=3, experts=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(count)])


def in_order(indices):
    """(token, choice) of every slot, expert by expert."""
    indices = indices.unsqueeze(1) if indices.dim() == 1 else indices
    slots = [(int(expert), i, k) for i, row in enumerate(indices) for k, expert in enumerate(row)]
    return [(i, k) for _, i, k in sorted(slots)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [None, 0, 4, 100, -2])
def test_permute(facade, dtype, kept):
    tokens, indices = torch.randn(5, 6, dtype=dtype), choices()
    permuted, rows = facade.npu_moe_token_permute(tokens, indices, kept)
    order = in_order(indices)
    for row, (token, choice) in enumerate(order):
        assert rows[token * 3 + choice] == row
    order = order[: kept or None] if kept != 100 else order
    assert permuted.dtype == dtype
    assert rows.dtype == torch.int32
    assert torch.equal(permuted, torch.stack([tokens[token] for token, _ in order]))


def test_permute_of_one_expert_for_each_token(facade):
    tokens, indices = torch.randn(4, 2), torch.tensor([3, 0, 3, 1], dtype=torch.int32)
    permuted, rows = facade.npu_moe_token_permute(tokens, indices)
    assert torch.equal(permuted, tokens[[1, 3, 0, 2]])
    assert rows.tolist() == [2, 0, 3, 1]


def test_permute_and_back_without_tokens(facade):
    permuted, rows = facade.npu_moe_token_permute(torch.randn(0, 6), torch.zeros(0, 2, dtype=torch.int64))
    assert permuted.shape == (0, 6)
    assert facade.npu_moe_token_unpermute(permuted, rows, torch.rand(0, 2)).shape == (0, 6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [None, 9])
def test_unpermute(facade, dtype, kept):
    indices, probs = choices(), torch.rand(5, 3)
    tokens = torch.randn(5, 6, dtype=dtype)
    permuted, rows = facade.npu_moe_token_permute(tokens, indices, kept)
    found = facade.npu_moe_token_unpermute(permuted, rows, probs)
    expected = torch.zeros(5, 6, dtype=torch.float64)
    for token, choice in in_order(indices)[:kept]:
        expected[token] += tokens[token].double() * probs[token, choice].double()
    torch.testing.assert_close(found, expected.to(dtype))
    both = facade._npu_moe_token_unpermute(permuted, rows, probs)
    assert torch.equal(both[0], found)
    assert torch.equal(both[1], permuted)


def test_unpermute_without_weights_and_with_a_view(facade):
    permuted, rows = torch.randn(6, 4).T, torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    assert torch.equal(facade.npu_moe_token_unpermute(permuted, rows), permuted[rows.long()])


def test_rows_of_weight_zero_are_not_read(facade):
    permuted = torch.tensor([[float("nan")], [2.0]])
    found = facade.npu_moe_token_unpermute(permuted, torch.tensor([0, 1]), torch.tensor([[0.0, 0.5]]))
    assert found.tolist() == [[1.0]]


@pytest.mark.parametrize("kept", [None, 7])
def test_gradients_are_those_of_the_gradient_operators(facade, kept):
    tokens, indices = torch.randn(5, 6, requires_grad=True), choices()
    permuted, rows = facade.npu_moe_token_permute(tokens, indices, kept)
    grad = torch.randn_like(permuted)
    (expected,) = torch.autograd.grad(permuted, tokens, grad)
    torch.testing.assert_close(facade.npu_moe_token_permute_grad(tokens, grad, indices, rows), expected)
    found = torch.ops.npu.npu_moe_token_permute_grad_v2(grad, rows, 5, torch.float32, 3)
    torch.testing.assert_close(found, expected)

    permuted = permuted.detach().requires_grad_()
    probs = torch.rand(5, 3, requires_grad=True)
    out = facade.npu_moe_token_unpermute(permuted, rows, probs)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (permuted, probs), grad)
    found = torch.ops.npu.npu_moe_token_unpermute_grad(permuted, grad, rows, probs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    count = permuted.shape[0]
    found = torch.ops.npu.npu_moe_token_unpermute_grad_v2(
        grad, rows, count, torch.float32, probs=probs, permuted_tokens=permuted
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    alone = torch.ops.npu.npu_moe_token_unpermute_grad(permuted[:5], grad, torch.arange(5).int())
    assert alone[1] is None
    assert torch.equal(alone[0], grad)


def test_gradients_sum_in_float32(facade):
    tokens = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    permuted, _ = facade.npu_moe_token_permute(tokens, torch.zeros(1, 300, dtype=torch.int64))
    permuted.sum().backward()
    assert tokens.grad.item() == 300  # bfloat16 alone ends at 256


@pytest.mark.parametrize("kind", [torch.bool, torch.int8])
def test_permute_with_routing_map(facade, kind):
    tokens, probs = torch.randn(3, 5), torch.rand(3, 4)
    slots = [(i, e) for e in range(4) for i in range(3) if ROUTING[i, e]]
    permuted, weights, rows = facade.npu_moe_token_permute_with_routing_map(
        tokens, ROUTING.to(kind), probs=probs, num_out_tokens=6
    )
    assert torch.equal(permuted, torch.stack([tokens[i] for i, _ in slots]))
    assert torch.equal(weights, torch.stack([probs[i, e] for i, e in slots]))
    numbers = sorted((i, row) for row, (i, _) in enumerate(slots))
    assert rows.tolist() == [row for _, row in numbers]
    assert facade.npu_moe_token_permute_with_routing_map(tokens, ROUTING, num_out_tokens=6)[1] is None


def test_permute_with_routing_map_and_capacity(facade):
    tokens, probs = torch.randn(3, 5), torch.rand(3, 4)
    permuted, weights, rows = facade.npu_moe_token_permute_with_routing_map(
        tokens, ROUTING, probs=probs, num_out_tokens=8, drop_and_pad=True
    )
    expected = []
    for expert in range(4):
        takes = [i for i in range(3) if ROUTING[i, expert]] + [i for i in range(3) if not ROUTING[i, expert]]
        expected += [(i, expert) for i in takes[:2]]
    assert rows.tolist() == [i for i, _ in expected]
    assert torch.equal(permuted, torch.stack([tokens[i] for i, _ in expected]))
    assert torch.equal(weights, torch.stack([probs[i, e] for i, e in expected]))


@pytest.mark.parametrize(("total", "pad"), [(6, False), (8, True)])
def test_routing_map_both_ways_with_gradients(facade, total, pad):
    tokens, probs = torch.randn(3, 5, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    permuted, weights, rows = facade.npu_moe_token_permute_with_routing_map(
        tokens, ROUTING, probs=probs, num_out_tokens=total, drop_and_pad=pad
    )
    grads = torch.randn_like(permuted), torch.randn_like(weights)
    expected = torch.autograd.grad((permuted, weights), (tokens, probs), grads)
    found = torch.ops.npu.npu_moe_token_permute_with_routing_map_grad(*grads, rows, ROUTING, 4, 3, pad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)

    permuted = permuted.detach().requires_grad_()
    keywords = {"probs": probs, "routing_map": ROUTING, "drop_and_pad": pad}
    out, order, sources, weights = torch.ops.npu._npu_moe_token_unpermute_with_routing_map(
        permuted, rows, [3, 5], **keywords
    )
    sums = torch.zeros(3, 5, dtype=torch.float64)
    experts = [(i, e) for e in range(4) for i in range(3) if ROUTING[i, e]]
    experts = [(int(i), row // 2) for row, i in enumerate(rows)] if pad else experts
    for row, (i, e) in enumerate(experts):
        sums[i] += permuted[row].double() * probs[i, e].double()
    torch.testing.assert_close(out, sums.float())
    assert torch.equal(facade.npu_moe_token_unpermute_with_routing_map(permuted, rows, [3, 5], **keywords), out)
    assert not weights.requires_grad

    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (permuted, probs), grad)
    index = (order, sources) if pad else (rows, rows)
    found = torch.ops.npu.npu_moe_token_unpermute_with_routing_map_grad(
        grad, *index, ROUTING, permuted, probs, pad, [3, 5]
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    alone = torch.ops.npu.npu_moe_token_unpermute_with_routing_map_grad(grad, *index, ROUTING, None, None, pad, [3, 5])
    bare = facade.npu_moe_token_unpermute_with_routing_map(
        permuted, rows, [3, 5], routing_map=ROUTING, drop_and_pad=pad
    )
    torch.testing.assert_close(alone[0], torch.autograd.grad(bare, permuted, grad)[0])
    assert alone[1] is None


def test_refusals(facade):
    tokens, indices = torch.randn(3, 4), torch.zeros(3, 2, dtype=torch.int64)
    rows = torch.arange(6).int()
    with pytest.raises(
        RuntimeError, match=r"The dims of input tokens should be 2 dimensional, but got 1-dimensional\."
    ):
        facade.npu_moe_token_permute(tokens[0], indices)
    with pytest.raises(RuntimeError, match="The dims of input indices should be 2 or 1 dimensional, but got 3"):
        facade.npu_moe_token_permute(tokens, indices[None])
    with pytest.raises(RuntimeError, match="padded_mode is True"):
        facade.npu_moe_token_permute(tokens, indices, padded_mode=True)
    with pytest.raises(RuntimeError, match=r"indices is torch.float32"):
        facade.npu_moe_token_permute(tokens, indices.float())
    with pytest.raises(RuntimeError, match=r"tokens is torch.float64"):
        facade.npu_moe_token_permute(tokens.double(), indices)
    with pytest.raises(RuntimeError, match="at most 512"):
        facade.npu_moe_token_permute(tokens, torch.zeros(3, 513, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="The dims of input probs should be 2 dimensional, but got 1-dimensional"):
        facade.npu_moe_token_unpermute(torch.randn(6, 4), rows, torch.rand(3))
    with pytest.raises(RuntimeError, match="The topk should be greater than zero"):
        facade.npu_moe_token_unpermute(torch.randn(6, 4), rows, torch.rand(3, 0))
    with pytest.raises(RuntimeError, match="routing_map is needed"):
        facade.npu_moe_token_unpermute_with_routing_map(torch.randn(6, 4), rows, [3, 4], probs=torch.rand(3, 3))
    with pytest.raises(RuntimeError, match=r"routing_map has 2 dimensions and torch.int64"):
        facade.npu_moe_token_permute_with_routing_map(tokens, indices)
