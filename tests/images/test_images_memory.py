"""The memory ladder on the CPU, where it saves nothing: its rungs in order, the same pictures, and the way down.

Holds `images.memory` and `images.pipeline_manager`; peaks on a card are in simulated/test_images_memory.py.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from images_loras import save, tensors
from images_tiny import QUIET, picture, tiny
from toprope.errors import EditError, UsageError
from toprope.images import EditRequest, Engine
from toprope.images.callbacks import Notices
from toprope.images.families import find
from toprope.images.families.sizes import least_bytes
from toprope.images.memory.fallback import RUNGS, below, rung
from toprope.images.memory.offload import WholeModule, bytes_of
from toprope.images.memory.offload_policies import make
from toprope.images.memory.placement import Loaded
from toprope.images.pipeline_manager import PipelineManager
from toprope.images.pipeline_manager import no_room as no_room_error

pytestmark = QUIET
CAT = picture(100, 80)
REQUEST = EditRequest(CAT, "make it snow", steps=2, seed=3, max_pixels=256)
EXACT = ("vae", "encoders", "tiers", "tiers-least")
"""Rungs that give the same pictures, those of the tiny models being smaller than a tile."""


def edited(engine, request=REQUEST) -> bytes:
    return engine.edit(request).pictures[0].tobytes()


def weights(engine):
    parts = {name: part for name, part in engine.loaded.pipeline.components.items() if isinstance(part, nn.Module)}
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}


def no_room(*arguments, **named):
    raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 3.47 GiB")


# ---- the ladder


@pytest.mark.slow
def test_the_way_down() -> None:
    names, at = [], "none"
    while at is not None:
        names.append(at)
        at = below(at)
    assert names == ["none", "vae", "encoders", "tiers", "tiers-least"]
    assert [each.name for each in RUNGS if not each.automatic] == ["encoders-4bit"]
    assert below("encoders-4bit") == "encoders"
    for each in RUNGS:
        assert rung(each.name) is each
        assert make(each.name).rung == each.name
        assert each.says
        assert each.costs
    for call in (rung, below, make):
        with pytest.raises(UsageError, match="no rung 'cellar'") as caught:
            call("cellar")
        assert "tiers-least" in caught.value.looked_at
    with pytest.raises(UsageError, match="no rung 'cellar'"):
        Engine.open(tiny("kontext"), device="cpu", memory="cellar")


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["ip2p", pytest.param("kontext", marks=SLOW), pytest.param("hidream-e1", marks=SLOW)]
)
def test_rungs_give_the_same_pictures_and_the_model_back(family) -> None:
    """One model is placed on every rung after the other, as when memory runs out on each."""
    other = EditRequest(CAT, "make it rain", steps=2, seed=3, max_pixels=256)
    with Engine.open(tiny(family), device="cpu", memory="none") as engine:
        wanted, before = edited(engine), {name: value.clone() for name, value in weights(engine).items()}
        wanted_other = edited(engine, other)
        modules = [type(each) for part in engine.loaded.pipeline.components.values()
                   if isinstance(part, nn.Module) for each in part.modules()]  # fmt: skip
        for each in (*EXACT, "encoders-4bit", "none"):
            manager, loaded = engine._manager, engine.loaded
            manager.placement.undo(loaded)
            after = weights(engine)
            assert after.keys() == before.keys(), each
            assert all(torch.equal(value, before[name]) for name, value in after.items()), each
            assert not any(part._forward_pre_hooks for part in loaded.pipeline.components.values()
                           if isinstance(part, nn.Module)), each  # fmt: skip
            manager.placement = make(each)
            manager.placement.place(loaded)
            engine._prompts.clear()
            first, second = edited(engine), edited(engine, other)
            told = engine.describe()["memory"]
            assert told["rung"] == each
            if each == "encoders-4bit":
                assert first != wanted  # other embeddings
                assert all(part["bytes"] < 0.8 * part["bytes_before"] for part in told["encoders"].values())
            else:
                assert (first, second) == (wanted, wanted_other), each
            if each == "tiers-least":
                assert told["parts"][engine.family.denoiser]["host_bytes"] > 0
        assert modules == [type(each) for part in engine.loaded.pipeline.components.values()
                           if isinstance(part, nn.Module) for each in part.modules()]  # fmt: skip


@pytest.mark.slow
def test_memory_that_runs_out_goes_one_rung_down_each_time_and_says_so(monkeypatch, caplog) -> None:
    with Engine.open(tiny("kontext"), device="cpu") as engine:
        assert engine.describe()["memory"] == {"rung": "none", "auto": True}
        wanted, run = edited(engine), engine.family.run
        seen, steps = [], []

        def fails_above(lowest):
            def call(*arguments):
                seen.append(engine.describe()["memory"]["rung"])
                return run(*arguments) if seen[-1] == lowest else no_room()

            return call

        monkeypatch.setattr(engine.family, "run", fails_above("encoders"))
        result = engine.edit(REQUEST, on_step=steps.append)
        assert seen == ["none", "vae", "encoders"]
        assert result.pictures[0].tobytes() == wanted
        assert [each.number for each in steps] == [1, 2]
        assert result.record["engine"]["memory"]["rung"] == "encoders"
        first, second = result.record["notices"]
        assert "memory ran out on the rung 'none', going on with 'vae'" in first
        assert "3.47 GiB" in second
        said = [each.getMessage() for each in caplog.records if each.name.startswith("toprope")]
        assert said == [first, second]
        seen.clear()
        assert engine.edit(REQUEST).record["notices"] == []  # it stays there
        assert seen == ["encoders"]
        monkeypatch.setattr(engine.family, "run", fails_above("cellar"))
        with pytest.raises(EditError, match="on the rung 'tiers-least' of the memory ladder"):
            engine.edit(REQUEST)
        assert seen[-2:] == ["tiers", "tiers-least"]
        monkeypatch.undo()
        assert edited(engine) == wanted  # the engine can be used on


@pytest.mark.slow
def test_memory_that_runs_out_while_encoding_goes_down_too(monkeypatch) -> None:
    with Engine.open(tiny("kontext"), device="cpu", memory="none") as plain:
        wanted = edited(plain)
    with Engine.open(tiny("kontext"), device="cpu") as engine:
        encode, seen = engine.family.encode, []

        def fails(*arguments):
            seen.append(engine.describe()["memory"]["rung"])
            return encode(*arguments) if seen[-1] == "tiers" else no_room()

        monkeypatch.setattr(engine.family, "encode", fails)
        assert edited(engine) == wanted
        assert seen == ["none", "vae", "encoders", "tiers"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoders", "tiers-least", "encoders-4bit"])
def test_loras_come_and_go_on_every_rung(name, tmp_path) -> None:
    with Engine.open(tiny("kontext"), device="cpu", memory="none") as plain:
        file = save(tmp_path / "snow.safetensors", tensors(plain.loaded.pipeline, parts=("transformer",)))
        base = edited(plain)
        plain.set_loras([f"{file}:0.5"])
        scaled = edited(plain)
        with plain.loras() as loras:
            loras.fuse()
        fused = edited(plain)
    with Engine.open(tiny("kontext"), device="cpu", memory=name) as engine:
        if name == "encoders-4bit":
            base = edited(engine)
        assert edited(engine) == base
        engine.set_loras([f"{file}:0.5"])
        if name != "encoders-4bit":
            assert edited(engine) == scaled
        with engine.loras() as loras:
            loras.fuse()
        if name != "encoders-4bit":
            assert edited(engine) == fused
        assert edited(engine) != base
        engine.set_loras([])
        assert edited(engine) == base


def test_an_offloaded_module_goes_back_as_it_came_and_ties_stay() -> None:
    from toprope import device

    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    tensors_before = [*module.parameters(), *module.buffers()]
    assert bytes_of(module) == sum(each.nbytes for each in tensors_before)
    offloaded = WholeModule(module, device.get("cpu"))
    offloaded.device = type("Meta", (), {"torch_device": torch.device("meta")})()
    offloaded.load()
    offloaded.load()
    assert module[2].weight is module[0].weight
    assert module[0].weight.is_meta
    offloaded.offload()
    offloaded.offload()
    after = [*module.parameters(), *module.buffers()]
    assert all(one is other for one, other in zip(tensors_before, after, strict=True))


# ---- before the model, and at the end of the ladder


def test_at_the_end_of_the_ladder_nothing_is_advised_that_was_tried() -> None:
    """It said "give memory='auto', a lower rung" where it was auto, on the lowest."""
    loaded = SimpleNamespace(device="npu:0")
    ended = no_room_error(loaded, "tiers-least", "NPU out of memory", falls=True)
    assert "auto" not in ended.do
    assert "rung" not in ended.do
    assert "--max-pixels" in ended.do
    kept = no_room_error(loaded, "none", "NPU out of memory", falls=False)
    assert "--memory auto" in kept.do
    assert "'vae'" in kept.do
    least = no_room_error(loaded, "tiers-least", "NPU out of memory", falls=False)
    assert "lower rung" not in least.do


def test_weights_that_have_no_room_are_refused_before_they_are_loaded(monkeypatch) -> None:
    folder = tiny("kontext")
    family, _ = find(folder)
    wanted = 0
    for name in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        for file in (folder / name).glob("*.safetensors"):
            wanted += sum(each.numel() for each in load_file(file).values())
    assert family.least_bytes(folder, torch.float32) == 4 * wanted
    assert family.least_bytes(folder, torch.bfloat16) == 2 * wanted
    device = SimpleNamespace(kind="npu", memory=lambda: SimpleNamespace(free=4 * wanted - 1))
    loaded = Loaded(family, folder, None, device, torch.float32)
    monkeypatch.setattr(type(family), "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(EditError, match="on the rung 'none'") as caught:
        PipelineManager(loaded, "none", (), Notices()).load()
    assert "nothing was loaded" in caught.value.looked_at
    # files that say nothing refuse nothing
    assert family.least_bytes(folder / "nowhere", torch.float32) == 0


def test_parts_that_are_left_out_are_not_counted(tmp_path) -> None:
    parts = {"_class_name": "Any", "vae": ["diffusers", "AutoencoderKL"], "safety_checker": [None, None]}
    (tmp_path / "model_index.json").write_text(json.dumps(parts))
    for name, count in (("vae", 3), ("safety_checker", 5)):
        (tmp_path / name).mkdir()
        save_file({"weight": torch.ones(count)}, tmp_path / name / "model.safetensors")
    assert least_bytes(tmp_path, torch.float32) == 12
