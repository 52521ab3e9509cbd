"""What a forked process may do: one whose parent had used a card has none, as with torch_npu, but must live on.

Holds sim/npu/_state.py and csrc/core against torch_npu's errors, and processes that end well.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from children import facts, run
from queued import Gate, open_all

SENTENCE = (
    "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start"
    " method"
)


def in_child(function: Callable[[], object], limit: int = 30) -> str:
    """What a forked child answers, as text; it is killed when it does not end in time."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends it even where it hangs outside the interpreter
        signal.alarm(limit)
        text = "no answer"
        try:
            text = repr(function())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, text.encode()[:60_000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read().decode()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child was ended by signal {status & 127}"
    return text


# Forking a process with threads is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

TENSOR = torch.arange(4.0, device="npu")

USES: dict[str, Callable[[], object]] = {
    "to": lambda: torch.ones(2).to("npu"),
    "npu": lambda: torch.ones(2).npu(),
    "empty": lambda: torch.empty(2, device="npu"),
    "randn": lambda: torch.randn(2, device="npu:1"),
    "add": lambda: TENSOR + 1,
    "add in place": lambda: TENSOR.add_(1),
    "sum": lambda: TENSOR.sum(),
    "item": lambda: TENSOR[0].item(),
    "tolist": lambda: TENSOR.tolist(),
    "cpu": lambda: TENSOR.cpu(),
    "print": lambda: repr(TENSOR),
    "copy to the host": lambda: torch.empty(4).copy_(TENSOR),
    "copy from the host": lambda: TENSOR.copy_(torch.ones(4)),
    "clone": lambda: TENSOR.clone(),
    "resize": lambda: TENSOR.resize_(1000),
    "module": lambda: torch.nn.Linear(2, 2).to("npu"),
    "set_device": lambda: torch.npu.set_device(1),
    "synchronize": lambda: torch.npu.synchronize(),
    "accelerator synchronize": lambda: torch.accelerator.synchronize(),
    "current_device": lambda: torch.npu.current_device(),
    "stream": lambda: torch.npu.Stream(),
    "event": lambda: torch.npu.Event(),
    "init": lambda: torch.npu.init(),
    "backward": lambda: (torch.ones(2, requires_grad=True).to("npu") * 2).sum().backward(),
}


@pytest.mark.parametrize("name", USES)
def test_a_card_cannot_be_used_in_a_child(name: str):
    assert in_child(USES[name]) == f"RuntimeError: {SENTENCE}"
    assert TENSOR.sum().item() == 6


@pytest.mark.parametrize("name", ["item", "cpu", "add", "synchronize", "accelerator synchronize", "resize"])
def test_nor_waits_a_child_for_work_that_it_does_not_have(name: str):
    with Gate(limit=40):
        try:
            assert in_child(USES[name]) == f"RuntimeError: {SENTENCE}"
        finally:
            open_all()
            torch.npu.synchronize()


def test_what_a_child_may_still_do():
    def harmless() -> object:
        x = torch.randn(4, 4, requires_grad=True)
        (x @ x).sum().backward()
        torch.manual_seed(1)
        return (
            torch.npu._is_in_bad_fork(),
            torch.npu.is_initialized(),
            torch.npu.is_available(),
            torch.npu.device_count(),
            torch.npu.memory_allocated(),
            TENSOR.shape,
            TENSOR.device.type,
            torch.save({"a": x}, "/dev/null"),
        )

    assert in_child(harmless) == repr((True, False, True, 4, 0, torch.Size([4]), "npu", None))
    assert not torch.npu._is_in_bad_fork()


def test_a_child_that_frees_tensors_lives_on():
    tensors = [torch.ones(size, device="npu") for size in (10, 100_000, 10_000_000)]
    model = torch.nn.Linear(10, 10).to("npu")
    view = torch.ops.toprope_sim.host_view(tensors[0])
    before = torch.npu.memory_allocated()

    def free() -> object:
        nonlocal model, view
        tensors.clear()
        model = view = None  # type: ignore[assignment]
        gc.collect()
        torch.npu.empty_cache()
        return torch.ones(3).sum().item()

    assert in_child(free) == "3.0"
    assert torch.npu.memory_allocated() == before
    assert tensors[2][-1].item() == 1


def test_a_child_forked_while_other_threads_use_the_card():
    # Whatever locks those threads hold at that moment stay locked in the child.
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            x = torch.ones(1000, device="npu")
            (x * 2).sum().item()

    tensors = [torch.ones(10, device="npu") for _ in range(100)]

    def free() -> object:
        tensors.clear()
        gc.collect()
        torch.npu.empty_cache()
        torch.manual_seed(1)
        return torch.rand(10).shape

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            assert in_child(free) == "torch.Size([10])"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_that_ends_as_a_program_does():
    # Not by os._exit: the interpreter takes everything down, tensors and streams included.
    code = """
        import os, sys, torch
        x = torch.ones(1000, device="npu", requires_grad=True)
        y = (x * 2).sum()
        stream = torch.npu.Stream()
        stream.record_event().synchronize()
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        y.backward()
        print(x.grad.sum().item())
    """
    done = run(code)
    assert (done.returncode, done.stdout.split()) == (0, ["7", "2000.0"]), done.stderr


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        assert torch.npu._is_in_bad_fork()
        return torch.full((3,), float(index)) ** 2 + torch.rand(1) * 0


@pytest.mark.parametrize("pin_memory", [False, True])
def test_workers_of_a_data_loader(pin_memory: bool):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=8, num_workers=2, pin_memory=pin_memory, multiprocessing_context="fork"
    )
    for _ in range(2):
        total = torch.zeros(3, device="npu")
        for batch in loader:
            assert batch.is_pinned() == pin_memory
            total += batch.to("npu", non_blocking=True).sum(0)
        assert total.tolist() == [sum(i * i for i in range(40))] * 3


class OnTheCard(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1).npu()


def test_a_worker_that_uses_the_card_is_told():
    loader = torch.utils.data.DataLoader(OnTheCard(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="Cannot re-initialize NPU in forked subprocess"):
        next(iter(loader))


def test_a_process_forked_before_a_card_is_used_has_cards_of_its_own():
    code = """
        import json, os, torch
        assert torch.npu.is_available() and torch.npu.device_count() == 4  # asks, but uses nothing
        torch.manual_seed(1)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            x = torch.ones(1000, device="npu:2")
            stream = torch.npu.Stream()
            with torch.npu.stream(stream):
                y = (x.to("npu") * 2).sum().item()
            os.write(write, json.dumps([y, torch.npu._is_in_bad_fork(), torch.npu.memory_reserved(2)]).encode())
            os._exit(0)
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(read) as answer:
            found = json.loads(answer.read())
        torch.ones(3, device="npu")
        print(json.dumps([*found, torch.npu.memory_reserved(2), torch.npu._is_in_bad_fork()]))
    """
    assert facts(code) == [2000.0, False, 2 * 2**20, 0, False]


def test_spawned_processes_have_cards_of_their_own(tmp_path: Path):
    code = """
        import torch, torch.multiprocessing as mp
        def work(queue):
            queue.put((torch.ones(10, device="npu:1") * 3).sum().item())
        if __name__ == "__main__":
            torch.ones(1, device="npu")
            context = mp.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get(timeout=60))
            child.join()
            print(child.exitcode)
    """
    done = run(code, file=tmp_path / "program.py")
    assert (done.returncode, done.stdout.split()) == (0, ["30.0", "0"]), done.stderr
