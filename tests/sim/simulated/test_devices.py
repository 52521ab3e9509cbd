"""Devices: operands must share one, copies go between all of them, contexts choose the current one.

Holds sim/npu/devices.py and csrc/torch/device.cpp against torch's rules for devices, and torch_npu's texts.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from against_cpu import CARD, assert_same

SECOND, THIRD = torch.device("npu:1"), torch.device("npu:2")
SAME = "Expected all tensors to be on the same device"

MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "card + host": lambda card, host, other: card + host,
    "host + card": lambda card, host, other: host + card,
    "card @ host": lambda card, host, other: card @ host,
    "card + other card": lambda card, host, other: card + other,
    "card @ other card": lambda card, host, other: card @ other,
    "in place": lambda card, host, other: card.add_(host),
    "cat": lambda card, host, other: torch.cat([card, host]),
    "stack of two cards": lambda card, host, other: torch.stack([card, other]),
    "out=": lambda card, host, other: torch.add(card, card, out=host),
    "where": lambda card, host, other: torch.where(card > 0, host, host),
    "linear": lambda card, host, other: F.linear(card, host),
    "module on the host": lambda card, host, other: nn.Linear(4, 4)(card),
    "layer_norm": lambda card, host, other: F.layer_norm(card, (4,), host[0], host[0]),
    "embedding": lambda card, host, other: F.embedding(torch.tensor([1]), card),
    "conv1d": lambda card, host, other: F.conv1d(card[None], host[None]),
    "loss": lambda card, host, other: F.cross_entropy(card, torch.tensor([0, 1, 2, 3])),
    "comparison": lambda card, host, other: card == host,
    "gather": lambda card, host, other: card.gather(1, host.long()),
    "index_select": lambda card, host, other: card.index_select(0, torch.tensor([1])),
    "bmm": lambda card, host, other: torch.bmm(card[None], host[None]),
    "addmm": lambda card, host, other: torch.addmm(card, card, host),
    "masked_fill": lambda card, host, other: card.masked_fill(host > 0, 1.0),
    "foreach": lambda card, host, other: torch._foreach_add([card], [host]),
    "polynomial": lambda card, host, other: torch.addcmul(card, card, other),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_two_devices_are_refused(name: str) -> None:
    card, host, other = torch.ones(4, 4, device=CARD), torch.zeros(4, 4), torch.ones(4, 4, device=SECOND)
    with pytest.raises(RuntimeError, match=SAME):
        MIXED[name](card, host, other)
    assert_same((card, other.to(CARD)), (torch.ones(4, 4), torch.ones(4, 4)))
    assert_close(host, torch.zeros(4, 4))


def test_the_refusal_names_both_devices_and_the_operator() -> None:
    with pytest.raises(RuntimeError, match=r"Expected NPU tensor, .*at least two devices, npu:0 and cpu! .*aten::add"):
        torch.ones(2, device=CARD) + torch.ones(2)
    with pytest.raises(RuntimeError, match=r"at least two devices, npu:1 and npu:2!"):
        torch.ones(2, device=SECOND) + torch.ones(2, device=THIRD)


def test_an_index_comes_from_the_host_or_the_same_card() -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(4, device=CARD)[torch.tensor([1], device=SECOND)]


def test_scalars_of_the_host_are_welcome() -> None:
    card = torch.ones(2, device=CARD)
    assert_same(torch.tensor(1.0) + card, torch.full((2,), 2.0))
    assert_same(card.mul_(torch.tensor(2.0)), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match=SAME):
        card + torch.tensor(1.0, device=SECOND)


@pytest.mark.parametrize(
    "write",
    [
        lambda host, card: host.add_(card),
        lambda host, card: host.__iadd__(card),
        lambda host, card: host.pow_(card),
        lambda host, card: host.addcmul_(card, card),
        lambda host, card: torch.add(card, card, out=host),
        lambda host, card: torch.clamp(card, 0, 1, out=host),
        lambda host, card: torch.sum(card, 0, out=host),
        lambda host, card: torch._foreach_add_([host], [card]),
    ],
)
def test_a_scalar_of_the_host_is_read_but_never_written(write: Callable[..., object]) -> None:
    host = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match=SAME):
        write(host, torch.tensor(2.0, device=CARD))
    assert host.data_ptr() != 0
    assert host == 1.0


# ---- copies


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_cards(non_blocking: bool) -> None:
    first = torch.arange(6.0, device=CARD).view(2, 3).t()
    there = first.to(SECOND, non_blocking=non_blocking)
    assert_same(there, first.cpu(), SECOND)
    assert there.data_ptr() != first.data_ptr()
    assert_same(there.npu(0), first.cpu())
    assert_same(torch.zeros(3, 2, device=THIRD).copy_(first, non_blocking), first.contiguous().cpu(), THIRD)
    assert_same(torch.zeros(4, 3, 2, device=THIRD).copy_(first), first.expand(4, 3, 2).contiguous().cpu(), THIRD)
    assert first.to(CARD) is first
    assert first.npu() is first
    assert first.to("npu") is first
    assert first.to(CARD, copy=True) is not first


def test_gradients_cross_devices() -> None:
    leaf = torch.randn(3, requires_grad=True)
    ((leaf.to(CARD) * 2).to(SECOND).exp().cpu() * 3).sum().backward()
    assert leaf.grad is not None
    assert_close(leaf.grad, 6 * torch.exp(2 * leaf.detach()))


def test_a_model_over_two_cards() -> None:
    first, second = nn.Linear(4, 4).to(CARD), nn.Linear(4, 2).to(SECOND)
    x = torch.randn(3, 4, device=CARD)
    second(first(x).relu().to(SECOND)).sum().backward()
    assert first.weight.grad.device == CARD
    assert second.weight.grad.device == SECOND
    host = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    host[0].load_state_dict(first.state_dict())
    host[2].load_state_dict(second.state_dict())
    host(x.cpu()).sum().backward()
    assert_same(first.weight.grad, host[0].weight.grad)
    assert_same(second.weight.grad, host[2].weight.grad, SECOND)


# ---- choosing a device


def test_the_device_of_a_context() -> None:
    with torch.device(SECOND):
        assert torch.ones(2).device == SECOND
        assert nn.Linear(2, 2).weight.device == SECOND
        assert torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"


def test_the_current_card() -> None:
    with torch.npu.device(2):
        assert torch.npu.current_device() == 2
        assert torch.ones(2, device="npu").device == torch.ones(2).npu().device == THIRD
        with torch.npu.device("npu:1"), torch.npu.device(-1):
            assert nn.Linear(2, 2).npu().weight.device == SECOND
        assert torch.npu.current_device() == 2
        with torch.npu.device_of(torch.ones(1, device="npu:3")):
            assert torch.npu.current_device() == 3
        with torch.npu.device_of(torch.ones(1)):
            assert torch.npu.current_device() == 2
        y = torch.ones(2, device=CARD) + 1  # works on its operands' card, whichever is current
        assert y.device == CARD
        assert torch.zeros_like(y).device == torch.empty(0, device=y.device).device == CARD
    assert torch.npu.current_device() == 0
    with pytest.raises(KeyError), torch.npu.device(1):
        raise KeyError
    assert torch.npu.current_device() == 0


def test_the_default_device() -> None:
    torch.set_default_device(SECOND)
    try:
        assert torch.get_default_device() == SECOND
        made = [
            torch.randn(2),
            torch.tensor([1]),
            torch.arange(3),
            nn.Linear(2, 2).weight,
            torch.eye(2),
            torch.zeros(1),
        ]
        assert {t.device for t in made} == {SECOND}
        assert torch.as_tensor([1, 2]).device == SECOND
    finally:
        torch.set_default_device(None)
    assert torch.randn(2).device.type == "cpu"
    torch.set_default_device("npu")
    try:
        with torch.npu.device(3):
            assert torch.randn(2).device == torch.device("npu:3")
    finally:
        torch.set_default_device(None)


def test_torch_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("npu")
    assert accelerator.device_count() == 4 == torch.npu.device_count()
    accelerator.set_device_index(1)
    assert torch.npu.current_device() == accelerator.current_device_index() == 1
    accelerator.set_device_index(0)
    with accelerator.device_index(3):
        assert torch.npu.current_device() == 3
    assert accelerator.current_device_index() == 0
    accelerator.synchronize()
    accelerator.synchronize("npu:2")
    stream = torch.Stream("npu:0")
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream == torch.npu.current_stream()
    accelerator.set_stream(torch.npu.default_stream())
    assert accelerator.current_stream("npu:0") == torch.npu.default_stream()


def test_memory_of_the_accelerator() -> None:
    accelerator = torch.accelerator
    before = accelerator.memory_allocated(1)
    accelerator.reset_peak_memory_stats(1)
    tensor = torch.empty(2**20, dtype=torch.uint8, device=SECOND)
    assert accelerator.memory_allocated(1) - before >= 2**20
    assert accelerator.memory_allocated(SECOND) == torch.npu.memory_allocated(1)
    assert accelerator.memory_reserved(1) >= accelerator.memory_allocated(1)
    del tensor
    assert accelerator.memory_allocated(1) == before
    assert accelerator.max_memory_allocated(1) - before >= 2**20
    accelerator.empty_cache()
    free, total = accelerator.get_memory_info(1)
    assert 0 < free <= total == 62423 * 2**20
    assert accelerator.memory_stats(1)["allocated_bytes.all.current"] == before


# ---- how tensors show themselves


def test_text() -> None:
    card = torch.tensor([1.0, 2.0], device=CARD)
    assert repr(card) == "tensor([1., 2.], device='npu:0')"
    assert repr(torch.ones(1, device=SECOND, requires_grad=True)) == "tensor([1.], device='npu:1', requires_grad=True)"
    assert repr(torch.tensor([1 + 2j], device=CARD)) == "tensor([1.+2.j], device='npu:0')"
    assert str(torch.tensor(3, device=CARD)) == "tensor(3, device='npu:0')"
    assert repr(torch.empty(0, 2, device=CARD)) == "tensor([], device='npu:0', size=(0, 2))"
    assert "..." in repr(torch.zeros(2000, device=CARD))
    assert f"{torch.tensor(1.5, device=CARD):.2f}" == "1.50"
    assert "device='npu:0'" in repr(nn.Parameter(card))
    assert "npu:0" in str(card.untyped_storage())


def test_type() -> None:
    card = torch.ones(2, device=CARD)
    assert card.type() == "torch.npu.FloatTensor"
    assert card.half().type() == "torch.npu.HalfTensor"
    assert card.type("torch.FloatTensor").device.type == "cpu"
    assert torch.ones(2).type("torch.npu.FloatTensor").device == CARD
    assert card.type(torch.int32).dtype == torch.int32
    assert type(card) is torch.Tensor


def test_questions_about_the_device() -> None:
    card, host = torch.ones(2, device=SECOND), torch.ones(2)
    assert card.is_npu
    assert not host.is_npu
    assert not card.is_cpu
    assert not card.is_cuda
    assert (card.get_device(), host.get_device()) == (1, -1)
    assert card.device.type == "npu"
    assert card.device == torch.device("npu", 1)
    assert card.untyped_storage().is_npu
    assert card.untyped_storage().device == card.device
    assert host.untyped_storage().npu(1).device == card.device
    assert card.untyped_storage().npu(0).device == CARD
    assert not card.is_pinned()
    assert card.new_empty(1).device == card.device
    assert torch.empty_like(host, device="npu:2").device == THIRD
    assert torch.utils.backend_registration._privateuse1_backend_name == "npu"
    assert torch._C._get_privateuse1_backend_name() == "npu"
    assert torch.get_device_module("npu") is torch.npu
    assert torch.get_device_module() is torch.npu
    assert nn.Linear(1, 1).npu(2).weight.device == THIRD
