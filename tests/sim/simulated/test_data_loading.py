"""Data loading: pinned memory, workers, copies that do not block.

Holds csrc/torch and pinned memory (csrc/core/host_memory.h) against the CPU's values. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.nn.utils import rnn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from against_cpu import CARD, HostGeneratorUntouched, assert_same

DATA = TensorDataset(torch.arange(32.0).view(16, 2), torch.arange(16))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [True, False])
def test_batches(workers: int, pinned: bool) -> None:
    loader = DataLoader(DATA, batch_size=4, pin_memory=pinned, num_workers=workers)
    batches = [
        (x.to(CARD, non_blocking=True), y.npu(non_blocking=True), x.is_pinned(), y.is_pinned()) for x, y in loader
    ]
    torch.npu.synchronize()
    assert {batch[2:] for batch in batches} == {(pinned, pinned)}
    assert_same(torch.cat([batch[0] for batch in batches]), DATA.tensors[0])
    assert_same(torch.cat([batch[1] for batch in batches]), DATA.tensors[1])


@pytest.mark.filterwarnings("ignore:pin_memory_device is deprecated")
def test_the_device_to_pin_for_may_be_named() -> None:
    loader = DataLoader(DATA, batch_size=4, pin_memory=True, pin_memory_device="npu", num_workers=2)
    assert [x.is_pinned() for x, _ in loader] == [True] * 4


def test_workers_stay_and_every_epoch_is_whole() -> None:
    loader = DataLoader(
        DATA, batch_size=4, shuffle=True, pin_memory=True, num_workers=2, persistent_workers=True, prefetch_factor=1
    )
    for _ in range(2):
        assert sorted(torch.cat([y.npu() for _, y in loader]).tolist()) == list(range(16))


class Named(Dataset[dict[str, object]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.full((3,), float(index)), "name": str(index), "pair": (torch.tensor(index), index)}


def test_nested_batches_are_pinned() -> None:
    for batch in DataLoader(Named(), batch_size=2, pin_memory=True):
        assert batch["x"].is_pinned()
        assert batch["pair"][0].is_pinned()
        assert isinstance(batch["name"][0], str)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.tensor([number]) for number in range(start, 10, step))


def test_streams_of_data() -> None:
    loader = DataLoader(Stream(), batch_size=2, pin_memory=True, num_workers=2)
    assert sorted(torch.cat([batch.to(CARD) for batch in loader]).flatten().tolist()) == list(range(10))


class TouchesTheCard(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, device=CARD).cpu()


def test_a_forked_worker_that_touches_the_card_is_told_to_spawn() -> None:
    torch.ones(1, device=CARD)
    batches = iter(DataLoader(TouchesTheCard(), num_workers=1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Cannot re-initialize NPU in forked subprocess"):
            next(batches)
    with pytest.raises(StopIteration):  # and the worker ends
        next(batches)


def test_pinned_memory() -> None:
    host = torch.arange(6.0).view(2, 3)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert not host.is_pinned()
    assert pinned.pin_memory() is pinned
    assert_close(pinned, host)
    assert pinned[1].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros(2, 2, pin_memory=True).is_pinned()
    assert torch.empty_like(host, pin_memory=True).is_pinned()
    assert torch.tensor([1, 2], pin_memory=True).is_pinned()
    assert torch.empty_strided((2, 3), (1, 2), pin_memory=True).is_pinned()
    assert not (pinned + 1).is_pinned()
    assert rnn.pack_sequence([torch.ones(2), torch.ones(1)]).pin_memory().is_pinned()
    assert pinned.numpy()[1, 2] == 5


def test_what_cannot_be_pinned() -> None:
    card = torch.ones(2, device=CARD)
    assert not card.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        card.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device=CARD, pin_memory=True)


def test_pinned_memory_is_used_again_only_after_its_copy() -> None:
    for number in range(50):
        pinned = torch.full((1000,), float(number)).pin_memory()
        card = pinned.to(CARD, non_blocking=True)
        del pinned
        assert card.sum().item() == 1000.0 * number


@pytest.mark.parametrize("numbers", [1, 1000, 1 << 20])
def test_a_pinned_block_that_was_freed_is_used_again_for_its_size(numbers: int) -> None:
    pinned = torch.ones(numbers).pin_memory()
    address = pinned.data_ptr()
    del pinned
    other = torch.ones(4 * numbers).pin_memory()
    again = torch.full((numbers,), 2.0).pin_memory()
    assert again.data_ptr() == address
    assert other.data_ptr() != address
    assert again.sum().item() == 2.0 * numbers
    assert again.is_pinned()


def test_a_copy_back_that_does_not_block() -> None:
    card = torch.arange(1000.0, device=CARD) * 2
    host = torch.empty(1000, pin_memory=True)
    host.copy_(card, non_blocking=True)
    torch.npu.current_stream().synchronize()
    assert_close(host, torch.arange(1000.0) * 2)
    assert_close(card.to("cpu", non_blocking=True), host)


def test_samplers_draw_from_the_cpu_and_can_be_seeded() -> None:
    order = [list(DataLoader(range(8), shuffle=True, generator=torch.Generator().manual_seed(1))) for _ in range(2)]
    assert [int(number) for number in order[0]] == [int(number) for number in order[1]]
    with HostGeneratorUntouched():
        torch.rand(3, device=CARD)


def test_a_thread_pins_while_another_computes() -> None:
    pinned, errors = [], []

    def pin() -> None:
        try:
            pinned.extend(torch.full((100,), float(number)).pin_memory() for number in range(20))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=pin)
    thread.start()
    total = sum(torch.ones(10, device=CARD).sum().item() for _ in range(50))
    thread.join()
    assert not errors
    assert total == 500
    assert [int(tensor[0]) for tensor in pinned] == list(range(20))
