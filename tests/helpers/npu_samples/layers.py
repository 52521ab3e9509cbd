"""Sample calls of optimizer steps, recurrent layers, batch norm and affine quantisation.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def _recurrent(gates, features=4, hidden=3):
    """Input [T, B, I], a state, and the flat parameters of one layer in both directions."""
    x, state = torch.randn(3, 2, features), torch.randn(2, 2, hidden)
    one = [
        torch.randn(gates * hidden, features),
        torch.randn(gates * hidden, hidden),
        *torch.randn(2, gates * hidden),
    ]
    other = [tensor.flip(0) for tensor in one]
    return x, state, [*one, *other]


def _lstm() -> dict[str, Sample]:
    x, h, c = torch.randn(3, 2, 4), torch.randn(1, 2, 3), torch.randn(1, 2, 3)
    weight, bias = torch.randn(7, 12), torch.randn(12)
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]).half().unsqueeze(-1).expand(3, 2, 3)
    sizes = torch.tensor([2, 2, 1])
    flags = (True, 1, 0.0, True, False, False)
    steps = tuple(torch.rand(3, 2, 3) for _ in range(8))
    grads = tuple(torch.randn(3, 2, 3) for _ in range(3))
    cell = (torch.randn(2, 4), torch.randn(4, 12), torch.randn(3, 12), torch.randn(2, 3), torch.randn(2, 3))
    cell_steps = (torch.rand(1, 2, 3), torch.rand(2, 3), torch.rand(2, 3), *(torch.rand(1, 2, 3) for _ in range(5)))
    return {
        "npu_lstm": ((x, weight, bias, torch.empty(0), h, c, *flags, False, False), {}),
        "npu_lstm_backward": ((*grads, x, weight, bias, h, c, *steps), {}),
        "npu_lstm_data": ((x, sizes, weight, bias, mask, h, c, *flags, True, False), {}),
        "npu_lstm_data_backward": ((*grads, x, sizes, weight, bias, h, c, *steps, True), {}),
        "npu_lstm_cell": ((*cell, torch.randn(12), torch.randn(12)), {}),
        "npu_lstm_cell_backward": ((None, torch.randn(2, 3), None, *cell, *cell_steps), {}),
    }


def _gru() -> dict[str, Sample]:
    x, h = torch.randn(3, 2, 4).half(), torch.randn(1, 2, 3).half()
    weights = (torch.randn(4, 9).half(), torch.randn(3, 9).half(), torch.randn(9).half(), torch.randn(9).half())
    lengths, grads = torch.tensor([3], dtype=torch.int32), (torch.randn(3, 2, 3).half(), None)
    steps = tuple(torch.rand(3, 2, 3).half() for _ in range(6))
    return {
        "npu_gru": ((x, h, *weights, lengths, True, 1, 0.0, True, False, False), {}),
        "npu_gru_backward": ((*grads, x, *weights, lengths, h, *steps), {}),
    }


def _stacks() -> dict[str, Sample]:
    x, state, params = _recurrent(4)
    flags = (True, 1, 0.0, True, True)
    gates = tuple(torch.rand(2, 3, 2, 3) for _ in range(7))
    grads = (torch.randn(3, 2, 6), torch.randn(2, 2, 3), torch.randn(2, 2, 3))
    _, _, gru = _recurrent(3)
    return {
        "_lstm_npu": ((x, [state, state.flip(0)], params, *flags), {}),
        "_lstm_npu_backward": ((*grads, x, [state, state.flip(0)], params, *gates, *flags), {}),
        "_gru_npu": ((x.transpose(0, 1), state, gru, *flags), {"batch_first": True}),
        "_gru_npu_backward": ((*grads[:2], x, state, gru, *gates[:5], *flags), {}),
    }


def _optimizers() -> dict[str, Sample]:
    def out():
        return [torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3)]

    grad, largest = torch.randn(4, 3), torch.rand(4, 3)
    return {
        "npu_apply_adam.out": ((0.9, 0.99, 0.1, 0.9, 0.99, 1e-8, grad, False, True), {"out": out()}),
        "npu_apply_adam_w.out": (
            (0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-8, grad, largest, True, False),
            {"out": out()},
        ),
        "npu_bert_apply_adam.out": ((0.1, 0.9, 0.99, 1e-6, grad, 1.0, 2.0, 0.01), {"out": out()}),
        "_amp_foreach_non_finite_check": (([grad, largest],), {}),
    }


def samples() -> dict[str, Sample]:
    x, scales, zeros = torch.randn(2, 3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3], dtype=torch.int32)
    sums, running = torch.rand(2, 3), torch.rand(3)
    return {
        **_lstm(),
        **_gru(),
        **_stacks(),
        **_optimizers(),
        "batch_norm_reduce": ((torch.randn(2, 3, 4, 4).half(), 1e-5), {}),
        "batch_norm_gather_stats_update": (
            (x, sums, sums * 40, running, running + 1, 0.1, 1e-5, torch.tensor([8.0, 8.0])),
            {},
        ),
        "_quantize_per_channel_impl.out": (
            (x, scales, zeros, 1, torch.qint8),
            {"result": torch.empty(2, 3, 4, dtype=torch.int8)},
        ),
        "_quantize_per_tensor_impl.out": (
            (x, scales[:1], zeros[:1], torch.quint8),
            {"result": torch.empty(2, 3, 4, dtype=torch.uint8)},
        ),
    }
