"""Memory that training and libraries' kernels take goes back: what a tensor does not need does not count.

Holds csrc/core/memory.h and csrc/torch against memory before and after. tests/sim/test_simulated.py runs this module in
a process with simulated cards.
"""

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from card_memory import left_over, start_afresh
from core_library import MIB, soak


@pytest.fixture(autouse=True)
def nothing_left():
    """Each test begins and ends with cards that hold nothing at all."""
    start_afresh()
    yield
    assert not any(left_over())


def train(steps: int, device: str = "npu") -> list[int]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 64, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("npu")
    allocated = []
    for step in range(steps):
        inputs = torch.randn(16, 1, 8, 8).to(device, non_blocking=True)
        targets = torch.randint(10, (16,), device=device)
        with torch.autocast("npu", dtype=torch.float16 if step % 2 else torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert loss.item() > 0
        del inputs, targets, loss
        allocated.append(torch.npu.memory_allocated(device))
    return allocated


def test_training_leaks_nothing():
    allocated = train(3000 if soak() else 200)
    assert len(set(allocated[3:])) == 1, sorted(set(allocated[3:]))
    assert allocated[-1] < 5 * MIB
    gc.collect()
    assert torch.npu.memory_allocated() == 0


KEEPERS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "matmul": lambda image, matrix: matrix @ matrix,
    "linear with bias": lambda image, matrix: torch.nn.functional.linear(matrix, matrix, matrix[0]),
    "batched": lambda image, matrix: torch.bmm(matrix.view(4, -1, matrix.shape[1]), matrix.expand(4, -1, -1)),
    "convolution": lambda image, matrix: torch.nn.functional.conv2d(image, image[:8, :, :3, :3]),
    "transposed convolution": lambda image, matrix: torch.nn.functional.conv_transpose2d(image, image[:16, :, :3, :3]),
    "attention": lambda image, matrix: torch.nn.functional.scaled_dot_product_attention(image, image, image),
    "softmax": lambda image, matrix: matrix.softmax(1),
    "transform": lambda image, matrix: torch.fft.rfft2(image.float()),
    "solve": lambda image, matrix: torch.linalg.solve(matrix.float() + 600 * torch.eye(512).npu(), matrix.float()),
    "sort": lambda image, matrix: matrix.sort(),
    "interpolate": lambda image, matrix: torch.nn.functional.interpolate(image, scale_factor=2.0, mode="bilinear"),
    "pooling": lambda image, matrix: torch.nn.functional.avg_pool2d(image, 3, 1),
}  # fmt: skip


def use_and_differentiate(name: str, dtype: torch.dtype) -> None:
    image = torch.rand(16, 16, 32, 32, device="npu").to(dtype)
    matrix = torch.rand(512, 512, device="npu").to(dtype)
    wanted = torch.npu.memory_allocated()

    def differentiate() -> None:
        result = KEEPERS[name](image.clone().requires_grad_(), matrix.clone().requires_grad_())
        (result[0] if isinstance(result, tuple) else result).abs().sum().backward()

    for _ in range(3):
        with torch.no_grad():
            KEEPERS[name](image, matrix)
        assert torch.npu.memory_allocated() == wanted, torch.npu.memory_allocated() - wanted
    for _ in range(2):
        differentiate()
        assert torch.npu.memory_allocated() == wanted, torch.npu.memory_allocated() - wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("name", KEEPERS)
def test_what_a_library_keeps_for_itself_does_not_count(name: str, dtype: torch.dtype):
    use_and_differentiate(name, dtype)
    assert torch.npu.memory_allocated() == 0
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == 0, "pieces are stuck"


def test_threads_train_side_by_side():
    failures = []

    def work(card: int) -> None:
        try:
            torch.npu.set_device(card)
            allocated = train(15, f"npu:{card}")
            assert len(set(allocated[3:])) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(card,)) for card in (0, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
