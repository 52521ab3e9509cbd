"""Threads: each has its own current card, and all cards compute at the same time.

Holds csrc/torch and csrc/core against the CPU's results, and overlapping work of cards. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import gc
import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.testing import assert_close

from against_cpu import CARD, assert_same


def together(work: Callable[[int], object], count: int = 6) -> list[object]:
    """What the work returns in each of several threads that start at the same moment."""
    results: list[object] = [None] * count
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(30)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def learn(device: torch.device, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16, device="cpu"), nn.ReLU(), nn.Linear(16, 1, device="cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(20):
        x = torch.randn(4, 8, generator=generator).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_six_threads_train_on_four_cards() -> None:
    trained = together(lambda number: learn(torch.device("npu", number % 4), number))
    for number, parameters in enumerate(trained):
        assert_close(parameters, learn(torch.device("cpu"), number), rtol=1e-4, atol=1e-5)


def test_the_current_card_belongs_to_a_thread() -> None:
    torch.npu.set_device(3)
    meet = threading.Barrier(4)

    def work(number: int) -> tuple[int, int]:
        at_first = torch.npu.current_device()
        torch.npu.set_device(number)
        meet.wait(30)
        return at_first, torch.ones(1).npu().device.index

    try:
        assert together(work, 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]
        assert torch.npu.current_device() == 3
    finally:
        torch.npu.set_device(0)


def test_the_current_stream_belongs_to_a_thread() -> None:
    own = torch.npu.Stream()

    def work(number: int) -> bool:
        before = torch.npu.current_stream() == torch.npu.default_stream()
        if number == 0:
            torch.npu.set_stream(own)
        return before and (torch.npu.current_stream() == own) == (number == 0)

    assert together(work, 3) == [True] * 3
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_threads_share_a_card() -> None:
    shared = torch.ones(64, 64, device=CARD)
    sums = together(lambda number: sum((shared @ shared * number).sum().item() for _ in range(20)))
    assert sums == [20 * number * 64.0**3 for number in range(6)]


def test_gradients_of_one_graph_from_several_threads() -> None:
    leaf = torch.ones(10, device=CARD, requires_grad=True)
    losses = [(leaf * (number + 1)).sum() for number in range(6)]
    together(lambda number: losses[number].backward())
    assert_same(leaf.grad, torch.full((10,), 21.0))


def test_memory_is_made_and_freed_by_several_threads() -> None:
    torch.npu.synchronize()
    gc.collect()  # circles of the tests before must not go meanwhile
    before = torch.npu.memory_allocated()

    def work(number: int) -> None:
        kept: list[torch.Tensor] = []
        for step in range(100):
            kept.append(torch.full((step * 37 + 1,), float(number), device=CARD))
            if step % 3 == 0:
                assert kept.pop(step % len(kept)).sum().item() % max(number, 1) == 0

    together(work)
    assert torch.npu.memory_allocated() == before


def test_what_one_thread_made_another_frees() -> None:
    gc.collect()
    before = torch.npu.memory_allocated()
    made: list[object] = together(lambda number: [torch.ones(1000, device=CARD) for _ in range(20)])
    assert torch.npu.memory_allocated() - before >= 6 * 20 * 4000
    together(lambda number: made.__setitem__(number, None))
    assert torch.npu.memory_allocated() == before


def test_generators_are_drawn_from_by_several_threads() -> None:
    generators = [torch.Generator("npu").manual_seed(number) for number in range(6)]
    drawn = together(lambda number: [torch.rand(5, device=CARD, generator=generators[number]) for _ in range(10)])
    for number, tensors in enumerate(drawn):
        generator = torch.Generator("npu").manual_seed(number)
        assert all(torch.equal(t, torch.rand(5, device=CARD, generator=generator)) for t in tensors)


def test_copies_between_cards_in_both_directions_at_once() -> None:
    def work(number: int) -> float:
        tensor = torch.full((1000,), float(number), device=f"npu:{number % 4}")
        for step in range(50):
            tensor = tensor.to(f"npu:{(number + step) % 4}")
        return tensor.sum().item()

    assert together(work) == [1000.0 * number for number in range(6)]


def test_autocast_belongs_to_a_thread() -> None:
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert together(lambda number: torch.is_autocast_enabled("npu"), 2) == [False, False]
        assert torch.is_autocast_enabled("npu")
