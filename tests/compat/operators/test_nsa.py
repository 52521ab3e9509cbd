"""Native sparse attention, against loops over windows, queries and blocks.

Holds nsa.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def normal(*shape, seed=0, dtype=torch.float16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual, expected, tolerance=3e-3):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def attend(query, key, value, scale, seen):
    """One query [N, D] over the keys [Sk, N2, D] of each head, `seen` [N2][keys]: result, maximum, sum, weights."""
    query, key, value = (tensor.detach().double().numpy() for tensor in (query, key, value))
    heads, group = query.shape[0], query.shape[0] // key.shape[1]
    out, largest, total = np.zeros((heads, value.shape[2])), np.zeros(heads), np.zeros(heads)
    weights = np.zeros((heads, len(key)))
    for n in range(heads):
        own = seen[n // group]
        if not own:
            continue
        scores = key[own, n // group] @ query[n] * scale
        largest[n] = scores.max()
        exponentials = np.exp(scores - scores.max())
        total[n] = exponentials.sum()
        weights[n, own] = exponentials / total[n]
        out[n] = weights[n, own] @ value[own, n // group]
    return out, largest, total, weights


# --- compressed keys


def windows(input, weight, block, stride, ends):
    """Results of every window and the rows that it holds."""
    found, start = [], 0
    for end in ends:
        for first in range(start, end - block + 1, stride):
            found.append((first, sum(weight[j, :, None] * input[first + j] for j in range(block))))
        start = end
    return found


@pytest.mark.parametrize(("block", "stride"), [(32, 16), (16, 16), (48, 32)])
def test_compress(facade, block, stride):
    ends = [40, 45, 120]
    input, weight = normal(120, 2, 16).requires_grad_(), normal(block, 2, seed=1).requires_grad_()
    out = facade.npu_nsa_compress(input, weight, block, stride, actual_seq_len=ends)
    wide = input.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = torch.stack([row for _, row in windows(*wide, block, stride, ends)])
    close(out, expected.detach())
    grad = normal(*out.shape, seed=2)
    expected.backward(grad.double())
    out.backward(grad)
    found = facade.npu_nsa_compress_grad(grad, input.detach(), weight.detach(), block, stride, actual_seq_len=ends)
    for gradient, leaf, other in zip(found, wide, (input, weight), strict=True):
        close(gradient, leaf.grad, 1e-2)
        close(other.grad, leaf.grad, 2e-2)


def test_compress_without_a_window(facade):
    out = facade.npu_nsa_compress(normal(8, 1, 16), normal(16, 1), 16, 16, actual_seq_len=[3, 8])
    assert out.shape == (0, 1, 16)


@pytest.mark.parametrize("paged", [True, False])
def test_compress_the_last_window(facade, paged):
    lengths, block, stride, page = [48, 40, 64], 32, 16, 32
    rows = [normal(length, 2, 16, seed=length) for length in lengths]
    weight, slots = normal(block, 2, seed=1), torch.tensor([4, 0, 2], dtype=torch.int32)
    table = torch.tensor([[1, 5], [0, 3], [2, 4]], dtype=torch.int32)
    input = torch.cat(rows)
    if paged:
        input = torch.zeros(6, page, 2, 16, dtype=torch.float16)
        for row, part in enumerate(rows):
            for number in range(2):
                piece = part[number * page : (number + 1) * page]
                input[table[row, number], : len(piece)] = piece
    cache = torch.full((5, 2, 16), 7.0, dtype=torch.float16)
    result = torch.ops.npu.npu_nsa_compress_infer.cache(
        input, weight, slots, block, stride, page, block_table=table if paged else None, actual_seq_len=lengths,
        cache=cache,
    )  # fmt: skip
    assert result is cache
    for row, slot in ((0, 4), (2, 2)):
        close(cache[slot], (rows[row][-block:].double() * weight.double()[..., None]).sum(0), 1e-2)
    assert torch.equal(cache[[0, 1, 3]], torch.full((3, 2, 16), 7.0, dtype=torch.float16))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"block": 24}, "multiples of 16"),
        ({"stride": 0}, "compress_stride must be greater than 0"),
        ({"stride": 48}, "not larger than the block"),
        ({"ends": [30]}, "must end at the 40 rows"),
        ({"ends": None}, "it is missing"),
        ({"input": torch.zeros(40, 2, 8).half()}, "multiples of 16 up to 256"),
        ({"input": torch.zeros(40, 2, 16)}, "float16 or bfloat16"),
        ({"input": torch.zeros(40, 3, 16).half()}, "weight has shape"),
    ],
)
def test_compress_refuses(facade, changes, text):
    arguments = {"input": normal(40, 2, 16), "block": 32, "stride": 16, "ends": [40], **changes}
    weight = normal(32, 2)
    with pytest.raises(RuntimeError, match=text):
        facade.npu_nsa_compress(
            arguments["input"], weight, arguments["block"], arguments["stride"], actual_seq_len=arguments["ends"]
        )


# --- attention over compressed keys


def importance(weights, blocks, m, n, shared):
    """[N2, blocks] from the weights [N1, keys] of one query."""
    grouped = weights.reshape(shared, -1, weights.shape[1]).sum(1)
    found = np.zeros((shared, blocks))
    for j in range(blocks):
        for a in range(m):
            for b in range(n):
                position = m * (j + 1) - a - b
                if 0 <= position < weights.shape[1]:
                    found[:, j] += grouped[:, position]
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_compress_attention(facade, masked):
    queries, keys, blocks, m, n = [3, 5], [9, 12], [3, 4], 3, 2
    query, key, value = normal(8, 4, 16), normal(21, 2, 16, seed=1), normal(21, 2, 8, seed=2)
    masks = {}
    if masked:
        masks = {"atten_mask": torch.ones(5, 12).triu(5).bool(), "topk_mask": torch.eye(5, 4).bool()}
    ends = [np.cumsum(part).tolist() for part in (queries, keys, blocks)]
    out, indices, largest, total = facade.npu_nsa_compress_attention(
        query, key, value, 0.5, 4, 32, 16, 48, 3, actual_seq_qlen=ends[0], actual_cmp_seq_kvlen=ends[1],
        actual_sel_seq_kvlen=ends[2], **masks,
    )  # fmt: skip
    assert (indices.shape, indices.dtype) == ((8, 2, 3), torch.int32)
    start = begin = 0
    for rows, columns, count in zip(queries, keys, blocks, strict=True):
        statistics = np.zeros((2, 4, rows))
        for i in range(rows):
            seen = [j for j in range(columns) if not masked or j < i + 5]
            part = key[begin : begin + columns], value[begin : begin + columns]
            one, statistics[0, :, i], statistics[1, :, i], weights = attend(query[start + i], *part, 0.5, [seen, seen])
            close(out[start + i], one)
            scores = importance(weights, count, m, n, 2)
            if masked and i < count:
                scores[:, i] = 23333
            order = np.argsort(-scores, axis=1, kind="stable")[:, :3]
            kept = np.take_along_axis(scores, order, 1)
            found = np.take_along_axis(scores, indices[start + i].numpy().astype(int), 1)
            assert np.allclose(found, kept, atol=1e-5)
        for statistic, wanted in zip((largest, total), statistics, strict=True):
            laid = statistic[start : start + rows].reshape(-1, 8)[:, 0].reshape(4, rows)
            close(laid, wanted)
        start, begin = start + rows, begin + columns


def test_compress_attention_in_blocks(facade):
    lengths, shared, heads, page = [20, 29], 2, 4, 16
    rows = [(normal(n, shared, 16, seed=n), normal(n, shared, 8, seed=n + 1)) for n in lengths]
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    key, value = (torch.zeros(4, page, shared * head, dtype=torch.float16) for head in (16, 8))
    for row, parts in enumerate(rows):
        for number in range(2):
            for cache, part in zip((key, value), parts, strict=True):
                piece = part[number * page : (number + 1) * page].flatten(1)
                cache[table[row, number], : len(piece)] = piece
    query = normal(2, heads, 16)
    for layout in ("TND", "BSND"):
        own = query if layout == "TND" else query[:, None]
        out, indices = facade.npu_nsa_compress_attention_infer(
            own, key, value, 0.5, heads, shared, 32, 5, page, 32, 16, layout=layout, block_table=table,
            actual_cmp_seq_kvlen=lengths,
        )  # fmt: skip
        assert out.shape == (*own.shape[:-1], 8)
        for row, (length, parts) in enumerate(zip(lengths, rows, strict=True)):
            every = [list(range(length))] * shared
            one, _, _, weights = attend(query[row], *parts, 0.5, every)
            close(out[row].reshape(heads, 8), one)
            count = -(-((length - 1) * 16 + 32) // 32)
            scores = importance(weights, count, 2, 2, shared)
            chosen = indices[row].reshape(shared, 5).numpy()
            for n in range(shared):
                assert list(chosen[n, :3]) == [0, count - 2, count - 1]
                rest = sorted(scores[n, 1 : count - 2], reverse=True)[:2]
                assert np.allclose(scores[n, chosen[n, 3:]], rest, atol=1e-5)


# --- attention over selected blocks


def seen_in(indices, block, keys, last=None):
    found = []
    for numbers in indices.tolist():
        own = [key for number in numbers if number >= 0 for key in range(number * block, (number + 1) * block)]
        found.append(sorted(key for key in own if key < keys and (last is None or key <= last)))
    return found


@pytest.mark.parametrize("mask", [None, "compressed", "whole"])
def test_select_attention(facade, mask):
    queries, keys, block = [2, 3], [64, 96], 16
    query = normal(5, 4, 192, dtype=torch.float16).mul(0.1).requires_grad_()
    key, value = normal(160, 2, 192, seed=1).mul(0.1).requires_grad_(), normal(160, 2, 128, seed=2).requires_grad_()
    draw = np.random.default_rng(0)
    indices = torch.as_tensor(
        np.stack([[np.sort(draw.permutation(4)[:2]) for _ in range(2)] for _ in range(5)]).astype(np.int32)
    )
    indices[:, :, 0] = 0
    masks = {"compressed": torch.ones(2048, 2048).triu(1).bool(), "whole": torch.ones(3, 96).triu(1).to(torch.uint8)}
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [64, 160], "atten_mask": masks.get(mask)}
    out, largest, total = facade.npu_nsa_select_attention(query, key, value, indices, 0.3, 4, block, 2, **ends)
    start = begin = 0
    for rows, columns in zip(queries, keys, strict=True):
        for i in range(rows):
            seen = seen_in(indices[start + i], block, columns, None if mask is None else i)
            part = key[begin : begin + columns], value[begin : begin + columns]
            one, high, denominator, _ = attend(query[start + i], *part, 0.3, seen)
            close(out[start + i], one)
            close(largest[start + i, :, 3], high)
            close(total[start + i, :, 7], denominator)
        start, begin = start + rows, begin + columns
    grad = normal(*out.shape, seed=5)
    out.backward(grad)
    found = facade.npu_nsa_select_attention_grad(
        grad, query.detach(), key.detach(), value.detach(), out.detach(), largest, total, indices, 0.3, 4, block, 2,
        **ends,
    )  # fmt: skip
    for gradient, leaf in zip(found, (query, key, value), strict=True):
        close(gradient, leaf.grad, 1e-2)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "TND"])
def test_select_attention_in_blocks(facade, layout):
    lengths, page = [20, 40], 16
    rows = [(normal(n, 2, 192, seed=n).mul(0.1), normal(n, 2, 128, seed=n + 1)) for n in lengths]
    table = torch.tensor([[3, 0, -1], [1, 2, 4]], dtype=torch.int32)
    key, value = (torch.zeros(5, page, 2, head, dtype=torch.float16) for head in (192, 128))
    for row, parts in enumerate(rows):
        for number in range(-(-lengths[row] // page)):
            for cache, part in zip((key, value), parts, strict=True):
                piece = part[number * page : (number + 1) * page]
                cache[table[row, number], : len(piece)] = piece
    query = normal(2, 4, 192).mul(0.1)
    indices = torch.tensor([[[1, 0], [1, -1]], [[2, 0], [1, 2]]], dtype=torch.int32)
    own = {"TND": query, "BSND": query[:, None], "BSH": query.reshape(2, 1, -1)}[layout]
    caches = (key, value) if layout == "BSND" else (key.flatten(2), value.flatten(2))
    out = facade.npu_nsa_select_attention_infer(
        own, *caches, indices[:, None] if layout == "BSND" else indices, 0.4, 4, 2, 16, 2, page, layout=layout,
        block_table=table, actual_seq_kvlen=lengths,
    )  # fmt: skip
    assert out.shape == {"TND": (2, 4, 128), "BSND": (2, 1, 4, 128), "BSH": (2, 1, 512)}[layout]
    for row, parts in enumerate(rows):
        one = attend(query[row], *parts, 0.4, seen_in(indices[row], 16, lengths[row]))[0]
        close(out[row].reshape(4, 128), one)


def test_select_attention_refuses(facade):
    query, key, value = normal(2, 4, 192), normal(32, 2, 192), normal(32, 2, 128)
    indices = torch.zeros(2, 2, 1, dtype=torch.int32)
    ends = {"actual_seq_qlen": [2], "actual_seq_kvlen": [32]}
    for changes, text in (
        ({"query": query.float()}, "float16 and bfloat16"),
        ({"query": query[..., :64]}, "takes 192, 192 and 128"),
        ({"block": 24}, "multiples of 16"),
        ({"ends": {**ends, "actual_seq_kvlen": [16, 32]}}, "holds 1 lengths"),
    ):
        arguments = {"query": query, "block": 16, "ends": ends, **changes}
        with pytest.raises(RuntimeError, match=text):
            torch.ops.npu.npu_nsa_select_attention(
                arguments["query"], key, value, indices, 0.3, 4, arguments["block"], 1, **arguments["ends"]
            )
    with pytest.raises(RuntimeError, match="layout only support TND or BSND now"):
        facade.npu_nsa_compress_attention_infer(
            query, key, value, 0.3, 4, 2, 32, 2, 16, 32, 16, layout="BSH", actual_cmp_seq_kvlen=[32]
        )
