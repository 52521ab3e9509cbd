"""Gradients of torch's own operators against autograd, and small operators without arithmetic.

Holds memory_hints.py and torch_backward.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

ops = torch.ops.npu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def close(found, expected):
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_fft_gradients(facade, size, normalization):
    x = torch.randn(3, size, requires_grad=True)
    for onesided in (True, False):
        y = torch.ops.aten._fft_r2c(x, [1], normalization, onesided)
        grad = torch.randn_like(y)
        (expected,) = torch.autograd.grad(y, x, grad)
        close(ops.fft_r2c_backward(grad, [1], normalization, onesided, size), expected)
    spectrum = torch.randn(3, size // 2 + 1, dtype=torch.complex64, requires_grad=True)
    y = torch.ops.aten._fft_c2r(spectrum, [1], normalization, size)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, spectrum, grad)
    close(ops.fft_c2r_backward(grad, [1], normalization), expected)
    with pytest.raises(RuntimeError, match="dim must not be empty"):
        ops.fft_c2r_backward(grad, [], normalization)


@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.parametrize("shape", [(20,), (2, 20)])
@pytest.mark.parametrize("keywords", [{}, {"win_length": 6}, {"normalized": True}, {"onesided": False}])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft_gradient(facade, shape, keywords, windowed):
    x = torch.randn(shape, requires_grad=True)
    window = torch.rand(keywords.get("win_length", 8)) if windowed else None
    y = torch.stft(x, 8, 3, window=window, center=False, return_complex=True, **keywords)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    close(ops.stft_backward(grad, x, 8, 3, window=window, return_complex=True, **keywords), expected)
    close(ops.stft_backward(torch.view_as_real(grad), x, 8, 3, window=window, **keywords), expected)


@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_stft_gradient_of_complex_input(facade):
    x = torch.randn(2, 20, dtype=torch.complex64, requires_grad=True)
    y = torch.stft(x, 8, 3, center=False, onesided=False, return_complex=True)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    close(ops.stft_backward(grad, x, 8, 3), expected)
    with pytest.raises(RuntimeError, match="hop_length > 0"):
        ops.stft_backward(grad, x, 8, 0)


REDUCTIONS = ("none", "mean", "sum")


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_gradients(facade, reduction, log_target):
    x = torch.randn(3, 4, requires_grad=True)
    target = torch.rand(3, 4)
    target[0, 0] = 0
    target = (target + 0.1).log() if log_target else target
    target.requires_grad_()
    loss = torch.nn.functional.kl_div(x, target, reduction=REDUCTIONS[reduction], log_target=log_target)
    grad = torch.randn_like(loss)
    to_x, to_target = torch.autograd.grad(loss, (x, target), grad)
    close(ops.kl_div_backward(grad, x, target, reduction, log_target=log_target), to_x)
    found = ops.kl_div_target_backward(grad, x, target, reduction, log_target=log_target)
    close(found, to_target.nan_to_num(0, 0, 0))


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_loss_gradients(facade, reduction):
    x, target = torch.randn(3, 4, requires_grad=True), torch.rand(3, 4)
    loss = torch.nn.functional.l1_loss(x, target, reduction=REDUCTIONS[reduction])
    grad = torch.randn_like(loss)
    close(ops.l1_loss_backward(grad, x, target, reduction), torch.autograd.grad(loss, x, grad)[0])
    weight, positive = torch.rand(3, 4), torch.rand(4)
    for w, p in ((None, None), (weight, positive)):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            x, target, weight=w, pos_weight=p, reduction=REDUCTIONS[reduction]
        )
        found = ops.npu_binary_cross_entropy_with_logits_backward(grad, x, target, w, p, reduction)
        close(found, torch.autograd.grad(loss, x, grad)[0])


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_repeat_interleave_gradients(facade, dim):
    x = torch.randn(3, 4, requires_grad=True)
    count = 12 if dim is None else x.shape[dim]
    for repeats in (3, torch.tensor([2]), torch.randint(0, 4, (count,)), torch.zeros(count, dtype=torch.int64)):
        y = torch.repeat_interleave(x, repeats, dim)
        grad = torch.randn_like(y)
        (expected,) = torch.autograd.grad(y, x, grad)
        kind = "int" if isinstance(repeats, int) else "tensor"
        close(getattr(ops, f"repeat_interleave_backward_{kind}")(grad, x, repeats, dim), expected)
    with pytest.raises(RuntimeError, match="repeats must be not zero"):
        ops.repeat_interleave_backward_int(torch.empty(0), x, 0)


def test_gather_gradient(facade):
    x, index = torch.randn(3, 5, requires_grad=True), torch.randint(0, 5, (3, 7))
    grad = torch.randn(3, 7)
    (expected,) = torch.autograd.grad(x.gather(1, index), x, grad)
    close(ops.npu_gather_backward(grad, [3, 5], 1, index, False), expected)


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, float("inf")])
def test_renorm_gradient(facade, p):
    x = torch.randn(4, 3, 2, requires_grad=True)
    limit = 1.01 * torch.linalg.vector_norm(x.detach(), p, (0, 2)).median().item()
    grad = torch.randn(4, 3, 2)
    (expected,) = torch.autograd.grad(torch.renorm(x, p, 1, limit), x, grad)
    close(ops.npu_renorm_backward(grad, x, p, 1, limit), expected)


@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (4,))])
def test_matmul_double_backward(facade, a, b):
    x, y = torch.randn(a, requires_grad=True), torch.randn(b, requires_grad=True)
    product = x @ y
    grad = torch.randn_like(product).requires_grad_()
    first = torch.autograd.grad(product, (x, y), grad, create_graph=True)
    second = [torch.randn_like(t) for t in first]
    expected = torch.autograd.grad(first, (grad, x, y), second)
    for found, want in zip(ops.matmul_double_backward(*second, grad, x, y, [True] * 3), expected, strict=True):
        close(found, want)
    only = ops.matmul_double_backward(None, second[1], grad, x, y, [False, True, True])
    assert only[0] is None
    assert only[2] is None
    close(only[1], expected[1])


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_convolution_gradients(facade, mask):
    unit = ([2, 1], [1, 0], [1, 2])
    image, kernel, bias = (torch.randn(s, requires_grad=True) for s in ((2, 3, 7, 6), (4, 3, 3, 2), (4,)))
    y = torch.nn.functional.conv2d(image, kernel, bias, *unit)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, (image, kernel, bias), grad)
    found = ops.slow_conv_dilated2d_backward(grad, image, kernel, [3, 2], *unit, mask)
    for wanted, given, want in zip(mask, found, expected, strict=True):
        close(given, want) if wanted else None
        assert wanted or given is None

    back, other = torch.randn(2, 4, 5, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    y = torch.nn.functional.conv_transpose2d(back, kernel, other, unit[0], unit[1], [1, 0], 1, unit[2])
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, (back, kernel, other), grad)
    found = ops.slow_conv_transpose2d_backward(grad, back, kernel, [3, 2], unit[0], unit[1], [1, 0], unit[2], mask)
    for wanted, given, want in zip(mask, found, expected, strict=True):
        close(given, want) if wanted else None
        assert wanted or given is None


def test_depthwise_gradient(facade):
    image, kernel = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(6, 1, 3, 3, requires_grad=True)
    y = torch.nn.functional.conv2d(image, kernel, None, 2, 1, 1, 3)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, (image, kernel), grad)
    found = ops._conv_depthwise2d_backward(grad, image, kernel, [3, 3], [2, 2], [1, 1], [1, 1], [True, True])
    for given, want in zip(found, expected, strict=True):
        close(given, want)


def test_prefetch(facade):
    x = torch.zeros(4, dtype=torch.float16)
    assert facade.npu_prefetch(x, None, 100) is None
    assert facade.npu_prefetch(x, x, 1, 7) is None
    for size, offset, text in (
        (0, 0, "max_size should be greater than zero, but got 0"),
        (1, -1, "offset should not be smaller than zero, but got -1"),
        (1, 8, "offset out of range of tensor size, tensor size: 8, offset: 8"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_prefetch(x, None, size, offset)


def test_copies_and_fills(facade):
    base = torch.zeros(4, 6)
    view, source = base.mT[::2], torch.randn(3, 4)
    assert ops.npu_view_copy(view, source, False) is view
    assert base.mT[::2].equal(source)
    assert not base.mT[1::2].any()
    assert facade.one_(view) is view
    assert (base.mT[::2] == 1).all()
    assert not base.mT[1::2].any()


def test_float_status(facade):
    x = torch.randn(3)
    for found, dtype in (
        (facade.npu_alloc_float_status(x), torch.float32),
        (facade.npu_get_float_status(x), torch.int32),
        (facade.npu_clear_float_status(x), torch.float32),
    ):
        assert (found.tolist(), found.dtype) == ([0] * 8, dtype)
    with pytest.raises(RuntimeError, match="but got mode:2"):
        facade.npu_get_float_status(x, 2)
