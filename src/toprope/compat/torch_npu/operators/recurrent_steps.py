"""Recurrences of LSTM and GRU over time, forward and backward, in float32.

Used by recurrent.py and recurrent_layers.py. All tensors are [time, batch, features]; weights are [features, gates *
hidden], the transpose of torch.nn's. The backward functions read the gates that the forward ones return, as the kernels
do. The order of the gates is the kernels'. Tests: tests/compat/operators/test_recurrent.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["GruSteps", "LstmSteps", "gru_backward", "gru_steps", "lstm_backward", "lstm_steps"]


class LstmSteps(NamedTuple):
    """Results of every step, each [T, B, H].

    Attributes:
        y: output; 0 where the mask is 0.
        h: hidden state.
        c: cell state.
        i: input gate.
        j: new values of the cell.
        f: forget gate.
        o: output gate.
        tanhc: tanh of the cell state.
    """

    y: torch.Tensor
    h: torch.Tensor
    c: torch.Tensor
    i: torch.Tensor
    j: torch.Tensor
    f: torch.Tensor
    o: torch.Tensor
    tanhc: torch.Tensor


class GruSteps(NamedTuple):
    """Results of every step, each [T, B, H].

    Attributes:
        y: output, which is the hidden state.
        update: update gate z.
        reset: reset gate r.
        new: new values n.
        hidden_new: share of the hidden state in n before the reset gate.
    """

    y: torch.Tensor
    update: torch.Tensor
    reset: torch.Tensor
    new: torch.Tensor
    hidden_new: torch.Tensor


def lstm_steps(
    x: torch.Tensor,
    weight_x: torch.Tensor,
    weight_h: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
) -> LstmSteps:
    """LSTM: c' = f * c + i * j, h' = o * tanh(c').

    Args:
        x: input [T, B, I].
        weight_x: [I, 4H], gates in the order i, f, j, o.
        weight_h: [H, 4H].
        bias: [4H], or None.
        h: first hidden state [B, H].
        c: first cell state [B, H].
        mask: [T, B, H] or [T, B, 1]; where it is 0 the states stay and the output is 0.
        reverse: from the last step to the first one.
    """
    projected = x @ weight_x if bias is None else x @ weight_x + bias
    steps: list[tuple[torch.Tensor, ...]] = []
    for time in _order(x.shape[0], reverse):
        i, f, j, o = (projected[time] + h @ weight_h).chunk(4, -1)
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        keep = None if mask is None else mask[time]
        c = _chosen(f * c + i * j, c, keep)
        tanhc = c.tanh()
        y = o * tanhc
        h = _chosen(y, h, keep)
        steps.append((y if keep is None else y * keep, h, c, i, j, f, o, tanhc))
    return LstmSteps(*_stacked(steps, reverse))


def lstm_backward(
    grad_y: torch.Tensor,
    grad_h: torch.Tensor,
    grad_c: torch.Tensor,
    x: torch.Tensor,
    weight_x: torch.Tensor,
    weight_h: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    steps: LstmSteps,
    *,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `lstm_steps`.

    Args:
        grad_y: gradient of the outputs [T, B, H].
        grad_h: gradient of the last hidden state [B, H].
        grad_c: gradient of the last cell state [B, H].
        x: as forward.
        weight_x: as forward.
        weight_h: as forward.
        h: as forward.
        c: as forward.
        steps: results of the forward pass.
        mask: as forward.
        reverse: as forward.

    Returns:
        gradients of x, weight_x, weight_h, the bias, h and c.
    """
    order = list(_order(x.shape[0], reverse))
    gates: dict[int, torch.Tensor] = {}
    grad_weight_h = torch.zeros_like(weight_h)
    for position in reversed(range(len(order))):
        time = order[position]
        h_before, c_before = (steps.h[order[position - 1]], steps.c[order[position - 1]]) if position else (h, c)
        i, j, f, o, tanhc = steps.i[time], steps.j[time], steps.f[time], steps.o[time], steps.tanhc[time]
        keep = None if mask is None else mask[time]
        whole = grad_h + grad_y[time]
        new = whole if keep is None else whole * keep
        grad_c = grad_c + new * o * (1 - tanhc * tanhc)
        cell = grad_c if keep is None else grad_c * keep
        parts = (
            cell * j * i * (1 - i),
            cell * c_before * f * (1 - f),
            cell * i * (1 - j * j),
            new * tanhc * o * (1 - o),
        )
        gates[time] = torch.cat(parts, -1)
        grad_weight_h = grad_weight_h + h_before.transpose(0, 1) @ gates[time]
        stay_h, stay_c = (0.0, 0.0) if keep is None else (grad_h * (1 - keep), grad_c * (1 - keep))
        grad_h = gates[time] @ weight_h.transpose(0, 1) + stay_h
        grad_c = cell * f + stay_c
    all_gates = torch.stack([gates[time] for time in range(len(order))])
    grad_x = all_gates @ weight_x.transpose(0, 1)
    grad_weight_x = x.flatten(0, 1).transpose(0, 1) @ all_gates.flatten(0, 1)
    return grad_x, grad_weight_x, grad_weight_h, all_gates.sum((0, 1)), grad_h, grad_c


def gru_steps(
    x: torch.Tensor,
    weight_x: torch.Tensor,
    weight_h: torch.Tensor,
    bias_x: torch.Tensor | None,
    bias_h: torch.Tensor | None,
    h: torch.Tensor,
    *,
    reverse: bool = False,
) -> GruSteps:
    """GRU: n = tanh(x_n + r * h_n), h' = (1 - z) * n + z * h, where h_n includes its bias.

    Args:
        x: input [T, B, I].
        weight_x: [I, 3H], gates in the order r, z, n.
        weight_h: [H, 3H].
        bias_x: [3H], or None.
        bias_h: [3H], or None.
        h: first hidden state [B, H].
        reverse: from the last step to the first one.
    """
    projected = x @ weight_x if bias_x is None else x @ weight_x + bias_x
    steps: list[tuple[torch.Tensor, ...]] = []
    for time in _order(x.shape[0], reverse):
        hidden = h @ weight_h if bias_h is None else h @ weight_h + bias_h
        x_r, x_z, x_n = projected[time].chunk(3, -1)
        h_r, h_z, h_n = hidden.chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        h = (1 - z) * n + z * h
        steps.append((h, z, r, n, h_n))
    return GruSteps(*_stacked(steps, reverse))


def gru_backward(
    grad_y: torch.Tensor,
    grad_h: torch.Tensor,
    x: torch.Tensor,
    weight_x: torch.Tensor,
    weight_h: torch.Tensor,
    h: torch.Tensor,
    steps: GruSteps,
    *,
    reverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `gru_steps`.

    Args:
        grad_y: gradient of the outputs [T, B, H].
        grad_h: gradient of the last hidden state [B, H].
        x: as forward.
        weight_x: as forward.
        weight_h: as forward.
        h: as forward.
        steps: results of the forward pass.
        reverse: as forward.

    Returns:
        gradients of x, weight_x, weight_h, bias_x, bias_h and h.
    """
    order = list(_order(x.shape[0], reverse))
    of_x: dict[int, torch.Tensor] = {}
    grad_weight_h = torch.zeros_like(weight_h)
    grad_bias_h = torch.zeros_like(weight_h[0])
    for position in reversed(range(len(order))):
        time = order[position]
        before = steps.y[order[position - 1]] if position else h
        z, r, n, h_n = steps.update[time], steps.reset[time], steps.new[time], steps.hidden_new[time]
        whole = grad_h + grad_y[time]
        grad_n = whole * (1 - z) * (1 - n * n)
        grad_z = whole * (before - n) * z * (1 - z)
        grad_r = grad_n * h_n * r * (1 - r)
        of_x[time] = torch.cat((grad_r, grad_z, grad_n), -1)
        of_h = torch.cat((grad_r, grad_z, grad_n * r), -1)
        grad_weight_h = grad_weight_h + before.transpose(0, 1) @ of_h
        grad_bias_h = grad_bias_h + of_h.sum(0)
        grad_h = whole * z + of_h @ weight_h.transpose(0, 1)
    gates = torch.stack([of_x[time] for time in range(len(order))])
    grad_x = gates @ weight_x.transpose(0, 1)
    grad_weight_x = x.flatten(0, 1).transpose(0, 1) @ gates.flatten(0, 1)
    return grad_x, grad_weight_x, grad_weight_h, gates.sum((0, 1)), grad_bias_h, grad_h


def _order(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _chosen(new: torch.Tensor, before: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    return new if keep is None else new * keep + before * (1 - keep)


def _stacked(steps: list[tuple[torch.Tensor, ...]], reverse: bool) -> list[torch.Tensor]:
    """The steps of each result in the order of time."""
    return [torch.stack(each[::-1] if reverse else each) for each in zip(*steps, strict=True)]
