"""The ring of slots (`prefetch.prefetch_buffer`): no schedule of reads gives a wrong number, and faults are reported.

Random schedules of threads, devices and disturbances; values are compared with the model in memory.
"""

import gc
import os
import random
import signal
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from toprope import device as devices
from toprope.errors import TierCapacityError, TierChangedError, TierError, TierReadError
from toprope.tiers import attach, skeleton
from toprope.tiers.engine.prefetch.prefetch_buffer import Slot
from toprope.tiers.engine.prefetch.trace import Order, Trace
from toprope.tiers.store.memory import Memory

SOAK = bool(os.environ.get("TOPROPE_SOAK"))
WIDTH = 64
KB = 1000


pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]


class Chain(nn.Module):
    def __init__(self, layers=9):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.order = list(range(layers))

    def forward(self, x):
        for number in self.order:
            x = torch.tanh(self.layers[number](x))
        return x


def chain(layers=9):
    torch.manual_seed(0)
    return Chain(layers)


X = torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH)


def saved(tmp_path, model):
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    return tmp_path


# Schedules


class Disturbed:
    """Sleeps now and then, for a time that only the seed knows."""

    def __init__(self, seed):
        self.chosen, self.lock = random.Random(seed), threading.Lock()

    def __call__(self):
        with self.lock:
            pause = self.chosen.choice([0, 0, 0, 1e-4, 1e-3, 3e-3])
        if pause:
            time.sleep(pause)


def schedule(seed, tmp_path):
    """A model under random delays, in poison mode: passes and steps of training in random orders."""
    chosen = random.Random(seed)
    layers = chosen.randrange(4, 10)
    model, twin = chain(layers), chain(layers)
    place = chosen.choice(["host", "disk", "both"])
    host = {"host": "10MB", "disk": 0, "both": 17 * KB * (layers // 2)}[place]
    budget = chosen.randrange(37 * KB, min(75 * KB, layers * 16 * KB))
    disk = None if place == "host" else tmp_path
    handle = attach(
        model, budget, host, disk, small=1 * KB, poison=True, disturb=Disturbed(seed), limit=30,
        threads=chosen.randrange(1, 4), slots=chosen.choice([None, 2, 2, 3]) if budget > 60 * KB else None,
    )  # fmt: skip
    assert handle.plan.slots
    for _ in range(chosen.randrange(2, 5)):
        if chosen.random() < 0.4:
            model.order = twin.order = [chosen.randrange(layers) for _ in range(chosen.randrange(1, 2 * layers))]
        if chosen.random() < 0.5:
            with torch.no_grad():
                assert torch.equal(model(X), twin(X)), seed
            continue
        for each in (model, twin):
            each.zero_grad()
            each(X).square().sum().backward()
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), seed
            assert one.grad is None or torch.equal(one.grad, other.grad), seed
    stats = handle.stats()
    assert stats.peak_bytes["device"] <= budget
    handle.detach()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), seed


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_schedules_give_no_wrong_number(part, tmp_path):
    for seed in range(part * 5, part * 5 + 5):
        schedule(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="make soak")
def test_a_thousand_random_schedules_give_no_wrong_number(tmp_path):
    for seed in range(1000):
        schedule(seed, tmp_path)


# What goes wrong


def attached(model, tmp_path, **options):
    with skeleton():
        empty = Chain(len(model.layers))
    return empty, attach(
        empty, 60 * KB, 0, saved(tmp_path, model), **{"small": KB, "poison": True, "limit": 20} | options
    )


def run(model):
    with torch.no_grad():
        return model(X)


def test_a_read_error_is_told_and_the_next_call_is_right(tmp_path, monkeypatch):
    model = chain()
    want = run(model)
    empty, handle = attached(model, tmp_path)
    assert torch.equal(run(empty), want)
    real, broken = os.preadv, threading.Event()

    def preadv(descriptor, buffers, offset):
        if broken.is_set():
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr("toprope.tiers.store.disk_file.os.preadv", preadv)
    broken.set()
    for _ in range(2):
        with pytest.raises(TierReadError, match="Input/output error"):
            run(empty)
    broken.clear()
    for _ in range(2):
        try:
            got = run(empty)
        except TierReadError:  # one that was read ahead before
            continue
        assert torch.equal(got, want)
    assert torch.equal(run(empty), want)
    handle.close()


@pytest.mark.parametrize("what", ["written to", "cut short", "replaced", "gone"])
def test_a_file_that_changes_under_a_model_is_told(what, tmp_path):
    model = chain()
    empty, handle = attached(model, tmp_path)
    run(empty)
    file = tmp_path / "model.safetensors"
    if what == "written to":
        with file.open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(b"x")
        os.utime(file)
    elif what == "cut short":
        os.truncate(file, 20_000)
    elif what == "replaced":
        file.rename(tmp_path / "old")
        save_file(dict(chain().state_dict()), file)
    else:
        file.unlink()
    with pytest.raises(TierChangedError, match=r"model\.safetensors"):
        run(empty)
    with pytest.raises(TierChangedError):
        run(empty)
    handle.close()


def test_a_full_disk_while_attaching_leaves_the_model_as_it_was(tmp_path, monkeypatch):
    model = chain()
    want = run(model)
    data = [each.data_ptr() for each in model.parameters()]
    real, left = os.pwritev, [3]

    def pwritev(descriptor, buffers, offset):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr("toprope.tiers.store.chunks.os.pwritev", pwritev)
    with pytest.raises(TierCapacityError, match="the disk is full"):
        attach(model, 60 * KB, 0, tmp_path, small=KB)
    assert torch.equal(run(model), want)
    assert not list(tmp_path.iterdir())
    assert not model._forward_pre_hooks
    assert len(data) == len(list(model.parameters()))
    monkeypatch.setattr("toprope.tiers.store.chunks.os.pwritev", real)
    with attach(model, 60 * KB, 0, tmp_path, small=KB):
        assert torch.equal(run(model), want)


def test_control_c_in_a_transfer_corrupts_nothing(tmp_path, ctrl_c_heeded):
    model = chain()
    want = run(model)
    slow = threading.Event()

    def disturb():
        if slow.is_set():
            time.sleep(0.3)

    empty, handle = attached(model, tmp_path, disturb=disturb)
    assert torch.equal(run(empty), want)
    slow.set()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    empty.order = empty.order * 10

    def interrupted():
        timer.start()
        run(empty)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    empty.order = model.order
    timer.join()
    slow.clear()
    for _ in range(2):
        assert torch.equal(run(empty), want)
    handle.close()
    assert not [each for each in tmp_path.iterdir() if each.name != "model.safetensors"]


def test_an_error_in_a_module_lets_everything_go(tmp_path):
    model = chain()
    want = run(model)
    handle = attach(model, 60 * KB, "10MB", small=KB, poison=True)

    def fail(module, args):
        raise ZeroDivisionError

    hook = model.layers[4].register_forward_pre_hook(fail)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(ZeroDivisionError):
            model(X)
    hook.remove()
    kept = torch.randn(3, 3, requires_grad=True)
    assert type((kept * kept).grad_fn._saved_self) is torch.Tensor  # no hook for saved tensors is left
    assert torch.equal(run(model), want)
    handle.detach()
    assert torch.equal(run(model), want)


def test_a_transfer_that_does_not_end_is_told(tmp_path):
    model = chain()
    free = threading.Event()
    free.set()
    empty, handle = attached(model, tmp_path, disturb=lambda: free.wait(20) and None, limit=0.3)
    free.clear()
    with pytest.raises(TierError, match="has not ended"):
        run(empty)
    free.set()
    handle._engine.limit = handle._engine.ring.limit = 20  # a busy disk may take longer than 0.3 s
    assert torch.equal(run(empty), run(model))
    handle.close()


@pytest.mark.slow
def test_a_closed_model_and_a_forked_one_are_told(tmp_path):
    model = chain()
    empty, handle = attached(model, tmp_path)
    run(empty)
    child = os.fork()
    if not child:
        status = 1
        try:
            run(empty)
        except TierError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    handle.close()
    gc.collect()
    with pytest.raises(RuntimeError):
        empty.layers[0].weight.data.add_(1)
    handle.close()


# Parts


def test_slots_know_who_has_views_of_them():
    slot = Slot(0, Memory.several([4096])[0], devices.get("cpu"))
    assert not slot.kept
    view = slot.at(256, torch.float32, (3, 4), (4, 1))
    assert view.data_ptr() == slot.memory.address + 256
    assert slot.kept
    other = view.t()[1:]
    del view
    assert slot.kept
    del other
    assert not slot.kept


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.data())
def test_an_order_knows_the_next_uses_whatever_is_used(uses, data):
    order = Order(uses)
    assert all(one != other for one, other in zip(order.uses, order.uses[1:], strict=False))
    for use in order.uses:
        assert order.uses[order.at] == use
        assert order.distance(use) == 0
        order.advance(use)
    assert order.missed == 0
    order.restart()
    for use in uses:  # in parts: what has more to come is used now
        order.advance(use)
        assert order.uses[order.at - 1] == use
        assert order.part <= order.parts[order.at - 1]
        if order.part < order.parts[order.at - 1]:
            assert order.distance(use) == 0
    assert order.missed == 0
    for _ in range(20):
        use = data.draw(st.sampled_from("abcdefg"))
        order.advance(use)
        if use in order.uses:
            assert order.uses[order.at - 1] == use
        found = order.upcoming(set(order.uses), 3)
        now = order.part < order.parts[order.at - 1] and order.uses[order.at - 1]
        distances = [order.distance(each) for each in found if each != now]
        assert distances == sorted(distances)
        assert len(found) == min(3, len(set(order.uses)))
    assert order.distance("g") > len(order)


def test_a_trace_adds_up_what_a_group_computes():
    trace = Trace()
    for name in ("a", "a", "b"):
        trace.enter(name, False)
        trace.leave()
    trace.enter("b", True)
    assert trace.uses == [("a", False), ("b", False), ("b", True)]
    assert all(each >= 0 for each in trace.seconds)
