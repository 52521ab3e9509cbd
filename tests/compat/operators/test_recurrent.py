"""Recurrent operators against torch.nn's layers, which have the transposed weights, and their backward operators.

Holds recurrent.py, recurrent_layers.py and recurrent_steps.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

npu = torch.ops.npu
T, B, F, H = 4, 3, 5, 2
FLAGS = (True, 1, 0.0, True, False, False)  # has_biases, num_layers, dropout, train, bidirectional, batch_first

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("facade")]


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def lstm_arguments(dtype=torch.float32):
    layer = torch.nn.LSTM(F, H).to(dtype)
    weight = torch.cat((layer.weight_ih_l0, layer.weight_hh_l0), 1).t().detach().clone()
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).detach()
    x, h, c = drawn(T, B, F, dtype=dtype), drawn(1, B, H, dtype=dtype), drawn(1, B, H, seed=1, dtype=dtype)
    return layer, [x, weight, bias, h, c]


def lstm(x, weight, bias, h, c, mask=None, direction=False):
    mask = torch.empty(0) if mask is None else mask
    return npu.npu_lstm(x, weight, bias, mask, h, c, *FLAGS, bool(mask.numel()), direction)


def plain_lstm(x, weight, bias, h, c, mask):
    """Step by step in float64, over lists."""
    x, weight, bias, h, c, mask = (each.double() for each in (x, weight, bias, h, c, mask))
    h, c, outputs = h[0], c[0], []
    for step in range(len(x)):
        i, f, j, o = (torch.cat((x[step], h), 1) @ weight + bias).split(H, 1)
        new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j)
        c = torch.where(mask[step] > 0, new_c, c)
        y = torch.sigmoid(o) * torch.tanh(c) * mask[step]
        h = torch.where(mask[step] > 0, y, h)
        outputs.append((y, h, c))
    return [torch.stack(each) for each in zip(*outputs, strict=True)]


def test_lstm_is_torchs():
    layer, arguments = lstm_arguments()
    y, h, c, i, j, f, o, tanhc = lstm(*arguments)
    expected, (last_h, last_c) = layer(arguments[0], tuple(arguments[3:]))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(h[-1:], last_h)
    torch.testing.assert_close(c[-1:], last_c)
    torch.testing.assert_close(h, y)
    torch.testing.assert_close(tanhc, c.tanh())
    torch.testing.assert_close(o * tanhc, y)
    before = torch.cat((arguments[4], c[:-1]))
    torch.testing.assert_close(f * before + i * j, c)


def test_lstm_in_half_rounds_at_the_end():
    _, arguments = lstm_arguments()
    halves = [each.half() for each in arguments]
    y = lstm(*halves)[0]
    assert y.dtype is torch.float16
    torch.testing.assert_close(y, lstm(*(each.float() for each in halves))[0].half())


def test_lstm_from_the_end():
    _, (x, *others) = lstm_arguments()
    ahead = lstm(x.flip(0), *others)
    for found, expected in zip(lstm(x, *others, direction=True), ahead, strict=True):
        torch.testing.assert_close(found, expected.flip(0))


@pytest.mark.parametrize("as_lengths", [False, True])
def test_lstm_of_several_lengths(as_lengths):
    _, arguments = lstm_arguments()
    lengths = torch.tensor([4, 2, 1], dtype=torch.int32)
    mask = (torch.arange(T).reshape(T, 1, 1) < lengths.reshape(1, B, 1)).expand(T, B, H).half()
    found = lstm(*arguments, mask=lengths if as_lengths else mask)
    for got, expected in zip(found, plain_lstm(*arguments, mask), strict=False):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    data = npu.npu_lstm_data(
        arguments[0], torch.tensor([3, 2, 1, 1]), *arguments[1:3], mask, *arguments[3:], *FLAGS, True, False
    )
    for got, expected in zip(data, found, strict=True):
        torch.testing.assert_close(got, expected)


def test_lstm_has_a_gradient_of_y_and_of_the_last_states():
    _, arguments = lstm_arguments(torch.float64)
    weights = [drawn(T, B, H, seed=seed, dtype=torch.float64) for seed in range(3)]
    with pytest.raises(RuntimeError, match="float64"):
        lstm(*arguments)
    arguments = [each.detach().float().requires_grad_() for each in arguments]
    y, h, c, *gates = lstm(*arguments)
    assert not any(gate.requires_grad for gate in gates)
    sum((out * weight).sum() for out, weight in zip((y, h, c), weights, strict=True)).backward()
    found = [each.grad.clone() for each in arguments]

    given = [each.detach().double().requires_grad_() for each in arguments]
    ones = torch.ones(T, B, H)
    y, h, c = plain_lstm(*given, ones)
    ((y * weights[0]).sum() + (h[-1] * weights[1][-1]).sum() + (c[-1] * weights[2][-1]).sum()).backward()
    for got, expected in zip(found, (each.grad for each in given), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    x, weight, bias, h0, c0 = (each.detach() for each in arguments)
    outputs = [each.detach() for each in lstm(x, weight, bias, h0, c0)]
    grads = [each.float() for each in weights]
    for got, expected in zip(npu.npu_lstm_backward(*grads, x, weight, bias, h0, c0, *outputs), found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert all(not grad.any() for grad in npu.npu_lstm_backward(None, None, None, x, weight, bias, h0, c0, *outputs))


@pytest.mark.parametrize("direction", [False, True])
def test_the_gradient_of_npu_lstm_data(direction):
    """Of y; a reversed run has no gradient of its states, since the backward operator reads the wrong end."""
    _, arguments = lstm_arguments()
    arguments = [each.requires_grad_() for each in arguments]
    x, weight, bias, h0, c0 = arguments
    sizes = torch.tensor([3, 3, 2, 1])
    mask = (torch.arange(B).reshape(1, B, 1) < sizes.reshape(T, 1, 1)).expand(T, B, H).half()
    outputs = npu.npu_lstm_data(x, sizes, weight, bias, mask, h0, c0, *FLAGS, True, direction)
    assert outputs[1].requires_grad is (not direction)
    grad = drawn(T, B, H)
    outputs[0].backward(grad)
    plain = [each.detach() for each in outputs]
    found = npu.npu_lstm_data_backward(
        grad, None, None, x.detach(), sizes, weight.detach(), bias, h0.detach(), c0.detach(), *plain, direction
    )
    for got, expected in zip(found, arguments, strict=True):
        torch.testing.assert_close(got, expected.grad, rtol=1e-4, atol=1e-5)


def test_lstm_cell_is_torchs_with_its_gradient():
    cell = torch.nn.LSTMCell(F, H)
    x, h, c = (each.requires_grad_() for each in (drawn(B, F), drawn(B, H), drawn(B, H, seed=1)))
    w_ih, w_hh = (each.detach().t().clone().requires_grad_() for each in (cell.weight_ih, cell.weight_hh))
    b_ih, b_hh = (each.detach().clone().requires_grad_() for each in (cell.bias_ih, cell.bias_hh))
    outputs = npu.npu_lstm_cell(x, w_ih, w_hh, h, c, b_ih, b_hh)
    assert [list(each.shape) for each in outputs] == [[1, B, H], [B, H], [B, H], *[[1, B, H]] * 5]
    assert [each.requires_grad for each in outputs] == [True] * 3 + [False] * 5
    grads = [drawn(1, B, H), drawn(B, H, seed=2), drawn(B, H, seed=3)]
    mine = torch.autograd.grad(outputs[:3], (x, w_ih, w_hh, b_ih, b_hh, h, c), grads)
    new_h, new_c = cell(x, (h, c))
    torch.testing.assert_close(outputs[1], new_h)
    torch.testing.assert_close(outputs[2], new_c)
    inputs = (x, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh, h, c)
    torchs = torch.autograd.grad((new_h, new_h, new_c), inputs, (grads[0][0], grads[1], grads[2]))
    backward = npu.npu_lstm_cell_backward(*grads, *(each.detach() for each in (x, w_ih, w_hh, h, c, *outputs)))
    for index, (one, other, third) in enumerate(zip(mine, torchs, backward, strict=True)):
        turned = other.t() if index in (1, 2) else other
        torch.testing.assert_close(one, turned, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third, turned, rtol=1e-4, atol=1e-5)
    without = npu.npu_lstm_cell(x, w_ih, w_hh, h, c)
    zeros = torch.zeros(4 * H)
    torch.testing.assert_close(without[0], npu.npu_lstm_cell(x, w_ih, w_hh, h, c, zeros, zeros)[0])


@pytest.mark.parametrize("state_dims", [2, 3])
def test_gru_is_torchs_with_its_gradient(state_dims):
    layer = torch.nn.GRU(F, H)
    x, h = drawn(T, B, F).requires_grad_(), drawn(1, B, H).requires_grad_()
    w_x, w_h = (each.detach().t().clone().requires_grad_() for each in (layer.weight_ih_l0, layer.weight_hh_l0))
    b_x, b_h = (each.detach().clone().requires_grad_() for each in (layer.bias_ih_l0, layer.bias_hh_l0))
    state, lengths = (h if state_dims == 3 else h[0]), torch.tensor([T], dtype=torch.int32)
    outputs = npu.npu_gru(x, state, w_x, w_h, b_x, b_h, lengths, *FLAGS)
    assert [each.requires_grad for each in outputs] == [True, True, False, False, False, False]
    expected, last = layer(x, h)
    torch.testing.assert_close(outputs[0], expected)
    y, _, update, reset, new, hidden_new = outputs
    before = torch.cat((h, y[:-1]))
    torch.testing.assert_close((1 - update) * new + update * before, y)
    torch.testing.assert_close(hidden_new, before @ w_h[:, 2 * H :] + b_h[2 * H :])
    torch.testing.assert_close(reset, torch.sigmoid((x @ w_x + b_x)[..., :H] + (before @ w_h + b_h)[..., :H]))
    grads = [drawn(T, B, H), drawn(T, B, H, seed=5)]
    mine = torch.autograd.grad(outputs[:2], (w_x, w_h, x, b_x, b_h, h), grads)
    inputs = (layer.weight_ih_l0, layer.weight_hh_l0, x, layer.bias_ih_l0, layer.bias_hh_l0, h)
    torchs = torch.autograd.grad((expected, last), inputs, (grads[0], grads[1][-1:]))
    plain = [each.detach() for each in (x, w_x, w_h, b_x, b_h)]
    backward = npu.npu_gru_backward(*grads, *plain, lengths, state.detach(), *(each.detach() for each in outputs))
    assert backward[5].shape == state.shape
    for index, (one, other, third) in enumerate(zip(mine, torchs, backward, strict=True)):
        turned = other.t() if index < 2 else other
        torch.testing.assert_close(one, turned, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third.reshape(turned.shape), turned, rtol=1e-4, atol=1e-5)


def stack(kind, layers, bidirectional, bias, batch_first):
    layer = kind(F, H, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
    runs = layers * (2 if bidirectional else 1)
    x = drawn(*((B, T) if batch_first else (T, B)), F).requires_grad_()
    states = [drawn(runs, B, H, seed=seed).requires_grad_() for seed in range(2 if kind is torch.nn.LSTM else 1)]
    flags = (bias, layers, 0.0, True, bidirectional)
    return layer, x, states, [each.detach().clone().requires_grad_() for each in layer._flat_weights], flags


STACKS = [(1, False, True, False), (2, False, False, True), (2, True, True, False), (3, True, True, True)]


@pytest.mark.parametrize(("layers", "bidirectional", "bias", "batch_first"), STACKS)
def test_lstm_stack_is_torchs(layers, bidirectional, bias, batch_first):
    layer, x, (h, c), params, flags = stack(torch.nn.LSTM, layers, bidirectional, bias, batch_first)
    outputs = npu._lstm_npu(x, [h, c], params, *flags, batch_first=batch_first)
    runs = h.shape[0]
    assert [list(each.shape) for each in outputs[3:]] == [[runs, T, B, H]] * 7
    expected, (last_h, last_c) = layer(x, (h, c))
    for got, want in zip(outputs, (expected, last_h, last_c), strict=False):
        torch.testing.assert_close(got, want)
    grads = [drawn(*each.shape, seed=9) for each in outputs[:3]]
    mine = torch.autograd.grad(outputs[:3], (x, h, c, *params), grads)
    torchs = torch.autograd.grad((expected, last_h, last_c), (x, h, c, *layer._flat_weights), grads)
    plain = [each.detach() for each in (x, h, c)]
    saved = [each.detach() for each in outputs[3:]]
    grad_x, grad_hx, grad_params = npu._lstm_npu_backward(
        *grads, plain[0], plain[1:], [each.detach() for each in params], *saved, *flags, batch_first=batch_first
    )
    for one, other, third in zip(mine, torchs, (grad_x, *grad_hx, *grad_params), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layers", "bidirectional", "bias", "batch_first"), STACKS)
def test_gru_stack_is_torchs(layers, bidirectional, bias, batch_first):
    layer, x, (h,), params, flags = stack(torch.nn.GRU, layers, bidirectional, bias, batch_first)
    outputs = npu._gru_npu(x, h, params, *flags, batch_first=batch_first)
    assert [list(each.shape) for each in outputs[2:]] == [[h.shape[0], T, B, H]] * 5
    expected, last = layer(x, h)
    torch.testing.assert_close(outputs[0], expected)
    torch.testing.assert_close(outputs[1], last)
    grads = [drawn(*each.shape, seed=9) for each in outputs[:2]]
    mine = torch.autograd.grad(outputs[:2], (x, h, *params), grads)
    torchs = torch.autograd.grad((expected, last), (x, h, *layer._flat_weights), grads)
    grad_x, grad_h, grad_params = npu._gru_npu_backward(
        *grads, x.detach(), h.detach(), [each.detach() for each in params], *(each.detach() for each in outputs[2:]),
        *flags, batch_first=batch_first,
    )  # fmt: skip
    for one, other, third in zip(mine, torchs, (grad_x, grad_h, *grad_params), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third, other, rtol=1e-4, atol=1e-5)


def test_lstm_stack_of_several_lengths():
    layer, x, (h, c), params, flags = stack(torch.nn.LSTM, 2, True, True, False)
    sizes = torch.tensor([3, 2, 2, 1])
    lengths = [4, 3, 1]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    expected, (last_h, _) = layer(packed, (h, c))
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected)
    outputs = npu._lstm_npu(x.reshape(T * B, F), [h, c], params, *flags, batch_sizes=sizes)
    torch.testing.assert_close(outputs[0], expected)
    torch.testing.assert_close(outputs[1], last_h)
    grad = drawn(*expected.shape)
    torchs = torch.autograd.grad(expected, (x, h, *layer._flat_weights), grad)
    zeros = torch.zeros_like(h)
    plain = [each.detach() for each in (x.reshape(T * B, F), h, c)]
    grad_x, (grad_h, _), grad_params = npu._lstm_npu_backward(
        grad, zeros, zeros, plain[0], plain[1:], [each.detach() for each in params],
        *(each.detach() for each in outputs[3:]), *flags, batch_sizes=sizes,
    )  # fmt: skip
    for got, want in zip((grad_x.reshape(x.shape), grad_h, *grad_params), torchs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_stacks_without_training_keep_no_gates():
    _, x, (h, c), params, flags = stack(torch.nn.LSTM, 1, True, True, False)
    flags = (*flags[:3], False, flags[4])
    outputs = npu._lstm_npu(x, [h, c], params, *flags)
    assert [each is None for each in outputs] == [False] * 3 + [True] * 4 + [False] * 2 + [True]
    assert outputs[7].shape == outputs[8].shape == (2,)
    _, x, (h,), params, _ = stack(torch.nn.GRU, 1, True, True, False)
    assert [each is None for each in npu._gru_npu(x, h, params, *flags)] == [False] * 2 + [True] * 5


def test_refusals():
    _, (x, weight, bias, h, c) = lstm_arguments()
    with pytest.raises(RuntimeError, match=r"weight has shape \[7, 7\]"):
        lstm(x, weight[:, :7], bias, h, c)
    with pytest.raises(RuntimeError, match="a step at least"):
        lstm(x[:0], weight, bias, h, c)
    with pytest.raises(RuntimeError, match=r"seq_mask has shape \[4, 2, 2\]"):
        lstm(x, weight, bias, h, c, mask=torch.ones(4, 2, 2))
    with pytest.raises(RuntimeError, match="without b_hh"):
        npu.npu_lstm_cell(x[0], weight[:F], weight[F:], h[0], c[0], bias)
    with pytest.raises(RuntimeError, match="must have 2 dimensions"):
        npu.npu_lstm_cell(x, weight[:F], weight[F:], h[0], c[0])
    scalar, flags = torch.tensor(1.0), (True, 1, 0.0, True, False)
    with pytest.raises(RuntimeError, match="at least 1 dimensions"):
        npu.npu_gru(x, h, weight, weight, scalar, bias, bias, *FLAGS)
    params = [weight[:F].t(), weight[F:].t(), bias, bias]
    with pytest.raises(RuntimeError, match="one dtype for all"):
        npu._lstm_npu(x.bfloat16(), [h, c], params, *flags)
    with pytest.raises(RuntimeError, match="params has 3 tensors"):
        npu._lstm_npu(x, [h, c], params[:3], *flags)
    with pytest.raises(RuntimeError, match="must be divisible by time_step"):
        npu._lstm_npu(x.reshape(-1, F), [h, c], params, *flags, batch_sizes=torch.ones(5))
    with pytest.raises(RuntimeError, match="3 dimensions and a step"):
        npu._lstm_npu(x[0], [h, c], params, *flags)
    gru = [weight[:F, :6].t(), weight[F:, :6].t(), bias[:6], bias[:6]]
    with pytest.raises(RuntimeError, match="several lengths"):
        npu._gru_npu(x, h, gru, *flags, batch_sizes=torch.tensor([3, 2, 1, 1]))
