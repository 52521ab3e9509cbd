"""HiDream-E1 on the CPU: each stage has its weights, tensor by tensor; files that do not match are refused.

Holds `images.families.hidream`: `checkpoint`, `layout`, `stages`, `pipeline`. The models are `images.tiny`.
"""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from images_tiny import QUIET, picture, tiny
from toprope.errors import EditCancelled, UsageError, WeightsError
from toprope.images import EditRequest, Engine
from toprope.images.families import find, named
from toprope.images.families.hidream.checkpoint import check, read_checkpoint
from toprope.images.families.hidream.guidance import guide, guide_by_text, guide_with_norm, refine_from
from toprope.images.families.hidream.layout import BASE, FULL, LLAMA, ONE, find_layout
from toprope.images.families.hidream.pipeline import target_of
from toprope.images.families.hidream.stages import LoraSwitch, SeparateTransformers, SwappedWeights, make_stages
from toprope.images.results import files_of
from toprope.tiers import attach

pytestmark = QUIET
VARIANTS = ("hidream-e1", "hidream-e1-full")
CAT = picture(48, 48)


def request(image=CAT, instruction="make it snow", **knobs) -> EditRequest:
    return EditRequest(
        image, instruction, **({"steps": 2, "seed": 3, "refine_strength": 0.5, "max_pixels": 1024} | knobs)
    )


@pytest.fixture(scope="module")
def engines():
    opened = {family: Engine.open(tiny(family), device="cpu", dtype="fp32") for family in VARIANTS}
    yield opened
    for engine in opened.values():
        engine.close()


def pixels(engine, *requests):
    return [picture.tobytes() for result in engine.edit_all(requests) for picture in result.pictures]


# ---- guidance, pure


def predictions(draw, number):
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 4)), 2, 3)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([0.0, 1e-6, 1.0, 1e4]))
    return [torch.randn(shape, generator=generator) * size for _ in range(number)]


@settings(max_examples=50, deadline=None)
@given(st.data(), st.floats(0, 20), st.floats(0, 20))
def test_the_guided_text_is_never_longer_than_the_prediction_it_began_with(data, guidance, image_guidance) -> None:
    nothing, picture, everything = predictions(data.draw, 3)
    # with no weight on nothing, the result is the text part itself
    text = guide_with_norm(torch.zeros_like(nothing), picture, everything, guidance, 1.0)
    most = everything.norm(dim=1)
    assert bool((text.norm(dim=1) <= most * (1 + 1e-5) + 1e-7).all())
    unbounded = picture + guidance * (everything - picture)
    shorter = unbounded.norm(dim=1) < most * (1 - 1e-5)
    untouched = torch.where(shorter[:, None], unbounded, text)
    assert torch.allclose(text, untouched, rtol=1e-5, atol=1e-6)  # what was shorter is as it was
    guided = guide_with_norm(nothing, picture, everything, guidance, image_guidance)
    assert bool(torch.isfinite(guided).all())
    expected = nothing + image_guidance * (text - nothing)
    assert torch.allclose(guided, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()) + 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.floats(0, 20), st.floats(0, 20))
def test_guidance_of_one_is_the_prediction_and_both_parts_are_linear(data, guidance, image_guidance) -> None:
    nothing, picture, everything = predictions(data.draw, 3)
    near = {"rtol": 1e-4, "atol": 1e-4 * float(torch.cat([nothing, picture, everything]).abs().max()) + 1e-9}
    for guided in (guide, guide_with_norm):
        assert torch.allclose(guided(nothing, picture, everything, 1.0, 1.0), everything, **near)
        assert torch.equal(guided(nothing, nothing, nothing, guidance, 1.0), nothing)
    assert torch.allclose(guide(nothing, picture, everything, 0.0, image_guidance),
                          nothing + image_guidance * (picture - nothing), **near)  # fmt: skip
    assert torch.allclose(guide(nothing, nothing, everything, guidance, image_guidance),
                          guide_by_text(nothing, everything, guidance), **near)  # fmt: skip
    assert guide_with_norm(nothing.bfloat16(), picture, everything, 2.0, 2.0).dtype == torch.float32


@given(st.integers(1, 1000), st.integers(0, 100))
def test_refining_begins_where_decimals_say(steps, hundredths) -> None:
    begin = refine_from(steps, hundredths / 100)
    assert begin == int(steps * (1 - Fraction(hundredths, 100)))
    assert 0 <= begin <= steps
    assert (begin == steps) == (hundredths == 0)
    assert [refine_from(28, 0.3), refine_from(10, 0.9), refine_from(28, 1.0)] == [19, 1, 0]


def test_what_the_result_shall_show_follows_its_label() -> None:
    assert target_of("Editing Instruction: snow. Target Image Description: A white field.") == "A white field."
    assert target_of("snow. target image description: white") == "white"
    for plain in ("make it snow", "make it snow. Target Image Description:  "):
        assert target_of(plain) == plain


# ---- editing


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_seed_gives_the_same_bytes_and_what_is_asked_for_counts(engines, variant) -> None:
    engine = engines[variant]
    assert find(tiny(variant))[0].name == "hidream-e1"
    parts = engine.describe()["parts"]
    assert (parts["variant"], parts["stages"]["refines"]) == (["1.1", "full"][variant == "hidream-e1-full"], True)
    steps = []
    first = engine.edit(request(), on_step=steps.append)
    assert [(each.number, each.of, each.stage) for each in steps] == [
        (1, 2, "edit"), (2, 2, "refine"),
    ]  # fmt: skip
    assert first.pictures[0].size == CAT.size
    again = engine.edit(request())
    assert first.pictures[0].tobytes() == again.pictures[0].tobytes()
    others = pixels(
        engine, request(seed=4), request(instruction="make it rain"), request(negative="snow"), request(guidance=9),
        request(image_guidance=9), request(refine_strength=0), request(cfg_norm=False),
    )  # fmt: skip
    assert len({first.pictures[0].tobytes(), *others}) == 8
    described = [f"Editing Instruction: snow. Target Image Description: {what}" for what in ("a field", "a town")]
    assert len(set(pixels(engine, *(request(instruction=each) for each in described)))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_pictures_of_a_batch_and_of_other_shapes_are_those_that_they_are_alone(engines, variant) -> None:
    engine = engines[variant]
    one, two = request(picture(64, 40)), request(picture(64, 40, shift=90), "make it rain", seed=9)
    both = engine.edit_all([one, two])
    for together, asked in zip(both, (one, two), strict=True):
        alone = engine.edit(asked).pictures[0]
        assert alone.size == together.pictures[0].size == (64, 40)
        far = max(abs(a - b) for a, b in zip(alone.tobytes(), together.pictures[0].tobytes(), strict=True))
        assert far <= 1  # rounding of larger products
    assert engine.edit(request(picture(24, 80), size="keep", guidance=1, image_guidance=1)).pictures[0].size == (24, 80)


@pytest.mark.slow
def test_26_pictures_of_any_mode_and_shape_come_back_in_their_size(engines) -> None:
    swapped_now = picture(30, 20)
    swapped_now.getexif()[0x0112] = 6  # a quarter turn
    inputs = [picture(20, 30, mode) for mode in ("RGBA", "L", "P")] + [swapped_now, picture(10, 4000), picture(1, 1)]
    asked = [request(each, steps=1, refine_strength=0) for each in inputs]
    sizes = [each.pictures[0].size for each in engines["hidream-e1"].edit_all(asked)]
    assert sizes == [(20, 30)] * 4 + [(10, 4000), (1, 1)]


# ---- assertion 27: which weights each stage has


def seen_weights(engine, asked, **options):
    """By stage, what the transformer that was called had as weights, and what its first layer gave for ones."""
    pipeline = engine.loaded.pipeline
    seen = {}

    def look(module, _arguments, _options) -> None:
        layer = module.get_submodule(LAYER)
        stage = "edit" if module is pipeline.transformer and getattr(pipeline.stages, "editing", True) else "refine"
        seen[stage] = (
            {name: tensor.clone() for name, tensor in module.state_dict().items()}, layer(torch.ones(layer.in_features))
        )  # fmt: skip

    models = [each for each in (pipeline.transformer, pipeline.refiner) if each is not None]
    hooks = [each.register_forward_pre_hook(look, with_kwargs=True) for each in models]
    try:
        engine.edit(asked, **options)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


LAYER = "double_stream_blocks.0.block.attn1.to_q"


def base_weights(variant):
    return load_file(tiny(variant) / "transformer" / "diffusion_pytorch_model.safetensors")


def test_27_e1_1_edits_with_the_edit_weights_and_refines_with_the_base(engines) -> None:
    engine = engines["hidream-e1"]
    shards = sorted((tiny("hidream-e1") / ONE / "transformer").glob("*.safetensors"))
    edit = {name: tensor for file in shards for name, tensor in load_file(file).items()}
    base = base_weights("hidream-e1")
    assert len(shards) > 1
    assert isinstance(engine.loaded.pipeline.stages, SeparateTransformers)
    for _ in range(2):  # a second edit finds what the first left
        seen = seen_weights(engine, request())
        for stage, want in (("edit", edit), ("refine", base)):
            assert seen[stage][0].keys() == want.keys()
            assert all(torch.equal(seen[stage][0][name], tensor) for name, tensor in want.items()), stage
    assert not any(torch.equal(edit[name], base[name]) for name in edit if name.endswith("to_q.weight"))


def test_27_e1_full_edits_with_lora_and_tensors_and_refines_with_the_base(engines) -> None:
    engine = engines["hidream-e1-full"]
    stages = engine.loaded.pipeline.stages
    file, base = load_file(tiny("hidream-e1-full") / f"{FULL}.safetensors"), base_weights("hidream-e1-full")
    whole = {name: tensor for name, tensor in file.items() if ".lora_" not in name}
    assert isinstance(stages, SwappedWeights)
    assert len(stages.differ) == len(whole) > 0
    assert stages.added == (len(file) - len(whole)) // 2 > 0
    down, up = (file[f"{LAYER}.lora_{side}.default.weight"] for side in "AB")
    plain = base[f"{LAYER}.weight"].sum(1) + base[f"{LAYER}.bias"]
    for _ in range(2):
        seen = seen_weights(engine, request())
        for stage, want in (("edit", base | whole), ("refine", base)):
            assert all(torch.equal(seen[stage][0][name], tensor) for name, tensor in want.items()), stage
        assert torch.allclose(seen["refine"][1], plain, atol=1e-5)
        assert torch.allclose(seen["edit"][1], plain + up @ down.sum(1), atol=1e-5)
        assert not torch.allclose(seen["edit"][1], seen["refine"][1], atol=1e-2)
    extra = engine.loaded.pipeline.transformer
    count = sum(each.numel() for each in extra.parameters())
    assert count == sum(each.numel() for each in (*base.values(), *file.values()))  # what differs, and no more


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_refining_that_is_cancelled_leaves_the_edit_weights(engines, variant) -> None:
    engine = engines[variant]
    want, steps = pixels(engine, request()), []
    with pytest.raises(EditCancelled):
        engine.edit(request(), on_step=steps.append, cancelled=lambda: len(steps) == 2)
    assert steps[-1].stage == "refine"
    assert pixels(engine, request()) == want


@pytest.mark.slow
def test_e1_full_is_what_its_weights_added_up_are(tmp_path) -> None:
    """The model with LoRA and tensors in the weights themselves, in the folder of an edit without a base."""
    source = tiny("hidream-e1-full")
    folder = edit_alone(tmp_path / FULL, source)
    file, merged = load_file(source / f"{FULL}.safetensors"), base_weights("hidream-e1-full")
    for name, tensor in file.items():
        if ".lora_A." in name:
            layer = name.split(".lora_A.")[0]
            merged[f"{layer}.weight"] += file[f"{layer}.lora_B.default.weight"] @ tensor
        elif ".lora_B." not in name:
            merged[name] = tensor
    save_file(merged, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    with Engine.open(source, device="cpu", dtype="fp32") as two, Engine.open(folder, device="cpu", dtype="fp32") as one:
        assert one.describe()["options"] == two.describe()["options"] | {"refine_strength": 0.0}
        asked = request(refine_strength=0, instruction="rain", negative="", steps=2)
        far = [abs(a - b) for a, b in zip(*(each[0] for each in (pixels(one, asked), pixels(two, asked))), strict=True)]
        assert max(far) <= 2
        # there is no base
        with pytest.raises(UsageError, match=r"refine_strength is 0\.3, and this model has no base"):
            one.edit(request(refine_strength=0.3))
        assert len(one.edit(request(refine_strength=None)).pictures) == 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_users_lora_edits_and_does_not_refine(engines, variant) -> None:
    engine, edited, refined = engines[variant], request(), request(refine_strength=1)
    pipeline = engine.loaded.pipeline
    layer = pipeline.transformer.get_submodule(LAYER)
    generator = torch.Generator().manual_seed(1)
    down, up = torch.randn(2, layer.in_features, generator=generator), torch.randn(layer.out_features, 2)
    want = pixels(engine, edited, refined)
    lora = {f"transformer.{LAYER}.lora_A.weight": down, f"transformer.{LAYER}.lora_B.weight": up}
    pipeline.load_lora_weights(lora, adapter_name="user")
    try:
        with_lora = pixels(engine, edited, refined)
        assert with_lora[0] != want[0]
        assert with_lora[1] == want[1]
        assert pixels(engine, edited) == with_lora[:1]  # it is on again after refining
    finally:
        pipeline.unload_lora_weights()
    assert pixels(engine, edited, refined) == want


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_stages_work_on_weights_that_come_and_go(engines, variant) -> None:
    engine = engines[variant]
    pipeline, want = engine.loaded.pipeline, pixels(engine, request())
    models = [each for each in (pipeline.transformer, pipeline.refiner) if each is not None]
    handles = [attach(each, device="600KB", host="1GB", on="cpu", small=1024) for each in models]
    try:
        assert all(handle.plan.bytes_in("host") > 0 for handle in handles)
        assert [pixels(engine, request()) for _ in range(2)] == [want, want]
    finally:
        for handle in handles:
            handle.detach()
    assert pixels(engine, request()) == want


def test_differences_decide_between_twins_and_a_pair(tmp_path) -> None:
    class Two(nn.Module):
        max_seq = 8

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    base = Two()
    was = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    save_file({"a.weight": was["a.weight"] + 1, "b.weight": was["b.weight"].clone()}, tmp_path / "w.safetensors")
    weights = read_checkpoint(tmp_path / "w.safetensors")
    stages, transformer, refiner = make_stages(base, weights, torch.float32)
    assert (type(stages), transformer, refiner) == (SwappedWeights, base, None)
    assert torch.equal(base.a.weight, was["a.weight"] + 1)

    def refine_in_vain() -> None:
        with stages.refining(type("Pipeline", (), {"transformer": base})) as refining:
            assert torch.equal(refining.a.weight, was["a.weight"])
            assert not stages.editing
            raise KeyError

    with pytest.raises(KeyError):
        refine_in_vain()
    assert torch.equal(base.a.weight, was["a.weight"] + 1)
    assert isinstance(stages.switch, LoraSwitch)
    assert stages.switch.on
    save_file(was, tmp_path / "w.safetensors")
    fresh = Two()
    fresh.load_state_dict(was)
    with pytest.raises(WeightsError, match="has the edit weights already"):
        make_stages(fresh, read_checkpoint(tmp_path / "w.safetensors"), torch.float32)


# ---- files


def edit_alone(folder, source) -> Path:
    """A folder of edit weights with a model_index of its own and no base."""
    shutil.copytree(source, folder, ignore=lambda _, names: [ONE, f"{FULL}.safetensors"])
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": "HiDreamImageEditingPipeline"}))
    return folder


def bare(folder, kind="HiDreamImagePipeline", llama=True) -> Path:
    (folder / "transformer").mkdir(parents=True)
    (folder / "vae").mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": kind}))
    if llama:
        (folder / LLAMA[0]).mkdir()
        (folder / LLAMA[0] / "config.json").write_text("{}")
    return folder


def test_parts_are_found_in_a_folder_and_next_to_it(tmp_path) -> None:
    base = bare(tmp_path / BASE)
    with pytest.raises(UsageError, match="the weights for editing are not there"):
        find_layout(base)
    (base / f"{FULL}.safetensors").touch()
    found = find_layout(base)
    assert (found.variant, found.edit.name, found.base) == ("full", f"{FULL}.safetensors", base / "transformer")
    (base / ONE / "transformer").mkdir(parents=True)
    with pytest.raises(UsageError, match="the edit weights of 2 models"):
        find_layout(base)
    (base / f"{FULL}.safetensors").unlink()
    assert find_layout(base).variant == "1.1"
    # the edit's own folder, with the base next to it, and Llama in either or next to both
    edit = bare(tmp_path / ONE, "HiDreamImageEditingPipeline", llama=False)
    with pytest.raises(WeightsError, match="no fourth text encoder"):
        find_layout(edit)
    shutil.move(base / LLAMA[0], tmp_path / LLAMA[1])
    found = find_layout(edit)
    assert (found.variant, found.edit, found.base) == ("1.1", edit / "transformer", base / "transformer")
    assert (found.pipeline, found.llama) == (edit, tmp_path / LLAMA[1])
    assert named("hidream-e1").folders(edit) == [edit, base / "transformer", tmp_path / LLAMA[1]]
    assert "../" + LLAMA[1] + "/config.json" in files_of(*named("hidream-e1").folders(edit))
    (edit / "vae").rmdir()
    assert find_layout(edit).pipeline == base
    (edit / "transformer").rmdir()
    with pytest.raises(WeightsError, match="has no transformer"):
        find_layout(edit)
    full = bare(tmp_path / "elsewhere" / FULL, "HiDreamImageEditingPipeline")
    assert (find_layout(full).variant, find_layout(full).base) == ("full", None)


def test_what_does_not_belong_together_is_refused_before_a_weight_is_touched(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))
    was = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    a, b, whole = torch.ones(2, 4), torch.ones(6, 2), torch.ones(6, 4)
    cases = {
        "1 unknown, such as 2.weight": {"2.weight": whole},
        "1 of another shape, such as 0.weight, which is [4, 6] and not [6, 4]": {"0.weight": torch.ones(4, 6)},
        "1 halves of a LoRA without the other, such as 0.lora_A": {"0.lora_A.weight": a},
        "1 LoRAs for what is no linear layer, such as 1": {"1.lora_A.weight": a, "1.lora_B.weight": b},
        "1 LoRAs of another shape, such as 0, [2, 4] and [6, 3]": {
            "0.lora_A.default.weight": a, "transformer.0.lora_B.default.weight": torch.ones(6, 3),
        },
        "no tensor at all": {},
    }  # fmt: skip
    for told, tensors in cases.items():
        save_file(tensors, tmp_path / "w.safetensors")
        with pytest.raises(WeightsError) as caught:
            check(read_checkpoint(tmp_path / "w.safetensors"), model, whole=False)
        assert told in caught.value.looked_at
    save_file({"0.base_layer.weight": whole, "0.lora_A.weight": a, "0.lora_B.weight": b}, tmp_path / "w.safetensors")
    weights = read_checkpoint(tmp_path / "w.safetensors")
    check(weights, model, whole=False)
    with pytest.raises(WeightsError, match="is not made for"):
        check(weights, model, whole=True)
    assert all(torch.equal(tensor, was[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_broken_folders_are_one_error_that_names_the_file(tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("hidream-e1"), folder)
    edit = folder / ONE / "transformer"
    index = edit / "diffusion_pytorch_model.safetensors.index.json"
    shard, kept = sorted(edit.glob("*.safetensors"))[0], index.read_text()
    whole = shard.read_bytes()

    def refused(said) -> None:
        with pytest.raises(WeightsError, match=said):
            named("hidream-e1").load(folder, torch.float32)

    shard.write_bytes(whole[: len(whole) // 2])
    refused(f"{shard.name} cannot be read")
    shard.unlink()
    refused(r"lacks 1 of its \d files of weights")
    shard.write_bytes(whole)
    index.write_text(kept.replace(shard.name, sorted(edit.glob("*.safetensors"))[1].name))
    refused("which the index has there")
    index.write_text("{")
    refused("index.json cannot be read")
    index.unlink()
    refused("has no weights")
    index.write_text(kept)
    shutil.rmtree(folder / "transformer")
    refused("has no transformer")
