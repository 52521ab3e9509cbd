"""Stacks of recurrent layers in one or both directions: _lstm_npu and _gru_npu, which torch.nn.LSTM and GRU become.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_recurrent.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.

The parameters are torch.nn's, flat: for each layer and direction weight_ih, weight_hh and, with biases, bias_ih and
bias_hh. There is no dropout between the layers: the kernels ignore it.

Sources: op_plugin/ops/opapi/LSTMKernelNpuOpApi.cpp, GRUKernelNpuOpApi.cpp and those of their backward passes, and
op_plugin/utils/KernelNpuOutputSize.cpp of Ascend/op-plugin; rnn/dynamic_rnn/docs/aclnnLSTM.md and
rnn/gru/docs/aclnnGRU.md of ops-nn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, refuse
from .recurrent import sequence_mask
from .recurrent_steps import GruSteps, LstmSteps, gru_backward, gru_steps, lstm_backward, lstm_steps
from .registry import operator

__all__ = ["_gru_npu", "_gru_npu_backward", "_lstm_npu", "_lstm_npu_backward"]

_Optional = torch.Tensor | None
_DTYPES = (torch.float16, torch.float32)


class _Weights(NamedTuple):
    """Transposed weights and biases of one layer and direction, in float32."""

    x: torch.Tensor
    h: torch.Tensor
    bias_x: torch.Tensor | None
    bias_h: torch.Tensor | None

    @property
    def bias(self) -> torch.Tensor | None:
        """Sum of the biases."""
        return None if self.bias_x is None or self.bias_h is None else self.bias_x + self.bias_h


def _weights(params: Sequence[torch.Tensor], has_biases: bool, index: int) -> _Weights:
    count = 4 if has_biases else 2
    w_x, w_h, *biases = (tensor.to(compute_dtype(tensor)) for tensor in params[index * count : (index + 1) * count])
    bias_x, bias_h = biases if has_biases else (None, None)
    return _Weights(w_x.transpose(0, 1), w_h.transpose(0, 1), bias_x, bias_h)


def _check(
    operator_name: str,
    tensors: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> int:
    """Refuse dtypes and lists that the kernel does not take; the number of layers times directions."""
    for tensor in (*tensors, *params):
        if tensor.dtype not in _DTYPES or tensor.dtype != tensors[0].dtype:
            found = f"a tensor is {tensor.dtype} and the input {tensors[0].dtype}"
            refuse(operator_name, f"{found}; the kernel takes float16 and float32, and one dtype for all")
    runs = num_layers * (2 if bidirectional else 1)
    if num_layers < 1 or len(params) != runs * (4 if has_biases else 2):
        refuse(operator_name, f"params has {len(params)} tensors, which are not those of {num_layers} layers")
    return runs


def _steps_of(input: torch.Tensor, batch_first: bool | None, batch_sizes: _Optional) -> torch.Tensor:
    """The input as [T, B, I], in float32."""
    wide = input.to(compute_dtype(input))
    if batch_sizes is None or batch_sizes.numel() == 0:
        if input.dim() != 3 or input.shape[1 if batch_first else 0] == 0:
            raise RuntimeError(
                f"The input must have 3 dimensions and a step at least, but got {list(input.shape)}."
                + ops_error(ErrCode.PARAM)
            )
        return wide.transpose(0, 1) if batch_first else wide
    steps = batch_sizes.shape[0]
    if steps == 0 or input.shape[0] % steps:
        raise RuntimeError(
            "The input batch_sizes is invalid, time_step must > 0 and input.size(0) must be divisible by time_step, "
            f"but got time_step={steps}, input_size0={input.shape[0]}, batch_sizes_shape={list(batch_sizes.shape)}"
            + ops_error(ErrCode.PARAM)
        )
    return wide.reshape(steps, input.shape[0] // steps, -1)


def _first(states: torch.Tensor, index: int) -> torch.Tensor:
    return states[index].to(compute_dtype(states))


def _last(states: torch.Tensor, reverse: bool) -> torch.Tensor:
    return states[0] if reverse else states[-1]


def _run_lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    runs: int,
    directions: int,
    mask: _Optional,
) -> tuple[torch.Tensor, list[LstmSteps]]:
    layer, found = input, list[LstmSteps]()
    for start in range(0, runs, directions):
        outputs = []
        for index in range(start, start + directions):
            weights = _weights(params, has_biases, index)
            steps = lstm_steps(
                layer, weights.x, weights.h, weights.bias, _first(hx[0], index), _first(hx[1], index),
                mask=mask, reverse=index > start,
            )  # fmt: skip
            found.append(steps)
            outputs.append(steps.y)
        layer = torch.cat(outputs, -1)
    return layer, found


@operator("_lstm_npu")
def _lstm_npu(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, _Optional, _Optional, _Optional, _Optional, torch.Tensor, torch.Tensor,
    _Optional,
]:  # fmt: skip
    """LSTM of several layers, in one or both directions.

    Args:
        input: [T, B, I], or [B, T, I] with `batch_first`; with `batch_sizes` padded steps [T * B, I]; float16 or
            float32.
        hx: first hidden and cell states, each [L * D, B, H] with D = 2 for both directions.
        params: weights and biases, as torch.nn.LSTM has them.
        has_biases: whether `params` has biases.
        num_layers: L.
        dropout: without effect.
        train: whether the gates are given.
        bidirectional: whether both directions run.
        batch_first: order of the axes of input and output.
        batch_sizes: [T], the number of sequences at each step, in falling order.

    Returns:
        y [T, B, D * H] (or [B, T, D * H]), the last h and c [L * D, B, H], and i, j, f, o, h, c and tanh(c) of every
        step [L * D, T, B, H]. Without `train` the gates are None, and h and c hold L * D zeros. Only the first three
        have a gradient.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    runs = _check("_lstm_npu", (input, *hx), params, has_biases, num_layers, bidirectional)
    x = _steps_of(input, batch_first, batch_sizes)
    mask = None if batch_sizes is None or batch_sizes.numel() == 0 else sequence_mask(batch_sizes, x)
    directions = 2 if bidirectional else 1
    y, found = _run_lstm(x, hx, params, has_biases, runs, directions, mask)
    backwards = [bool(index % directions) for index in range(runs)]
    last_h = torch.stack([_last(steps.h, back) for steps, back in zip(found, backwards, strict=True)]).to(input.dtype)
    last_c = torch.stack([_last(steps.c, back) for steps, back in zip(found, backwards, strict=True)]).to(input.dtype)
    y = (y.transpose(0, 1).contiguous() if batch_first and mask is None else y).to(input.dtype)
    if not train:
        nothing = input.new_zeros(runs)
        return y, last_h, last_c, None, None, None, None, nothing, nothing.clone(), None
    i, j, f, o, h, c, tanhc = (
        torch.stack([getattr(steps, name) for steps in found]).detach().to(input.dtype)
        for name in ("i", "j", "f", "o", "h", "c", "tanhc")
    )
    return y, last_h, last_c, i, j, f, o, h, c, tanhc


@operator("_lstm_npu_backward")
def _lstm_npu_backward(
    grad_y: torch.Tensor,
    grad_hy: torch.Tensor,
    grad_cy: torch.Tensor,
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    tanhc: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Gradients of _lstm_npu.

    Args:
        grad_y: gradient of y.
        grad_hy: gradient of the last hidden states.
        grad_cy: gradient of the last cell states.
        input: as _lstm_npu; so are the other arguments.
        hx: as _lstm_npu.
        params: as _lstm_npu.
        i: result of _lstm_npu with `train`.
        j: the same.
        f: the same.
        o: the same.
        h: the same.
        c: the same.
        tanhc: the same.
        has_biases: as _lstm_npu.
        num_layers: as _lstm_npu.
        dropout: as _lstm_npu.
        train: as _lstm_npu.
        bidirectional: as _lstm_npu.
        batch_first: as _lstm_npu.
        batch_sizes: as _lstm_npu.

    Returns:
        gradients of input, hx and params.
    """
    runs = _check("_lstm_npu_backward", (input, *hx), params, has_biases, num_layers, bidirectional)
    dtype, directions = compute_dtype(input), 2 if bidirectional else 1
    x = _steps_of(input, batch_first, batch_sizes)
    packed = batch_sizes is not None and batch_sizes.numel() > 0
    mask = sequence_mask(batch_sizes, x) if packed and batch_sizes is not None else None
    gates = [LstmSteps(*(each[run].to(dtype) for each in (h, h, c, i, j, f, o, tanhc))) for run in range(runs)]
    grad = grad_y.to(dtype)
    grad = grad.transpose(0, 1) if batch_first and not packed else grad
    grad_params: list[torch.Tensor] = [torch.empty(0)] * len(params)
    grad_h: list[torch.Tensor] = [torch.empty(0)] * runs
    grad_c: list[torch.Tensor] = [torch.empty(0)] * runs
    for start in range(runs - directions, -1, -directions):
        below = [
            gates[index].y if mask is None else gates[index].y * mask for index in range(start - directions, start)
        ]
        layer = torch.cat(below, -1) if start else x
        total = torch.zeros_like(layer)
        for index, part in zip(range(start, start + directions), grad.chunk(directions, -1), strict=True):
            weights = _weights(params, has_biases, index)
            grad_x, grad_wx, grad_wh, grad_bias, grad_h[index], grad_c[index] = lstm_backward(
                part, _first(grad_hy, index), _first(grad_cy, index), layer, weights.x, weights.h,
                _first(hx[0], index), _first(hx[1], index), gates[index], mask=mask, reverse=index > start,
            )  # fmt: skip
            _put(grad_params, has_biases, index, grad_wx, grad_wh, grad_bias, grad_bias)
            total = total + grad_x
        grad = total
    states = [torch.stack(each).to(input.dtype) for each in (grad_h, grad_c)]
    return _as_input(grad, input, batch_first, packed), states, [each.to(input.dtype) for each in grad_params]


@operator("_gru_npu")
def _gru_npu(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, _Optional, _Optional, _Optional, _Optional, _Optional]:
    """GRU of several layers, in one or both directions.

    Args:
        input: [T, B, I], or [B, T, I] with `batch_first`; float16 or float32.
        hx: first hidden states [L * D, B, H] with D = 2 for both directions.
        params: weights and biases, as torch.nn.GRU has them.
        has_biases: whether `params` has biases.
        num_layers: L.
        dropout: without effect.
        train: whether the gates are given.
        bidirectional: whether both directions run.
        batch_first: order of the axes of input and output.
        batch_sizes: None; the kernel does not take sequences of several lengths.

    Returns:
        y [T, B, D * H] (or [B, T, D * H]), the last h [L * D, B, H], and r, z, n, the share of the hidden state in n,
        and h of every step [L * D, T, B, H]; None instead of these five without `train`. Only the first two have a
        gradient.

    Raises:
        RuntimeError: `batch_sizes`, or a dtype or a shape that the kernel does not take.
    """
    runs = _check("_gru_npu", (input, hx), params, has_biases, num_layers, bidirectional)
    if batch_sizes is not None and batch_sizes.numel() > 0:
        refuse("_gru_npu", "batch_sizes is given; the kernel does not take sequences of several lengths (aclnnGRU.md)")
    layer = _steps_of(input, batch_first, None)
    directions, found, last = 2 if bidirectional else 1, list[GruSteps](), list[torch.Tensor]()
    for start in range(0, runs, directions):
        outputs = []
        for index in range(start, start + directions):
            weights = _weights(params, has_biases, index)
            steps = gru_steps(
                layer, weights.x, weights.h, weights.bias_x, weights.bias_h, _first(hx, index), reverse=index > start
            )
            found.append(steps)
            outputs.append(steps.y)
            last.append(_last(steps.y, index > start))
        layer = torch.cat(outputs, -1)
    y = (layer.transpose(0, 1).contiguous() if batch_first else layer).to(input.dtype)
    last_h = torch.stack(last).to(input.dtype)
    if not train:
        return y, last_h, None, None, None, None, None
    r, z, n, h_n, h = (
        torch.stack([getattr(steps, name) for steps in found]).detach().to(input.dtype)
        for name in ("reset", "update", "new", "hidden_new", "y")
    )
    return y, last_h, r, z, n, h_n, h


@operator("_gru_npu_backward")
def _gru_npu_backward(
    grad_y: torch.Tensor,
    grad_h: torch.Tensor,
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    r: torch.Tensor,
    z: torch.Tensor,
    n: torch.Tensor,
    h_n: torch.Tensor,
    h: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Gradients of _gru_npu.

    Args:
        grad_y: gradient of y.
        grad_h: gradient of the last hidden states.
        input: as _gru_npu; so are the other arguments.
        hx: as _gru_npu.
        params: as _gru_npu.
        r: result of _gru_npu with `train`.
        z: the same.
        n: the same.
        h_n: the same.
        h: the same.
        has_biases: as _gru_npu.
        num_layers: as _gru_npu.
        dropout: as _gru_npu.
        train: as _gru_npu.
        bidirectional: as _gru_npu.
        batch_first: as _gru_npu.
        batch_sizes: as _gru_npu.

    Returns:
        gradients of input, hx and params.
    """
    runs = _check("_gru_npu_backward", (input, hx), params, has_biases, num_layers, bidirectional)
    dtype, directions = compute_dtype(input), 2 if bidirectional else 1
    x = _steps_of(input, batch_first, None)
    gates = [GruSteps(*(each[run].to(dtype) for each in (h, z, r, n, h_n))) for run in range(runs)]
    grad = grad_y.to(dtype).transpose(0, 1) if batch_first else grad_y.to(dtype)
    grad_params: list[torch.Tensor] = [torch.empty(0)] * len(params)
    grad_first: list[torch.Tensor] = [torch.empty(0)] * runs
    for start in range(runs - directions, -1, -directions):
        layer = torch.cat([gates[index].y for index in range(start - directions, start)], -1) if start else x
        total = torch.zeros_like(layer)
        for index, part in zip(range(start, start + directions), grad.chunk(directions, -1), strict=True):
            weights = _weights(params, has_biases, index)
            grad_x, grad_wx, grad_wh, grad_bx, grad_bh, grad_first[index] = gru_backward(
                part, _first(grad_h, index), layer, weights.x, weights.h, _first(hx, index), gates[index],
                reverse=index > start,
            )  # fmt: skip
            _put(grad_params, has_biases, index, grad_wx, grad_wh, grad_bx, grad_bh)
            total = total + grad_x
        grad = total
    first = torch.stack(grad_first).to(input.dtype)
    return _as_input(grad, input, batch_first, False), first, [each.to(input.dtype) for each in grad_params]


def _put(
    grads: list[torch.Tensor],
    has_biases: bool,
    index: int,
    grad_wx: torch.Tensor,
    grad_wh: torch.Tensor,
    grad_bx: torch.Tensor,
    grad_bh: torch.Tensor,
) -> None:
    """Lay the gradients of one layer and direction where its parameters are."""
    found = [grad_wx.transpose(0, 1).contiguous(), grad_wh.transpose(0, 1).contiguous()]
    if has_biases:
        found += [grad_bx, grad_bh.clone()]
    grads[index * len(found) : (index + 1) * len(found)] = found


def _as_input(grad: torch.Tensor, input: torch.Tensor, batch_first: bool | None, packed: bool) -> torch.Tensor:
    if packed:
        return grad.reshape(input.shape).to(input.dtype)
    return (grad.transpose(0, 1).contiguous() if batch_first else grad).to(input.dtype)
