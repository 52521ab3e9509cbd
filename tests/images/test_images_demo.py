"""The demo model: scenes that were not trained on, its defaults, and the command that writes it.

Holds `images.demo` and its weights: the right picture of each edit is known exactly.
"""

import json
import math
import re
import shlex
from pathlib import Path

import numpy
import pytest
from PIL import Image

from images_tiny import QUIET
from toprope.cli import main
from toprope.errors import UsageError, WeightsError
from toprope.images import EditRequest, Engine
from toprope.images.demo import EDITS, TEST_SEEDS, draw_scene, write
from toprope.images.demo.copying import EXAMPLE, MODEL

pytestmark = QUIET


def psnr(one, other):
    """Peak signal-to-noise ratio of two pictures, in dB."""
    error = numpy.mean((numpy.asarray(one, float) - numpy.asarray(other, float)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("demo") / "model")


@pytest.fixture(scope="module")
def engine(folder):
    with Engine.open(folder, device="cpu") as opened:
        yield opened


def nearest(engine, text, seeds):
    """Name the picture that each result is nearest to: an instruction's, or None for the source."""
    results = engine.edit_all([EditRequest(draw_scene(seed), text, seed=seed) for seed in seeds], at_once=10)
    found = []
    for seed, result in zip(seeds, results, strict=True):
        near = {each: psnr(result.pictures[0], draw_scene(seed, each)) for each in (None, *EDITS)}
        found.append(max(near, key=near.__getitem__))
    return found


def test_results_are_nearer_to_what_was_asked_for_than_to_the_source_and_to_other_edits(engine):
    found = {edit: nearest(engine, edit, TEST_SEEDS[:4]).count(edit) for edit in EDITS}
    assert sum(found.values()) >= 11, found


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_of_100_scenes_that_were_not_trained_on_90_are_nearest_to_what_was_asked_for(engine, edit):
    assert nearest(engine, edit, TEST_SEEDS).count(edit) >= 90


@pytest.mark.slow
@pytest.mark.parametrize("text", ["do nothing", "make the door green"])
def test_a_text_that_asks_for_something_else_leaves_the_picture_as_it_is(engine, text):
    assert nearest(engine, text, TEST_SEEDS[:10]).count(None) >= 9


def test_scenes_are_the_same_every_time_and_edits_change_what_they_name():
    for seed in (*range(3), *TEST_SEEDS[:3]):
        source = draw_scene(seed)
        assert source.tobytes() == draw_scene(seed).tobytes()
        assert source.size == (64, 64)
        edited = {draw_scene(seed, edit).tobytes() for edit in EDITS}
        assert len(edited | {source.tobytes()}) == 4
    assert len({draw_scene(seed).tobytes() for seed in range(50)}) == 50


def test_the_model_is_less_than_2_mb_and_its_autoencoder_changes_nothing(folder, engine):
    import torch

    assert sum(each.stat().st_size for each in MODEL.rglob("*")) < 2_000_000
    vae = engine.loaded.pipeline.vae
    torch.manual_seed(0)
    given = torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        back = vae.decode(vae.encode(given.to(vae.dtype)).latent_dist.mode(), return_dict=False)[0]
    assert float((back.float() - given).abs().max()) < (1 / 255 if vae.dtype == torch.float32 else 3 / 255)


def test_the_folder_of_a_model_has_defaults_of_its_own(engine):
    """A model that needs other steps or guidance than its family looked broken until they were given."""
    options = engine.describe()["options"]
    assert (options["steps"], options["guidance"], options["image_guidance"]) == (8, 1.0, 1.0)
    assert options["negative"] == ""  # the family's
    record = engine.edit(EditRequest(draw_scene(1), "make it snow", steps=2, seed=1)).record
    assert (record["request"]["steps"], record["request"]["guidance"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"defaults": {"steps": 0}}', "steps is 0"),
        ('{"defaults": {"cfg_norm": true}}', "have no cfg_norm"),
        ('{"defaults": {"size": "keep"}}', "have no size"),
        ('{"defaults": [8]}', ""),
        ("{}", "KeyError"),
        ("[]", "TypeError"),
        ("{", "JSONDecodeError"),
    ],
)
def test_defaults_that_cannot_be_are_one_error_before_the_model_is_loaded(tmp_path, text, said):
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionInstructPix2PixPipeline"}')
    (tmp_path / "toprope.json").write_text(text)
    with pytest.raises(WeightsError) as caught:
        Engine.open(tmp_path, device="cpu")
    assert "the defaults in" in caught.value.what
    assert said in caught.value.what


@pytest.mark.parametrize("page", ["docs/images.md", "README.md", "README.zh.md"])
def test_the_commands_of_the_documentation_make_it_night(tmp_path, capsys, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) if "images demo" in each]
    lines = [line for line in block.splitlines() if line.startswith("toprope")]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [words[0] for words in commands[:2]] == ["images", "edit"]
    assert [main(words) for words in commands[:2]] == [0, 0]
    capsys.readouterr()
    with Image.open("out/example-0001.png") as made:
        near = {edit: psnr(made, draw_scene(TEST_SEEDS[0], edit)) for edit in (None, *EDITS)}
    assert max(near, key=near.__getitem__) == "make it night"


def test_the_command_writes_it_with_a_picture_and_says_what_to_ask_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["images", "demo", "a model"]) == 0
    out = capsys.readouterr().out
    assert all(f'--instruction "{edit}"' in out for edit in EDITS)
    assert "--model 'a model' --image 'a model/example.png'" in out
    assert (tmp_path / "a model" / EXAMPLE).is_file()
    assert main(["images", "demo", "a model"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["images", "demo", "another", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["instructions"] == list(EDITS)
    assert facts["bytes"] < 2_000_000
    with pytest.raises(UsageError):
        write("another")
