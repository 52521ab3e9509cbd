"""Cross entropy against torch's, and over a vocabulary in parts.

Holds cross_entropy.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss(facade, dtype, reduction, smoothing, ignored, weighted):
    x, target = torch.randn(7, 5).to(dtype), torch.tensor([0, 1, 2, 3, 4, 2, 0])
    weight = torch.rand(5) + 0.1 if weighted else None
    loss, log_prob, zloss, lse = facade.npu_cross_entropy_loss(x, target, weight, reduction, ignored, smoothing)
    wide = None if weight is None else weight.double()
    want = cross_entropy(x.double(), target, wide, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    assert loss.dtype == log_prob.dtype == dtype
    assert loss.shape == zloss.shape == ((7,) if reduction == "none" else (1,))
    assert lse.shape == (7,)
    torch.testing.assert_close(loss.double(), want.reshape(loss.shape), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(log_prob.double(), x.double().log_softmax(-1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("reduction", "ignored"), [("mean", -100), ("sum", -100), ("sum", 2), ("none", -100), ("none", 2)]
)
def test_gradient(facade, reduction, ignored):
    x, target = torch.randn(7, 5, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 2, 0])
    loss, log_prob, *_ = facade.npu_cross_entropy_loss(x, target, None, reduction, ignored)
    assert not log_prob.requires_grad
    seed = torch.randn_like(loss)
    (found,) = torch.autograd.grad(loss, x, seed)
    want = cross_entropy(x, target, ignore_index=ignored, reduction=reduction)
    (expected,) = torch.autograd.grad(want.reshape(loss.shape), x, seed)
    torch.testing.assert_close(found, expected)
    by_hand = torch.ops.npu.npu_cross_entropy_loss_backward(
        seed, log_prob, target, reduction=reduction, ignore_index=ignored
    )
    torch.testing.assert_close(by_hand, expected)


def test_refused(facade):
    x, target = torch.randn(7, 5), torch.zeros(7, dtype=torch.int64)
    for call, given, text in (
        ((x, target.int()), {}, "takes int64"),
        ((x.double(), target), {}, "takes floats"),
        ((x[0], target), {}, "takes floats"),
        ((x, target), {"reduction": "max"}, "reduction is 'max'"),
        ((x, target), {"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ((x, target), {"return_zloss": True}, "return_zloss"),
        ((x, target), {"lse_square_scale_for_zloss": 0.1}, "zloss must be 0"),
        ((x, target), {"weight": torch.rand(4)}, r"float32 \[5\]"),
        ((x.clone().requires_grad_(), target), {"label_smoothing": 0.1}, "must be 0 where the input has a gradient"),
        ((x.clone().requires_grad_(), target), {"weight": torch.rand(5)}, "defaults with 'mean'"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_cross_entropy_loss(*call, **given)


@pytest.mark.parametrize("count", [1, 8, 11])
@pytest.mark.parametrize("kept", [False, True])
def test_vocabulary_in_two_parts(facade, count, kept):
    hidden, table = torch.randn(count, 8).half(), torch.randn(12, 8).half()
    target, seed = torch.randint(0, 12, (count,), dtype=torch.int32), torch.rand(count)
    halves = [
        facade.npu_fused_linear_online_max_sum(hidden, table[begin : begin + 6], target, begin, begin + 6, True)
        for begin in (0, 6)
    ]
    largest = torch.maximum(halves[0][0], halves[1][0])
    total = sum(part[1] * (part[0] - largest).exp() for part in halves)
    own = [(target >= begin) & (target < begin + 6) for begin in (0, 6)]
    predicted = sum((part[2] + part[0] - largest) * mine for part, mine in zip(halves, own, strict=True))
    loss, nothing = facade.npu_fused_cross_entropy_loss_with_max_sum(largest, total, predicted)
    assert nothing is None
    x, w = hidden.double().requires_grad_(), table.double().requires_grad_()
    want = cross_entropy(x @ w.T, target.long(), reduction="none")
    torch.testing.assert_close(loss.double(), want, rtol=1e-4, atol=1e-4)
    by_input, by_weight = torch.autograd.grad(want, (x, w), seed.double())
    found = []
    for number, part in enumerate(halves):
        softmax = None
        if kept:
            _, softmax = facade.npu_fused_cross_entropy_loss_with_max_sum(
                largest, total, predicted, vocab_parallel_logits=part[5].float()
            )
        found.append(
            facade.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                seed,
                hidden,
                table[number * 6 : number * 6 + 6],
                part[3],
                part[4],
                logits_max=None if kept else largest,
                sum_exp_logits=None if kept else total,
                softmax=softmax,
            )
        )
    torch.testing.assert_close((found[0][0].float() + found[1][0]).double(), by_input, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(torch.cat([found[0][1], found[1][1]]).double(), by_weight, rtol=2e-2, atol=2e-2)


def test_mask_has_the_first_row_in_the_lowest_bit(facade):
    hidden, table = torch.randn(10, 4).half(), torch.randn(6, 4).half()
    target = torch.arange(10)
    *_, mask, place, logits = facade.npu_fused_linear_online_max_sum(hidden, table, target, 2, 8)
    outside = [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, *[1] * 6]
    assert np.array_equal(mask.numpy(), np.packbits(np.array(outside, dtype=np.uint8), bitorder="little"))
    assert place.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 0, 0]
    assert place.dtype == torch.int64
    assert logits is None


def test_refused_parts(facade):
    hidden, table, target = torch.randn(4, 8).half(), torch.randn(6, 8).half(), torch.zeros(4, dtype=torch.int64)
    largest = torch.rand(4)
    for call, text in (
        (lambda: facade.npu_fused_linear_online_max_sum(hidden.float(), table.float(), target, 0, 6), "float16 or bf"),
        (lambda: facade.npu_fused_linear_online_max_sum(hidden, table, target.short(), 0, 6), "int32 or int64"),
        (lambda: facade.npu_fused_linear_online_max_sum(hidden, table, target, 6, 0), "is below"),
        (lambda: facade.npu_fused_cross_entropy_loss_with_max_sum(largest, largest[:3], largest), "float32"),
        (
            lambda: facade.npu_fused_cross_entropy_loss_with_max_sum(largest, largest, largest, label_smoothing=0.1),
            "label_smoothing is",
        ),
        (
            lambda: facade.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                largest, hidden, table, torch.zeros(1, dtype=torch.uint8), target
            ),
            "are needed",
        ),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
