"""npu_fusion_attention against a loop over every query and key, in every layout and sparse mode.

Holds attention.py, attention_layout.py, attention_mask.py and fusion_attention_call.py in
src/toprope/compat/torch_npu/operators.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

FEW = settings(max_examples=15)
LOWEST = torch.finfo(torch.float32).min
COMPRESSED = torch.ones(2048, 2048).triu(1).bool()


@pytest.fixture(scope="module", autouse=True)
def attend(facade):
    """The operator."""
    return facade.npu_fusion_attention


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def slow(query, key, value, scale, left_out=lambda b, n, i, j: False, bias=None):
    """Attention of [B, N, S, D] in float64, one query at a time; rows without a key give zeros."""
    query, key, value = (tensor.detach().double().numpy() for tensor in (query, key, value))
    batches, heads, queries, _ = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    out = np.zeros((batches, heads, queries, value.shape[3]))
    largest, total = np.zeros((2, batches, heads, queries))
    for b, n, i in np.ndindex(batches, heads, queries):
        kept = [j for j in range(keys) if not left_out(b, n, i, j)]
        if not kept:
            continue
        extra = np.zeros(keys) if bias is None else bias[b, n, i]
        scores = np.array([(query[b, n, i] @ key[b, n // group, j] + extra[j]) * scale for j in kept])
        largest[b, n, i] = scores.max()
        weights = np.exp(scores - scores.max())
        total[b, n, i] = weights.sum()
        out[b, n, i] = weights @ value[b, n // group][kept] / weights.sum()
    return out, largest, total


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected), rtol=tolerance, atol=tolerance)


def as_layout(tensor, layout):
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    flat = tensor.transpose(1, 2).flatten(2)
    return flat if layout == "BSH" else flat.transpose(0, 1)


def left_out_by(mode, queries, keys, before, after):
    """The rule of every mode in words of its own: which pairs of query i and key j are not computed."""
    corner = keys - queries
    return {
        0: lambda i, j: not (-before <= j - i <= after),
        2: lambda i, j: j > i,
        3: lambda i, j: j > i + corner,
        4: lambda i, j: not (i + corner - before <= j <= i + corner + after),
    }[mode]


# --- layouts and sizes


@FEW
@given(
    layout=st.sampled_from(["BSH", "SBH", "BSND", "BNSD", "bnsd"]),
    batch=st.integers(1, 2),
    shared=st.integers(1, 2),
    group=st.integers(1, 3),
    queries=st.integers(1, 4),
    keys=st.integers(1, 5),
    head=st.integers(1, 4),
    smaller=st.integers(0, 3),
)
def test_layouts(layout, batch, shared, group, queries, keys, head, smaller):
    heads, upper, value_head = shared * group, layout.upper(), max(1, head - smaller)
    query, key = normal(batch, heads, queries, head), normal(batch, shared, keys, head, seed=1)
    value = normal(batch, shared, keys, value_head, seed=2)
    out, largest, total, empty, seed, offset, numels = torch.ops.npu.npu_fusion_attention(
        *(as_layout(tensor, upper) for tensor in (query, key, value)), heads, layout, scale=0.7
    )
    expected, maximum, denominator = slow(query, key, value, 0.7)
    close(out, as_layout(torch.as_tensor(expected), upper))
    close(largest, np.repeat(maximum[..., None], 8, -1))
    close(total, np.repeat(denominator[..., None], 8, -1))
    assert largest.dtype == total.dtype == torch.float32
    assert empty.shape == (0,)
    assert (seed, offset, numels) == (0, 0, batch * heads * queries * keys)


def test_it_is_scaled_dot_product_attention(attend):
    query, key, value = (normal(2, 4, 16, 8, seed=seed) for seed in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attend(query, key, value, 4, "BNSD", scale=1 / math.sqrt(8))[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(attend, dtype):
    tensors = [normal(1, 2, 9, 8, seed=seed, dtype=dtype) for seed in range(3)]
    out, largest, *_ = attend(*tensors, 2, "BNSD", scale=0.3)
    expected, maximum, _ = slow(*tensors, 0.3)
    assert (out.dtype, largest.dtype) == (dtype, torch.float32)
    assert torch.equal(out, torch.as_tensor(expected).to(dtype)) or (
        (out.double() - torch.as_tensor(expected)).abs().max() < torch.finfo(dtype).eps
    )
    close(largest[..., 0], maximum)


# --- masks


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize(("mode", "before", "after"), [(2, 9, 9), (3, 0, 0), (4, 2, 1), (4, 100, 0), (4, 1, 100)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_compressed_masks(attend, mode, before, after, queries, keys, dtype):
    query, key, value = normal(1, 2, queries, 4), normal(1, 2, keys, 4, seed=1), normal(1, 2, keys, 4, seed=2)
    out, *_ = attend(
        query,
        key,
        value,
        2,
        "BNSD",
        scale=0.5,
        atten_mask=COMPRESSED.to(dtype),
        sparse_mode=mode,
        pre_tockens=before,
        next_tockens=after,
    )
    rule = left_out_by(mode, queries, keys, before, after)
    close(out, slow(query, key, value, 0.5, lambda b, n, i, j: rule(i, j))[0])


def test_long_causal_sequences_are_beyond_the_compressed_mask(attend):
    query = normal(1, 1, 2500, 2)
    out, *_ = attend(query, query, query, 1, "BNSD", atten_mask=COMPRESSED, sparse_mode=2)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True, scale=1.0)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_the_compressed_mask_is_read(attend):
    """A mask the wrong way round, a usual mistake, leaves out the past instead of the future."""
    query, key, value = (normal(1, 1, 5, 4, seed=seed) for seed in range(3))
    wrong = torch.ones(2048, 2048).tril(-1).bool()
    out, *_ = attend(query, key, value, 1, "BNSD", atten_mask=wrong, sparse_mode=2)
    close(out, slow(query, key, value, 1.0, lambda b, n, i, j: j < i)[0])


@pytest.mark.parametrize("shape", [(3, 5), (1, 1, 3, 5), (2, 1, 3, 5), (2, 2, 3, 5)])
@pytest.mark.parametrize("mode", [0, 1])
def test_whole_masks(attend, shape, mode):
    query, key, value = normal(2, 2, 3, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 4, seed=2)
    mask = normal(*shape, seed=3) > 0.5
    mask[..., 0] = False
    out, *_ = attend(query, key, value, 2, "BNSD", atten_mask=mask, sparse_mode=mode, scale=0.4)
    whole = mask.expand(2, 2, 3, 5)
    close(out, slow(query, key, value, 0.4, lambda b, n, i, j: bool(whole[b, n, i, j]))[0])


@pytest.mark.parametrize(("before", "after"), [(1, 1), (0, 2), (3, -1), (-1, 3)])
def test_the_band_of_mode_0(attend, before, after):
    query, key, value = (normal(1, 1, 6, 4, seed=seed) for seed in range(3))
    rule = left_out_by(0, 6, 6, before, after)
    mask = torch.tensor([[rule(i, j) for j in range(6)] for i in range(6)])
    bounds = {"pre_tockens": before, "next_tockens": after}
    out, *_ = attend(query, key, value, 1, "BNSD", atten_mask=mask, **bounds)
    close(out, slow(query, key, value, 1.0, lambda b, n, i, j: rule(i, j))[0])
    # The band alone decides as well: what lies outside is never computed.
    again, *_ = attend(query, key, value, 1, "BNSD", atten_mask=torch.zeros_like(mask), **bounds)
    assert torch.equal(out, again)


def test_without_a_mask_nothing_is_left_out(attend):
    query = normal(1, 1, 4, 4)
    plain = attend(query, query, query, 1, "BNSD")[0]
    for mode in range(5):
        other = attend(query, query, query, 1, "BNSD", sparse_mode=mode, pre_tockens=0, next_tockens=0)[0]
        assert torch.equal(plain, other)


def test_rows_without_a_key(attend):
    """Queries 0 and 1 of 4 see none of the 2 keys: zeros where the kernel expects it, else all keys alike."""
    query, key, value = normal(1, 1, 4, 4).requires_grad_(), normal(1, 1, 2, 4, seed=1), normal(1, 1, 2, 4, seed=2)
    out, largest, total, *_ = attend(query, key, value, 1, "BNSD", atten_mask=COMPRESSED, sparse_mode=3)
    assert torch.equal(out[0, 0, :2], torch.zeros(2, 4))
    assert largest[0, 0, 0, 0] == LOWEST
    assert total[0, 0, 0, 0] == torch.finfo(torch.float32).max
    out.sum().backward()
    assert torch.equal(query.grad[0, 0, :2], torch.zeros(2, 4))
    assert query.grad[0, 0, 3].abs().sum() > 0
    mask = torch.ones(4, 2).bool()
    alike, *_ = attend(query, key, value, 1, "BNSD", atten_mask=mask, sparse_mode=1)
    close(alike[0, 0], value.mean(2)[0].expand(4, 4).double())
    zeros, *_ = attend(query, key, value, 1, "BNSD", atten_mask=mask, sparse_mode=1, inner_precise=2)
    assert torch.equal(zeros, torch.zeros_like(zeros))


# --- position bias, dropout, gradients


@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (2, 2, 1, 5), (1, 2, 3, 5)])
def test_bias_is_added_before_the_scale(attend, shape):
    query, key, value = normal(2, 2, 3, 4), normal(2, 1, 5, 4, seed=1), normal(2, 1, 5, 4, seed=2)
    bias = normal(*shape, seed=3)
    out, *_ = attend(query, key, value, 2, "BNSD", bias, scale=0.5)
    close(out, slow(query, key, value, 0.5, bias=bias.expand(2, 2, 3, 5).double().numpy())[0])


def test_dropout(attend):
    query, value = normal(2, 4, 64, 8), torch.ones(2, 4, 64, 8)
    torch.manual_seed(5)
    out, _, _, _, seed, _, numels = attend(query, query, value, 4, "BNSD", scale=0.1, keep_prob=0.75)
    assert (seed, numels) == (5, 2 * 4 * 64 * 64)
    # With values of one, an element is the kept part of the weights over keep_prob: one on average.
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert out.std() > 0.01
    torch.manual_seed(5)
    assert torch.equal(out, attend(query, query, value, 4, "BNSD", scale=0.1, keep_prob=0.75)[0])


@pytest.mark.parametrize("seed", [0, 7])
def test_dropout_keeps_the_weights_of_the_mask_of_its_seed(attend, seed):
    """_npu_dropout_gen_mask makes the mask that the attention draws by itself, also where the seed is 0."""
    query = normal(1, 2, 9, 4)
    torch.manual_seed(seed)
    drawn = attend(query, query, query, 2, "BNSD", keep_prob=0.75)
    assert drawn[4] == seed
    mask = torch.ops.npu._npu_dropout_gen_mask.Tensor(query, [1, 2, 9, 9], 0.25, *drawn[4:6])
    assert torch.equal(drawn[0], attend(query, query, query, 2, "BNSD", keep_prob=0.75, dropout_mask=mask)[0])


def test_dropout_by_its_own_seed(attend):
    query = normal(1, 1, 16, 4)

    def once(seed, offset):
        result = attend(query, query, query, 1, "BNSD", keep_prob=0.5, seed=seed, offset=offset)
        assert result[4:6] == (seed, offset)
        return result[0]

    state = torch.get_rng_state()
    assert torch.equal(once(7, 0), once(7, 0))
    assert not torch.equal(once(7, 0), once(7, 10))
    assert not torch.equal(once(7, 0), once(8, 0))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("masked", ["none", "causal", "rows"])
def test_gradients(masked):
    from toprope.compat.torch_npu.operators.attention import attention

    query, key, value = (normal(1, 2, 3, 2, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(3))
    bias = normal(1, 2, 3, 3, seed=3, dtype=torch.float64).requires_grad_()
    mask = {"none": None, "causal": torch.ones(3, 3).triu(1).bool(), "rows": torch.ones(3, 3).tril(-1).T.flip(0).bool()}
    if masked == "rows":
        mask["rows"][0] = True

    def function(query, key, value, bias):
        return attention(query, key[:, :1], value[:, :1], 0.8, bias=bias, masked=mask[masked], zero_empty_rows=True)[0]

    assert gradcheck(function, (query, key, value, bias))


def test_only_the_first_result_has_a_gradient(attend):
    query = normal(1, 1, 3, 4).requires_grad_()
    out, largest, total, *_ = attend(query, query, query, 1, "BNSD")
    assert out.requires_grad
    assert not largest.requires_grad
    assert not total.requires_grad


# --- sequences one after the other


def pieces(lengths):
    ends = np.cumsum(lengths)
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


@FEW
@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=4),
    group=st.integers(1, 2),
    mode=st.sampled_from([None, 2, 3]),
)
def test_every_batch_of_tnd_is_its_own(lengths, group, mode):
    query_lengths, key_lengths = (list(column) for column in zip(*lengths, strict=True))
    if not sum(query_lengths):
        query_lengths[0] = 1
    heads = 2 * group
    query = normal(sum(query_lengths), heads, 4)
    key, value = normal(sum(key_lengths), 2, 4, seed=1), normal(sum(key_lengths), 2, 3, seed=2)
    mask = {} if mode is None else {"atten_mask": COMPRESSED, "sparse_mode": mode}
    out, largest, total, _, _, _, numels = torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        heads,
        "TND",
        scale=0.6,
        actual_seq_qlen=np.cumsum(query_lengths).tolist(),
        actual_seq_kvlen=np.cumsum(key_lengths).tolist(),
        softmax_layout="TND",
        **mask,
    )
    assert numels == heads * sum(one * other for one, other in zip(query_lengths, key_lengths, strict=True))
    for rows, columns in zip(pieces(query_lengths), pieces(key_lengths), strict=True):
        one, two, three = (tensor.transpose(0, 1)[None] for tensor in (query[rows], key[columns], value[columns]))
        queries, keys = one.shape[2], two.shape[2]
        rule = (lambda i, j: False) if mode is None else left_out_by(mode, queries, keys, 0, 0)
        expected, maximum, denominator = slow(one, two, three, 0.6, lambda b, n, i, j, rule=rule: rule(i, j))
        close(out[rows], torch.as_tensor(expected)[0].transpose(0, 1))
        if mode is None:
            close(largest[rows, :, 0], maximum[0].T)
            close(total[rows, :, 7], denominator[0].T)


def test_tnd_statistics_lie_by_head_within_a_batch(attend):
    """Without softmax_layout the kernel writes batch after batch, each as [N, S, 8], into [T, N, 8]."""
    tensors, ends = [normal(5, 2, 4, seed=seed) for seed in range(3)], [2, 5]
    arguments = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
    by_head = attend(*tensors, 2, "TND", **arguments)[1].reshape(-1, 8)[:, 0]
    by_row = attend(*tensors, 2, "TND", softmax_layout="TND", **arguments)[1][..., 0]
    assert torch.equal(by_head, torch.cat((by_row[:2].T.reshape(-1), by_row[2:].T.reshape(-1))))


def test_tnd_batches_that_take_no_part(attend):
    query = normal(6, 1, 4).requires_grad_()
    out, *_ = attend(query, query, query, 1, "TND", actual_seq_qlen=[2, 4, 0], actual_seq_kvlen=[3, 6, 0])
    assert torch.equal(out[4:], torch.zeros(2, 1, 4))
    close(out[2:4, 0], slow(*(part[None, None, :, 0] for part in (query[2:4], query[3:], query[3:])), 1.0)[0][0, 0])
    out.sum().backward()
    assert query.grad.shape == query.shape


@pytest.mark.parametrize("whole", [False, True])
def test_tnd_with_a_whole_mask(attend, whole):
    query = normal(5, 1, 4)
    mask = (normal(5, 5, seed=1) > 0.3) if whole else (normal(3, 3, seed=1) > 0.3)
    mask.fill_diagonal_(False)
    ends = [2, 5]
    out, *_ = attend(
        query, query, query, 1, "TND", atten_mask=mask, sparse_mode=1, actual_seq_qlen=ends, actual_seq_kvlen=ends
    )
    for rows in (slice(0, 2), slice(2, 5)):
        part = query[rows].transpose(0, 1)[None]
        own = mask[rows, rows] if whole else mask
        expected, *_ = slow(part, part, part, 1.0, lambda b, n, i, j, own=own: bool(own[i, j]))
        close(out[rows, 0], expected[0, 0])


# --- what it refuses

Q = torch.zeros(2, 4, 3, 8)
T = torch.zeros(6, 2, 4)
MASK = torch.zeros(3, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input_layout": "NBSD"}, "input_layout"),
        ({"input_layout": ""}, "input_layout"),
        ({"input_layout": "BSH"}, "4 dimensions; BSH has 3"),
        ({"head_num": 0}, "more than 0"),
        ({"head_num": 2}, "head_num is 2"),
        ({"query": Q.double()}, "float64"),
        ({"key": Q.half()}, "one dtype"),
        ({"key": Q[:, :3], "value": Q[:, :3]}, "multiple of the 3"),
        ({"key": Q[:, :2]}, "as many"),
        ({"key": Q[:1], "value": Q[:1]}, "batch size"),
        ({"value": Q[:, :, :2]}, "sequence length"),
        ({"key": Q[..., :4]}, "one size"),
        ({"value": torch.zeros(2, 4, 3, 9)}, "not be larger"),
        ({"query": torch.zeros(2, 4, 0, 8)}, "empty"),
        ({"keep_prob": 0.0}, "keep_prob"),
        ({"keep_prob": 1.5}, "keep_prob"),
        ({"sparse_mode": -1}, "sparse_mode -1"),
        ({"sparse_mode": 9}, "sparse_mode 9"),
        ({"sparse_mode": 7}, "sparse_mode 7: layout BNSD takes"),
        ({"sparse_mode": 5}, "facade does not have sparse_mode 5"),
        ({"sparse_mode": 6}, "facade does not have sparse_mode 6"),
        ({"padding_mask": MASK}, "padding_mask"),
        ({"prefix": [1, 1]}, "prefix"),
        ({"sink": torch.zeros(3)}, "sink has shape"),
        ({"sink": torch.zeros(4).half()}, "sink has shape"),
        ({"dropout_mask": MASK, "keep_prob": 0.5}, "dropout_mask holds"),
        ({"dropout_mask": torch.zeros(8, dtype=torch.uint8), "keep_prob": 0.5}, "dropout_mask holds"),
        ({"atten_mask": MASK.float()}, "bool and uint8"),
        ({"atten_mask": MASK[:2]}, "shape"),
        ({"atten_mask": MASK[None]}, "shape"),
        ({"atten_mask": MASK, "sparse_mode": 3}, "2048 x 2048"),
        ({"atten_mask": MASK, "pre_tockens": -1, "next_tockens": -1}, "nothing to compute"),
        ({"atten_mask": MASK, "next_tockens": -3}, "nothing to compute"),
        ({"atten_mask": MASK, "pre_tockens": -3}, "nothing to compute"),
        ({"pse": torch.zeros(2, 4, 2, 3)}, "pse has shape"),
        ({"pse": torch.zeros(4, 3, 3)}, "pse has shape"),
        ({"pse": torch.zeros(2, 4, 3, 3).half()}, "one dtype"),
        ({"softmax_layout": "TND"}, "softmax_layout"),
        ({"softmax_layout": "BNSD"}, "softmax_layout"),
    ],
)
def test_refuses(attend, changes, text):
    arguments = {"query": Q, "key": Q, "value": Q, "head_num": 4, "input_layout": "BNSD", **changes}
    with pytest.raises(RuntimeError, match=f"npu_fusion_attention: .*{text}"):
        attend(**arguments)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"head_num": 2}, "multiple of head_num"),
        ({"key": torch.zeros(2, 5, 7)}, "size of a head"),
        ({"value": torch.zeros(2, 5, 5)}, "heads"),
    ],
)
def test_refuses_flat_layouts(attend, changes, text):
    arguments = {
        "query": torch.zeros(2, 3, 9),
        "key": torch.zeros(2, 5, 6),
        "value": torch.zeros(2, 5, 6),
        "head_num": 3,
        "input_layout": "BSH",
        **changes,
    }
    with pytest.raises(RuntimeError, match=f"npu_fusion_attention: .*{text}"):
        attend(**arguments)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"actual_seq_qlen": None}, "actual_seq_qlen"),
        ({"actual_seq_kvlen": []}, "actual_seq_kvlen"),
        ({"actual_seq_kvlen": [3, 5, 6]}, "as long as each other"),
        ({"actual_seq_qlen": [4, 3]}, "running sums"),
        ({"actual_seq_kvlen": [3, 7]}, "ends at 7"),
        ({"sparse_mode": 5}, "sparse_mode 5: layout TND takes"),
        ({"sparse_mode": 7}, "facade does not have sparse_mode 7"),
        ({"pse": torch.zeros(1, 2, 6, 6)}, "pse for layout TND"),
        ({"atten_mask": MASK[:2]}, "shape"),
    ],
)
def test_refuses_tnd(attend, changes, text):
    arguments = {
        "query": T,
        "key": T,
        "value": T,
        "head_num": 2,
        "input_layout": "TND",
        "actual_seq_qlen": [3, 6],
        "actual_seq_kvlen": [3, 6],
        **changes,
    }
    with pytest.raises(RuntimeError, match=f"npu_fusion_attention: .*{text}"):
        attend(**arguments)
