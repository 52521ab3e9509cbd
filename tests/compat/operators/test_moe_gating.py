"""Choice of experts and of candidates, against numpy and loops.

Holds moe_gating.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def chosen_by_loops(scores, k, groups, kept, of_group, dropped):
    """Indices of the k best scores in the best groups; those of other groups count as `dropped`."""
    width = len(scores) // groups
    parts = [scores[g * width : (g + 1) * width] for g in range(groups)]
    best = sorted(range(groups), key=lambda g: (-of_group(parts[g]), g))[:kept]
    masked = [score if i // width in best else dropped for i, score in enumerate(scores)]
    return sorted(range(len(scores)), key=lambda i: (-masked[i], i))[:k]


@pytest.mark.parametrize("norm_type", [0, 1])
@pytest.mark.parametrize(("groups", "kept", "mode"), [(1, 1, 0), (4, 2, 0), (4, 2, 1), (4, 4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gating_top_k(facade, norm_type, groups, kept, mode, dtype):
    x, bias = torch.randn(6, 16, dtype=dtype), torch.randn(16, dtype=dtype)
    y, index, norm = facade.npu_moe_gating_top_k(
        x, 5, bias=bias, k_group=kept, group_count=groups, group_select_mode=mode, norm_type=norm_type, out_flag=True,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    wide = x.double().numpy()
    normed = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True) if norm_type == 0 else 1 / (1 + np.exp(-wide))
    np.testing.assert_allclose(norm.numpy(), normed, rtol=1e-5)
    biased = normed + bias.double().numpy()
    score = max if mode == 0 else lambda part: sum(sorted(part)[-2:])
    for i in range(6):
        expected = chosen_by_loops(biased[i], 5, groups, kept, score, -np.inf)
        assert index[i].tolist() == expected
        values = normed[i][expected]
        values = values / values.sum() if norm_type == 1 else values
        np.testing.assert_allclose(y[i].double().numpy(), values * 2.5, rtol=1e-5 if dtype == torch.float32 else 1e-3)
    assert index.dtype == torch.int32
    assert y.dtype == dtype


@pytest.mark.parametrize("norm_type", [0, 1])
def test_gating_top_k_gradient(facade, norm_type):
    x = torch.randn(4, 8, requires_grad=True)
    keywords = {"norm_type": norm_type, "routed_scaling_factor": 1.5}
    y, index, norm = facade.npu_moe_gating_top_k(x, 3, out_flag=True, **keywords)
    assert not norm.requires_grad
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    found = facade.npu_moe_gating_top_k_backward(norm, grad, index, **keywords)
    torch.testing.assert_close(found, expected)


def test_gating_by_a_table(facade):
    x, table = torch.randn(3, 8), torch.tensor([[1, 2], [7, 0], [3, 4]])
    y, index, _ = facade.npu_moe_gating_top_k(
        x, 2, input_ids=torch.tensor([2, 0, 1]), tid2eid=table, norm_type=1, routed_scaling_factor=2.0
    )
    assert index.tolist() == [[3, 4], [1, 2], [7, 0]]
    values = torch.sigmoid(x).gather(1, index.long())
    torch.testing.assert_close(y, 2 * values / values.sum(-1, keepdim=True))


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gating_top_k_softmax(facade, shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    finished = torch.rand(shape[:-1]) > 0.5
    y, index, slots = facade.npu_moe_gating_top_k_softmax(x, finished, 3)
    probabilities = torch.softmax(x.double(), -1)
    rows = probabilities.reshape(-1, 12)
    assert y.dtype == dtype
    for i, row in enumerate(rows):
        best = row.sort(descending=True).values[:3]
        torch.testing.assert_close(y.reshape(-1, 3)[i].double(), best, rtol=1e-2, atol=1e-3)
        if finished.reshape(-1)[i]:
            assert index.reshape(-1, 3)[i].tolist() == [12] * 3
        else:
            taken = row[index.reshape(-1, 3)[i].long()]
            torch.testing.assert_close(taken, best, rtol=1e-2, atol=1e-3)
    for i in range(len(rows)):
        assert slots.reshape(-1, 3)[i].tolist() == [i, i + len(rows), i + 2 * len(rows)]
    assert facade.npu_moe_gating_top_k_softmax(x[:0], None, 3)[0].shape == (0, *shape[1:-1], 3)
    assert facade.npu_moe_gating_top_k_softmax(x, None, 0)[2].shape == (*shape[:-1], 0)


@pytest.mark.parametrize("renorm", [0, 1])
def test_gating_top_k_softmax_v2(facade, renorm):
    x = torch.randn(5, 12)
    y, index, softmax = facade.npu_moe_gating_top_k_softmax_v2(x, k=4, renorm=renorm, output_softmax=True)
    probabilities = torch.softmax(x.double(), -1)
    best = probabilities.sort(dim=-1, descending=True)
    values = best.values[:, :4]
    values = values / values.sum(-1, keepdim=True) if renorm else values
    torch.testing.assert_close(y.double(), values)
    assert torch.equal(index.long(), best.indices[:, :4])
    assert softmax.shape == ((0,) if renorm else (5, 12))
    assert facade.npu_moe_gating_top_k_softmax_v2(x)[2].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (2, 2), (4, 3)])
def test_group_topk(facade, dtype, k, n):
    wide = torch.randn(3, 24, dtype=dtype)
    x = wide.T.contiguous().T  # not contiguous
    expected = wide.clone()
    for i in range(3):
        sums = [sum(sorted(wide[i, 6 * g : 6 * g + 6].double().tolist())[-n:]) for g in range(4)]
        for g in sorted(range(4), key=lambda g: (-sums[g], g))[k:]:
            expected[i, 6 * g : 6 * g + 6] = 0
    assert facade._npu_group_topk(x, k, 4, n) is None
    assert torch.equal(x, expected)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("is_norm", [True, False])
def test_fused_add_topk_div(facade, mapped, is_norm):
    x, add = torch.randn(7, 32), torch.randn(32)
    number, table = torch.randint(0, 4, (32,)).int(), torch.randint(0, 99, (32, 4)).int()
    keywords = {"group_num": 8, "group_topk": 3, "n": 2, "k": 6, "is_norm": is_norm, "scale": 2.0}
    keywords |= {"mapping_num": number, "mapping_table": table, "enable_expert_mapping": mapped}
    y, index = torch.ops.atb.npu_fused_add_topk_div(x, add, **keywords)
    scores = torch.sigmoid(x.double()).numpy()
    for i in range(7):
        biased = scores[i] + add.double().numpy()
        chosen = chosen_by_loops(biased, 6, 8, 3, lambda part: sum(sorted(part)[-2:]), 0.0)
        values = scores[i][chosen]
        values = values / values.sum() * 2 if is_norm else values
        np.testing.assert_allclose(y[i].numpy(), values, rtol=1e-5)
        expected = [int(table[e, i % max(1, int(number[e]))]) for e in chosen] if mapped else chosen
        assert index[i].tolist() == expected
    out = torch.zeros(7, 6), torch.zeros(7, 6, dtype=torch.int32)
    torch.ops.atb.npu_fused_add_topk_div.out(x, add, **keywords, y=out[0], indices=out[1])
    assert torch.equal(out[0], y)
    assert torch.equal(out[1], index)


@pytest.mark.parametrize("given", ["k", "p", "kp", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_top_k_top_p(facade, given, dtype):
    logits = torch.randn(4, 20, dtype=dtype)
    k = torch.tensor([1, 5, 20, 7]).int() if "k" in given else None
    p = torch.tensor([0.3, 1.0, 0.8, 0.0], dtype=dtype) if "p" in given else None
    found = facade.npu_top_k_top_p(logits, p, k)
    for i in range(4):
        order = sorted(range(20), key=lambda j: float(logits[i, j]))
        kept = order[-int(k[i]) :] if k is not None else order
        kept = [j for j in order if float(logits[i, j]) >= float(logits[i, kept[0]])]
        if p is not None:
            weights = np.exp(logits[i, kept].double().numpy())
            sums = np.cumsum(weights / weights.sum())
            kept = [j for j, total in zip(kept, sums, strict=True) if total > 1 - float(p[i])] or kept[-1:]
        expected = torch.full((20,), float("-inf"), dtype=dtype)
        expected[kept] = logits[i, kept]
        assert torch.equal(found[i], expected)


def test_refusals(facade):
    x = torch.randn(4, 16)
    call = facade.npu_moe_gating_top_k
    with pytest.raises(RuntimeError, match="The x should be 2D"):
        call(x[0], 1)
    with pytest.raises(RuntimeError, match=r"float16、float32 or bfloat16 tensor expected .* dtype: Double"):
        call(x.double(), 1)
    with pytest.raises(RuntimeError, match="The dtype of x and bias should be same"):
        call(x, 1, bias=torch.randn(16).half())
    with pytest.raises(RuntimeError, match="renorm is 1"):
        call(x, 1, renorm=1)
    with pytest.raises(RuntimeError, match="k is 9"):
        call(x, 9, k_group=2, group_count=4)
    with pytest.raises(RuntimeError, match="3 of 5 groups"):
        call(x, 1, k_group=3, group_count=5)
    with pytest.raises(RuntimeError, match="a group has 2 experts"):
        call(x, 1, group_count=8)
    with pytest.raises(RuntimeError, match="must be both provided or both omitted"):
        call(x, 1, input_ids=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"The k should be in \[0, 16\]"):
        facade.npu_moe_gating_top_k_softmax(x, None, 17)
    with pytest.raises(RuntimeError, match="Input rows shoud be same"):
        facade.npu_moe_gating_top_k_softmax(x, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="renorm must be 0 or 1, but got: 2"):
        facade.npu_moe_gating_top_k_softmax_v2(x, renorm=2)
    with pytest.raises(RuntimeError, match=r"torch.float32"):
        facade._npu_group_topk(x, 1, 4, 1)
    with pytest.raises(RuntimeError, match="activation_type is activation_relu"):
        torch.ops.atb.npu_fused_add_topk_div(x, x[0], activation_type="activation_relu")
    with pytest.raises(RuntimeError, match="needs mapping_num and mapping_table"):
        torch.ops.atb.npu_fused_add_topk_div(x, x[0], enable_expert_mapping=True)
    with pytest.raises(RuntimeError, match=r"k is \[4\] torch.int64"):
        facade.npu_top_k_top_p(x, None, torch.ones(4, dtype=torch.int64))
