"""Dropout with masks, softmax with masks, and their gradients.

Holds dropout.py and softmax.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

ops = torch.ops.npu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def bits_of(mask):
    return [bool(int(byte) >> bit & 1) for byte in mask for bit in range(8)]


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_size_of_a_mask(facade, count):
    mask = ops.npu_dropout_gen_mask([count], 0.5)
    assert (mask.dtype, mask.numel()) == (torch.uint8, -(-count // 128) * 16)


def test_mask_is_drawn_from_the_generator_of_the_device(facade):
    torch.manual_seed(3)
    first = ops.npu_dropout_gen_mask([10000], 0.3)
    second = ops.npu_dropout_gen_mask([10000], 0.3)
    torch.manual_seed(3)
    assert first.equal(ops.npu_dropout_gen_mask([10000], 0.3))
    assert not first.equal(second)
    assert sum(bits_of(first)) / (first.numel() * 8) == pytest.approx(0.7, abs=0.02)
    assert all(bits_of(ops.npu_dropout_gen_mask([100], 0.0)))
    assert not any(bits_of(ops.npu_dropout_gen_mask([100], 1.0)))


def test_mask_of_a_seed(facade):
    x = torch.zeros(1)
    first = ops._npu_dropout_gen_mask(x, [100, 100], 0.3, 7, 20)
    assert first.equal(ops._npu_dropout_gen_mask(x, [10000], 0.3, 7, 20, parallel=False))
    assert not first.equal(ops._npu_dropout_gen_mask(x, [10000], 0.3, 8, 20))
    assert not first.equal(ops._npu_dropout_gen_mask(x, [10000], 0.3, 7, 21))
    assert sum(bits_of(first)) / 10000 == pytest.approx(0.7, abs=0.02)
    full = bits_of(ops._npu_dropout_gen_mask(x, [12], 0.0, 1, 0))
    assert full == [True] * 16 + [False] * 112
    for p in (-0.1, 1.5):
        with pytest.raises(RuntimeError, match=f"between 0 and 1, but got {p:g}"):
            ops._npu_dropout_gen_mask(x, [12], p, 1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_with_bits(facade, dtype):
    x = torch.randn(3, 50).to(dtype).requires_grad_()
    y, mask = facade._npu_dropout(x, 0.3)
    keep = torch.tensor(bits_of(mask)[:150]).reshape(3, 50)
    expected = torch.where(keep, x.detach().float() / 0.7, 0).to(dtype)
    torch.testing.assert_close(y.detach(), expected)
    grad = torch.randn(3, 50).to(dtype)
    y.backward(grad)
    torch.testing.assert_close(x.grad, torch.where(keep, grad.float() / 0.7, 0).to(dtype))
    assert ops.npu_dropout_backward(grad, mask, 0.3).equal(x.grad)
    again, copy = ops.npu_dropout_do_mask(x, mask, 0.3)
    assert again.equal(y)
    assert copy.equal(mask)
    assert copy.data_ptr() != mask.data_ptr()
    assert not facade._npu_dropout(x, 1.0)[0].any()


def test_dropout_refuses(facade):
    x = torch.randn(200)
    with pytest.raises(RuntimeError, match="between 0 and 1, but got 2"):
        facade._npu_dropout(x, 2.0)
    with pytest.raises(RuntimeError, match="dropout only supports floating-point dtypes"):
        facade._npu_dropout(x.long(), 0.5)
    with pytest.raises(RuntimeError, match="dropoutbackward only supports floating-point"):
        ops.npu_dropout_backward(x.long(), x.byte(), 0.5)
    with pytest.raises(RuntimeError, match=r"mask should be torch\.uint8 dtype"):
        ops.npu_dropout_backward(x, x, 0.5)
    with pytest.raises(RuntimeError, match="the mask has 128 bits for 200 elements"):
        ops.npu_dropout_backward(x, torch.zeros(16, dtype=torch.uint8), 0.5)


def test_dropout_with_bytes(facade):
    x = torch.randn(30, 40, requires_grad=True)
    y, mask = ops._dropout_with_byte_mask(x, 0.25)
    assert (mask.dtype, mask.shape) == (torch.uint8, x.shape)
    torch.testing.assert_close(y, x * mask / 0.75)
    grad = torch.randn(30, 40)
    y.backward(grad)
    torch.testing.assert_close(x.grad, grad * mask / 0.75)
    torch.testing.assert_close(ops._dropout_with_byte_mask_backward(grad, mask, 0.25), grad * mask / 0.75)
    plain = x.detach()
    for p, train in ((0.5, False), (0.0, True)):
        same = ops.dropout_with_byte_mask(plain, p, train)
        assert same.equal(plain)
        assert same.data_ptr() != plain.data_ptr()
    assert not ops.dropout_with_byte_mask(plain, 1.0, True).any()
    assert 0 < ops.dropout_with_byte_mask(plain, 0.5, True).count_nonzero() < plain.numel()
    assert ops.dropout_with_byte_mask(torch.empty(0, 3), 0.5, True).shape == (0, 3)


def test_dropout_with_add_softmax(facade):
    x, add = torch.randn(1, 32, 128, 128, requires_grad=True), torch.randn(1, 32, 128, 128, requires_grad=True)
    mask, softmax, y = facade.npu_dropout_with_add_softmax(x, add, 0.5, 0.1, -1)
    wide = x.detach().double().requires_grad_()
    expected = torch.softmax(wide * 0.5 + add.detach().double(), -1)
    torch.testing.assert_close(softmax, expected.detach().float())
    keep = mask.reshape(x.shape).double()
    torch.testing.assert_close(y.detach(), (expected.detach() * keep / 0.9).float())
    grad = torch.randn_like(y)
    (expected * keep / 0.9).backward(grad.double())
    y.backward(grad)
    torch.testing.assert_close(x.grad, wide.grad.float())
    assert add.grad.equal(grad)  # the card's operator returns the gradient of x1 unchanged
    first, second = ops.npu_dropout_with_add_softmax_backward(grad, mask, softmax, 0.5, 0.1, -1)
    torch.testing.assert_close(first, x.grad)
    assert second.equal(grad)
    for arguments, text in (
        ((x[..., :100], add[..., :100], 1, 0.1, -1), "H and W"),
        ((x, add, 1, 0.1, 1), "takes 4 and -1"),
        ((x, add, 1, 1.0, -1), "prob is"),
        ((x, add.half(), 1, 0.1, -1), "must be alike"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_dropout_with_add_softmax(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_masked_softmax(facade, dtype):
    x, mask = torch.randn(2, 3, 32, 64).to(dtype), torch.rand(2, 1, 32, 64) > 0.5
    wide = x.double().requires_grad_()
    expected = torch.softmax(torch.where(mask, -10000, wide * 0.3), -1)
    leaf = x.clone().requires_grad_()
    y = facade.npu_scaled_masked_softmax(leaf, mask, 0.3)
    torch.testing.assert_close(y.detach(), expected.detach().to(dtype))
    grad = torch.randn(2, 3, 32, 64).to(dtype)
    expected.backward(grad.double())
    y.backward(grad)
    own = ops.npu_scaled_masked_softmax_backward(grad, y.detach(), mask, 0.3, False)
    for found in (leaf.grad, own):
        torch.testing.assert_close(found, wide.grad.to(dtype), rtol=2e-2, atol=1e-3)
    hidden = facade.npu_scaled_masked_softmax(x, torch.ones(1, 1, 32, 64, dtype=torch.bool))
    torch.testing.assert_close(hidden, torch.full_like(x, 1 / 64))


def test_scaled_masked_softmax_refuses(facade):
    x, mask = torch.zeros(1, 1, 32, 32), torch.zeros(1, 1, 32, 32, dtype=torch.bool)
    for arguments, text in (
        ((x, mask.float()), "takes bool"),
        ((x, mask, 1.0, True), "fixed_triu_mask"),
        ((x[..., :16], mask[..., :16]), "multiples of 32"),
        ((x, torch.zeros(2, 1, 32, 32, dtype=torch.bool)), "cannot be broadcast"),
        ((x.double(), mask), "float64"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_scaled_masked_softmax(*arguments)


def test_softmax_cross_entropy(facade):
    logits, labels = torch.randn(4, 6, requires_grad=True), torch.rand(4, 6)
    loss = facade.npu_softmax_cross_entropy_with_logits(logits, labels)
    exact = torch.softmax(logits.detach().double(), -1)
    torch.testing.assert_close(loss.detach(), -(labels * exact.log()).sum(-1).float())
    grad = torch.randn(4)
    loss.backward(grad)
    expected = ((exact - labels) * grad.unsqueeze(-1)).float()  # whether or not the labels sum to 1
    torch.testing.assert_close(logits.grad, expected)
    torch.testing.assert_close(
        ops.npu_softmax_cross_entropy_with_logits_backward(grad, logits.detach(), labels), expected
    )
    sharp = torch.nn.functional.one_hot(torch.tensor([1, 0, 2, 5]), 6).float()
    torch.testing.assert_close(
        facade.npu_softmax_cross_entropy_with_logits(logits.detach(), sharp),
        torch.nn.functional.cross_entropy(logits.detach(), torch.tensor([1, 0, 2, 5]), reduction="none"),
    )
    with pytest.raises(RuntimeError, match="one shape"):
        facade.npu_softmax_cross_entropy_with_logits(logits, labels[:2])
    with pytest.raises(RuntimeError, match="one dtype"):
        facade.npu_softmax_cross_entropy_with_logits(logits, labels.half())
