"""Work queued on a stream runs later: what needs its outcome waits for it, and nothing else does.

Holds csrc/core/stream.h and csrc/torch against order by torch's rules for streams. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from children import run
from core_library import soak
from queued import SYNCHRONISATIONS, Gate, queue, settle, write_later


@pytest.fixture(autouse=True)
def nothing_queued():
    torch.npu.empty_cache()
    yield
    settle()


def copied_to_host(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.zeros(4)
    host.copy_(tensor)
    return host


def copied_on_the_card(tensor: torch.Tensor) -> torch.Tensor:
    other = torch.zeros(4, device="npu")
    other.copy_(tensor)
    return other.cpu()


def added_in_place(tensor: torch.Tensor) -> torch.Tensor:
    other = torch.zeros(4, device="npu")
    other += tensor
    return other.cpu()


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(4, device="npu", requires_grad=True)
    (weight * tensor).sum().backward()
    return weight.grad.cpu()


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist()[0],
    "float": lambda t: float(t[1]),
    "int": lambda t: int(t[2]),
    "bool": lambda t: 7 if t[0] == 7 else 0,
    "index": lambda t: list(range(10))[t[0].long()],
    "cpu": lambda t: t.cpu()[0].item(),
    "to cpu": lambda t: t.to("cpu")[0].item(),
    "to a dtype and cpu": lambda t: t.to("cpu", torch.float64)[0].item(),
    "to another card": lambda t: t.to("npu:1").cpu()[0].item(),
    "numpy": lambda t: t.cpu().numpy()[3],
    "copy_ to the host": lambda t: copied_to_host(t)[0].item(),
    "copy_ on the card": lambda t: copied_on_the_card(t)[0].item(),
    "print": lambda t: 7 if "7." in repr(t) else 0,
    "format": lambda t: float(f"{t[0]:.1f}"),
    "add": lambda t: (t + 0).cpu()[0].item(),
    "add in place": lambda t: added_in_place(t)[0].item(),
    "clone": lambda t: t.clone().cpu()[0].item(),
    "nonzero": lambda t: 7 if len(t.nonzero()) == 4 else 0,
    "mask": lambda t: t[t > 6].cpu()[0].item(),
    "equal": lambda t: 7 if torch.equal(t, torch.full((4,), 7.0, device="npu")) else 0,
    "contains": lambda t: 7 if 7.0 in t else 0,
    "reduction": lambda t: t.sum().item() / 4,
    "convolution": lambda t: torch.conv1d(t.view(1, 1, 4), torch.ones(1, 1, 1, device="npu")).max().item(),
    "gradient": lambda t: gradient(t)[0].item(),
    "unique": lambda t: t.unique().item(),
    "host_view": lambda t: torch.ops.toprope_sim.host_view(t)[0].item(),
    "a view": lambda t: t.view(2, 2)[1].cpu()[0].item(),
    "resize": lambda t: t.clone().resize_(2).cpu()[0].item(),
    "stack": lambda t: torch.stack([t, t]).cpu()[1, 1].item(),
    "pinned": lambda t: t.to("cpu", non_blocking=False).pin_memory()[0].item(),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_what_needs_the_outcome_waits_for_it(name: str):
    tensor = torch.zeros(4, device="npu")
    go = threading.Event()
    done = write_later(tensor, 7, go=go)
    assert not done.is_set()
    go.set()
    assert WAITS[name](tensor) == 7
    assert done.is_set()


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda t: t.zero_(),
        lambda t: t.fill_(0),
        lambda t: t.mul_(0),
        lambda t: t.copy_(torch.zeros(4)),
        lambda t: t.copy_(torch.zeros(4).pin_memory(), non_blocking=True),
        lambda t: t.copy_(torch.zeros(4, device="npu")),
        lambda t: torch.zeros(4, out=t),
        lambda t: t.__setitem__(slice(None), torch.zeros(4, device="npu")),
        lambda t: t.masked_fill_(t > -1, 0),
        lambda t: t.uniform_().zero_(),
        lambda t: t.resize_(2, 2).zero_().resize_(4),
        lambda t: t.set_(torch.zeros(4, device="npu")),
    ],
)
def test_writing_comes_after_what_was_queued_before(overwrite: Callable[[torch.Tensor], object]):
    tensor = torch.zeros(4, device="npu")
    write_later(tensor, 7)
    overwrite(tensor)
    assert tensor.eq(0).all()


def test_what_torch_does_without_letting_go_of_the_interpreter():
    # torch keeps Python's lock in these calls, and the work they wait for needs it: a deadlock unless the wait lets go.
    code = """
        import copy, faulthandler, io, torch
        from queued import write_later
        torch.ones(4, device="npu")
        for name, call in {
            "copy.deepcopy": lambda t: copy.deepcopy(t)[0].item(),
            "torch.save": lambda t: torch.save(t, io.BytesIO()) or 7,
            "storage.cpu": lambda t: t.untyped_storage().cpu().nbytes and 7,
            "storage.clone": lambda t: t.untyped_storage().clone().nbytes and 7,
            "assignment": lambda t: t.__setitem__(slice(None), 7.0) or 7,
            "copy of a storage": lambda t: torch.UntypedStorage(16, device="npu").copy_(t.untyped_storage()) and 7,
        }.items():
            print(name, flush=True)
            faulthandler.dump_traceback_later(60, exit=True)
            tensor = torch.zeros(4, device="npu")
            done = write_later(tensor, 7)
            assert call(tensor) == 7
            assert done.is_set(), name
            faulthandler.cancel_dump_traceback_later()
        print("done")
    """
    done = run(code)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "done"), done.stdout + done.stderr


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("name", SYNCHRONISATIONS)
def test_synchronisations(name: str, side: bool):
    stream = torch.npu.Stream() if side else torch.npu.current_stream()
    tensor = torch.zeros(4, device="npu")
    done = write_later(tensor, 7, stream)
    SYNCHRONISATIONS[name](stream)
    assert done.is_set()
    assert stream.query()


def test_what_does_not_need_the_outcome_does_not_wait():
    tensor = torch.zeros(4, 4, device="npu")
    other = torch.ones(4, device="npu:1")
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        apart = torch.ones(4, device="npu")
    gate = Gate(limit=20)
    begin = time.monotonic()
    assert not torch.npu.current_stream().query()
    assert (tensor.shape, tensor.device.index, tensor.dtype) == ((4, 4), 0, torch.float32)
    assert tensor.data_ptr() != 0
    assert tensor[1].view(2, 2).t().shape == (2, 2)
    made = [torch.empty(10, device="npu") for _ in range(10)]
    del made
    assert torch.npu.memory_allocated() > 0
    assert torch.npu.mem_get_info()[0] > 0
    event = torch.npu.current_stream().record_event()
    assert not event.query()
    side.wait_event(event)
    assert not side.query()
    free = torch.npu.Stream()
    assert free.query()
    assert (other + 1).sum().item() == 8  # another card
    with torch.npu.stream(free):
        assert (apart + 1).sum().item() == 8  # another stream
    assert torch.ones(3).sum().item() == 3
    queue(lambda: None)
    assert not gate.passed.is_set()
    assert time.monotonic() - begin < 15
    gate.open()
    torch.npu.synchronize()
    assert event.query()
    assert side.query()


def test_host_threads_have_their_own_streams():
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            torch.npu.set_device(number % 4)
            stream = torch.npu.Stream()
            with torch.npu.stream(stream):
                total = torch.zeros(64, 64, device="npu")
                for _ in range(30):
                    a = torch.randn(64, 64, device="npu", requires_grad=True)
                    loss = (a @ a).sum()
                    loss.backward()
                    queue(lambda: None)
                    total += a.grad
                assert total.isfinite().all()
                assert total.device.index == number % 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_backward_runs_on_the_stream_of_its_forward():
    side = torch.npu.Stream()
    seen = []
    with torch.npu.stream(side):
        x = torch.ones(4, device="npu", requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: seen.append(torch.npu.current_stream()))
        write_later(torch.empty(1, device="npu"), 1)
        total = y.sum()
        total.backward()
    assert seen == [side]
    torch.npu.current_stream().wait_stream(side)
    assert x.grad.eq(2).all()


def test_callbacks_that_use_python_do_not_block_those_who_wait():
    # Host threads wait in every way while the streams' threads need the interpreter.
    streams = [torch.npu.Stream() for _ in range(6)]
    tensors = [torch.zeros(4, device="npu") for _ in streams]
    stop = time.monotonic() + (120.0 if soak() else 1.0)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            ways = [*SYNCHRONISATIONS.values(), lambda s: tensors[number].sum().item()]
            turn = 0
            with torch.npu.stream(streams[number]):
                while turn <= len(ways) or time.monotonic() < stop:
                    queue(lambda: sum(range(500)))
                    ways[turn % len(ways)](streams[number])
                    turn += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
