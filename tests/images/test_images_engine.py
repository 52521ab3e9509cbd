"""The engine on the CPU: tiny pipelines edit pictures, the same each time; errors are reported or recovered from.

Holds `images.engine`, `images.execution.guard` and `images.families`.
"""

import hashlib
import json
import logging
import math
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from images_tiny import QUIET, picture, tiny
from toprope.errors import EditCancelled, EditError, EditGuardError, PackageError, UsageError, WeightsError
from toprope.extras import advice
from toprope.images import EditRequest, Engine
from toprope.images.callbacks import StepCallback
from toprope.images.execution.guard import NoPicture, check_latents, check_pictures
from toprope.images.families import families, find, named
from toprope.images.families.loading import need_diffusers
from toprope.images.tiny import TINY, write

pytestmark = QUIET
FAMILIES = ("ip2p", "ip2p-xl", "kontext")
CAT = picture(100, 80)


def request(image=CAT, instruction="make it snow", **knobs) -> EditRequest:
    return EditRequest(image, instruction, **({"steps": 2, "seed": 3, "max_pixels": 256} | knobs))


def values(result, at=0) -> numpy.ndarray:
    return numpy.asarray(result.pictures[at]).astype(int)


@pytest.fixture(scope="module")
def engines():
    opened = {family: Engine.open(tiny(family), device="cpu") for family in FAMILIES}
    yield opened
    for engine in opened.values():
        engine.close()


@pytest.fixture
def engine(engines):
    return engines["ip2p"]


# ---- an edit


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(engines, family) -> None:
    engine = engines[family]
    first, again, other = (engine.edit(request(seed=seed)) for seed in (3, 3, 4))
    assert first.pictures[0].tobytes() == again.pictures[0].tobytes() != other.pictures[0].tobytes()
    assert first.pictures[0].size == CAT.size
    assert values(first).std() > 10
    # the instruction and the picture both matter
    assert engine.edit(request(instruction="paint it")).pictures[0].tobytes() != first.pictures[0].tobytes()
    assert engine.edit(request(picture(100, 80, shift=99))).pictures[0].tobytes() != first.pictures[0].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_of_a_family_changes_the_picture(engines, family) -> None:
    """An option that is taken and does nothing would be worse than one that is refused."""
    engine = engines[family]
    others = {"negative": "blurry", "steps": 3, "guidance": 9.0, "image_guidance": 4.0}
    first = engine.edit(request()).pictures[0].tobytes()
    for name in engine.family.options:
        assert engine.edit(request(**{name: others[name]})).pictures[0].tobytes() != first, name


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_that_a_family_does_not_have_is_refused(engines, family) -> None:
    engine = engines[family]
    given = {"negative": "x", "image_guidance": 2.0, "refine_strength": 0.3, "cfg_norm": True, "guidance": 2.0}
    for name in given.keys() - engine.family.options:
        with pytest.raises(UsageError, match=f"models of the family {engine.family.name} have no {name}"):
            engine.edit(request(**{name: given[name]}))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_reported_and_a_cancelled_edit_leaves_the_engine_usable(engines, family) -> None:
    engine, steps = engines[family], []
    wanted = engine.edit(request(steps=4), on_step=steps.append)
    assert [(step.number, step.of, step.stage) for step in steps] == [(number, 4, "edit") for number in (1, 2, 3, 4)]
    assert [step.seconds for step in steps] == sorted(step.seconds for step in steps)
    steps.clear()
    with pytest.raises(EditCancelled, match=r"cancelled after 2 steps\."):
        engine.edit(request(steps=4), on_step=steps.append, cancelled=lambda: len(steps) == 2)
    assert len(steps) == 2
    with pytest.raises(EditCancelled, match=r"cancelled after 0 steps\."):
        engine.edit(request(), cancelled=lambda: True)
    assert engine.edit(request(steps=4)).pictures[0].tobytes() == wanted.pictures[0].tobytes()


def test_what_a_listener_raises_ends_the_edit(engine) -> None:
    def listener(step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.edit(request(), on_step=listener)
    engine.edit(request())


@pytest.mark.parametrize("family", ["ip2p", "kontext"])
def test_26_every_picture_comes_back_in_its_size(engines, family, tmp_path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    picture(30, 50).save(tmp_path / "turned.png", exif=exif)
    given = {
        "RGBA": (picture(40, 60, "RGBA"), (40, 60)),
        "L": (picture(40, 60, "L"), (40, 60)),
        "P": (picture(40, 60, "P"), (40, 60)),
        "turned": (tmp_path / "turned.png", (50, 30)),
        "long": (picture(10, 4000), (10, 4000)),
        "one": (picture(1, 1), (1, 1)),
    }
    for name, (image, size) in given.items():
        result = engines[family].edit(request(image, steps=1))
        assert (result.pictures[0].size, result.pictures[0].mode) == (size, "RGB"), name
        wide, high = result.record["frame"]["model"]
        assert wide * high <= 64 * 64


def test_the_record_is_all_that_is_needed_to_repeat_an_edit(engine, tmp_path) -> None:
    CAT.save(tmp_path / "cat.png")
    first = engine.edit(EditRequest(tmp_path / "cat.png", "make it snow", steps=2, num_images=2))
    record = json.loads(json.dumps(first.record))
    assert record["request"].keys() >= {"steps", "guidance", "image_guidance", "negative", "seed", "size", "fit"}
    again = engine.edit(EditRequest.from_json(record["request"]))
    assert [each.tobytes() for each in again.pictures] == [each.tobytes() for each in first.pictures]
    assert record["seeds"] == [record["request"]["seed"], record["request"]["seed"] + 1]
    made = record["engine"]
    assert (made["family"], made["device"], made["dtype"]) == ("ip2p", "cpu", "float32")
    assert made["attention"]["path"] == "flash on the CPU"
    assert made["memory"] == {"rung": "none", "auto": True}
    assert record["versions"].keys() >= {"toprope", "torch", "diffusers", "python"}
    files = record["model_files"]
    assert files["unet/diffusion_pytorch_model.safetensors"]["sha256_of"] == "header"
    assert len(files["model_index.json"]["sha256"]) == 64
    assert record["seconds"] > 0
    assert record["peak_memory"] > 0
    assert record["request"]["generator_device"] == "cpu"
    assert record["source"]["name"] == str(tmp_path / "cat.png")


def test_the_pictures_of_one_edit_are_made_one_after_the_other_as_the_command_line_makes_them(
    engine, monkeypatch
) -> None:
    """In one batch the first of three differed by one level from a separate edit, and from its own repetition."""
    sizes, run = [], Engine._run
    monkeypatch.setattr(
        Engine, "_run", lambda self, group, progress: sizes.append(len(group)) or run(self, group, progress)
    )
    three = engine.edit(request(seed=7, steps=2, num_images=3)).pictures
    assert sizes == [1, 1, 1]
    alone = [engine.edit(request(seed=7 + at, steps=2)).pictures[0] for at in range(3)]
    assert [each.tobytes() for each in three] == [each.tobytes() for each in alone]


def test_whole_files_are_hashed_where_that_was_asked_for() -> None:
    with Engine.open(tiny("kontext"), device="cpu", full_hashes=True) as engine:
        files = engine.edit(request(steps=1)).record["model_files"]
    for name, entry in files.items():
        data = (tiny("kontext") / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256_of": "file", "sha256": hashlib.sha256(data).hexdigest()}


# ---- batches


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_one_run_and_gives_what_each_gives_alone(engines, family, monkeypatch) -> None:
    engine = engines[family]
    requests = [
        request(),
        request(picture(100, 80, shift=50), "make it rain", seed=9),
        request(picture(30, 90), seed=5),
        request(seed=7, num_images=2),
    ]
    alone = [engine.edit(each) for each in requests]
    sizes, run = [], engine.family.run
    monkeypatch.setattr(
        engine.family,
        "run",
        lambda pipeline, pictures, *rest: (sizes.append(len(pictures)), run(pipeline, pictures, *rest))[1],
    )
    steps = []
    together = engine.edit_all(requests, on_step=steps.append)
    assert sizes == [4, 1]
    assert [len(each.pictures) for each in together] == [1, 1, 1, 2]
    assert [(step.number, step.of) for step in steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for one, other in zip(alone, together, strict=True):
        for at in range(len(one.pictures)):
            assert (
                numpy.abs(values(one, at) - values(other, at)).max() <= 2
            )  # products of another size are rounded differently
    # each picture of a request has the noise of its own seed
    assert numpy.abs(values(together[3], 1) - values(engine.edit(request(seed=8)))).max() <= 2
    engine.edit_all(requests[:1] * 3, at_once=2)
    assert sizes[-2:] == [2, 1]


def test_an_instruction_is_encoded_once(engine, monkeypatch) -> None:
    texts, encode = [], engine.family.encode
    monkeypatch.setattr(
        engine.family, "encode", lambda pipeline, text, *rest: (texts.append(text), encode(pipeline, text, *rest))[1]
    )
    engine.edit_all([request(instruction="one"), request(instruction="two"), request(instruction="one")])
    engine.edit(request(instruction="two", seed=8))
    assert texts == ["one", "two"]
    engine.edit(request(instruction="two", negative="blurry"))
    assert texts == ["one", "two", "two"]


# ---- numbers that go wrong


def overflowing(folder: Path, times: float) -> Path:
    """The tiny pipeline with numbers in its U-Net that float16 does not hold."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny("ip2p"), folder)
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    for name in ("conv_out.weight", "conv_out.bias"):
        weights[name] = weights[name] * times
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_numbers_that_float16_does_not_hold_are_done_again_in_float32(tmp_path, caplog) -> None:
    told = []
    folder = overflowing(tmp_path / "model", 3e5)
    with Engine.open(folder, device="cpu", dtype="fp16", progress=told.append) as engine:
        assert engine.describe()["dtype"] == "float16"
        with caplog.at_level(logging.WARNING, "toprope"):
            result = engine.edit(request())
        (event,) = result.record["guard"]
        assert event["dtype"] == "float16"
        assert event["what"] == "numbers that are not finite"
        assert result.record["engine"]["dtype"] == engine.describe()["dtype"] == "float32"
        (notice,) = result.record["notices"]
        assert "float16" in notice
        assert "float32" in notice
        assert notice in told
        assert [each.getMessage() for each in caplog.records if each.name.startswith("toprope")] == [notice]
        again = engine.edit(request())
        assert again.record["guard"] == again.record["notices"] == []
    with Engine.open(folder, device="cpu", dtype="fp32") as other:
        wanted = other.edit(request()).pictures[0].tobytes()
    assert result.pictures[0].tobytes() == again.pictures[0].tobytes() == wanted


@pytest.mark.slow
def test_numbers_that_float32_does_not_hold_either_are_an_error(tmp_path) -> None:
    with Engine.open(overflowing(tmp_path / "model", float("nan")), device="cpu", dtype="bf16") as engine:
        with pytest.raises(EditGuardError, match="not finite, in bfloat16 and again in float32") as caught:
            engine.edit(request())
        assert "the latents after step 1 of 2 on cpu" in caught.value.looked_at
        with pytest.raises(EditGuardError, match=r"not finite, in float32\."):
            engine.edit(request())


def test_what_the_guard_takes_for_black() -> None:
    black, grey = torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 0.5)
    dark = Image.new("RGB", (8, 8), (2, 0, 1))
    check_pictures(black, [dark])
    check_pictures(grey, [CAT])
    check_pictures(torch.ones(1, 3, 8, 8), [CAT])
    almost = black.clone()
    almost[0, 1, 3, 3] = 0.02
    check_pictures(almost, [CAT])
    with pytest.raises(NoPicture, match="picture 2 of 2"):
        check_pictures(torch.cat([grey, black]), [CAT, CAT])
    for bad in (float("nan"), float("inf")):
        wrong = grey.clone()
        wrong[0, 0, 0, 0] = bad
        with pytest.raises(NoPicture, match="not finite"):
            check_pictures(wrong, [dark])
        with pytest.raises(NoPicture, match="step 1 of 2"):
            check_latents(wrong, 1, 2)


def test_a_black_picture_from_a_black_one_is_no_alarm(engine, monkeypatch) -> None:
    monkeypatch.setattr(engine.family, "run", lambda pipeline, pictures, *rest: torch.zeros(len(pictures), 3, 64, 64))
    assert engine.edit(request(Image.new("RGB", (64, 64)))).record["guard"] == []
    with pytest.raises(EditGuardError, match="a black picture from one that is not"):
        engine.edit(request())


# ---- errors


def test_what_is_no_model(tmp_path) -> None:
    with pytest.raises(UsageError, match="no folder of a model"):
        Engine.open(tmp_path)
    with pytest.raises(UsageError, match="no folder of a model"):
        Engine.open(tmp_path / "nowhere")
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    with pytest.raises(UsageError, match="StableDiffusionPipeline, which is none that edits"):
        Engine.open(tmp_path)
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(WeightsError, match="cannot be read"):
        Engine.open(tmp_path)
    shutil.copytree(tiny("kontext"), tmp_path / "cut")
    file = tmp_path / "cut" / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="cannot be loaded"):
        Engine.open(tmp_path / "cut", device="cpu")


def test_arguments_that_cannot_be(engine) -> None:
    with pytest.raises(UsageError, match="no dtype for a model"):
        Engine.open(tiny("kontext"), device="cpu", dtype="int8")
    with pytest.raises(UsageError, match="no refiner"):
        engine.edit(request(refine=True))
    with pytest.raises(UsageError, match="must be"):
        engine.edit(request(steps=0))
    closed = Engine.open(tiny("kontext"), device="cpu")
    closed.close()
    closed.close()
    with pytest.raises(UsageError, match="the engine is closed"):
        closed.edit(request())


def test_a_missing_package_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(PackageError) as caught:
        need_diffusers()
    assert caught.value.do == advice("images")
    assert "diffusers" in caught.value.what


def test_memory_that_runs_out_on_a_rung_that_is_kept_to_is_an_error(engine, monkeypatch) -> None:
    def run(*arguments):
        raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 3.47 GiB")

    with Engine.open(tiny("kontext"), device="cpu", memory="none") as kept:
        monkeypatch.setattr(kept.family, "run", run)
        with pytest.raises(EditError, match="has not the memory for this, on the rung 'none'") as caught:
            kept.edit(request())
        assert "3.47 GiB" in caught.value.looked_at
        monkeypatch.undo()
        kept.edit(request())


def test_a_batch_that_has_no_room_is_done_in_halves(engines, monkeypatch) -> None:
    engine, run, sizes, steps = engines["kontext"], engines["kontext"].family.run, [], []

    def no_room(pipeline, pictures, *rest):
        sizes.append(len(pictures))
        if len(pictures) > 1:
            raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 3.47 GiB")
        return run(pipeline, pictures, *rest)

    monkeypatch.setattr(engine.family, "run", no_room)
    results = engine.edit_all([request(seed=seed) for seed in (1, 2, 3)], on_step=steps.append)
    assert sizes == [3, 1, 2, 1, 1]
    assert [(step.number, step.of) for step in steps] == [(1, 4), (2, 4), (3, 6), (4, 6), (5, 6), (6, 6)]
    assert results[0].record["notices"] == [
        "memory ran out with 3 pictures at once, going on with 2",
        "memory ran out with 2 pictures at once, going on with 1",
    ]
    for seed, result in zip((1, 2, 3), results, strict=True):
        assert result.pictures[0].tobytes() == engine.edit(request(seed=seed)).pictures[0].tobytes()


def test_a_batch_that_is_computed_again_counts_from_its_own_beginning() -> None:
    steps, stopped = [], []
    callback = StepCallback(2, steps.append, lambda: bool(stopped))
    for number in (1, 2):
        callback(number, 2, torch.zeros(1))
    callback.batch_done()
    callback(1, 2, torch.zeros(1))
    callback.restart()
    stopped.append(True)
    with pytest.raises(EditCancelled, match="after 2 steps"):
        callback.check()
    assert [(step.number, step.of) for step in steps] == [(1, 4), (2, 4), (3, 4)]


# ---- families and tiny pipelines


def test_families_are_found_by_the_name_in_the_folder() -> None:
    assert {"ip2p", "kontext"} <= {family.name for family in families()}
    names = [name for family in families() for name in family.pipelines]
    assert len(names) == len(set(names))
    for family in families():
        assert named(family.name) is family
    assert find(tiny("ip2p-xl"))[0] is find(tiny("ip2p"))[0]
    with pytest.raises(UsageError, match="no family of models 'sdxl'"):
        named("sdxl")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(100, 80), (31, 77), (1, 1)])
def test_noise_is_the_same_in_every_dtype(engines, family, size, monkeypatch) -> None:
    """Of 252 numbers, torch draws the last 16 another way in each dtype; of 256 it does not."""
    counts = []

    def draws(shape, generator=None, device=None, dtype=None, layout=None):
        counts.append(math.prod(shape[1:]))
        return torch.randn(shape, generator=generator[0], dtype=dtype)

    module = sys.modules[type(engines[family].loaded.pipeline).__mro__[1].__module__]
    monkeypatch.setattr(module, "randn_tensor", draws)
    engines[family].edit(request(picture(*size), steps=1))
    assert counts
    for count in counts:
        drawn = {
            dtype: torch.randn(count, generator=torch.Generator().manual_seed(3), dtype=dtype).float()
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
        }
        for dtype, found in drawn.items():
            assert torch.equal(found, drawn[torch.float32].to(dtype).float()), (count, dtype)


@pytest.mark.slow
def test_a_tiny_pipeline_is_the_same_for_the_same_seed_and_spoils_nothing(tmp_path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    write("kontext", tmp_path / "a", seed=1)
    write("kontext", tmp_path / "b", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    files = {path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    assert sum((tmp_path / "a" / file).stat().st_size for file in files) < 2**20
    with pytest.raises(UsageError, match="there already"):
        write("kontext", tmp_path / "a")
    with pytest.raises(UsageError, match="no tiny pipeline 'sdxl'"):
        write("sdxl", tmp_path / "c")
    assert {"ip2p", "ip2p-xl", "kontext"} <= set(TINY)


@pytest.mark.slow
def test_threads_wait_for_each_other(engine) -> None:
    """Field thread 50's first half: calls from a pool, as a web UI makes them."""
    wanted = [engine.edit(request(seed=seed)).pictures[0].tobytes() for seed in range(3)]
    inside, most, lock = [0], [0], threading.Lock()

    def on_step(step):
        with lock:
            if step.number == 1:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            else:
                inside[0] -= 1

    with ThreadPoolExecutor(3) as pool:
        got = list(
            pool.map(lambda seed: engine.edit(request(seed=seed), on_step=on_step).pictures[0].tobytes(), range(3))
        )
    assert got == wanted
    assert most[0] == 1
