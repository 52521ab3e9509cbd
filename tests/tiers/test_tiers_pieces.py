"""Weights larger than the device's budget (`prefetch.row_pieces`): in pieces with the bits of the whole, or refused."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import tiers_models
from toprope import device as devices
from toprope.errors import PlanError, TierAbsentError, TierCapacityError
from toprope.tiers import attach, skeleton
from toprope.tiers.engine import attach as attaching
from toprope.tiers.engine.model.model_groups import read_model
from toprope.tiers.engine.prefetch.row_pieces import ROWS, _stretches, divisible, same_bits

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH, WORDS = 64, 1000
KB = 1000


class Net(nn.Module):
    """A table of words and a head, each larger than all else."""

    def __init__(self, tie=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.head = nn.Linear(WIDTH, WORDS, bias=not tie)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


def tokens(rows):
    return torch.arange(rows) * 37 % WORDS


def attached(model, folder=None, device=90 * KB, **options):
    place = {"host": "10MB"} if folder is None else {"host": 0, "disk": folder}
    return attach(model, device, **place, on="cpu", small=1000, poison=True, **options)


@pytest.mark.parametrize("tie", [False, True], ids=["two tables", "tied"])
@pytest.mark.parametrize("place", ["host", "spill", "files"])
def test_tables_larger_than_the_device_are_computed_in_pieces(place, tie, tmp_path):
    """A tensor of 256 kB was the least that the device must hold."""
    model, same = Net(tie), Net(tie)
    if place == "files":
        state = {name: each for name, each in same.state_dict().items() if not tie or name != "head.weight"}
        save_file(state, tmp_path / "model.safetensors")
        with skeleton():
            model = Net(tie)
    with attached(model, None if place == "host" else tmp_path) as handle, torch.no_grad():
        assert handle.plan.device_bytes <= 90 * KB
        assert set(handle._engine.pieces.tiers.values()) == {"host" if place == "host" else "disk"}
        for rows in (1, 2, 3, 5, 33, 3, 128):
            assert torch.equal(model(tokens(rows)), same(tokens(rows))), rows
        assert torch.equal(model(tokens(6).view(2, 3)), same(tokens(6).view(2, 3)))
        assert handle.stats().peak_bytes["device"] <= 90 * KB
        for one, other in zip(model.state_dict().values(), same.state_dict().values(), strict=True):
            assert torch.equal(one, other)
        with pytest.raises(IndexError, match=r"index 1000 is out of range of embed\.weight"):
            model(torch.tensor([1, WORDS]))
        changed = {name: each * 2 for name, each in same.state_dict().items()}
        model.load_state_dict(changed)
        same.load_state_dict(changed)
        assert torch.equal(model(tokens(4)), same(tokens(4)))
        handle.detach("cpu")
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))
    assert torch.equal(model(tokens(4)), same(tokens(4)))


def test_what_pieces_cannot_do_is_an_error():
    model = Net()
    with attached(model) as handle:
        with pytest.raises(TierAbsentError, match=r"embed\.weight is computed in pieces.*no gradients"):
            model(tokens(3))
        with pytest.raises(TierCapacityError, match=r"head\.weight is computed in pieces"), handle.weights(model.head):
            pass
        with torch.no_grad():
            with pytest.raises(TierAbsentError, match=r"head\.weight is not on the device: it is computed in"):
                torch.mm(torch.ones(1, WIDTH), model.head.weight.t())
            with pytest.raises(TierAbsentError, match="head"):
                functional.linear(model.head.weight, torch.ones(2, WIDTH))
            model.to(torch.bfloat16)
            with pytest.raises(TierAbsentError, match=r"another dtype than when it was attached"):
                model(tokens(3))
    with pytest.raises(PlanError, match="one tensor alone"):
        attached(Net(), training=True)


def test_pieces_that_no_store_has_room_for_are_refused(tmp_path):
    """They were written to a disk without asking for its room."""
    with pytest.raises(PlanError, match="one tensor alone"):
        attached(Net(), f"{tmp_path}:300kB")
    with pytest.raises(PlanError, match="one tensor alone"):
        attach(Net(), 90 * KB, 300 * KB, on="cpu", small=1000)


def test_pieces_with_other_bits_are_refused(monkeypatch):
    monkeypatch.setattr(attaching, "same_bits", lambda *_: False)
    with pytest.raises(PlanError, match="one tensor alone"):
        attached(Net())


def test_only_layers_that_take_rows_are_divided():
    class Own(nn.Linear):
        pass

    model = nn.ModuleList([
        nn.Linear(8, 200), nn.Embedding(200, 8), nn.Embedding(200, 8, max_norm=1.0), Own(8, 200), nn.Linear(8, 100),
        nn.MultiheadAttention(128, 2), nn.Bilinear(8, 8, 200),
    ])  # fmt: skip
    assert {each.name for each in divisible(read_model(model, 1))} == {"0.weight", "1.weight"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_with_pieces_have_the_bits_of_the_whole_or_the_measurement_says_so(dtype):
    torch.manual_seed(0)
    for columns, total in ((64, 1000), (200, 520)):
        layer = nn.Linear(columns, total).to(dtype)
        weight = next(each for each in read_model(layer, 1).weights.values() if each.like.dim() == 2)
        for size in (2 * ROWS * columns * dtype.itemsize, 4 * ROWS * columns * dtype.itemsize):
            stretches = _stretches(total, weight, size)
            assert all(ROWS <= stop - start <= size // columns // dtype.itemsize for start, stop in stretches)
            assert [start for start, _ in stretches[1:]] == [stop for _, stop in stretches[:-1]]
            equal = []
            for count in range(1, 65):
                x = torch.randn(count, columns).to(dtype)
                with torch.no_grad():
                    parts = [
                        functional.linear(x, layer.weight[start:stop].clone(), layer.bias[start:stop])
                        for start, stop in stretches
                    ]
                    equal.append(torch.equal(torch.cat(parts, -1), layer(x)))
            assert all(equal) or not same_bits(weight, size, devices.get("cpu")), (columns, size, equal)


CARD = """
import torch
from torch import nn
from toprope.tiers import attach

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(8000, 256), nn.Linear(256, 256)
        self.head = nn.Linear(256, 8000, bias=False)
    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))

model, same = Net(), Net().to("npu")
inputs = [torch.arange(count, device="npu") * 37 % 8000 for count in (1, 2, 3, 17, 64)]
with torch.no_grad():
    want = [same(each).cpu() for each in inputs]
del same
torch.npu.empty_cache()
budget = 3 * 2**20  # each table has 8 MiB
before = torch.npu.memory_allocated()
handle = attach(model, budget, "100MB", on="npu", small=4096, poison=True)
torch.npu.reset_peak_memory_stats()
with torch.no_grad():
    for _ in range(2):
        assert all(torch.equal(model(each).cpu(), wanted) for each, wanted in zip(inputs, want))
used = torch.npu.max_memory_allocated() - before
computing = 2 * 64 * 8000 * 4 + 2**20  # two outputs, and what is between
assert used <= budget + computing, (used, budget)
assert handle.stats().peak_bytes["device"] <= budget
print("ended")
"""


@pytest.mark.native
def test_pieces_on_the_simulated_card_stay_within_the_budget():
    environment = os.environ | {"TOPROPE_SIM": "910B3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CARD], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("ended\n")


# Experts that are one tensor in the model

MOE = {
    "mixtral": tiers_models.EXPERTS,
    "qwen2_moe": tiers_models.EXPERTS | {"moe_intermediate_size": 96},
    "deepseek_v3": tiers_models.LATENT | {"moe_intermediate_size": 96},
}


def largest_experts(model):
    return max(each.nbytes for each in model.parameters() if each.dim() == 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["host", "files"])
@pytest.mark.parametrize("name", MOE)
def test_fused_experts_come_one_by_one(name, place, tmp_path):
    """All experts of a layer are one tensor, of which the device had to hold two."""
    pytest.importorskip("transformers")
    case = replace(tiers_models.CASES[name], build=tiers_models.of_transformers(name, tiers_models.LM, MOE[name]))
    whole = case.build().eval()
    whole.set_experts_implementation("eager")
    whole.save_pretrained(tmp_path)
    with skeleton() if place == "files" else nullcontext():
        model = case.build().eval()
    model.set_experts_implementation("eager")
    budget = largest_experts(whole) * 3 // 4
    options = {"host": "10MB"} if place == "host" else {"host": 0, "disk": tmp_path}
    with attach(model, budget, **options, on="cpu", small=200, poison=True) as handle, torch.no_grad():
        assert 3 in {each.like.dim() for each in handle._engine.pieces.tiers}
        for _ in range(2):
            assert torch.equal(model(**case.batch()).logits, whole(**case.batch()).logits)
        assert torch.equal(
            model.generate(**case.batch(), **case.generate), whole.generate(**case.batch(), **case.generate)
        )
        assert handle.stats().peak_bytes["device"] <= budget
        with pytest.raises(TierAbsentError, match="no gradients"), torch.enable_grad():
            model(**case.batch())


@pytest.mark.filterwarnings("ignore")
def test_experts_that_are_multiplied_all_at_once_are_refused_with_a_way_out():
    pytest.importorskip("transformers")
    model = tiers_models.CASES["mixtral"].build()
    assert model.get_experts_implementation()[""] == "grouped_mm"
    with pytest.raises(PlanError, match=r'set_experts_implementation\("eager"\) before attach'):
        attach(model, largest_experts(model) * 5 // 4, "10MB", on="cpu", small=200)


class Experts(nn.Module):
    """Experts of odd sizes: in the tensor of all of them most begin at no multiple of 64 bytes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(_experts_implementation="eager")
        self.up = nn.Parameter(torch.randn(5, 33, 37))

    def forward(self, x, numbers):
        return torch.stack([functional.linear(x, self.up[number]) for number in numbers])


def test_an_expert_has_the_alignment_that_it_has_in_the_tensor_of_all():
    model, same, x = Experts(), Experts(), torch.randn(1, 37)
    whole = nn.ModuleDict({"experts": model})
    with attach(whole, 15 * KB, "1MB", on="cpu", small=100, poison=True) as handle, torch.no_grad():
        for numbers in (range(5), [torch.tensor(3), torch.tensor(-1)], [2]):
            assert torch.equal(model(x, numbers), same(x, numbers))
        units = [each.unit for each in next(iter(handle._engine.pieces._pieces.values()))]
        assert [each.offsets[0] for each in units] == [number * 33 * 37 * 4 % 64 for number in range(5)]
        with pytest.raises(IndexError, match=r"index 5 is out of range of experts\.up with 5 experts"):
            model(x, [5])
        with pytest.raises(TierAbsentError, match="several experts"):
            model(x, [slice(2)])
        kept = model.up[1]
        assert torch.equal(model(x, range(2, 5)), same(x, range(2, 5)))
        assert torch.equal(kept, same.up[1])
        del kept
