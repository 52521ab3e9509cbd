"""npu_fusion_attention_v2 and _v3, and the backward operators, against loops and against autograd.

Holds fusion_attention.py and fusion_attention_grad.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

COMPRESSED = torch.ones(2048, 2048).triu(1).bool()


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual, expected, tolerance=2e-5):
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


def slow(query, key, value, scale, after=None, sink=None):
    """Attention of [B, N, S, D] in float64, one row at a time; `after` is added to the scaled scores."""
    query, key, value = (tensor.detach().double().numpy() for tensor in (query, key, value))
    batches, heads, queries, _ = query.shape
    group = heads // key.shape[1]
    out = np.zeros((batches, heads, queries, value.shape[3]))
    for b, n, i in np.ndindex(batches, heads, queries):
        scores = key[b, n // group] @ query[b, n, i] * scale
        if after is not None:
            scores = scores + after[b, n, i]
        weights = np.exp(scores)
        total = weights.sum() + (0.0 if sink is None else np.exp(float(sink[n])))
        out[b, n, i] = weights / total @ value[b, n // group]
    return out


# --- forward operators


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_biases_after_the_scale(facade, kind):
    query, key, value = (normal(2, 4, 6, 8, seed=seed) for seed in range(3))
    slopes, bias = torch.tensor([0.5, 0.25, 0.1, 1.0]), normal(2, 4, 6, 6, seed=3)
    starts = {} if kind == 0 else {"q_start_idx": [4], "kv_start_idx": [1]}
    out = facade.npu_fusion_attention_v2(
        query, key, value, 4, "BNSD", pse=bias if kind == 0 else slopes, pse_type=kind, scale=0.3, **starts
    )[0]
    after = bias.double().numpy()
    if kind:
        distance = np.array([[abs((j + 1) - (i + 4)) for j in range(6)] for i in range(6)], dtype=float)
        distance = distance if kind == 2 else np.sqrt(distance)
        after = np.broadcast_to(-slopes.double().numpy()[:, None, None] * distance, (2, 4, 6, 6))
    close(out, slow(query, key, value, 0.3, after))


def test_sinks_take_weight(facade):
    query, key, value = (normal(1, 3, 5, 4, seed=seed) for seed in range(3))
    sink = torch.tensor([0.0, 2.0, -1.0])
    for operator in (facade.npu_fusion_attention, facade.npu_fusion_attention_v2, facade.npu_fusion_attention_v3):
        close(operator(query, key, value, 3, "BNSD", scale=0.5, sink=sink)[0], slow(query, key, value, 0.5, sink=sink))


def test_rotated_parts(facade):
    query, key, value = normal(5, 2, 8), normal(5, 2, 8, seed=1), normal(5, 2, 8, seed=2)
    query_rope, key_rope = normal(5, 2, 4, seed=3), normal(5, 2, 4, seed=4)
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    out = facade.npu_fusion_attention_v2(
        query, key, value, 2, "TND", query_rope=query_rope, key_rope=key_rope, scale=0.3, **ends
    )[0]
    whole = [torch.cat(pair, dim=-1) for pair in ((query, query_rope), (key, key_rope))]
    for rows in (slice(0, 2), slice(2, 5)):
        parts = [tensor[rows].transpose(0, 1)[None] for tensor in (*whole, value)]
        close(out[rows], slow(*parts, 0.3)[0].transpose(1, 0, 2))


def test_a_dropout_mask_of_bits(facade):
    query, value = torch.zeros(1, 2, 3, 4), normal(1, 2, 5, 4, seed=2)
    key = torch.zeros(1, 2, 5, 4)
    kept = torch.rand(1, 2, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    packed = np.packbits(kept.numpy().reshape(-1), bitorder="little")
    mask = torch.zeros(16, dtype=torch.uint8)
    mask[: len(packed)] = torch.as_tensor(packed)
    out = facade.npu_fusion_attention_v2(query, key, value, 2, "BNSD", keep_prob=0.5, dropout_mask=mask)[0]
    close(out, (kept.double() / 5 / 0.5) @ value.double())


def test_v3_takes_lengths_in_tensors(facade):
    query = normal(5, 2, 4)
    ends = torch.tensor([2, 5], dtype=torch.int32)
    out, largest, total, empty, seed, offset = facade.npu_fusion_attention_v3(
        query, query, query, 2, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends
    )
    expected = facade.npu_fusion_attention(
        query, query, query, 2, "TND", actual_seq_qlen=[2, 5], actual_seq_kvlen=[2, 5]
    )
    assert torch.equal(out, expected[0])
    assert torch.equal(largest, expected[1])
    assert torch.equal(total, expected[2])
    assert (empty.shape, seed.shape, offset.shape) == ((0,), (1,), (1,))
    assert seed.dtype == offset.dtype == torch.int64
    with pytest.raises(RuntimeError, match="tensor must be 1-dimensional"):
        torch.ops.npu.npu_fusion_attention_v3(
            query, query, query, 2, "TND", actual_seq_qlen=ends[None], actual_seq_kvlen=ends
        )


def test_v3_into_tensors_that_are_there(facade):
    query = normal(2, 3, 8)
    expected = torch.ops.npu.npu_fusion_attention_v3(query, query, query, 2, "BSH", scale=0.5)
    targets = [torch.full_like(part, 7) for part in expected]
    results = torch.ops.npu.npu_fusion_attention_v3.out(query, query, query, 2, "BSH", scale=0.5, out=targets)
    for result, target, want in zip(results, targets, expected, strict=True):
        assert result is target
        assert torch.equal(target, want)


@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD", "TND"])
def test_shapes_of_results(facade, layout):
    shapes = {
        "BSH": ((2, 3, 12), (2, 5, 6), (2, 5, 4)),
        "SBH": ((3, 2, 12), (5, 2, 6), (5, 2, 4)),
        "BSND": ((2, 3, 4, 3), (2, 5, 2, 3), (2, 5, 2, 2)),
        "BNSD": ((2, 4, 3, 3), (2, 2, 5, 3), (2, 2, 5, 2)),
        "TND": ((3, 4, 3), (5, 2, 3), (5, 2, 2)),
    }[layout]
    tensors = [normal(*shape) for shape in shapes]
    ends = {"actual_seq_qlen": torch.tensor([3]), "actual_seq_kvlen": torch.tensor([5])} if layout == "TND" else {}
    results = facade.npu_fusion_attention_v3(*tensors, 4, layout, **ends)
    inferred = torch.ops.npu._npu_fusion_attention_v3_infer_output(*tensors, 4, layout)
    assert [part.shape for part in inferred] == [part.shape for part in results[:3]]
    with pytest.raises(RuntimeError, match="head_num must > 0"):
        torch.ops.npu._npu_fusion_attention_v3_infer_output(*tensors, 0, layout)
    with pytest.raises(RuntimeError, match="Unsupported input_layout"):
        torch.ops.npu._npu_fusion_attention_v3_infer_output(*tensors, 4, "NBD")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pse_type": 4}, "pse_type 4"),
        ({"pse_type": 2, "pse": torch.zeros(3)}, "takes slopes"),
        ({"pse_type": 2, "pse": torch.zeros(2).half()}, "takes slopes"),
        ({"query_rope": torch.zeros(1, 2, 3, 2), "key_rope": torch.zeros(1, 2, 3, 2)}, "take layout TND"),
        ({"query_rope": torch.zeros(1, 2, 3, 2)}, "belong together"),
    ],
)
def test_v2_refuses(facade, changes, text):
    query = torch.zeros(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match=f"npu_fusion_attention_v2: .*{text}"):
        facade.npu_fusion_attention_v2(query, query, query, 2, "BNSD", **changes)


# --- backward operators: their gradients are those that autograd finds


def backward_of(facade, version, tensors, dy, heads, layout, extra, names):
    """Gradients by autograd through the forward operator, and by the backward operator from its results."""
    suffix = "" if version == 1 else f"_v{version}"
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    forward = getattr(facade, f"npu_fusion_attention{suffix}")
    positional = [leaves.pop(name) for name in ("query", "key", "value")]
    results = forward(*positional, heads, layout, **leaves, **extra)
    results[0].backward(dy)
    backward = getattr(facade, f"npu_fusion_attention_grad{suffix}")
    keywords = {("scale_value" if name == "scale" else name): value for name, value in extra.items()}
    if version == 3:
        drawn = {"seed": results[4], "offset": results[5]}
    else:
        drawn = {"seed": results[4], "offset": results[5], "numels": results[6]}
    found = backward(
        *(tensor.detach() for tensor in positional),
        dy,
        heads,
        layout,
        softmax_max=results[1],
        softmax_sum=results[2],
        attention_in=results[0].detach(),
        **{name: tensor.detach() for name, tensor in leaves.items()},
        **(keywords | drawn),
    )
    expected = {"query": positional[0], "key": positional[1], "value": positional[2], **leaves}
    for name, gradient in zip(names, found, strict=True):
        if name in expected:
            close(gradient, expected[name].grad)
            assert gradient.shape == expected[name].shape
            assert gradient.dtype == expected[name].dtype
        else:
            assert gradient is None or gradient.numel() == 0


FIVE = ("query", "key", "value", "pse", "sink")
SEVEN = ("query", "key", "value", "pse", "query_rope", "key_rope", "sink")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD"])
def test_gradients_of_layouts(facade, version, layout):
    shapes = {
        "BSH": ((2, 3, 16), (2, 5, 8), (2, 3, 16)),
        "SBH": ((3, 2, 16), (5, 2, 8), (3, 2, 16)),
        "BSND": ((2, 3, 4, 4), (2, 5, 2, 4), (2, 3, 4, 4)),
        "BNSD": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 4, 3, 4)),
    }[layout]
    tensors = {"query": normal(*shapes[0]), "key": normal(*shapes[1], seed=1), "value": normal(*shapes[1], seed=2)}
    extra = {"scale": 0.4, "atten_mask": COMPRESSED, "sparse_mode": 3}
    names = SEVEN if version == 2 else FIVE
    backward_of(facade, version, tensors, normal(*shapes[2], seed=3), 4, layout, extra, names)


@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (1, 2, 1, 5)])
@pytest.mark.parametrize("kind", [0, 1])
def test_gradients_of_bias_and_sink(facade, shape, kind):
    tensors = {"query": normal(2, 2, 3, 4), "key": normal(2, 2, 5, 4, seed=1), "value": normal(2, 2, 5, 4, seed=2)}
    tensors |= {"pse": normal(*shape, seed=4), "sink": normal(2, seed=5)}
    extra = {"scale": 0.4, "pse_type": kind}
    backward_of(facade, 2, tensors, normal(2, 2, 3, 4, seed=3), 2, "BNSD", extra, SEVEN)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_gradients_of_tnd(facade, version, softmax_layout):
    """With a batch of no queries, one of no keys, and rows that belong to no batch."""
    tensors = {"query": normal(9, 4, 4), "key": normal(8, 2, 4, seed=1), "value": normal(8, 2, 3, seed=2)}
    ends = ([2, 2, 5, 7], [3, 5, 5, 8])
    lengths = [torch.tensor(end) for end in ends] if version == 3 else ends
    extra = {"scale": 0.4, "atten_mask": COMPRESSED, "sparse_mode": 2, "softmax_layout": softmax_layout}
    extra |= dict(zip(("actual_seq_qlen", "actual_seq_kvlen"), lengths, strict=True))
    dy = normal(9, 4, 3, seed=3)
    backward_of(facade, version, tensors, dy, 4, "TND", extra, SEVEN if version == 2 else FIVE)


def test_gradients_of_rotated_parts(facade):
    tensors = {"query": normal(5, 2, 8), "key": normal(5, 1, 8, seed=1), "value": normal(5, 1, 8, seed=2)}
    tensors |= {"query_rope": normal(5, 2, 4, seed=3), "key_rope": normal(5, 1, 4, seed=4)}
    extra = {"scale": 0.4, "actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    backward_of(facade, 2, tensors, normal(5, 2, 8, seed=5), 2, "TND", extra, SEVEN)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_gradients_with_dropout(facade, version):
    """The backward operator draws the same numbers, from the seed and offset that the forward operator gave."""
    tensors = {"query": normal(2, 2, 8, 4), "key": normal(2, 2, 9, 4, seed=1), "value": normal(2, 2, 9, 4, seed=2)}
    torch.manual_seed(3)
    extra = {"scale": 0.4, "keep_prob": 0.7}
    backward_of(facade, version, tensors, normal(2, 2, 8, 4, seed=3), 2, "BNSD", extra, SEVEN if version == 2 else FIVE)


def test_two_calls_draw_other_numbers(facade):
    query = normal(1, 1, 16, 4)
    one, other = (facade.npu_fusion_attention_v2(query, query, query, 1, "BNSD", keep_prob=0.5) for _ in range(2))
    assert one[5] != other[5]
    assert not torch.equal(one[0], other[0])


def test_ring_attention(facade):
    """Gradients of parts of the keys, from the statistics of all of them, as MindSpeed calls the operator."""
    query, key, value = (normal(4, 2, 8, seed=seed).requires_grad_() for seed in range(3))
    dy = normal(4, 2, 8, seed=3)
    out, largest, total, *_ = facade.npu_fusion_attention(query, key, value, 2, "SBH", scale=0.5)
    out.backward(dy)
    found = []
    for rows in (slice(0, 2), slice(2, 4)):
        found.append(
            torch.ops.npu.npu_fusion_attention_grad(
                query.detach(),
                key.detach()[rows],
                value.detach()[rows],
                dy,
                2,
                "SBH",
                softmax_max=largest,
                softmax_sum=total,
                attention_in=out.detach(),
                scale_value=0.5,
                pre_tockens=4,
                next_tockens=4,
            )
        )
    close(found[0][0] + found[1][0], query.grad)
    close(torch.cat([part[1] for part in found]), key.grad)
    close(torch.cat([part[2] for part in found]), value.grad)


def test_slopes_have_no_gradient(facade):
    query, slopes = normal(1, 2, 4, 4), torch.tensor([0.5, 1.0])
    out, largest, total, *_ = facade.npu_fusion_attention_v2(query, query, query, 2, "BNSD", pse=slopes, pse_type=2)
    found = facade.npu_fusion_attention_grad_v2(
        query,
        query,
        query,
        query,
        2,
        "BNSD",
        pse=slopes,
        pse_type=2,
        softmax_max=largest,
        softmax_sum=total,
        attention_in=out,
    )
    assert torch.equal(found[3], torch.zeros(2))


def test_grad_v3_into_tensors_that_are_there(facade):
    query, dy = normal(2, 3, 8), normal(2, 3, 8, seed=1)
    out, largest, total, _, seed, offset = facade.npu_fusion_attention_v3(query, query, query, 2, "BSH")
    saved = {"softmax_max": largest, "softmax_sum": total, "attention_in": out, "seed": seed, "offset": offset}
    expected = torch.ops.npu.npu_fusion_attention_grad_v3(query, query, query, dy, 2, "BSH", **saved)
    targets = [torch.ones_like(part) for part in expected]
    torch.ops.npu.npu_fusion_attention_grad_v3.out(query, query, query, dy, 2, "BSH", **saved, out=targets)
    for target, want in zip(targets, expected, strict=True):
        assert torch.equal(target, want)
    inferred = torch.ops.npu._npu_fusion_attention_grad_v3_infer_output(query, query, query)
    assert [part.shape for part in inferred] == [part.shape for part in expected]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"softmax_max": None}, "must be given"),
        ({"attention_in": torch.zeros(1, 2, 3, 5)}, "must be the same"),
        ({"dy": torch.zeros(3)}, "The shapes of the input dy should be 3 or 4 dimensional, but got 1-dimensional"),
        ({"softmax_sum": torch.ones(1, 2, 4, 8)}, "not those of the forward operator"),
        ({"query": torch.zeros(1, 2, 3, 4).double()}, "float64"),
        ({"keep_prob": 0.0}, "keep_prob"),
    ],
)
def test_grad_refuses(facade, changes, text):
    query, statistic = torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 8)
    arguments = {"query": query, "key": query, "value": query, "dy": query, "softmax_max": statistic}
    arguments |= {"softmax_sum": statistic, "attention_in": query, **changes}
    positional = [arguments.pop(name) for name in ("query", "key", "value", "dy")]
    with pytest.raises(RuntimeError, match=text):
        facade.npu_fusion_attention_grad(*positional, 2, "BNSD", **arguments)
