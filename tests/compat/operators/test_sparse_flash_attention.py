"""npu_sparse_flash_attention, its gradient and its quantised form, against a loop over every query.

Holds sparse_flash_attention.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

HEAD, ROPE = 512, 64


def normal(*shape, seed=0, dtype=torch.float16, factor=0.1):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * factor).to(dtype)


def allowed(index, block, queries, keys, row, mode):
    """Keys that a query sees, in the order of their blocks."""
    found = []
    for number in index.tolist():
        if number < 0:
            break
        found += [key for key in range(number * block, number * block + block) if key < keys]
    return [key for key in found if mode == 0 or key <= keys - queries + row]


def slow(query, key, value, indices, scale, block, mode):
    """One sequence: query [Sq, N, D], key [Sk, 1, D]; result, maximum and sum in float64."""
    query, key, value = (tensor.double().numpy() for tensor in (query, key, value))
    rows, heads, _ = query.shape
    out = np.zeros((rows, heads, value.shape[2]))
    largest, total = np.zeros((2, rows, heads))
    for i, n in np.ndindex(rows, heads):
        seen = allowed(indices[i, 0], block, rows, len(key), i, mode)
        if not seen:
            continue
        scores = key[seen, 0] @ query[i, n] * scale
        largest[i, n] = scores.max()
        weights = np.exp(scores - scores.max())
        total[i, n] = weights.sum()
        out[i, n] = weights @ value[seen, 0] / weights.sum()
    return out, largest, total


def picked(rows, keys, block, count, seed=0):
    """Indices [rows, 1, count]: distinct blocks, then -1."""
    draw = np.random.default_rng(seed)
    blocks = -(-keys // block)
    found = -np.ones((rows, 1, count), dtype=np.int32)
    for row in range(rows):
        chosen = draw.permutation(blocks)[: draw.integers(1, min(count, blocks) + 1)]
        found[row, 0, : len(chosen)] = chosen
    return torch.as_tensor(found)


def close(actual, expected, tolerance=2e-3):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def inputs(queries, keys, heads, dtype=torch.float16):
    """Tensors of one sequence: query, key, value, query_rope and key_rope."""
    return (
        normal(queries, heads, HEAD, dtype=dtype),
        normal(keys, 1, HEAD, seed=1, dtype=dtype),
        normal(keys, 1, HEAD, seed=2, dtype=dtype, factor=1.0),
        normal(queries, heads, ROPE, seed=3, dtype=dtype),
        normal(keys, 1, ROPE, seed=4, dtype=dtype),
    )


@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("block", [1, 4])
def test_one_sequence(facade, mode, block):
    query, key, value, query_rope, key_rope = inputs(5, 11, 4)
    indices = picked(5, 11, block, 6)
    out, largest, total = facade.npu_sparse_flash_attention(
        query[None], key[None], value[None], indices[None], 0.3, query_rope=query_rope[None], key_rope=key_rope[None],
        sparse_block_size=block, sparse_mode=mode, attention_mode=2, return_softmax_lse=True,
    )  # fmt: skip
    whole = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    expected = slow(*whole, value, indices, 0.3, block, mode)
    close(out[0], expected[0])
    assert (largest.shape, total.shape) == ((1, 1, 5, 4), (1, 1, 5, 4))
    rows = expected[2] > 0
    close(largest[0, 0][torch.as_tensor(rows)], expected[1][rows])
    close(total[0, 0][torch.as_tensor(rows)], expected[2][rows])
    without = facade.npu_sparse_flash_attention(
        query[None], key[None], value[None], indices[None], 0.3, query_rope=query_rope[None], key_rope=key_rope[None],
        sparse_block_size=block, sparse_mode=mode, attention_mode=2,
    )  # fmt: skip
    assert torch.equal(without[0], out)
    assert without[1].shape == without[2].shape == (0,)


@pytest.mark.parametrize("layout", ["BSND", "TND", "PA_BSND"])
def test_lengths_and_layouts(facade, layout):
    """Two sequences, of 2 queries and 9 keys and of 3 and 17; the key is the value as well."""
    queries, keys = (2, 3), (9, 17)
    parts = [inputs(q, k, 2, torch.bfloat16) for q, k in zip(queries, keys, strict=True)]
    indices = [picked(q, k, 1, 5, seed=k) for q, k in zip(queries, keys, strict=True)]
    padded = [
        torch.stack([torch.nn.functional.pad(part[i], (0, 0, 0, 0, 0, size - len(part[i]))) for part in parts])
        for i, size in enumerate((3, 17, 17, 3, 17))
    ]
    padded_indices = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, 0, 0, 3 - len(part))) for part in indices])
    lengths = {"actual_seq_lengths_query": [2, 3], "actual_seq_lengths_kv": [9, 17]}
    table = None
    if layout == "TND":
        tensors = [torch.cat([part[i] for part in parts]) for i in range(5)]
        tensors = (*tensors, torch.cat(indices))
        lengths = {"actual_seq_lengths_query": [2, 5], "actual_seq_lengths_kv": [9, 26]}
    else:
        tensors = (*padded, padded_indices)
    query, key, value, query_rope, key_rope, index = tensors
    if layout == "PA_BSND":
        table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
        blocks = []
        for tensor in (key, value, key_rope):
            paged = torch.zeros(4, 16, 1, tensor.shape[-1], dtype=tensor.dtype)
            for row, block in np.ndindex(2, 2):
                piece = tensor[row, block * 16 : block * 16 + 16]
                paged[table[row, block], : len(piece)] = piece
            blocks.append(paged)
        key, value, key_rope = blocks
    out, *_ = facade.npu_sparse_flash_attention(
        query, key, value, index, 0.2, query_rope=query_rope, key_rope=key_rope, block_table=table,
        layout_query="TND" if layout == "TND" else "BSND", layout_kv=layout, attention_mode=2,
        **{name: torch.tensor(values, dtype=torch.int32) for name, values in lengths.items()},
    )  # fmt: skip
    start = 0
    for row, (part, own) in enumerate(zip(parts, indices, strict=True)):
        whole = torch.cat((part[0], part[3]), -1), torch.cat((part[1], part[4]), -1)
        expected = slow(*whole, part[2], own, 0.2, 1, 3)[0]
        found = out[start : start + len(part[0])] if layout == "TND" else out[row, : len(part[0])]
        close(found, expected, 2e-2)
        start += len(part[0])
    if layout != "TND":
        assert torch.equal(out[0, 2], torch.zeros(2, HEAD, dtype=torch.bfloat16))


@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients(facade, layout, shared):
    """Those of the backward operator are those that autograd finds; without a value the key has both parts."""
    query, key, value, query_rope, key_rope = (tensor.float() for tensor in inputs(5, 9, 2))
    tensors = [query, key, value, query_rope, key_rope]
    indices = picked(5, 9, 2, 3)
    lengths = torch.tensor([2, 5], dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)
    keywords = {"actual_seq_lengths_query": lengths[0], "actual_seq_lengths_kv": lengths[1]}
    if layout == "BSND":
        tensors, indices, keywords = [tensor[None] for tensor in tensors], indices[None], {}
    leaves = [tensor.half().requires_grad_() for tensor in tensors]
    given = None if shared else leaves[2]
    out, largest, total = facade.npu_sparse_flash_attention(
        leaves[0], leaves[1], given, indices, 0.3, query_rope=leaves[3], key_rope=leaves[4], sparse_block_size=2,
        layout_query=layout, layout_kv=layout, attention_mode=2, return_softmax_lse=True, **keywords,
    )  # fmt: skip
    dy = normal(*out.shape, seed=9, factor=1.0)
    out.backward(dy)
    ends = {"actual_seq_qlen": lengths[0], "actual_seq_kvlen": lengths[1]} if layout == "TND" else {}
    found = facade.npu_sparse_flash_attention_grad(
        leaves[0].detach(), leaves[1].detach(), None if shared else leaves[2].detach(), indices, dy, out.detach(),
        largest, total, 0.3, 2, query_rope=leaves[3].detach(), key_rope=leaves[4].detach(), layout=layout, **ends,
    )  # fmt: skip
    for position, (gradient, leaf) in enumerate(zip(found, leaves, strict=True)):
        if position == 2 and shared:
            assert gradient.numel() == 0
            continue
        close(gradient, leaf.grad, 5e-3)
        assert gradient.is_contiguous()


def test_queries_without_a_key(facade):
    query, key, value, query_rope, key_rope = (tensor[None] for tensor in inputs(3, 4, 2))
    indices = torch.full((1, 3, 1, 2), -1, dtype=torch.int32)
    indices[0, 2, 0, 0] = 1
    out, *_ = facade.npu_sparse_flash_attention(
        query, key, value, indices, 0.3, query_rope=query_rope, key_rope=key_rope, attention_mode=2
    )
    assert torch.equal(out[0, :2], torch.zeros(2, 2, HEAD, dtype=torch.float16))
    close(out[0, 2, 0], value[0, 1, 0])


@pytest.mark.parametrize("mode", [0, 3])
def test_keys_in_int8(facade, mode):
    query, _, _, query_rope, key_rope = inputs(3, 20, 4, torch.bfloat16)
    draw = torch.Generator().manual_seed(7)
    codes = torch.randint(-128, 128, (20, 1, HEAD), generator=draw, dtype=torch.int8)
    scales = torch.rand(20, 1, 4, generator=draw) * 0.01
    packed = torch.cat((codes, key_rope.view(torch.int8), scales.view(torch.int8)), dim=-1)
    indices = picked(3, 20, 1, 8)
    out = facade.npu_kv_quant_sparse_flash_attention(
        torch.cat((query, query_rope), -1)[None], packed[None], packed[None], indices[None], 0.2, 2, 2,
        sparse_mode=mode, attention_mode=2,
    )  # fmt: skip
    key = (codes.float() * scales.repeat_interleave(128, -1)).bfloat16()
    whole = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    close(out[0], slow(*whole, key, indices, 0.2, 1, mode)[0], 2e-2)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attention_mode": 0}, "attention_mode 0"),
        ({"sparse_mode": 1}, "sparse_mode 1"),
        ({"sparse_block_size": 3}, "powers of two"),
        ({"pre_tokens": 1}, "default alone"),
        ({"query_rope": None}, "is missing"),
        ({"sinks": torch.zeros(2)}, "Ascend 950"),
        ({"query": torch.zeros(1, 3, 2, 256).half()}, "the kernel takes 512"),
        ({"query": torch.zeros(1, 3, 3, HEAD).half()}, "3 heads"),
        ({"query": torch.zeros(1, 3, 2, HEAD)}, "float16 and bfloat16"),
        ({"query": torch.zeros(3, 2, HEAD).half()}, "the query dimension must be 4, but got 3"),
        ({"query": torch.zeros(0, 3, 2, HEAD).half()}, "Tensor query is empty"),
        ({"layout_query": "BNSD"}, "The layout of query only support BSND and TND, but got BNSD"),
        ({"layout_kv": "TND"}, "layout_kv"),
        ({"layout_kv": "PA_BSND"}, "but it is missing"),
        ({"layout_kv": "PA_BSND", "return_softmax_lse": True}, "does not go with"),
        ({"actual_seq_lengths_query": torch.tensor([4])}, "lengths of 0 to 3"),
    ],
)
def test_refuses(facade, changes, text):
    query, key, value, query_rope, key_rope = (tensor[None] for tensor in inputs(3, 4, 2))
    arguments = {"query": query, "key": key, "value": value, "sparse_indices": picked(3, 4, 1, 2)[None]}
    arguments |= {"query_rope": query_rope, "key_rope": key_rope, "attention_mode": 2, **changes}
    positional = [arguments.pop(name) for name in ("query", "key", "value", "sparse_indices")]
    with pytest.raises(RuntimeError, match=text):
        facade.npu_sparse_flash_attention(*positional, 0.3, **arguments)
