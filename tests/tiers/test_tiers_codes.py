"""FP8 weights are codes in the file, on the host and on the link, and have the right values on the device.

Held: `store.coded`, `engine.model.weight_files` and `library_loaders`, against the values that transformers gives.
"""

import contextlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiers_codes
import tiers_models
from toprope.errors import TierCapacityError, TierChangedError, WeightsError
from toprope.tiers import attach, skeleton
from toprope.tiers.plan import Budgets, Group, Link, Links, Member, plan
from toprope.tiers.plan.layout import read_layout
from toprope.tiers.store.coded import JoinedHome
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.transfer import Load

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]

CODES = 64 * 64
"""Bytes of the codes of one layer of `tiers_codes.net`."""


def attached(folder, device="60kB", host="1MB", dtype=torch.float32, **options):
    with skeleton():
        model = tiers_codes.net().to(dtype)
    return attach(model, device, host, folder, on="cpu", small=1000, poison=True, **options)


def run(model, rows=3):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randn(rows, 64).to(next(model.parameters()).dtype))


def homes(handle):
    return [each.home for each in handle._engine.model.weights.values() if each.home is not None]


def twice(model):
    run(model)
    run(model)


def test_codes_are_what_is_on_the_host_and_on_the_links(tmp_path):
    """They were dequantised when the folder was read: four times the bytes in memory and on the link."""
    whole = tiers_codes.folder_of_net(tmp_path)
    with attached(tmp_path) as handle:
        assert handle.plan.bytes_in("host") == len(handle.plan.host) * CODES > 0
        assert handle._host.used == handle.plan.bytes_in("host")
        for _ in range(3):  # the first steps are planned again
            run(handle.model)
        handle.reset_stats()
        assert torch.equal(run(handle.model), run(whole))
        moved, loads = handle.stats().moved["host_to_device"], handle.stats().loads
        assert 0 < moved <= (loads + 2) * CODES  # some loads are on their way when the counting begins
        assert moved % CODES == 0
    with attached(tmp_path, host="0MB") as handle:
        for _ in range(3):  # the first steps are planned again
            run(handle.model)
        handle.reset_stats()
        assert torch.equal(run(handle.model), run(whole))
        read = handle.stats().moved["page_cache"] + handle.stats().moved["disk_read"]
        assert 0 < read <= (handle.stats().loads + 2) * (CODES + 2 * 4096)


def test_the_last_blocks_may_be_smaller(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path, block=24)  # 64 rows: 24, 24 and 16
    for host in ("1MB", "0MB"):
        with attached(tmp_path, host=host) as handle:
            assert torch.equal(run(handle.model), run(whole))
            for name, value in whole.state_dict().items():
                assert torch.equal(handle.model.state_dict()[name], value)


def test_one_scale_may_serve_a_whole_weight(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path, block=64)
    state = load_file(tmp_path / "model.safetensors")
    state = {name: each.reshape(()) if name.endswith("scale_inv") else each for name, each in state.items()}
    save_file(state, tmp_path / "model.safetensors")
    with attached(tmp_path) as handle:
        assert handle._engine.model.coded
        assert torch.equal(run(handle.model), run(whole))


@pytest.mark.parametrize("scale", [torch.bfloat16, torch.float8_e8m0fnu, torch.uint8], ids=str)
def test_scales_of_other_dtypes(scale, tmp_path):
    """Powers of two are stored as their exponents of 8 bits, and a byte of them is no number by itself."""
    whole = tiers_codes.folder_of_net(tmp_path)
    state, values = load_file(tmp_path / "model.safetensors"), whole.state_dict()
    for name, each in list(state.items()):
        if name.endswith("scale_inv"):
            power = torch.exp2(torch.log2(each).round())
            stored = (torch.log2(power) + 127).to(torch.uint8)
            state[name] = stored if scale == torch.uint8 else power.to(scale)
            weight = name.removesuffix("_scale_inv")
            wide = power.repeat_interleave(16, 0).repeat_interleave(16, 1)
            values[weight] = state[weight].float() * wide
    save_file(state, tmp_path / "model.safetensors")
    whole.load_state_dict(values)
    with attached(tmp_path) as handle:
        assert torch.equal(run(handle.model), run(whole))


class Stacked(torch.nn.Module):
    """Matrices of several experts in one tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up_proj = torch.nn.Parameter(torch.randn(4, 32, 64))

    def forward(self, x):
        return torch.einsum("eoi,bi->beo", self.up_proj, x).flatten(1)[:, :64]


def test_matrices_that_are_one_tensor_in_the_file_too(tmp_path):
    whole = torch.nn.Sequential(*[Stacked() for _ in range(4)])
    state, values = {}, {}
    for name, value in whole.state_dict().items():
        made = [tiers_codes.quantised(each, 16) for each in value]
        state[name], state[f"{name}_scale_inv"], values[name] = (torch.stack(each) for each in zip(*made, strict=True))
    save_file(state, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole.load_state_dict(values)
    with skeleton():
        model = torch.nn.Sequential(*[Stacked() for _ in range(4)])
    with attach(model, "80kB", "1MB", tmp_path, on="cpu", small=1000, poison=True) as handle:
        assert len(handle._engine.model.coded) == 4
        for _ in range(2):
            assert torch.equal(run(model), run(whole))


def test_values_that_are_written_are_no_codes_any_more(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path)
    with attached(tmp_path) as handle:
        model = handle.model
        place = next(number for number in range(6) if str(number) in handle.plan.host)
        with handle.weights(model[place]), torch.no_grad():
            model[place].weight.mul_(0.3)
        with torch.no_grad():
            whole[place].weight.mul_(0.3)
        assert torch.equal(run(model), run(whole))
        state = {name: each * 0.7 for name, each in whole.state_dict().items()}
        model.load_state_dict(state)
        whole.load_state_dict(state)
        assert torch.equal(run(model), run(whole))
        assert not handle._engine.model.coded
        assert handle._host.used == handle.plan.bytes_in("host") <= 10**6
        handle.detach("cpu")
        assert torch.equal(run(model), run(whole))


def test_values_that_the_host_has_no_room_for_are_an_error(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path)
    with attached(tmp_path, host=f"{5 * CODES}B") as handle:
        assert handle.plan.host
        with pytest.raises(TierCapacityError, match="budget has no room"):
            handle.model.load_state_dict({name: each * 0.7 for name, each in whole.state_dict().items()})
        assert handle._host.used <= 5 * CODES
        assert handle._host.used == sum(each.host_bytes for each in homes(handle) if each.tier == "host")
        assert handle._engine.model.coded


def test_codes_are_cast_as_their_values_would_be(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path).to(torch.bfloat16).to(torch.float16)
    for host in ("1MB", "0MB"):
        with attached(tmp_path, host=host, dtype=torch.bfloat16) as handle:
            handle.model.to(torch.float16)
            assert torch.equal(run(handle.model), run(whole))
            handle.detach("cpu")
            assert torch.equal(run(handle.model), run(whole))


def steps(model, optimizer):
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        torch.manual_seed(2)
        loss = model(torch.randn(4, 64)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found


@pytest.mark.parametrize("host", ["1MB", "0MB"])
@pytest.mark.parametrize("planned", [True, False], ids=["training", "not planned"])
def test_weights_that_train_become_numbers(planned, host, tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path)
    with attached(tmp_path, device="150kB", host=host, training=planned) as handle:
        found = steps(handle.model, torch.optim.AdamW(handle.model.parameters(), 0.01))
        wanted = steps(whole, torch.optim.AdamW(whole.parameters(), 0.01))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        for name, value in whole.state_dict().items():
            assert torch.equal(handle.model.state_dict()[name], value)
        assert torch.equal(run(handle.model), run(whole))
        away = {each.name for each in handle._engine.model.weights.values() if each.home is not None}
        assert not away & set(handle._engine.model.coded)


def test_frozen_codes_stay_codes_in_training(tmp_path):
    whole = tiers_codes.folder_of_net(tmp_path)
    with skeleton():
        model = tiers_codes.net()
    for each in (whole, model):
        each.requires_grad_(False)
        each[3].bias.requires_grad_(True)
    with attach(model, "60kB", "1MB", tmp_path, on="cpu", small=1000, training=True) as handle:
        found = steps(model, torch.optim.SGD([model[3].bias], 0.1))
        wanted = steps(whole, torch.optim.SGD([whole[3].bias], 0.1))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert handle.plan.bytes_in("host", "weights") == len(handle.plan.host) * CODES > 0


def test_codes_are_computed_in_pieces_of_rows(tmp_path):
    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(64, 640), torch.nn.Linear(640, 8))
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    whole.load_state_dict(tiers_codes.quantise(tmp_path, 16, (".weight",)))
    with skeleton():
        model = torch.nn.Sequential(torch.nn.Linear(64, 640), torch.nn.Linear(640, 8))
    with attach(model, "130kB", "1MB", tmp_path, on="cpu", small=5000) as handle:
        assert handle._engine.pieces
        assert torch.equal(run(model), run(whole))


def test_more_scales_than_memory_should_hold_are_refused_by_name(tmp_path):
    """One scale for 16 codes, as some formats have: all of them would be as large as a quarter of the codes."""
    tiers_codes.folder_of_net(tmp_path, block=4)
    with pytest.raises(WeightsError, match=r"(?s)stored in a form that cannot be converted.*float8_e4m3fn.*dequantise"):
        attached(tmp_path)


def test_a_plan_counts_codes_where_they_are_codes():
    """A host that has room for the codes, and not for the values, holds all of them."""
    card = Link(10e9, "measured")
    links = Links(host_to_device=card, device_to_host=card, memory=card)
    groups = [
        Group(f"layer {number}", (Member(f"layer {number}", 4 * 2**20, coded=2**20),), 0.001) for number in range(8)
    ]
    made = plan(groups, [each.name for each in groups], Budgets(12 * 2**20, 8 * 2**20, None), links, small=0)
    assert made.bytes_in("host") == len(made.host) * 2**20
    assert made.device_bytes == len(made.resident) * 4 * 2**20 + made.slots * 4 * 2**20 <= 12 * 2**20
    assert made.traffic.host_to_device % 2**20 == 0
    assert made.traffic.host_to_device <= len(made.host) * 2**20


def test_a_plan_of_a_folder_counts_codes_too(tmp_path):
    """`toprope tiers plan` counted codes on the device, where numbers are: half of what they take."""
    tiers_codes.folder_of_net(tmp_path)
    layout = read_layout(tmp_path)
    weights = [each for group in layout.groups for each in group.members if each.kind == "weight"]
    assert [(each.bytes, each.away) for each in weights] == [(2 * CODES, CODES)] * 6
    assert layout.said.endswith("; FP8 is dequantised on the device")
    (tmp_path / "config.json").unlink()
    weights = [each for group in read_layout(tmp_path).groups for each in group.members if each.kind == "weight"]
    assert len(weights) == 12  # whose scales those are, nothing says


# Models of transformers


def read_by_transformers(cls, config, folder, dtype):
    config.quantization_config = {**config.quantization_config, "dequantize": True}
    return cls.from_pretrained(folder, config=config, dtype=dtype).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "mixtral", "qwen2_moe"])
def test_values_are_those_of_transformers(name, dtype, tmp_path):
    """Experts are one tensor in the model, and many with scales of their own in the files."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    whole = tiers_models.CASES[name].build()
    whole.save_pretrained(tmp_path)
    tiers_codes.quantise(tmp_path, 8)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with skeleton():
        model = type(whole)._from_config(config, dtype=dtype).eval()
    model.tie_weights()
    whole = read_by_transformers(type(whole), config, tmp_path, dtype)
    size = sum(each.nbytes for each in whole.parameters())
    batch = tiers_models.CASES[name].batch()
    with attach(model, size // 2, "10MB", tmp_path, on="cpu", small=1000, poison=True) as handle, torch.no_grad():
        assert handle._files is not None
        assert len(handle._engine.model.coded) > 30
        state = model.state_dict()
        for key, value in whole.state_dict().items():
            assert torch.equal(state[key], value), key
        for _ in range(2):
            assert torch.equal(model(**batch).logits, whole(**batch).logits)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_codes_without_a_scale_are_refused_by_name(name, tmp_path):
    """transformers casts them to numbers without a word."""
    pytest.importorskip("transformers")
    tiers_models.CASES[name].build().save_pretrained(tmp_path)
    tiers_codes.quantise(tmp_path, 8)
    state = load_file(tmp_path / "model.safetensors")
    weight = next(
        each for each in state if each.endswith(("3.mlp.up_proj.weight", "3.block_sparse_moe.experts.2.w1.weight"))
    )
    del state[f"{weight}_scale_inv"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with skeleton():
        model = tiers_models.CASES[name].build()
    with pytest.raises(WeightsError, match=rf"(?s)cannot be converted, such as {weight}: F8_E4M3 without a scale"):
        attach(model, "500kB", "1MB", tmp_path, on="cpu", small=1000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_experts_are_read_in_place(tmp_path):
    """A folder of another layout was read into memory as a whole, by transformers."""
    pytest.importorskip("transformers")
    whole = tiers_models.CASES["mixtral"].build()
    whole.save_pretrained(tmp_path)
    with skeleton():
        model = tiers_models.CASES["mixtral"].build()
    batch = tiers_models.CASES["mixtral"].batch()
    size = sum(each.nbytes for each in whole.parameters())
    with attach(model.eval(), size // 2, "0MB", tmp_path, on="cpu", small=1000) as handle, torch.no_grad():
        assert torch.equal(model(**batch).logits, whole.eval()(**batch).logits)
        assert handle.stats().moved["disk_write"] == 0
        assert handle.plan.disk


# What goes wrong


@pytest.mark.parametrize("joined", [False, True], ids=["codes", "parts"])
def test_codes_of_a_file_that_has_changed_are_not_read(joined, tmp_path):
    tiers_codes.folder_of_net(tmp_path)
    with attached(tmp_path, host="0MB") as handle:
        if joined:
            for unit in handle._engine._units:
                for weight in unit.weights:
                    weight.home = JoinedHome([weight.home])
        run(handle.model)
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        with pytest.raises(TierChangedError, match=r"model\.safetensors"):
            twice(handle.model)
        handle.detach("meta")


@pytest.mark.parametrize("host", ["1MB", "0MB"])
def test_an_interruption_in_a_transfer_of_codes_leaves_the_model_whole(host, tmp_path):
    whole, count = tiers_codes.folder_of_net(tmp_path), [0]

    def disturb():
        count[0] += 1
        if count[0] % 7 == 0:
            raise OSError("the worker was interrupted")

    with attached(tmp_path, host=host) as handle:
        handle._engine.transfers._queue.disturb = disturb
        failed = right = 0
        for _ in range(40):
            try:
                right += torch.equal(run(handle.model), run(whole))
            except OSError:
                failed += 1
        assert failed + right == 40
        assert failed
        handle._engine.transfers._queue.disturb = None
        for _ in range(handle.plan.slots):  # loads that failed ahead of their use
            with contextlib.suppress(OSError):
                run(handle.model)
        assert torch.equal(run(handle.model), run(whole))


def test_a_codes_home_gives_any_stretch_of_its_values(tmp_path):
    """Of a weight that is read piece by piece, such as for an optimizer's step."""
    whole = tiers_codes.folder_of_net(tmp_path, block=24)
    with attached(tmp_path, host="0MB") as handle:
        home = next(iter(handle._engine.model.coded.values()))
        name = next(iter(handle._engine.model.coded))
        parts = JoinedHome([home, home.cast(torch.float32)])
        values = whole.state_dict()[name].flatten()
        for first, count in ((0, 1), (63, 2), (100, 1000), (4000, 96), (4090, 100), (0, 8192)):
            memory = Memory.host(count * 4)
            handle._engine.transfers.begin(Load("part", parts.chunks(memory, first * 4))).wait()
            assert torch.equal(memory.tensor.view(torch.float32)[:count], values.repeat(2)[first : first + count])


def test_a_skeleton_of_tensors_of_torchao_has_no_memory():
    """The parameter was on meta, and its codes and scales were those of the model in memory."""
    quantization = pytest.importorskip("torchao.quantization")
    layer, module = torch.nn.Linear(64, 64), torch.nn.Module()
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    with skeleton():
        module.register_parameter("weight", layer.weight)
    parts = [getattr(module.weight, name) for name in module.weight.__tensor_flatten__()[0]]
    assert parts
    assert all(each.is_meta for each in [module.weight, *parts])
