"""The device's budget is kept, and a plan that was accepted can be run: checkpointed blocks, threads, compiled models.

Held: `engine.runtime` and `prefetch.prefetch_buffer` with as few slots as a plan allows.
"""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from toprope.errors import PlanError, TierBusyError
from toprope.tiers import attach

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64


class Block(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Net(nn.Module):
    def __init__(self, recompute, blocks=6):
        super().__init__()
        torch.manual_seed(0)
        self.recompute = recompute
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        return x


def gradients(model):
    return [each.grad.clone() for each in model.parameters()]


def step(model, passes=1):
    model.zero_grad()
    outputs = [model(torch.full((4, WIDTH), 0.1 * (number + 1), requires_grad=True)) for number in range(passes)]
    sum(each.square().sum() for each in outputs).backward()
    return gradients(model)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("activations", ["device", "host"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_larger_than_a_slot_are_computed_again(reentrant, activations, passes):
    """A plan with split groups was accepted; backward had no slot: the block kept views of all of its weights."""
    want = step(Net(None), passes)
    model = Net(reentrant)
    with attach(
        model, 100_000, "10MB", on="cpu", small=1000, training=True, activations=activations, slots=2
    ) as handle:
        assert handle.plan.split
        assert handle.training is not None
        for _ in range(3):  # with another plan from the second on
            assert all(torch.equal(one, other) for one, other in zip(step(model, passes), want, strict=True))


def test_a_checkpointed_model_as_a_whole_is_computed_again():
    want = step(Net(None))
    model = Net(None)
    with attach(model, 100_000, "10MB", on="cpu", small=1000, training=True):
        out = checkpoint(model, torch.full((4, WIDTH), 0.1, requires_grad=True), use_reentrant=False)
        out.square().sum().backward()
        assert all(torch.equal(one, other) for one, other in zip(gradients(model), want, strict=True))


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        time.sleep(1.2)
        return self.layer(x)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.slow = nn.Linear(WIDTH, WIDTH), Slow()

    def forward(self, x):
        return self.slow(self.layer(x))


def test_a_thread_waits_for_slots_that_other_threads_use():
    """After a second it was TierBusyError, though each layer only took longer than that."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Around() for _ in range(3)])
    x = torch.ones(1, WIDTH)
    with torch.no_grad():
        want = model(x)
    found = []

    def run(number):
        time.sleep(number * 0.7)
        with torch.no_grad():
            found.append(model(x))

    with attach(model, 75_000, "10MB", on="cpu", small=1000, slots=2) as handle:
        assert len(handle.plan.resident) < 3
        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(found) == 3
    assert all(torch.equal(each, want) for each in found)


def test_threads_that_wait_for_each_others_slots_are_told():
    """Each holds one of two slots and wants another: one gets an error, the other goes on."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])
    results = []
    barrier = threading.Barrier(2)
    with attach(model, 50_000, "10MB", on="cpu", small=1000, slots=2) as handle:
        away = sorted({int(each.name) for each in handle._engine._units})

        def run(first, second):
            try:
                with handle.weights(model[first]):
                    barrier.wait(60)
                    with handle.weights(model[second]):
                        results.append("ok")
            except TierBusyError:
                results.append("busy")

        threads = [threading.Thread(target=run, args=(away[n], away[n + 2])) for n in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(100)
    assert sorted(results) == ["busy", "ok"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, of what it compiles
def test_a_model_that_was_compiled_before_is_attached_inside():
    """It was one module that needs all of its weights: accepted, and busy in the first call."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])
    x = torch.ones(2, WIDTH)
    want = model(x).detach()
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with attach(compiled, 50_000, "10MB", on="cpu", small=1000) as handle:
        assert handle.plan.slots
        assert handle.model is model
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(compiled(x), want)
        compiled(x).sum().backward()
    assert torch.equal(compiled(x), want)


# The least budget


class Nested(nn.Module):
    """A module with weights of its own that runs another one with weights, and needs both at once."""

    def __init__(self, inner=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False) if inner is None else inner

    def forward(self, x):
        return torch.relu(self.inner(x)) @ self.weight


@pytest.mark.parametrize(
    ("build", "slots"),
    [(lambda: Block(6), 1), (Nested, 2), (lambda: Nested(Nested()), 3)],
    ids=["one weight", "two", "three"],
)
def test_the_least_budget_has_as_many_slots_as_a_module_needs_at_once(build, slots):
    """Two slots were the least, more than accelerate needs; and a plan with three weights at once could not be run."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList(build() for _ in range(4))})
    model.forward = lambda x: [x := torch.tanh(each(x)) for each in model.layers][-1]
    x = torch.randn(3, WIDTH)
    want = model(x)
    want.square().sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    want = want.detach()
    size = WIDTH * WIDTH * 4
    biases = sum(each.nbytes for each in model.parameters() if each.dim() == 1)
    budget = slots * size + biases
    with pytest.raises(PlanError):
        attach(model, budget - 256, "10MB", on="cpu", small=1)
    with attach(model, budget, "10MB", on="cpu", small=1000, poison=True) as handle:
        assert (handle.plan.slots, handle.plan.slot_bytes) == (slots, size)
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(model(x), want)
        model(x).square().sum().backward()  # of a plan for inference too
        assert all(torch.equal(one, other) for one, other in zip(gradients(model), wanted, strict=True))
        assert handle.stats().peak_bytes["device"] <= budget
        if slots == 1:  # threads take turns; with several slots they may wait for each other, which is an error
            found = []
            threads = [threading.Thread(target=lambda: found.append(model(x).detach())) for _ in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert len(found) == 2
            assert all(torch.equal(each, want) for each in found)


def test_a_thread_whose_weight_another_one_had_just_loaded_was_taken_for_one_that_waits():
    """Of two threads that take turns in one slot, one got TierBusyError where the other had only to wake up."""
    torch.manual_seed(0)
    model = Block(6)
    x = torch.randn(3, WIDTH)
    want, found = model(x).detach(), []
    biases = sum(each.nbytes for each in model.parameters() if each.dim() == 1)

    def work() -> None:
        found.extend(model(x).detach() for _ in range(30))

    with attach(model, WIDTH * WIDTH * 4 + biases, "10MB", on="cpu", small=1000):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(found) == 90
    assert all(torch.equal(each, want) for each in found)


# The budget


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])
        self.register_buffer("table", torch.zeros(10_000))

    def forward(self, x):
        return self.layers(x)


def test_buffers_are_in_the_budget():
    with pytest.raises(PlanError, match="always stay"):
        attach(Buffered(), 55_000, "10MB", on="cpu", small=1000)
    with attach(Buffered(), 100_000, "10MB", on="cpu", small=1000) as handle:
        assert handle.plan.resident_bytes >= 40_000
        for _ in range(3):
            handle.model(torch.ones(1, WIDTH))
        assert handle.plan.resident_bytes >= 40_000
        assert handle.stats().peak_bytes["device"] <= 100_000
        handle.model.to(torch.bfloat16)
        handle.model(torch.ones(1, WIDTH, dtype=torch.bfloat16))
        assert 86_560 <= handle.plan.resident_bytes < 90_000  # all of it, halved, and aligned


def test_what_a_subclass_of_tensor_consists_of_is_in_the_budget():
    quantization = pytest.importorskip("torchao.quantization")
    model = Buffered()
    quantization.quantize_(model.layers[0], quantization.Int8WeightOnlyConfig())
    with attach(model, 120_000, "10MB", on="cpu", small=1000) as handle:
        assert handle.plan.resident_bytes >= 40_000 + WIDTH * WIDTH


CARD = """
import torch
from torch import nn
from toprope.tiers import attach

class Uneven(nn.Module):
    "Layers of different sizes, used in another order than they are defined: the second plan is another one."
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 128 * (1 + number % 8)) for number in range(16))
        self.register_buffer("table", torch.zeros(2**18))
    def forward(self, x):
        return sum(self.layers[number](x).sum() for number in reversed(range(16)))

torch.manual_seed(0)
model = Uneven()
x = torch.ones(1, 512, device="npu")
torch.npu.synchronize()
before = torch.npu.memory_allocated()
budget = 8 * 2**20
handle = attach(model, budget, "100MB", on="npu", small=4096)
first = handle.plan
for call in range(5):
    torch.npu.reset_peak_memory_stats()
    with torch.no_grad():
        model(x)
    stats = handle.stats()
    used = torch.npu.max_memory_allocated() - before
    assert stats.peak_bytes["device"] <= budget, stats
    assert stats.device_peak_bytes == torch.npu.max_memory_allocated(), stats
    assert used <= budget + 2**19, (call, used, budget)
    assert stats.device_peak_bytes <= stats.peak_bytes["device"] + stats.outside_bytes, stats
with torch.no_grad():
    want = model(x)
handle.detach()

from toprope.errors import PlanError
biases = sum(each.nbytes for each in model.parameters() if each.dim() == 1)
budget = 4 * 512 * 1024 + 4 * 2**18 + biases + 16 * 256  # one slot, what stays, and what aligning takes
handle = attach(model, budget, "100MB", on="npu", small=4096)
assert handle.plan.slots == 1, handle.plan.reasons
before = torch.npu.memory_allocated() - handle.plan.device_bytes
for call in range(3):
    torch.npu.reset_peak_memory_stats()
    with torch.no_grad():
        assert torch.equal(model(x), want)
    used = torch.npu.max_memory_allocated() - before
    assert used <= budget + 2**19, (call, used, budget)
print("ended")
"""


@pytest.mark.native
def test_the_measured_peak_of_every_call_is_in_the_budget_on_the_simulated_card(tmp_path):
    """A new plan took its slots before the old ones were free: twice the budget in the second call."""
    environment = os.environ | {"TOPROPE_SIM": "910B3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CARD], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("ended\n")
