"""Optimizer steps against Adam and AdamW of torch, batch statistics, quantisation and the check of gradients.

Holds affine_quantize.py, batch_norm.py and optimizer.py in src/toprope/compat/torch_npu/operators.
"""

import math

import pytest
import torch

npu = torch.ops.npu
pytestmark = [pytest.mark.native, pytest.mark.usefixtures("facade")]


def tensors(count=4, shape=(3, 5), dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).abs().to(dtype) for _ in range(count)]


def plain(kind, var, m, v, grad, **options):
    """One step, number by number, in Python's own floats."""
    found = [[], [], []]
    columns = (each.double().flatten().tolist() for each in (var, m, v, grad))
    for p, average, square, slope in zip(*columns, strict=True):
        for out, value in zip(found, kind(p, average, square, slope, **options), strict=True):
            out.append(value)
    return [torch.tensor(out, dtype=torch.float64).reshape(var.shape) for out in found]


def adam(p, m, v, g, power1, power2, lr, b1, b2, eps, nesterov):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    rate = lr * math.sqrt(1 - power2) / (1 - power1)
    return p - rate * (b1 * m + (1 - b1) * g if nesterov else m) / (eps + math.sqrt(v)), m, v


def bert(p, m, v, g, lr, b1, b2, eps, decay, step):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - step * m / (math.sqrt(v) + eps) - lr * decay * p, m, v


def same(found, expected, tolerance=1e-5):
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("nesterov", [False, True, None])
def test_adam(nesterov):
    var, m, v, grad = tensors()
    expected = plain(
        adam, var, m, v, grad, power1=0.9**3, power2=0.99**3, lr=0.1, b1=0.9, b2=0.99, eps=1e-6, nesterov=nesterov
    )
    found = npu.npu_apply_adam(0.9**3, 0.99**3, 0.1, 0.9, 0.99, 1e-6, grad, False, nesterov, out=(var, m, v))
    assert all(got is given for got, given in zip(found, (var, m, v), strict=True))
    same(found, expected)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam_w_is_torchs_over_ten_steps(amsgrad, maximize):
    var, m, v, _ = tensors()
    m, v = torch.zeros_like(m), torch.zeros_like(v)
    reference = var.clone().requires_grad_()
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.05}
    optimizer = torch.optim.AdamW([reference], **options, amsgrad=amsgrad, maximize=maximize)
    largest = torch.zeros_like(v)
    for step in range(10):
        grad = torch.sin(reference.detach() * (step + 1))
        reference.grad = grad.clone()
        optimizer.step()
        npu.npu_apply_adam_w(
            0.8**step, 0.9**step, 0.1, 0.05, 0.8, 0.9, 1e-6, grad, largest if amsgrad else None, amsgrad, maximize,
            out=[var, m, v],
        )  # fmt: skip
        largest = torch.maximum(largest, v)  # which the kernel leaves to its caller
    torch.testing.assert_close(var, reference.detach(), rtol=1e-4, atol=1e-5)


def test_bert_adam():
    var, m, v, grad = tensors()
    options = {"lr": 0.1, "b1": 0.9, "b2": 0.99, "eps": 1e-6, "decay": 0.05}
    given = (0.1, 0.9, 0.99, 1e-6)
    for maximum, norm, step_size, mode, factor, step in (
        (-1.0, 0.0, None, 0, 1.0, 0.1),
        (1.0, 4.0, None, 0, 0.25, 0.1),
        (1.0, 0.5, None, 0, 1.0, 0.1),
        (1.0, math.inf, None, 0, 1.0, 0.1),
        (1.0, 4.0, 0.3, 1, 1.0, 0.3),
        (1.0, 4.0, None, 1, 1.0, 0.1),
    ):
        copies = [each.clone() for each in (var, m, v)]
        found = npu.npu_bert_apply_adam(*given, grad, maximum, norm, 0.05, step_size, mode, out=copies)
        same(found, plain(bert, var, m, v, grad * factor, **options, step=step))


def test_scalars_are_rounded_to_the_dtype_of_the_parameters():
    var, m, v, grad = tensors(dtype=torch.float16)
    expected = plain(
        bert, var, m, v, grad, lr=float(torch.tensor(0.1).half()), b1=float(torch.tensor(0.9).half()),
        b2=float(torch.tensor(0.99).half()), eps=float(torch.tensor(1e-3).half()), decay=0.0,
        step=float(torch.tensor(0.1).half()),
    )  # fmt: skip
    found = npu.npu_bert_apply_adam(0.1, 0.9, 0.99, 1e-3, grad, 0.0, 0.0, 0.0, out=(var, m, v))
    assert {each.dtype for each in found} == {torch.float16}
    same(found, expected, 2e-3)


def test_a_view_is_changed_in_its_memory():
    whole, m, v, grad = tensors(shape=(5, 3))
    before = whole.clone()
    npu.npu_apply_adam(0.9, 0.9, 0.1, 0.9, 0.9, 1e-6, grad.t(), False, False, out=(whole.t(), m.t(), v.t()))
    assert (whole != before).all()
    empty = [torch.empty(0) for _ in range(3)]
    assert npu.npu_apply_adam(0.9, 0.9, 0.1, 0.9, 0.9, 1e-6, torch.empty(0), None, None, out=empty)[0].numel() == 0


def test_refusals_of_steps():
    var, m, v, grad = tensors()
    for name, rest in (("npu_apply_adam", ()), ("npu_apply_adam_w", (0.1,)), ("npu_bert_apply_adam", ())):
        operator = getattr(npu, name)
        tail = {"npu_apply_adam": (False, False), "npu_apply_adam_w": (None, True, False)}.get(name, (1.0, 1.0, 0.0))
        arguments = (0.9,) * (4 if name == "npu_bert_apply_adam" else 6 + len(rest))
        with pytest.raises(RuntimeError, match=f"{name} is not implemented for Tensor"):
            operator(*arguments, grad, *tail)
        with pytest.raises(RuntimeError, match="takes float16, bfloat16 and float32"):
            operator(*arguments, grad, *tail, out=(var.double(), m, v))
        with pytest.raises(RuntimeError, match=r"grad has shape \[5, 3\]"):
            operator(*arguments, grad.t(), *tail, out=(var, m, v))
        with pytest.raises(RuntimeError, match="out must be"):
            operator(*arguments, grad, *tail, out=(var, m))
    with pytest.raises(RuntimeError, match="if amsgrad is true, max_grad_norm input must be entered"):
        npu.npu_apply_adam_w(0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 1e-6, grad, None, True, False, out=(var, m, v))


def test_the_check_of_gradients():
    (grad,) = tensors(1)
    check = npu._amp_foreach_non_finite_check
    assert check([]) is check([grad, torch.empty(0)]) is False
    for value in (math.inf, -math.inf, math.nan):
        broken = grad.clone()
        broken[1, 2] = value
        assert check([grad, broken]) is True


def test_batch_norm_reduce():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).half()
    total, squares = npu.batch_norm_reduce(x, 1.0)
    assert total.dtype is squares.dtype is torch.float32
    for channel in range(3):
        values = [float(value) for image in x for value in image[channel].flatten()]
        assert total[channel].item() == pytest.approx(sum(values), abs=1e-4)
        assert squares[channel].item() == pytest.approx(sum(value * value for value in values), rel=1e-5)
    assert [each.tolist() for each in npu.batch_norm_reduce(torch.empty(0, 2), 1.0)] == [[0.0, 0.0]] * 2
    with pytest.raises(RuntimeError, match=r"The dim input tensor \[self\] must more than 1"):
        npu.batch_norm_reduce(torch.ones(3), 1e-5)


def test_statistics_of_two_cards_are_those_of_one():
    """torch's batch normalisation of both batches together."""
    batches = [torch.randn(count, 3, 4, generator=torch.Generator().manual_seed(count)) for count in (2, 5)]
    reference = torch.nn.BatchNorm1d(3, eps=1e-3, momentum=0.3)
    reference(torch.cat(batches))
    reduced = [npu.batch_norm_reduce(each, 0.0) for each in batches]
    sums, squares = (torch.stack(each) for each in zip(*reduced, strict=True))
    mean, var = torch.zeros(3), torch.ones(3)
    counts = torch.tensor([8.0, 20.0])
    found, invstd = npu.batch_norm_gather_stats_update(batches[0], sums, squares, mean, var, 0.3, 1e-3, counts)
    both = torch.cat(batches).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(found.double(), both.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(invstd.double(), 1 / (both.var(1, correction=0) + 1e-3).sqrt(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mean, reference.running_mean)
    torch.testing.assert_close(var, reference.running_var)
    again, _ = npu.batch_norm_gather_stats_update(batches[0], sums, squares, None, None, 0.3, 1e-3, counts)
    assert torch.equal(again, found)
    half = npu.batch_norm_gather_stats_update(batches[0], sums.half(), squares.half(), None, None, 0.3, 1e-3, counts)
    assert [each.dtype for each in half] == [torch.float16] * 2


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
def test_quantisation_is_torchs(dtype):
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(3)) * 20
    scales, zeros = torch.tensor([0.1, 0.25, 2.0]), torch.tensor([0, 3, 7], dtype=torch.int32)
    store = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}[dtype]
    result = torch.empty(4, 3, 2, dtype=store)
    found = npu._quantize_per_channel_impl(x, scales, zeros, 1, dtype, result=result)
    expected = torch.quantize_per_channel(x, scales.double(), zeros.long(), 1, dtype).int_repr()
    assert found is result
    assert (found.int() - expected.int()).abs().max() <= 1  # torch multiplies by the reciprocal
    assert ((found.int() - expected.int()) == 0).float().mean() > 0.9
    npu._quantize_per_tensor_impl(x, scales[1:2], zeros[1:2], dtype, result=result)
    assert torch.equal(result, torch.quantize_per_tensor(x, 0.25, 3, dtype).int_repr())


def test_quantisation_rounds_ties_to_even_and_stays_in_the_range():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9])
    one, nothing = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    result = torch.empty(7, dtype=torch.int8)
    quantize = npu._quantize_per_tensor_impl
    assert quantize(x, one, nothing, torch.qint8, result=result).tolist() == [0, 2, 2, 0, -2, 127, -128]
    wide = torch.empty(2, dtype=torch.int32)
    quantize(torch.tensor([3e9, -3e9]), one, nothing, torch.qint32, result=wide)
    assert wide.tolist() == [2**31 - 1, -(2**31)]
    assert quantize(x[:0], one, nothing, torch.qint8, result=result[:0]).numel() == 0
    with pytest.raises(RuntimeError, match=r"takes torch\.qint8, torch\.quint8 and torch\.qint32"):
        quantize(x, one, nothing, torch.int8, result=result)
    with pytest.raises(RuntimeError, match="2 scales or zero points for axis 0"):
        npu._quantize_per_channel_impl(x, torch.ones(2), torch.zeros(2), 0, torch.qint8, result=result)
    with pytest.raises(RuntimeError, match="result has shape"):
        quantize(x, one, nothing, torch.qint8, result=result[:3])
    with pytest.raises(RuntimeError, match=r"zero_points is torch\.bool"):
        quantize(x, one, nothing.bool(), torch.qint8, result=result)
