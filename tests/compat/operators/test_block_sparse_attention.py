"""npu_block_sparse_attention and npu_fused_floyd_attention, against loops and autograd.

Holds block_sparse_attention.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def normal(*shape, seed=0, dtype=torch.float16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual, expected, tolerance=3e-3):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def slow(query, key, value, mask, shape, scale):
    """One sequence, [N, S, D]: result and logarithm of the sum, head by head and row by row."""
    query, key, value = (tensor.detach().double().numpy() for tensor in (query, key, value))
    heads, rows, _ = query.shape
    out, lse = np.zeros((heads, rows, value.shape[2])), np.zeros((heads, rows, 1))
    for n, i in np.ndindex(heads, rows):
        shared = n // (heads // key.shape[0])
        seen = [j for j in range(key.shape[1]) if mask[n, i // shape[0], j // shape[1]]]
        if seen:
            scores = key[shared, seen] @ query[n, i] * scale
            lse[n, i] = np.log(np.exp(scores).sum())
            out[n, i] = np.exp(scores - lse[n, i]) @ value[shared, seen]
    return out, lse


def block_mask(batch, heads, rows, columns, seed=0):
    mask = (torch.rand(batch, heads, rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.5).to(torch.int8)
    mask[0, 0] = 0
    return mask


@pytest.mark.parametrize("lengths", [None, ([5, 3], [150, 40])])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bnsd(facade, lengths, dtype):
    query, key = normal(2, 4, 6, 64, dtype=dtype), normal(2, 2, 150, 64, seed=1, dtype=dtype)
    value, mask = normal(2, 2, 150, 64, seed=2, dtype=dtype), block_mask(2, 4, 2, 2)
    given = {} if lengths is None else {"actual_seq_lengths": lengths[0], "actual_seq_lengths_kv": lengths[1]}
    out, lse = facade.npu_block_sparse_attention(
        query, key, value, mask, [4, 128], q_input_layout="BNSD", kv_input_layout="BNSD", num_key_value_heads=2,
        scale_value=0.1, inner_precise=0, softmax_lse_flag=1, **given,
    )  # fmt: skip
    assert (out.shape, lse.shape, lse.dtype) == (query.shape, (2, 4, 6, 1), torch.float32)
    for row in range(2):
        queries, keys = (6, 150) if lengths is None else (lengths[0][row], lengths[1][row])
        expected = slow(query[row, :, :queries], key[row, :, :keys], value[row, :, :keys], mask[row], (4, 128), 0.1)
        close(out[row, :, :queries], expected[0], 1e-2)
        close(lse[row, :, :queries], expected[1], 1e-2)
        assert not out[row, :, queries:].any()


def test_tnd_and_its_gradients(facade):
    lengths = ([5, 0, 3], [130, 7, 40])
    query, key = normal(9, 4, 64).requires_grad_(), normal(177, 2, 64, seed=1).requires_grad_()
    value, mask = normal(177, 2, 64, seed=2).requires_grad_(), block_mask(3, 4, 2, 2, seed=3)
    out, lse = facade.npu_block_sparse_attention(
        query, key, value, mask, [4, 128], num_key_value_heads=2, scale_value=0.1, softmax_lse_flag=1,
        actual_seq_lengths=lengths[0], actual_seq_lengths_kv=lengths[1],
    )  # fmt: skip
    row = column = 0
    for index, (queries, keys) in enumerate(zip(*lengths, strict=True)):
        own = query[row : row + queries], key[column : column + keys], value[column : column + keys]
        expected = slow(*(part.transpose(0, 1) for part in own), mask[index], (4, 128), 0.1)
        close(out[row : row + queries], expected[0].transpose(1, 0, 2), 1e-2)
        close(lse[row : row + queries], expected[1].transpose(1, 0, 2), 1e-2)
        row, column = row + queries, column + keys
    grad = normal(*out.shape, seed=5)
    out.backward(grad)
    details = [tensor.detach() for tensor in (query, key, value, out, lse)]
    found = torch.ops.npu.npu_block_sparse_attention_backward(
        grad, *details, mask, [4, 128], *lengths, "TND", "TND", 2, 0.1
    )
    for gradient, leaf in zip(found, (query, key, value), strict=True):
        close(gradient, leaf.grad, 1e-2)


def test_without_the_logarithm(facade):
    query = normal(1, 2, 4, 64)
    mask = torch.ones(1, 2, 1, 1, dtype=torch.int8)
    layouts = {"q_input_layout": "BNSD", "kv_input_layout": "BNSD", "num_key_value_heads": 2}
    out, lse = facade.npu_block_sparse_attention(query, query, query, mask, [128, 128], scale_value=0.2, **layouts)
    assert torch.equal(lse, torch.zeros(1, 2, 4, 1))
    close(out, torch.nn.functional.scaled_dot_product_attention(*[query.double()] * 3, scale=0.2))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"query": torch.zeros(1, 2, 4, 64)}, "query, key, value must have the same dtype"),
        ({"query": torch.zeros(1, 2, 4, 192).half()}, "head_dim must be <= 128, but got 192"),
        ({"block_shape": [128, 64]}, "must be a multiple of 128"),
        ({"q_input_layout": "TND"}, "TND or BNSD for both"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1"),
        ({"actual_seq_lengths": [4]}, "must both be given"),
        ({"inner_precise": 2}, "inner_precise 2"),
    ],
)
def test_refuses(facade, changes, text):
    query, mask = torch.zeros(1, 2, 4, 64).half(), torch.ones(1, 2, 1, 1, dtype=torch.int8)
    arguments = {"query": query, "block_shape": [128, 128], "q_input_layout": "BNSD", "kv_input_layout": "BNSD"}
    arguments |= {"num_key_value_heads": 2, **changes}
    first, shape = arguments.pop("query"), arguments.pop("block_shape")
    with pytest.raises(RuntimeError, match=text):
        facade.npu_block_sparse_attention(first, query, query, mask, shape, **arguments)


@pytest.mark.parametrize("masked", [False, True])
def test_floyd_attention(facade, masked):
    query = normal(1, 2, 16, 128, 32).mul(0.3).requires_grad_()
    key_ij, value_ij = (normal(1, 2, 16, 128, 32, seed=seed).mul(0.3).requires_grad_() for seed in (1, 2))
    key_jk, value_jk = (normal(1, 2, 128, 128, 32, seed=seed).mul(0.3).requires_grad_() for seed in (3, 4))
    mask = (torch.rand(1, 1, 16, 1, 128, generator=torch.Generator().manual_seed(1)) < 0.3) if masked else None
    leaves = (query, key_ij, value_ij, key_jk, value_jk)
    largest, total, out = facade.npu_fused_floyd_attention(*leaves, atten_mask=mask, scale_value=0.5)
    assert largest.shape == total.shape == (1, 2, 16, 128, 8)
    for b, h, i, k in ((0, 0, 0, 0), (0, 1, 7, 100), (0, 1, 15, 127)):
        keys = (key_ij[b, h, i] + key_jk[b, h, :, k].float()).double()
        scores = keys @ query[b, h, i, k].double() * 0.5
        values = value_ij[b, h, i].double() + value_jk[b, h, :, k].double()
        if masked:
            scores, values = scores[~mask[b, 0, i, 0]], values[~mask[b, 0, i, 0]]
        close(out[b, h, i, k], scores.softmax(0) @ values)
        close(largest[b, h, i, k, 0], scores.max())
        close(total[b, h, i, k, 5], (scores - scores.max()).exp().sum())
    grad = normal(*out.shape, seed=9)
    out.backward(grad)
    found = facade.npu_fused_floyd_attention_backward(
        grad, *(leaf.detach() for leaf in leaves), out.detach(), largest, total, atten_mask=mask, scale_value=0.5
    )
    for gradient, leaf in zip(found, leaves, strict=True):
        close(gradient, leaf.grad, 2e-2)
    with pytest.raises(RuntimeError, match="multiples of 16, 128 and 128"):
        facade.npu_fused_floyd_attention(query[:, :, :8], key_ij[:, :, :8], value_ij[:, :, :8], key_jk, value_jk)
