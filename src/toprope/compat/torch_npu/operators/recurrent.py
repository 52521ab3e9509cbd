"""Recurrent operators of one layer and direction: npu_lstm, npu_lstm_data, npu_lstm_cell and npu_gru.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_recurrent.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.

The weights are the transpose of torch.nn's; the gates of an LSTM come in the order i, f, j, o (torch: i, f, g, o),
those of a GRU in the order r, z, n. Values are computed in float32 and rounded to the input's dtype at the end.

Sources: op_plugin/ops/aclops/LstmKernelNpu.cpp, LstmCellKernelNpu.cpp and GruKernelNpu.cpp of Ascend/op-plugin;
rnn/dynamic_rnn of ops-nn.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .recurrent_steps import GruSteps, LstmSteps, gru_backward, gru_steps, lstm_backward, lstm_steps
from .registry import operator

__all__ = [
    "npu_gru",
    "npu_gru_backward",
    "npu_lstm",
    "npu_lstm_backward",
    "npu_lstm_cell",
    "npu_lstm_cell_backward",
    "npu_lstm_data",
    "npu_lstm_data_backward",
]

_Two = tuple[torch.Tensor, torch.Tensor]
_Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Six = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Seven = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Eight = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]


@operator("npu_lstm")
def npu_lstm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    seq_mask: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
) -> _Eight:
    """LSTM of one layer in one direction: c' = f * c + i * j, h' = o * tanh(c').

    Args:
        input: [T, B, I]; float16, bfloat16 or float32.
        weight: [I + H, 4H], the rows of the input first.
        bias: [4H], the sum of both biases. It counts whatever `has_biases` says.
        seq_mask: with `flag_seq`, [T, B, H] of the dtype float16, or lengths [B] of the dtype int32: where it is 0 the
            states stay and y is 0.
        h: first hidden state [1, B, H].
        c: first cell state [1, B, H].
        has_biases: without effect, as are num_layers, dropout, bidirectional and batch_first.
        num_layers: without effect.
        dropout: without effect.
        train: without effect on the values here; on the card the gates are not written without it.
        bidirectional: without effect.
        batch_first: without effect.
        flag_seq: whether `seq_mask` counts.
        direction: from the last step to the first one.

    Returns:
        y, h, c, i, j, f, o and tanh(c), each [T, B, H]. Only y, and h and c of the last step, have a gradient.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    mask = _mask("npu_lstm", seq_mask, input) if flag_seq else None
    return _lstm("npu_lstm", input, weight, bias, h, c, mask, direction)


@operator("npu_lstm_backward")
def npu_lstm_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    y_output: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
) -> _Five:
    """Gradients of npu_lstm without a mask.

    Args:
        grady: gradient of y [T, B, H]; None for 0.
        gradh: gradient of h [T, B, H], of which the last step counts; None for 0.
        gradc: gradient of c, likewise.
        input: as npu_lstm, with the other tensors that it takes.
        weight: as npu_lstm.
        bias: as npu_lstm.
        hx: first hidden state [1, B, H].
        cx: first cell state [1, B, H].
        y_output: the results of npu_lstm, in their order.
        h_output: the same.
        c_output: the same.
        i: the same.
        j: the same.
        f: the same.
        o: the same.
        tanhc: the same.

    Returns:
        gradients of input, weight, bias, hx and cx.
    """
    steps = LstmSteps(y_output, h_output, c_output, i, j, f, o, tanhc)
    return _lstm_gradients(grady, gradh, gradc, input, weight, bias, hx, cx, steps, None, False)


@operator("npu_lstm_data")
def npu_lstm_data(
    input: torch.Tensor,
    batch_sizes: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    seq_mask: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
) -> _Eight:
    """npu_lstm for sequences of several lengths, which have been padded.

    Args:
        input: as npu_lstm; so are the other arguments and the results.
        batch_sizes: [T], the number of sequences at each step, in falling order. Only the gradient needs it.
        weight: as npu_lstm.
        bias: as npu_lstm.
        seq_mask: as npu_lstm.
        h: as npu_lstm.
        c: as npu_lstm.
        has_biases: without effect.
        num_layers: without effect.
        dropout: without effect.
        train: without effect.
        bidirectional: without effect.
        batch_first: without effect.
        flag_seq: whether `seq_mask` counts.
        direction: from the last step to the first one.
    """
    mask = _mask("npu_lstm_data", seq_mask, input) if flag_seq else None
    return _lstm("npu_lstm_data", input, weight, bias, h, c, mask, direction)


@operator("npu_lstm_data_backward")
def npu_lstm_data_backward(
    grady_opt: torch.Tensor | None,
    gradh_opt: torch.Tensor | None,
    gradc_opt: torch.Tensor | None,
    input: torch.Tensor,
    batch_sizes: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    init_h: torch.Tensor,
    init_c: torch.Tensor,
    y: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
    flag_direction: bool,
) -> _Five:
    """Gradients of npu_lstm_data, with the mask that `batch_sizes` gives.

    Args:
        grady_opt: gradient of y [T, B, H]; None for 0.
        gradh_opt: gradient of h [T, B, H], of which the last step counts; None for 0.
        gradc_opt: gradient of c, likewise.
        input: as npu_lstm_data, with the other tensors that it takes.
        batch_sizes: as npu_lstm_data.
        weight: as npu_lstm_data.
        bias: as npu_lstm_data.
        init_h: first hidden state [1, B, H].
        init_c: first cell state [1, B, H].
        y: the results of npu_lstm_data, in their order.
        h: the same.
        c: the same.
        i: the same.
        j: the same.
        f: the same.
        o: the same.
        tanhc: the same.
        flag_direction: whether it went from the last step to the first one.

    Returns:
        gradients of input, weight, bias, init_h and init_c.
    """
    mask = sequence_mask(batch_sizes, input)
    steps = LstmSteps(y, h, c, i, j, f, o, tanhc)
    return _lstm_gradients(
        grady_opt, gradh_opt, gradc_opt, input, weight, bias, init_h, init_c, steps, mask, flag_direction
    )


@operator("npu_lstm_cell")
def npu_lstm_cell(
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> _Eight:
    """One step of an LSTM: c' = f * c + i * j, h' = o * tanh(c').

    Args:
        input: [B, I]; float16, bfloat16 or float32.
        w_ih: [I, 4H].
        w_hh: [H, 4H].
        h: hidden state [B, H].
        c: cell state [B, H].
        b_ih: [4H]. Both biases or neither.
        b_hh: [4H].

    Returns:
        y [1, B, H], h and c [B, H], and i, j, f, o and tanh(c) [1, B, H]. Only the first three have a gradient.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take, or one bias without the other.
    """
    floating("npu_lstm_cell", input=input, w_ih=w_ih, w_hh=w_hh, h=h, c=c)
    if input.dim() != 2 or h.dim() != 2 or c.dim() != 2:
        refuse("npu_lstm_cell", f"input {list(input.shape)}, h and c must have 2 dimensions")
    if b_ih is not None and b_hh is None:
        refuse("npu_lstm_cell", "b_ih is given without b_hh; their sum is the bias")
    dtype = compute_dtype(input)
    bias = None if b_ih is None or b_hh is None else (b_ih + b_hh).to(input.dtype).to(dtype)
    first = (tensor.to(dtype) for tensor in (w_ih, w_hh))
    weight_x, weight_h = first
    steps = lstm_steps(input.to(dtype).unsqueeze(0), weight_x, weight_h, bias, h.to(dtype), c.to(dtype))
    y, h_out, c_out, *gates = (tensor.to(input.dtype) for tensor in steps)
    i, j, f, o, tanhc = (gate.detach() for gate in gates)
    return y, h_out[0], c_out[0], i, j, f, o, tanhc


@operator("npu_lstm_cell_backward")
def npu_lstm_cell_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    y_output: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
) -> _Seven:
    """Gradients of npu_lstm_cell.

    Args:
        grady: gradient of y [1, B, H]; None for 0.
        gradh: gradient of h [B, H]; None for 0.
        gradc: gradient of c [B, H]; None for 0.
        input: as npu_lstm_cell, with the other tensors that it takes.
        w_ih: as npu_lstm_cell.
        w_hh: as npu_lstm_cell.
        h: as npu_lstm_cell.
        c: as npu_lstm_cell.
        y_output: the results of npu_lstm_cell, in their order.
        h_output: the same.
        c_output: the same.
        i: the same.
        j: the same.
        f: the same.
        o: the same.
        tanhc: the same.

    Returns:
        gradients of input, w_ih, w_hh, b_ih, b_hh, h and c.
    """
    dtype = compute_dtype(input)
    steps = LstmSteps(
        *(part.to(dtype) for part in (y_output, h_output.unsqueeze(0), c_output.unsqueeze(0), i, j, f, o, tanhc))
    )
    x, w_x, w_h, h_in, c_in = (tensor.to(dtype) for tensor in (input.unsqueeze(0), w_ih, w_hh, h, c))
    grads = lstm_backward(
        torch.zeros_like(steps.y) if grady is None else grady.to(dtype),
        torch.zeros_like(h_in) if gradh is None else gradh.to(dtype),
        torch.zeros_like(c_in) if gradc is None else gradc.to(dtype),
        x, w_x, w_h, h_in, c_in, steps,
    )  # fmt: skip
    grad_x, grad_wx, grad_wh, grad_bias, grad_h, grad_c = grads
    bias = grad_bias.to(i.dtype)
    return (
        grad_x[0].to(input.dtype), grad_wx.to(w_ih.dtype), grad_wh.to(w_hh.dtype), bias, bias.clone(),
        grad_h.to(h.dtype), grad_c.to(c.dtype),
    )  # fmt: skip


@operator("npu_gru")
def npu_gru(
    input: torch.Tensor,
    hx: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias_input: torch.Tensor,
    bias_hidden: torch.Tensor,
    seq_length: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> _Six:
    """GRU of one layer in one direction: n = tanh(x_n + r * h_n), h' = (1 - z) * n + z * h.

    Args:
        input: [T, B, I]; float16, bfloat16 or float32.
        hx: first hidden state [1, B, H] or [B, H].
        weight_input: [I, 3H].
        weight_hidden: [H, 3H].
        bias_input: [3H], whose dtype the results have. It counts whatever `has_biases` says.
        bias_hidden: [3H].
        seq_length: without effect, as are the arguments after it.
        has_biases: without effect.
        num_layers: without effect.
        dropout: without effect.
        train: without effect.
        bidirectional: without effect.
        batch_first: without effect.

    Returns:
        y, h, the update gate z, the reset gate r, n, and the share of the hidden state in n before the reset gate,
        each [T, B, H]. Only y, and h of the last step, have a gradient.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    if bias_input.dim() < 1:
        raise RuntimeError("hx must have at least 1 dimensions" + ops_error(ErrCode.PARAM))
    weights = {"weight_input": weight_input, "weight_hidden": weight_hidden}
    floating("npu_gru", input=input, hx=hx, bias_input=bias_input, bias_hidden=bias_hidden, **weights)
    _sequence("npu_gru", input)
    dtype = compute_dtype(input)
    x, w_x, w_h, b_x, b_h = (
        tensor.to(dtype) for tensor in (input, weight_input, weight_hidden, bias_input, bias_hidden)
    )
    steps = gru_steps(x, w_x, w_h, b_x, b_h, _state(hx).to(dtype))
    y, update, reset, new, hidden_new = (tensor.to(bias_input.dtype) for tensor in steps)
    return y, _last_only(y), update.detach(), reset.detach(), new.detach(), hidden_new.detach()


@operator("npu_gru_backward")
def npu_gru_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    input: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias_input: torch.Tensor,
    bias_hidden: torch.Tensor,
    seq_length: torch.Tensor,
    hx: torch.Tensor,
    y_output: torch.Tensor,
    h_output: torch.Tensor,
    output_updata: torch.Tensor,
    output_reset: torch.Tensor,
    output_new: torch.Tensor,
    hidden_new: torch.Tensor,
) -> _Six:
    """Gradients of npu_gru.

    Args:
        grady: gradient of y [T, B, H]; None for 0.
        gradh: gradient of h [T, B, H], of which the last step counts; None for 0.
        input: as npu_gru, with the other tensors that it takes.
        weight_input: as npu_gru.
        weight_hidden: as npu_gru.
        bias_input: as npu_gru.
        bias_hidden: as npu_gru.
        seq_length: without effect.
        hx: as npu_gru.
        y_output: the results of npu_gru, in their order.
        h_output: the same.
        output_updata: the same.
        output_reset: the same.
        output_new: the same.
        hidden_new: the same.

    Returns:
        gradients of weight_input, weight_hidden, input, bias_input, bias_hidden and hx.
    """
    dtype = compute_dtype(input)
    steps = GruSteps(*(part.to(dtype) for part in (h_output, output_updata, output_reset, output_new, hidden_new)))
    x, w_x, w_h, h = (tensor.to(dtype) for tensor in (input, weight_input, weight_hidden, _state(hx)))
    grad_y = torch.zeros_like(steps.y) if grady is None else grady.to(dtype)
    grad_h = torch.zeros_like(h) if gradh is None else gradh[-1].to(dtype)
    grad_x, grad_wx, grad_wh, grad_bx, grad_bh, grad_hx = gru_backward(grad_y, grad_h, x, w_x, w_h, h, steps)
    return (
        grad_wx.to(input.dtype), grad_wh.to(input.dtype), grad_x.to(input.dtype), grad_bx.to(input.dtype),
        grad_bh.to(input.dtype), grad_hx.reshape(hx.shape).to(input.dtype),
    )  # fmt: skip


def sequence_mask(batch_sizes: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Mask [T, B, 1] that is 1 where a step of a sequence is not padding, from the number of sequences at each step."""
    sizes = batch_sizes.to(device=input.device).reshape(-1, 1)
    rows = torch.arange(input.shape[1], device=input.device).reshape(1, -1)
    return (rows < sizes).unsqueeze(-1).to(compute_dtype(input))


def _mask(operator_name: str, seq_mask: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    if seq_mask.dim() == 1 and not seq_mask.is_floating_point():
        steps = torch.arange(input.shape[0], device=input.device).reshape(-1, 1)
        return (steps < seq_mask.reshape(1, -1)).unsqueeze(-1).to(compute_dtype(input))
    if seq_mask.dim() != 3 or seq_mask.shape[:2] != input.shape[:2]:
        refuse(operator_name, f"seq_mask has shape {list(seq_mask.shape)}; it must be [T, B, H], or lengths [B]")
    return seq_mask.to(compute_dtype(input))


def _sequence(operator_name: str, input: torch.Tensor) -> None:
    if input.dim() != 3 or input.shape[0] == 0:
        refuse(operator_name, f"input has shape {list(input.shape)}; it must be [T, B, I] with a step at least")


def _state(tensor: torch.Tensor) -> torch.Tensor:
    """A state [1, B, H] or [B, H] as [B, H]."""
    return tensor.squeeze(0) if tensor.dim() == 3 else tensor


def _last_only(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, of which only the last step has a gradient: the backward kernel reads no other."""
    return torch.cat((tensor[:-1].detach(), tensor[-1:]))


def _lstm(
    operator_name: str,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    mask: torch.Tensor | None,
    reverse: bool,
) -> _Eight:
    floating(operator_name, input=input, weight=weight, bias=bias, h=h, c=c)
    _sequence(operator_name, input)
    features, hidden = input.shape[2], bias.shape[0] // 4
    if list(weight.shape) != [features + hidden, 4 * hidden]:
        found = f"weight has shape {list(weight.shape)}"
        refuse(operator_name, f"{found}; with {features} features and a bias of {bias.shape[0]} it must be "
               f"[{features + hidden}, {4 * hidden}]")  # fmt: skip
    dtype = compute_dtype(input)
    wide = weight.to(dtype)
    steps = lstm_steps(
        input.to(dtype), wide[:features], wide[features:], bias.to(dtype), _state(h).to(dtype), _state(c).to(dtype),
        mask=mask, reverse=reverse,
    )  # fmt: skip
    y, h_out, c_out, *gates = (tensor.to(input.dtype) for tensor in steps)
    i, j, f, o, tanhc = (gate.detach() for gate in gates)
    if reverse:
        # The backward operator reads the gradient of the step that was first here.
        return y, h_out.detach(), c_out.detach(), i, j, f, o, tanhc
    return y, _last_only(h_out), _last_only(c_out), i, j, f, o, tanhc


def _lstm_gradients(
    grad_y: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    grad_c: torch.Tensor | None,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    steps: LstmSteps,
    mask: torch.Tensor | None,
    reverse: bool,
) -> _Five:
    dtype, features = compute_dtype(input), input.shape[2]
    x, wide, h, c = (tensor.to(dtype) for tensor in (input, weight, _state(hx), _state(cx)))
    steps = LstmSteps(*(part.to(dtype) for part in steps))
    grad_x, grad_wx, grad_wh, grad_bias, grad_hx, grad_cx = lstm_backward(
        torch.zeros_like(steps.y) if grad_y is None else grad_y.to(dtype),
        torch.zeros_like(h) if grad_h is None else grad_h[-1].to(dtype),
        torch.zeros_like(c) if grad_c is None else grad_c[-1].to(dtype),
        x, wide[:features], wide[features:], h, c, steps, mask=mask, reverse=reverse,
    )  # fmt: skip
    grad_weight = torch.cat((grad_wx, grad_wh)).to(weight.dtype)
    states = (grad.unsqueeze(0).to(state.dtype) for grad, state in ((grad_hx, hx), (grad_cx, cx)))
    grad_first_h, grad_first_c = states
    return grad_x.to(input.dtype), grad_weight, grad_bias.to(bias.dtype), grad_first_h, grad_first_c
