"""The lightning indexer, its training and its quantised form, against loops over every query.

Holds lightning_indexer.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

HEAD = 128


def normal(*shape, seed=0, dtype=torch.float16, factor=0.3):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * factor).to(dtype)


def close(actual, expected, tolerance=2e-3):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def scores_of(query, key, weights):
    """[Sq, Sk] in float64, one pair at a time."""
    query, key, weights = (tensor.double().numpy() for tensor in (query, key, weights))
    found = np.zeros((len(query), len(key)))
    for i, j in np.ndindex(found.shape):
        found[i, j] = sum(weights[i, n] * max(query[i, n] @ key[j, 0], 0.0) for n in range(query.shape[1]))
    return found


def best(scores, count, mode):
    rows, keys = scores.shape
    found = -np.ones((rows, count), dtype=int)
    for i in range(rows):
        seen = [j for j in range(keys) if mode == 0 or j <= keys - rows + i]
        order = sorted(seen, key=lambda j, i=i: -scores[i, j])[:count]
        found[i, : len(order)] = order
    return found


@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("count", [3, 12])
def test_the_best_keys(facade, mode, count):
    query, key, weights = normal(2, 4, 8, HEAD), normal(2, 9, 1, HEAD, seed=1), normal(2, 4, 8, seed=2)
    indices, values = facade.npu_lightning_indexer(
        query, key, weights, sparse_count=count, sparse_mode=mode, return_value=True
    )
    assert (indices.shape, indices.dtype, values.dtype) == ((2, 4, 1, count), torch.int32, torch.float16)
    for row in range(2):
        scores = scores_of(query[row], key[row], weights[row])
        expected = best(scores, count, mode)
        assert np.array_equal(indices[row, :, 0].numpy(), expected)
        for i, j in np.ndindex(expected.shape):
            found = values[row, i, 0, j].item()
            if expected[i, j] < 0:
                assert found == -np.inf
            else:
                assert found == pytest.approx(scores[i, expected[i, j]], rel=2e-3, abs=2e-3)
    assert facade.npu_lightning_indexer(query, key, weights, sparse_count=count)[1].shape == (0,)


def test_layouts_give_the_same(facade):
    query, key, weights = normal(5, 4, HEAD), normal(41, 1, HEAD, seed=1), normal(5, 4, seed=2, dtype=torch.float32)
    ends = torch.tensor([2, 5], dtype=torch.int32), torch.tensor([9, 41], dtype=torch.int32)
    flat, _ = facade.npu_lightning_indexer(
        query, key, weights, layout_query="TND", layout_key="TND", sparse_count=6, actual_seq_lengths_query=ends[0],
        actual_seq_lengths_key=ends[1],
    )  # fmt: skip
    table = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
    paged = torch.zeros(4, 16, 1, HEAD, dtype=torch.float16)
    for row, part in enumerate((key[:9], key[9:])):
        for block in range(2):
            piece = part[block * 16 : block * 16 + 16]
            paged[table[row, block], : len(piece)] = piece
    other, _ = facade.npu_lightning_indexer(
        query, paged, weights, layout_query="TND", layout_key="PA_BSND", sparse_count=6, block_table=table,
        actual_seq_lengths_query=ends[0], actual_seq_lengths_key=torch.tensor([9, 32], dtype=torch.int32),
    )  # fmt: skip
    assert torch.equal(flat, other)
    expected = best(scores_of(query[:2], key[:9], weights[:2]), 6, 3)
    assert np.array_equal(flat[:2, 0].numpy(), expected)


@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_gradients(facade, layout):
    tensors = [normal(5, 8, HEAD), normal(9, 1, HEAD, seed=1), normal(5, 8, seed=2)]
    ends = torch.tensor([2, 5], dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)
    lengths = {"actual_seq_lengths_query": ends[0], "actual_seq_lengths_key": ends[1]}
    if layout == "BSND":
        tensors, lengths = [tensor[None] for tensor in tensors], {}
    leaves = [tensor.requires_grad_() for tensor in tensors]
    indices, values = facade.npu_lightning_indexer(
        *leaves, layout_query=layout, layout_key=layout, sparse_count=4, return_value=True, **lengths
    )
    assert not indices.requires_grad
    dy = normal(*values.shape, seed=3).masked_fill(indices < 0, 0.0)
    values.masked_fill(indices < 0, 0.0).backward(dy)
    details = [leaf.detach() for leaf in leaves]
    found = facade.npu_lightning_indexer_grad(*details[:2], dy, indices, details[2], layout=layout, **lengths)
    for gradient, leaf in zip(found, leaves, strict=True):
        close(gradient, leaf.grad)
        assert gradient.dtype == leaf.dtype
    flat = facade.npu_lightning_indexer_grad(
        *details[:2], dy.squeeze(-2), indices.squeeze(-2), details[2], layout=layout, **lengths
    )
    assert all(torch.equal(one, other) for one, other in zip(found, flat, strict=True))


def kl(query, key, query_index, key_index, weights, scale, seen):
    """Loss of one sequence by torch's autograd in float64; `seen` [Sq, Sk] says which keys take part."""
    wide = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = torch.einsum("ind,jnd->nij", query, wide) * scale
    target = scores.masked_fill(~seen, -torch.inf).softmax(-1).mean(0).detach()
    products = torch.einsum("ind,jd->nij", query_index, key_index[:, 0]).relu()
    own = (products * weights.T[..., None]).sum(0).masked_fill(~seen, -torch.inf).log_softmax(-1)
    return (target * (target.clamp(min=1e-30).log() - own)).masked_fill(~seen, 0.0).sum(), scores.masked_fill(
        ~seen, -torch.inf
    )


@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("dense", [True, False])
def test_the_loss_and_its_gradients(facade, dense, layout):
    query, key = normal(4, 4, 16), normal(7, 2, 16, seed=1)
    query_rope, key_rope = normal(4, 4, 8, seed=5), normal(7, 2, 8, seed=6)
    query_index, key_index, weights = normal(4, 8, HEAD, seed=2), normal(7, 1, HEAD, seed=3), normal(4, 8, seed=4)
    seen = torch.ones(4, 7).tril(3).bool()
    indices = torch.tensor([[0, 2, -1], [3, 1, 0], [4, 5, 2], [6, 0, 3]], dtype=torch.int32)
    if not dense:
        chosen = torch.zeros(4, 7, dtype=torch.bool)
        for row, numbers in enumerate(indices.tolist()):
            chosen[row, [number for number in numbers if number >= 0]] = True
        seen = seen & chosen
    leaves = [tensor.double().requires_grad_() for tensor in (query_index, key_index, weights)]
    whole = torch.cat((query, query_rope), -1).double(), torch.cat((key, key_rope), -1).double()
    loss, scores = kl(*whole, *leaves, 0.4, seen)
    loss.backward()
    largest = scores.amax(-1)
    total = (scores - largest[..., None]).exp().sum(-1)
    # [N, Sq] as [N2, Sq, group]
    statistics = [part.float().reshape(2, 2, 4).transpose(1, 2) for part in (largest, total)]
    batch = (lambda tensor: tensor[None]) if layout == "BSND" else (lambda tensor: tensor)
    ends = {} if layout == "BSND" else {"actual_seq_qlen": [4], "actual_seq_klen": [7]}
    main = [batch(tensor) for tensor in (query, key, query_index, key_index, weights)]
    rope = {"query_rope": batch(query_rope), "key_rope": batch(key_rope), "layout": layout, **ends}
    if dense:
        own = facade.npu_dense_lightning_indexer_softmax_lse(*main[2:], layout=layout, **ends)
        shape = (1, 1, 4) if layout == "BSND" else (1, 4)
        assert [part.shape for part in own] == [shape, shape]
        found = facade.npu_dense_lightning_indexer_grad_kl_loss(
            *main, *(batch(part) for part in statistics), *own, 0.4, **rope
        )
    else:
        found = facade.npu_sparse_lightning_indexer_grad_kl_loss(
            *main, batch(indices[:, None]), *(batch(part) for part in statistics), 0.4, **rope
        )
    for gradient, leaf in zip(found, leaves, strict=False):
        assert gradient.dtype == torch.float16
        close(gradient.reshape(leaf.shape), leaf.grad, 5e-3)
    assert found[3].shape == (1,)
    assert found[3].item() == pytest.approx(loss.item(), rel=5e-3)


def test_softmax_of_the_indexer(facade):
    query, key, weights = normal(2, 3, 8, HEAD), normal(2, 5, 1, HEAD, seed=1), normal(2, 3, 8, seed=2)
    largest, total = facade.npu_dense_lightning_indexer_softmax_lse(query, key, weights)
    for row in range(2):
        scores = scores_of(query[row], key[row], weights[row])
        for i in range(3):
            seen = scores[i, : 5 - 3 + i + 1]
            assert largest[row, 0, i].item() == pytest.approx(seen.max(), rel=1e-3, abs=1e-4)
            assert total[row, 0, i].item() == pytest.approx(np.exp(seen - seen.max()).sum(), rel=1e-3)


@pytest.mark.parametrize("mode", [0, 3])
def test_query_and_key_in_int8(facade, mode):
    draw = torch.Generator().manual_seed(3)
    query = torch.randint(-128, 128, (2, 3, 8, HEAD), generator=draw, dtype=torch.int8)
    key = torch.randint(-128, 128, (2, 9, 1, HEAD), generator=draw, dtype=torch.int8)
    weights, query_scale = normal(2, 3, 8, seed=2), normal(2, 3, 8, seed=4).abs()
    key_scale = normal(2, 9, 1, seed=5).abs()
    found = facade.npu_quant_lightning_indexer(
        query, key, weights, query_scale, key_scale, 0, 0, sparse_count=5, sparse_mode=mode
    )
    for row in range(2):
        scores = np.zeros((3, 9))
        for i, j in np.ndindex(3, 9):
            for n in range(8):
                product = int((query[row, i, n].int() * key[row, j, 0].int()).sum())
                rounded = np.float16(max(product, 0) / 1024)
                factor = np.float16(weights[row, i, n].item()) * np.float16(query_scale[row, i, n].item())
                scores[i, j] += float(rounded) * float(factor)
            scores[i, j] *= key_scale[row, j, 0].item()
        assert np.array_equal(found[row, :, 0].numpy(), best(scores, 5, mode))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"query": torch.zeros(1, 3, 4, HEAD)}, "float16 or bfloat16"),
        ({"query": torch.zeros(1, 3, 4, 64).half()}, "the kernel takes 128"),
        ({"query": torch.zeros(1, 3, 65, HEAD).half()}, "65 heads"),
        ({"query": torch.zeros(1, 0, 4, HEAD).half()}, "Tensor query is empty."),
        ({"weights": torch.zeros(1, 3, 4).bfloat16()}, "weights are"),
        ({"sparse_count": 0}, "sparse count should be greater than 0, but now is 0"),
        ({"sparse_count": 2500}, "sparse_count 2500"),
        ({"sparse_mode": 1}, "sparse_mode 1"),
        ({"layout_query": "BNSD"}, "takes BSND and TND"),
        ({"layout_key": "TND"}, "or PA_BSND"),
        ({"layout_key": "PA_BSND", "return_value": True}, "does not go with"),
        ({"layout_key": "PA_BSND"}, "is missing"),
    ],
)
def test_refuses(facade, changes, text):
    arguments = {"query": torch.zeros(1, 3, 4, HEAD).half(), "key": torch.zeros(1, 5, 1, HEAD).half()}
    arguments |= {"weights": torch.zeros(1, 3, 4).half(), **changes}
    positional = [arguments.pop(name) for name in ("query", "key", "weights")]
    with pytest.raises(RuntimeError, match=text):
        facade.npu_lightning_indexer(*positional, **arguments)
