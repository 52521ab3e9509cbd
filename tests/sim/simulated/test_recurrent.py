"""Recurrent layers and packed sequences: torch asks for fused cells on a device, which must equal the CPU's.

Holds csrc/torch against the CPU's results. tests/sim/test_simulated.py runs this module in a process with simulated
cards.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from against_cpu import CARD, HostGeneratorUntouched, assert_same, compare, compare_module

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(8, 16),
    "LSTM of two layers": lambda: nn.LSTM(8, 6, 2, batch_first=True),
    "LSTM both ways": lambda: nn.LSTM(8, 6, bidirectional=True),
    "LSTM without bias": lambda: nn.LSTM(8, 6, bias=False),
    "LSTM with a projection": lambda: nn.LSTM(8, 6, proj_size=3),
    "GRU": lambda: nn.GRU(8, 16),
    "GRU of two layers": lambda: nn.GRU(8, 6, 2, batch_first=True),
    "GRU both ways": lambda: nn.GRU(8, 6, bidirectional=True),
    "GRU without bias": lambda: nn.GRU(8, 6, bias=False),
    "RNN": lambda: nn.RNN(8, 6, 2),
    "RNN with relu": lambda: nn.RNN(8, 6, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # on the CPU
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    compare_module(LAYERS[name](), torch.randn(5, 3, 8))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_layer_on_one_sequence(name: str) -> None:
    compare_module(LAYERS[name](), torch.randn(5, 8))


def test_states_are_given_and_have_gradients() -> None:
    h, c = torch.randn(1, 3, 16, requires_grad=True), torch.randn(1, 3, 16, requires_grad=True)
    lstm = LAYERS["LSTM"]()
    on_card = LAYERS["LSTM"]().to(CARD)
    on_card.load_state_dict(lstm.state_dict())
    compare(
        lambda x, *state: (on_card if x.device == CARD else lstm)(x, state),
        torch.randn(5, 3, 8, requires_grad=True),
        h,
        c,
    )


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cell(cell: type[nn.Module], bias: bool) -> None:
    compare_module(cell(4, 6, bias=bias), torch.randn(3, 4))


def test_only_the_state_of_a_cell_has_a_gradient() -> None:
    for cell in (nn.LSTMCell(4, 6), nn.GRUCell(4, 6)):

        def last(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
            result = module(x)
            return (result[1] if isinstance(result, tuple) else result).sum()

        host, card = torch.randn(3, 4, requires_grad=True), None
        last(cell, host).backward()
        card = host.detach().to(CARD).requires_grad_()
        last(cell.to(CARD), card).backward()
        assert_same(card.grad, host.grad)


def test_second_derivatives_of_a_cell_are_refused_or_right() -> None:
    cell = nn.LSTMCell(2, 3).double().to(CARD)
    x = torch.randn(2, 2, dtype=torch.float64, device=CARD, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: cell(t), x)
    assert torch.autograd.gradgradcheck(lambda t: cell(t), x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences(kind: type[nn.Module], enforce_sorted: bool) -> None:
    lengths = torch.tensor([5, 3, 1]) if enforce_sorted else torch.tensor([1, 5, 3])
    layer = kind(4, 6, batch_first=True, bidirectional=True)
    layer_on_card = kind(4, 6, batch_first=True, bidirectional=True).to(CARD)
    layer_on_card.load_state_dict(layer.state_dict())

    def go(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=enforce_sorted)
        result, state = (layer_on_card if x.device == CARD else layer)(packed)
        assert result.batch_sizes.device.type == "cpu"
        padded, length = rnn.pad_packed_sequence(result, batch_first=True)
        assert torch.equal(length, lengths)
        return padded, state[0]

    compare(go, torch.randn(3, 5, 4, requires_grad=True))


def test_sequences_are_packed_and_unpacked() -> None:
    parts = [torch.randn(n, 2) for n in (4, 2, 1)]
    packed = rnn.pack_sequence([part.to(CARD) for part in parts])
    assert packed.data.device == CARD
    assert packed.is_npu
    assert_same(packed.data, rnn.pack_sequence(parts).data)
    assert_same(rnn.unpack_sequence(packed), parts)
    assert_same(
        rnn.pad_sequence([part.to(CARD) for part in parts], padding_value=9.0),
        rnn.pad_sequence(parts, padding_value=9.0),
    )
    there = packed.npu(1)
    assert there.data.device == torch.device("npu:1")
    assert there.cpu().data.device.type == "cpu"
    assert rnn.pack_sequence(parts).npu().data.device == CARD


def test_lengths_from_the_card_are_an_error_as_on_a_card() -> None:
    with pytest.raises(RuntimeError, match="CPU int64 tensor"):
        torch._VF._pack_padded_sequence(torch.randn(3, 2, 4, device=CARD), torch.tensor([3, 2], device=CARD), False)


def test_dropout_between_layers_draws_from_the_card() -> None:
    layer, x = nn.LSTM(4, 6, 2, dropout=0.5).to(CARD), torch.randn(5, 3, 4, device=CARD)
    with HostGeneratorUntouched():
        torch.npu.manual_seed(1)
        first = layer(x)[0]
        second = layer(x)[0]
        torch.npu.manual_seed(1)
        again = layer(x)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(layer.eval()(x)[0], layer(x)[0])


def test_weights_are_flattened_without_a_word() -> None:
    layer = nn.LSTM(4, 6).to(CARD)
    layer.flatten_parameters()
    assert_same(layer.weight_ih_l0, layer.weight_ih_l0.cpu())
