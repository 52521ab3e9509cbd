"""LoRAs on tiny pipelines: a file is checked before it is loaded, and unloading restores every weight.

Holds `images.lora`. Names of tensors follow the programs that train LoRAs (peft, kohya, ComfyUI, ai-toolkit).
"""

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from images_loras import save, tensors
from images_tiny import QUIET, picture, tiny
from toprope.errors import EditError, LoraError
from toprope.images import EditRequest, Engine
from toprope.images.lora.adapters import Adapters
from toprope.images.lora.files import read_spec

pytestmark = QUIET
CAT = picture(100, 80)
REQUEST = EditRequest(CAT, "make it snow", steps=2, seed=3, max_pixels=256)


@pytest.fixture(scope="module")
def engines():
    opened = {}

    def get(family):
        if family not in opened:
            opened[family] = Engine.open(tiny(family), device="cpu")
        return opened[family]

    yield get
    for engine in opened.values():
        engine.close()


@pytest.fixture
def engine(engines):
    made = engines("ip2p")
    yield made
    made.set_loras([])


def edited(engine, request=REQUEST) -> bytes:
    return engine.edit(request).pictures[0].tobytes()


def weights(engine):
    """Every tensor of every part, by name."""
    parts = {name: part for name, part in engine.loaded.pipeline.components.items() if hasattr(part, "state_dict")}
    return {f"{name}.{key}": value.clone() for name, part in parts.items() for key, value in part.state_dict().items()}


def same(engine, before) -> bool:
    after = weights(engine)
    return after.keys() == before.keys() and all(torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ip2p", "ip2p-xl", "kontext", "hidream-e1"])
def test_31_load_scale_fuse_unfuse_and_unload_give_what_they_must_bit_for_bit(engines, family, tmp_path) -> None:
    engine = engines(family)
    some = tensors(engine.loaded.pipeline, size=0.2)
    file = save(tmp_path / "snow.safetensors", some)
    base, before = edited(engine), weights(engine)
    with engine.loras() as loras:
        adapter = loras.load(f"{file}:0.5")
        assert (adapter.name, adapter.scale) == ("snow", 0.5)
        assert adapter.report.tensors == len(some) == 2 * sum(adapter.report.modules.values())
    scaled = edited(engine)
    assert scaled != base
    with engine.loras() as loras:
        loras.scale("snow", 0)
    assert edited(engine) == base
    with engine.loras() as loras:
        loras.fuse()
    assert edited(engine) == base
    with engine.loras() as loras:
        loras.scale("snow", 0.5)
        assert loras.fused
        assert not same(engine, before)
    fused = edited(engine)
    assert max(abs(one - other) for one, other in zip(fused, scaled, strict=True)) <= 1  # rounded once, not twice
    with engine.loras() as loras:
        loras.unfuse()
    assert edited(engine) == scaled
    with engine.loras() as loras:
        loras.fuse()
        loras.unload()
        assert len(loras) == 0
    assert edited(engine) == base
    assert same(engine, before)
    assert engine.describe()["loras"] == []


@pytest.mark.slow
def test_a_lora_is_fused_only_where_its_weights_edit_alone(engines, tmp_path) -> None:
    """E1-Full's other weights are those of the base: they refine."""
    engine = engines("hidream-e1-full")
    base = edited(engine)
    file = save(tmp_path / "snow.safetensors", tensors(engine.loaded.pipeline, size=0.2))
    with engine.loras() as loras:
        loras.load(str(file))
        with pytest.raises(LoraError, match="edit and refine stages share weights"):
            loras.fuse()
    assert edited(engine) != base
    engine.set_loras([])
    assert edited(engine) == base


def change(name, tensor):
    return lambda some: some | {name: tensor}


def without(name):
    return lambda some: {key: value for key, value in some.items() if key != name}


def renamed(old, new):
    return lambda some: {key.replace(old, new): value for key, value in some.items()}


DOWN = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight"
UP = DOWN.replace("lora_A", "lora_B")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (change(DOWN.replace("mid_block", "top_block"), torch.ones(4, 64)), "1 key that belong to no layer.*top_block"),
        (change("decoder.to_q.lora_A.weight", torch.ones(4, 64)), "1 key that belong to no layer.*decoder.to_q"),
        (change("unet.conv_in.weight", torch.ones(4)), "belong to no layer of it: unet.conv_in.weight"),
        (change(DOWN.replace("lora_A.weight", "dora_scale"), torch.ones(64)), "belong to no layer.*dora_scale"),
        (change(DOWN.replace("lora_A.weight", "lora_magnitude_vector"), torch.ones(64)), "magnitude_vector"),
        (without(UP), "1 half pair, whose other half is missing: unet.mid_block.*lora_A.weight"),
        (change(DOWN, torch.ones(4, 65)), "1 tensor of another shape: unet.mid_block"),
        (change(UP, torch.ones(64, 5)), "1 tensor of another shape: unet.mid_block"),
        (change(DOWN, torch.full((4, 64), float("nan"))), "1 tensor with numbers that are not finite: unet.mid"),
        (renamed("unet.", "transformer."), "keys that belong to no layer of it: transformer."),
        (lambda some: {"x": torch.ones(1)}, "1 key that belong to no layer of it: x"),
        (lambda some: {}, "it has no tensor"),
    ],
)
def test_31_a_lora_that_does_not_fit_is_refused_before_a_weight_is_touched(engine, tmp_path, wrong, said) -> None:
    before, modules = weights(engine), [type(each) for each in engine.loaded.pipeline.unet.modules()]
    some = tensors(engine.loaded.pipeline)
    assert {DOWN, UP} <= some.keys()
    good = save(tmp_path / "good.safetensors", some)
    bad = save(tmp_path / "bad.safetensors", wrong(some))
    with engine.loras() as loras:
        with pytest.raises(LoraError) as caught:
            loras.load_all([str(good), str(bad)])
        assert len(loras) == 0
    assert "bad.safetensors does not fit the model; none of its weights was touched" in caught.value.what
    assert re.search(said, caught.value.looked_at), caught.value.looked_at
    assert [type(each) for each in engine.loaded.pipeline.unet.modules()] == modules
    assert same(engine, before)
    with pytest.raises(LoraError, match="does not fit"):
        Engine.open(tiny("ip2p"), device="cpu", loras=[str(bad)])


@pytest.mark.slow
def test_what_is_no_file_of_a_lora(engine, tmp_path) -> None:
    good = save(tmp_path / "two" / "a.safetensors", tensors(engine.loaded.pipeline))
    save(tmp_path / "two" / "b.safetensors", {"x": torch.ones(1)})
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:1000])
    (tmp_path / "a.bin").write_bytes(b"")
    for path, said in (
        ("nowhere", "is not there"), ("empty", "has no LoRA"), ("two", "has 2 LoRAs"), ("a.bin", "run code"),
        ("cut.safetensors", "cannot be read"), ("two/a.safetensors:200", "too large for a LoRA"),
        ("two/a.safetensors:nan", "is no scale"),
    ):  # fmt: skip
        with engine.loras() as loras, pytest.raises(LoraError, match=said):
            loras.load(str(tmp_path / path))
    with engine.loras() as loras:
        for name in ("x", "a"):
            with pytest.raises(LoraError, match=f"no LoRA '{name}' is on the model"):
                loras.scale(name, 1.0)
    (tmp_path / "two" / "b.safetensors").unlink()
    with engine.loras() as loras:
        assert loras.load(str(tmp_path / "two")).name == "a"


@given(st.text(min_size=1), st.one_of(st.none(), st.floats(-100, 100)))
def test_a_path_may_have_colons(path, scale) -> None:
    text = path if scale is None else f"{path}:{scale!r}"
    try:
        spec = read_spec(text)
    except LoraError:
        return  # "x:inf"
    if scale is not None:
        assert (spec.path, spec.scale) == (Path(path), scale)
    elif spec.scale == 1.0:
        assert spec.path in (Path(path), Path(path.rpartition(":")[0]))


@pytest.mark.slow
def test_several_at_once_and_one_taken_off(engine, tmp_path) -> None:
    pipeline = engine.loaded.pipeline
    for name, seed in (("snow", 1), ("rain", 2), ("other/snow", 3), ("fog/pytorch_lora_weights", 4)):
        save(tmp_path / f"{name}.safetensors", tensors(pipeline, rank=1 + seed, seed=seed, parts=("unet",)))
    paths = [str(tmp_path / name) for name in ("snow.safetensors", "rain.safetensors", "other", "fog")]
    alone = {}
    for path in paths[:2]:
        engine.set_loras([path])
        alone[path] = edited(engine)
    engine.set_loras([paths[0], f"{paths[1]}:0.5", paths[2], paths[3]])
    record = engine.edit(REQUEST).record
    told = json.loads(json.dumps(record))["engine"]["loras"]
    assert [(each["name"], each["scale"], each["ranks"], each["fused"]) for each in told] == [
        ("snow", 1.0, [2], False), ("rain", 0.5, [3], False), ("snow-2", 1.0, [4], False), ("fog", 1.0, [5], False),
    ]  # fmt: skip
    assert all(len(each["sha256"]) == 64 for each in told)
    together = edited(engine)
    assert together not in alone.values()
    with engine.loras() as loras:
        loras.fuse()
        for name in ("snow-2", "rain", "fog"):
            loras.unload(name)
        assert loras.fused
        loras.unfuse()
    assert edited(engine) == alone[paths[0]]
    layer = next(each for each in pipeline.unet.modules() if hasattr(each, "lora_A"))
    engine.set_loras([f"{paths[0]}:0.25"])
    assert next(each for each in pipeline.unet.modules() if hasattr(each, "lora_A")) is layer  # only scaled
    assert engine.describe()["loras"][0]["scale"] == 0.25
    engine.set_loras([paths[1]])
    assert edited(engine) == alone[paths[1]]
    bad = save(tmp_path / "bad.safetensors", {"x": torch.ones(1)})
    with pytest.raises(LoraError, match="does not fit"):
        engine.set_loras([paths[0], str(bad)])
    assert edited(engine) == alone[paths[1]]


def test_a_lora_that_fails_half_way_leaves_nothing(engine, tmp_path, monkeypatch) -> None:
    base, before = edited(engine), weights(engine)
    file = save(tmp_path / "snow.safetensors", tensors(engine.loaded.pipeline))
    inject = Adapters._inject

    def fails(self, adapter, lora):
        inject(self, adapter, lora)
        raise RuntimeError("no more")

    monkeypatch.setattr(Adapters, "_inject", fails)
    with engine.loras() as loras, pytest.raises(LoraError, match="cannot be loaded; the model is as it was"):
        loras.load(str(file))
    assert same(engine, before)
    monkeypatch.setattr(Adapters, "_inject", lambda *arguments: (_ for _ in ()).throw(MemoryError("none")))
    with engine.loras() as loras, pytest.raises(MemoryError):
        loras.load(str(file))
    assert edited(engine) == base


def test_names_of_other_programs_mean_the_same(engine, tmp_path) -> None:
    """kohya's and older diffusers' files; alpha is half of the rank, so that half of it is added."""
    some = tensors(engine.loaded.pipeline, parts=("unet",))
    plain = save(tmp_path / "plain.safetensors", some)
    kohya, older = {}, {}
    for name, tensor in some.items():
        module, _, side = name.removeprefix("unet.").partition(".lora_")
        end = "down" if side.startswith("A") else "up"
        kohya[f"lora_unet_{module.replace('.', '_')}.lora_{end}.weight"] = tensor
        kohya[f"lora_unet_{module.replace('.', '_')}.alpha"] = torch.tensor(2.0)
        older[f"unet.{module}.lora.{end}.weight"] = tensor
    engine.set_loras([f"{plain}:0.5"])
    half = edited(engine)
    engine.set_loras([str(save(tmp_path / "kohya.safetensors", kohya))])
    assert edited(engine) == half
    assert next(iter(engine._manager.adapters)).report.scales == (0.5,)
    engine.set_loras([f"{save(tmp_path / 'older.safetensors', older)}:0.5"])
    assert edited(engine) == half
    bad = save(tmp_path / "x.safetensors", kohya | {"lora_unet_nowhere_to_q.lora_down.weight": torch.ones(4, 4)})
    with pytest.raises(LoraError, match=r"none of a LoRA|does not fit"):
        engine.set_loras([str(bad)])


@pytest.mark.slow
def test_loras_stay_when_the_model_is_loaded_again(tmp_path) -> None:
    """After numbers that are not finite it goes on in float32, with the same LoRAs, fused where they were."""
    with Engine.open(tiny("kontext"), device="cpu", dtype="fp32") as plain:
        file = save(tmp_path / "snow.safetensors", tensors(plain.loaded.pipeline, size=0.2))
        plain.set_loras([f"{file}:0.5"])
        with plain.loras() as loras:
            loras.fuse()
        wanted = edited(plain)
    with Engine.open(tiny("kontext"), device="cpu", dtype="bf16", loras=[f"{file}"]) as engine:
        with engine.loras() as loras:
            loras.scale("snow", 0.5)
            loras.fuse()
        transformer = engine.loaded.pipeline.transformer
        transformer.register_forward_hook(lambda *run: (run[2][0] * float("nan"),))
        result = engine.edit(REQUEST)
        assert engine.describe()["dtype"] == "float32"
        (told,) = engine.describe()["loras"]
        assert (told["name"], told["scale"], told["fused"]) == ("snow", 0.5, True)
    assert result.pictures[0].tobytes() == wanted


@pytest.mark.slow
def test_a_family_without_loras_says_so(engine, tmp_path, monkeypatch) -> None:
    file = save(tmp_path / "a.safetensors", {"x": torch.ones(1)})

    class Bare:
        """A pipeline without a loader."""

    loaded = engine.loaded
    monkeypatch.setattr(loaded, "pipeline", Bare())
    with pytest.raises(LoraError, match="models of the family ip2p take no LoRA"):
        Adapters(loaded).load(str(file))
    monkeypatch.undo()
    assert issubclass(LoraError, ValueError)
    assert not issubclass(LoraError, EditError)


# ---- names of other programs


def foreign(some, form):
    """A LoRA with names as ComfyUI or ai-toolkit write them."""
    made = {}
    for name, tensor in some.items():
        part, _, rest = name.partition(".")
        if part != "transformer":
            continue
        if form != "bare":
            rest = f"diffusion_model.{rest}"
        if form == "alpha":  # rank 4, so that half of it is added; the tensors have twice as much
            rest = rest.replace("lora_A", "lora_down").replace("lora_B", "lora_up")
            if "lora_up" in rest:
                tensor = tensor * 2
                made[rest.removesuffix(".lora_up.weight") + ".alpha"] = torch.tensor(2.0)
        made[rest] = tensor
    return made


@pytest.mark.slow
@pytest.mark.parametrize("form", ["prefix", "bare", "alpha"])
@pytest.mark.parametrize("family", ["kontext", "hidream-e1"])
def test_loras_of_comfyui_and_ai_toolkit_give_the_picture_of_the_same_lora(engines, family, form, tmp_path) -> None:
    """They were refused; diffusers takes some of them with no layer at all and a line in its log."""
    engine = engines(family)
    some = tensors(engine.loaded.pipeline, parts=("transformer",), size=0.2)
    own = save(tmp_path / "own.safetensors", some)
    other = save(tmp_path / "other.safetensors", foreign(some, form))
    base, made = edited(engine), []
    for file in (own, other):
        engine.set_loras([str(file)])
        made.append(edited(engine))
        (told,) = engine.describe()["loras"]
        assert told["modules"] == {"transformer": len(some) // 2}
    engine.set_loras([])
    assert made[0] == made[1] != base
    assert edited(engine) == base


@pytest.mark.slow
@pytest.mark.parametrize("sides", [("lora_A", "lora_B"), ("lora_down", "lora_up")])
def test_a_lora_with_fluxs_first_names_is_converted(engines, sides, tmp_path) -> None:
    engine = engines("kontext")
    wide = engine.loaded.pipeline.transformer.transformer_blocks[0].attn.to_q.in_features
    random = torch.Generator().manual_seed(0)
    down, up = torch.randn(4, wide, generator=random) * 0.2, torch.randn(3 * wide, 4, generator=random) * 0.2
    name = "diffusion_model.double_blocks.0.img_attn.qkv"
    file = save(tmp_path / "a.safetensors", {f"{name}.{sides[0]}.weight": down, f"{name}.{sides[1]}.weight": up})
    base = edited(engine)
    engine.set_loras([str(file)])
    (told,) = engine.describe()["loras"]
    assert told["modules"] == {"transformer": 3}
    assert told["targets"] == ["to_k", "to_q", "to_v"]
    assert edited(engine) != base
    engine.set_loras([])
    assert edited(engine) == base


def test_foreign_names_of_another_model_are_refused(engine, tmp_path) -> None:
    some = {"diffusion_model.blocks.0.to_q.lora_A.weight": torch.zeros(4, 8), "x.alpha": torch.tensor(1.0)}
    with pytest.raises(LoraError, match=r"fit|none of a LoRA"):
        engine.set_loras([str(save(tmp_path / "a.safetensors", some))])


WRAPPED = {
    "an adapter's name": lambda name: name.replace(".weight", ".default_0.weight"),
    "another adapter's name": lambda name: name.replace(".weight", ".snow-v2.weight"),
    "peft's wrapper": lambda name: name.replace("unet.", "unet.base_model.model."),
    "peft's wrapper at the beginning": lambda name: f"base_model.model.{name}",
    "one for several processes": lambda name: f"module.{name}",
    "a compiled model": lambda name: name.replace("unet.", "unet._orig_mod."),
    "a layer alone": lambda name: (
        "base_model.model." + name.removeprefix("unet.").replace(".weight", ".default.weight")
    ),
}


@pytest.mark.parametrize("form", WRAPPED)
def test_names_of_what_a_model_was_wrapped_in_while_trained_are_left_out(engine, tmp_path, form) -> None:
    """diffusers #11675, #11790 and others: keys with an adapter's name or a wrapper's were refused."""
    some = {name: value for name, value in tensors(engine.loaded.pipeline).items() if name.startswith("unet.")}
    plain = save(tmp_path / "plain.safetensors", some)
    wrapped = save(tmp_path / "wrapped.safetensors", {WRAPPED[form](name): value for name, value in some.items()})
    engine.set_loras([str(plain)])
    expected = edited(engine)
    engine.set_loras([])
    assert expected != edited(engine)
    engine.set_loras([str(wrapped)])
    assert edited(engine) == expected


def test_a_file_with_two_adapters_is_refused_with_their_names(engine, tmp_path) -> None:
    some = tensors(engine.loaded.pipeline)
    both = {
        name.replace(".weight", f".{each}.weight"): value for name, value in some.items() for each in ("snow", "fog")
    }
    file = save(tmp_path / "both.safetensors", {name: value.clone() for name, value in both.items()})
    with pytest.raises(LoraError) as caught:
        engine.set_loras([str(file)])
    assert "2 adapters: fog, snow" in caught.value.looked_at
