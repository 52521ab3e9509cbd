"""`TierStack` on the CPU in this process, and with real moves on a simulated card in another.

Held: `tiers.stack`, by failing copies, full levels and what is counted.
"""

import copy
import gc
import random
import threading
import weakref

import pytest
import torch

from device_stand_ins import told
from toprope.device.cpu import CpuDevice
from toprope.errors import DeviceNameError, TierCapacityError, UsageError
from toprope.tiers import Tier, TierLinear, TierStack
from toprope.tiers.stack.contents import Contents

pytestmark = [pytest.mark.native, pytest.mark.process]

MIB = 2**20


def stack_of(*capacities):
    return TierStack([Tier.named("cpu", capacity) for capacity in capacities])


def used(stack):
    return [level.used for level in stack.stats().levels]


# Rules, on the CPU


def test_a_tensor_too_large_for_every_level_is_a_typed_error_and_leaves_everything_as_it_was():
    stack = stack_of(100, 200)
    stack.put("a", torch.zeros(80, dtype=torch.uint8))
    before = stack.stats()
    with pytest.raises(TierCapacityError, match="has no room on any level") as caught:
        stack.put("large", torch.zeros(201, dtype=torch.uint8))
    assert "level 0 (cpu) holds 80 B of 100 B; level 1 (cpu) holds 0 B of 200 B" in str(caught.value)
    assert stack.stats() == before
    assert "large" not in stack
    with pytest.raises(TierCapacityError):  # in place of a smaller one, which stays
        stack.put("a", torch.zeros(500, dtype=torch.uint8))
    assert stack.access("a").numel() == 80


def test_a_stack_that_is_full_refuses_and_drops_nothing():
    stack = stack_of(2, 2)
    for key in range(4):
        stack.put(key, torch.tensor([key], dtype=torch.uint8))
    with pytest.raises(TierCapacityError):
        stack.put("one more", torch.zeros(1, dtype=torch.uint8))
    assert [int(stack.access(key)) for key in range(4)] == [0, 1, 2, 3]


def test_a_failing_copy_undoes_the_moves_before_it(monkeypatch):
    stack = stack_of(2, 4)
    for key in "ab":
        stack.put(key, torch.zeros(1, dtype=torch.uint8))
    stack.put("low", torch.zeros(2, dtype=torch.uint8), level=1)
    before, shift, made = stack.stats(), Contents.shift, []

    def fails_at_the_third(self, move, *, ahead=False):
        made.append(move)
        if len(made) == 3:
            raise torch.OutOfMemoryError("NPU out of memory")
        shift(self, move)

    monkeypatch.setattr(Contents, "shift", fails_at_the_third)
    with pytest.raises(torch.OutOfMemoryError):
        stack.access("low")
    monkeypatch.undo()
    assert [(move.key, move.target) for move in made] == [("a", 1), ("b", 1), ("low", 0), ("b", 0), ("a", 0)]
    after = stack.stats()
    assert [(level.used, level.entries) for level in after.levels] == [(2, 2), (2, 1)]
    assert (after.promotions, after.demotions) == (before.promotions, before.demotions)
    assert [stack.level_of(key) for key in ("a", "b", "low")] == [0, 0, 1]


def test_what_is_kept_by_reference_and_what_is_copied():
    stack = stack_of(MIB)
    whole, table = torch.ones(4), torch.ones(100, 4)
    stack.put("whole", whole)
    stack.put("row", table[3])
    assert stack.access("whole") is whole
    row = stack.access("row")
    assert torch.equal(row, table[3])
    assert row.untyped_storage().nbytes() == row.nbytes  # it does not keep the whole table in memory
    assert used(stack) == [32]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.nn.Parameter(torch.ones(2)), "has gradients"),
        (torch.ones(2, requires_grad=True) * 2, "has gradients"),
        (torch.empty(2, device="meta"), "has no values"),
        (torch.ones(2, 2).to_sparse(), "is not dense"),
        ([1.0], "is of type list, and no tensor"),
    ],
)
def test_what_cannot_be_kept_is_refused(value, says):
    stack = stack_of(MIB)
    with pytest.raises(UsageError, match=says):
        stack.put("x", value)
    assert len(stack) == 0


def test_requests_are_counted_where_they_ask():
    stack = stack_of(4, 4)
    for key in "ab":
        stack.put(key, torch.zeros(4, dtype=torch.uint8))
    assert [stack.level_of(key) for key in "ab"] == [1, 0]
    stack.access("b")
    stack.access("a")
    assert stack.access("nobody") is None
    assert stack.access_at("a", 1) is None
    assert stack.access_at("a", 0) is not None
    stats = stack.stats()
    assert stats.requests == 5
    assert [(level.hits, level.misses, level.evictions) for level in stats.levels] == [(2, 2, 2), (1, 2, 0)]
    assert (stats.promotions, stats.demotions) == (1, 2)


def test_prefetch_brings_what_fits_and_does_not_push_out_what_it_brought():
    stack = stack_of(2, 8)
    for key in "abcdef":
        stack.put(key, torch.zeros(1, dtype=torch.uint8))
    stack.prefetch(["a", "nobody", "b", "c"])
    assert [stack.level_of(key) for key in "abc"] == [0, 0, 1]
    assert stack.stats().requests == 0


def test_the_same_key_eight_times_counts_one_copy_and_remove_and_clear_return_to_nothing():
    stack = stack_of(MIB, MIB)
    for _ in range(8):
        stack.put("a", torch.ones(10))
    assert used(stack) == [40, 0]
    assert torch.equal(stack.remove("a"), torch.ones(10))
    assert stack.remove("a") is None
    assert used(stack) == [0, 0]
    stack.put("a", torch.ones(10))
    stack.clear()
    assert (used(stack), len(stack), stack.access("a")) == ([0, 0], 0, None)


def test_what_is_removed_is_freed():
    stack = stack_of(MIB)
    tensor = torch.ones(3)
    watched = weakref.ref(tensor)
    stack.put("a", tensor)
    del tensor
    assert watched() is not None
    stack.remove("a")
    assert watched() is None


def test_four_threads_with_3000_operations_each_keep_the_figures_right():
    stack = stack_of(20_000, 40_000)
    failures, wrong = [], []

    def work(seed):
        draw = random.Random(seed)
        try:
            for _ in range(3000):
                key = draw.randrange(24)
                what = draw.randrange(10)
                if what < 4:
                    try:
                        stack.put(key, torch.full((draw.randrange(1000),), key, dtype=torch.int32))
                    except TierCapacityError:
                        pass
                elif what < 7:
                    found = stack.access(key)
                    if found is not None and not bool((found == key).all()):
                        wrong.append(key)
                elif what == 7:
                    stack.prefetch([key, draw.randrange(24)])
                elif what == 8:
                    stack.remove(key)
                else:
                    stack.stats()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (failures, wrong) == ([], [])
    held = [0, 0]
    for key in range(24):
        level = stack.level_of(key)
        if level is not None:
            held[level] += stack.access_at(key, level).nbytes
    assert used(stack) == held
    assert sum(held) > 0
    stack.clear()
    assert used(stack) == [0, 0]


def test_levels_that_cannot_be_made():
    with pytest.raises(DeviceNameError):
        Tier.named("abacus:1", MIB)
    with pytest.raises(UsageError, match="is no level"):
        Tier.named("ssd:0", MIB)
    with pytest.raises(UsageError, match="has no folder"):
        Tier.named("cpu", MIB, folder="/")
    with pytest.raises(UsageError, match="-1 bytes"):
        Tier.named("cpu", -1)
    with pytest.raises(UsageError, match="without levels"):
        TierStack([])
    with pytest.raises(UsageError, match="no level 2"):
        stack_of(1, 1).put("a", torch.zeros(0), level=2)


def test_levels_larger_than_the_free_memory_are_refused(monkeypatch):
    monkeypatch.setattr(CpuDevice, "memory_info", lambda self: (100, 1000))
    stack_of(60, 40)
    with pytest.raises(TierCapacityError, match="cpu has less free memory") as caught:
        stack_of(60, 41)
    assert "101 B asked for, 100 B free" in str(caught.value)


def test_levels_of_the_same_memory_exchange_labels_and_measure_nothing():
    stack = TierStack([Tier.named("cpu", 8 * MIB, 5e9), Tier.named("cpu", 64 * MIB)])
    for key in range(8):
        stack.put(key, torch.zeros(2 * MIB, dtype=torch.uint8))
    top, bottom = stack.stats().levels
    assert (top.speed, top.speed_source, bottom.speed, bottom.speed_source) == (5e9, "configured", None, "unknown")
    assert top.evictions == 4


# A layer whose weights live in a stack, on the CPU


def test_a_layer_gives_the_numbers_of_torchs_own_and_trains_the_same():
    torch.manual_seed(3)
    plain = torch.nn.Linear(5, 7)
    torch.manual_seed(3)
    layer = TierLinear(5, 7, stack_of(MIB))
    assert list(layer.state_dict()) == ["weight", "bias"]
    x = torch.randn(4, 5)
    for each in (plain, layer):
        optimiser = torch.optim.Adam(each.parameters())
        for _ in range(3):
            optimiser.zero_grad()
            each(x).square().mean().backward()
            optimiser.step()
    assert torch.equal(layer.weight, plain.weight)
    assert torch.equal(layer.bias, plain.bias)
    assert torch.equal(layer.weight.grad, plain.weight.grad)


def test_a_layers_bytes_are_reserved_as_long_as_it_lives():
    stack = stack_of(1000, 1000)
    layer = TierLinear(5, 7, stack)
    assert used(stack) == [4 * 7 * 6, 0]
    layer.double()
    assert used(stack) == [8 * 7 * 6, 0]
    twin = copy.deepcopy(layer)
    assert used(stack) == [2 * 8 * 7 * 6, 0]
    assert twin.weight.dtype is torch.float64
    stack.clear()
    assert used(stack) == [2 * 8 * 7 * 6, 0]
    layer.load_state_dict({"weight": torch.ones(7, 5), "bias": torch.ones(7)}, assign=True)
    assert used(stack) == [4 * 7 * 6 + 8 * 7 * 6, 0]
    layer(torch.ones(1, 5))
    assert stack.stats().requests == 1
    del layer, twin
    gc.collect()
    assert used(stack) == [0, 0]


def test_a_layer_without_room_is_refused_and_one_that_grows_too_large_stays_as_it_was():
    stack = stack_of(100, 150)
    with pytest.raises(TierCapacityError):
        TierLinear(40, 1, stack)
    layer = TierLinear(30, 1, stack, bias=False)
    assert used(stack) == [0, 120]
    with pytest.raises(TierCapacityError):
        layer.double()
    assert (layer.weight.dtype, layer.bias, used(stack)) == (torch.float32, None, [0, 120])


def test_tensors_make_way_for_a_layer():
    stack = stack_of(100, 100)
    stack.put("a", torch.zeros(90, dtype=torch.uint8))
    layer = TierLinear(10, 1, stack)
    assert stack.level_of("a") == 1
    assert used(stack) == [44, 90]
    stack.put("b", torch.zeros(10, dtype=torch.uint8))
    assert layer.home == torch.device("cpu")


def test_a_layer_can_be_emptied_and_filled_again():
    stack = stack_of(1000)
    layer = TierLinear(5, 7, stack).to("meta")
    assert used(stack) == [0]
    layer.to_empty(device="cpu")
    assert used(stack) == [4 * 7 * 6]


# On a simulated card


CARD = """
import toprope.sim
toprope.sim.install("910B3", count=2, hbm="128MiB")
import copy, threading, random, torch
from toprope import device
from toprope.tiers import Tier, TierLinear, TierStack
from toprope.errors import TierCapacityError
MIB = 2**20
answers = {}

def pair(top, bottom):
    return TierStack([Tier.named("npu:0", top), Tier.named("cpu", bottom)])

stack = pair(10 * MIB, 50 * MIB)
originals = [torch.randn(MIB // 4) for _ in range(40)]
card = device.get("npu:0")
before = card.memory_allocated()
for number, tensor in enumerate(originals):
    stack.put(number, tensor)
stats = stack.stats()
answers["after 40"] = [
    [level.used // MIB for level in stats.levels], stats.demotions, card.memory_allocated() - before,
    [str(stack.access_at(number, stack.level_of(number)).device) for number in (0, 39)],
    [level.speed_source for level in stats.levels],
]
got = [stack.access(number) for number in range(40)]
answers["equal"] = all(torch.equal(a.cpu(), b) and str(a.device) == "npu:0" for a, b in zip(got, originals))
del got
stats = stack.stats()
answers["figures"] = [[level.used // MIB for level in stats.levels], stats.promotions, stats.levels[0].speed_source]
stack.clear()
answers["freed"] = card.memory_allocated() - before

stack = pair(1000, 4000)
there = torch.ones(100, device="npu:0")
stack.put("there", there)
answers["reference"] = stack.access("there") is there
for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64):
    for shape in ((3, 5), (0, 4), ()):
        value = torch.randint(0, 2, shape).to(dtype).clone()
        stack.put("x", value, level=1)
        back = stack.access("x")
        same = back.cpu().view(-1).view(torch.uint8).equal(value.view(-1).view(torch.uint8))
        if not (same and str(back.device) == "npu:0" and back.dtype is dtype and back.shape == value.shape):
            answers.setdefault("not exact", []).append([str(dtype), shape])
with torch.inference_mode():
    stack.put("inference", torch.ones(4), level=1)
    stack.access("inference")
answers["inference"] = stack.access("inference").is_inference()

def work(seed):
    draw = random.Random(seed)
    for _ in range(3000):
        key, what = draw.randrange(12), draw.randrange(8)
        try:
            if what < 2:
                many.put(key, torch.full((draw.randrange(200),), key, dtype=torch.int32, device=draw.choice(places)))
            elif what < 6:
                found = many.access(key)
                if found is not None and found.numel() and int(found[0]) != key:
                    failures.append(key)
            elif what == 6:
                many.remove(key)
            else:
                many.prefetch([key, key + 1])
        except TierCapacityError:
            pass
        except Exception as error:
            failures.append(repr(error))
many, failures, places = pair(2000, 4000), [], ["cpu", "npu:0", "npu:1"]
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[each.start() for each in threads], [each.join() for each in threads]
held = [0, 0]
for key in range(12):
    level = many.level_of(key)
    if level is not None:
        found = many.access_at(key, level)
        held[level] += found.nbytes
        if str(found.device) != ("npu:0", "cpu")[level]:
            failures.append(str(found.device))
answers["threads"] = [failures, [level.used for level in many.stats().levels] == held, sum(held) > 0,
                      many.stats().demotions > 50]

stack = pair(100, 4000)
torch.manual_seed(5)
layer = TierLinear(6, 5, stack)
plain = torch.nn.Linear(6, 5)
plain.load_state_dict(layer.state_dict())
plain.to("npu:0")
homes = [str(layer.home)]
x = torch.randn(4, 6)
for each in (layer, plain):
    optimiser = torch.optim.SGD(each.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        y = each(x.to("npu:0"))
        y.square().mean().backward()
        optimiser.step()
answers["trains"] = [str(y.device), str(layer.weight.grad.device), str(layer.bias.grad.device),
                     torch.allclose(layer.weight, plain.weight.cpu()),
                     torch.allclose(layer.weight.grad, plain.weight.grad.cpu())]
roomy = pair(4000, 4000)
moved = TierLinear(6, 5, roomy)
homes.append(str(moved.home))
moved.to("cpu")
homes.append(str(moved.home) + str([level.used for level in roomy.stats().levels]))
moved.to("npu:0", torch.float64)
homes.append(str(moved.home) + str([level.used for level in roomy.stats().levels]))
homes.append(str(layer.to("npu:0").home))
answers["homes"] = homes

# a card whose memory ends in the middle: what was moved for it is moved back
small = TierStack([Tier.named("npu:0", 100 * MIB), Tier.named("cpu", 200 * MIB)])
before = card.memory_allocated()
small.put("kept", torch.ones(60 * MIB, dtype=torch.uint8))
filler = torch.empty(50 * MIB, dtype=torch.uint8, device="npu:0")
small.put("low", torch.zeros(80 * MIB, dtype=torch.uint8), level=1)
try:
    small.access("low")
    answers["out of memory"] = "none"
except torch.OutOfMemoryError:
    kept = small.access_at("kept", 0)
    answers["out of memory"] = [small.level_of("low"), str(kept.device), bool(kept[-1] == 1),
                                [level.used // MIB for level in small.stats().levels]]
tell(answers)
"""


@pytest.fixture(scope="module")
def card():
    return told(CARD)


@pytest.mark.slow
def test_40_tensors_of_1_mib_into_10_and_50_mib_are_all_there(card):
    (levels, demotions, on_card, places, sources) = card["after 40"]
    assert levels == [10, 30]
    assert demotions >= 30
    assert 10 * MIB <= on_card < 10 * MIB + 2**14  # what was moved down is no longer on the card
    assert places == ["cpu", "npu:0"]
    assert sources == ["measured", "measured"]
    assert card["equal"]
    levels, promotions, source = card["figures"]
    assert (levels, source) == ([10, 30], "measured")
    assert 30 <= promotions < 40  # the second time round, the order is known, and some stay for it
    assert card["freed"] == 0


@pytest.mark.slow
def test_moves_are_exact_for_every_dtype_and_shape(card):
    assert "not exact" not in card
    assert card["reference"]
    assert card["inference"] is False


@pytest.mark.slow
def test_four_threads_on_a_card_keep_the_figures_right(card):
    assert card["threads"] == [[], True, True, True]


@pytest.mark.slow
def test_a_layer_whose_home_is_the_host_trains_on_the_card(card):
    assert card["trains"] == ["npu:0", "cpu", "cpu", True, True]


def test_a_layers_home_follows_what_is_asked_where_there_is_room(card):
    assert card["homes"] == ["cpu", "npu:0", "cpu[0, 140]", "npu:0[280, 0]", "cpu"]


def test_a_card_that_runs_out_of_memory_loses_nothing(card):
    assert card["out of memory"] == [1, "npu:0", True, [60, 80]]
