"""Masks: outside them a result is the source to the bit, the edge is blended inwards; and records inside pictures.

Holds `images.picture.masks`, the records of `images.picture.files`, and `images.repeat`.
"""

import json
import os

import numpy
import pytest
from PIL import Image, ImageDraw

from images_tiny import QUIET, picture, tiny
from toprope.cli import main
from toprope.errors import ImageError, UsageError
from toprope.images import EditRequest, Engine
from toprope.images.picture.files import open_picture, record_in, save_picture
from toprope.images.picture.masks import open_mask
from toprope.images.repeat import differences
from toprope.images.results import versions
from toprope.images.runs.jobs import Job, finished, number_jobs, read_jobs, undone
from toprope.images.runs.output import Output, hash_of

pytestmark = [pytest.mark.native, *QUIET]


def box(size, inside, value=255, mode="L"):
    mask = Image.new(mode, size, 0)
    ImageDraw.Draw(mask).rectangle((inside[0], inside[1], inside[2] - 1, inside[3] - 1), fill=value)
    return mask


def weights(mask, feather=None):
    return numpy.asarray(open_mask(mask, mask.size, feather).weights).astype(int)


@pytest.fixture(scope="module")
def engine():
    with Engine.open(tiny("ip2p"), device="cpu") as engine:
        yield engine


def test_the_edge_is_blended_inwards_and_outside_is_zero() -> None:
    found = weights(box((200, 120), (40, 30, 160, 90)), 8)
    assert found[:30].max() == found[90:].max() == found[:, :40].max() == found[:, 160:].max() == 0
    row = found[60]
    assert list(row[40:49]) == [round(255 * each / 8) for each in (1, 2, 3, 4, 5, 6, 7, 8, 8)]
    assert (row[48:152] == 255).all()


@pytest.mark.parametrize("width", [1, 2, 3, 5, 9])
def test_a_narrow_stroke_still_has_its_whole_effect_in_the_middle(width) -> None:
    found = weights(box((64, 64), (10, 30, 54, 30 + width)), 16)
    assert found[30 + width // 2, 32] == 255
    assert found[29, 32] == found[30 + width, 32] == 0


@pytest.mark.parametrize("feather", [0, 1])
def test_without_a_feather_the_mask_is_what_was_given(feather) -> None:
    mask = box((40, 30), (5, 5, 20, 20), 128)
    assert (weights(mask, feather) == numpy.asarray(mask)).all()


def test_a_mask_up_to_the_border_is_not_blended_there() -> None:
    found = weights(box((64, 64), (0, 0, 64, 32)), 8)
    assert (found[0] == 255).all()
    assert found[31].max() < 64


def test_a_painted_layer_counts_by_what_is_opaque() -> None:
    layer = Image.new("RGBA", (32, 32), (255, 255, 255, 0))
    layer.paste((0, 0, 0, 255), (8, 8, 24, 24))  # black paint: the colour of a brush does not matter
    assert (weights(layer, 0) == weights(box((32, 32), (8, 8, 24, 24)), 0)).all()


def test_a_mask_lies_as_its_picture_does_when_it_is_upright(tmp_path) -> None:
    mask = box((20, 40), (0, 0, 20, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    mask.save(tmp_path / "mask.png", exif=exif)
    found = open_mask(tmp_path / "mask.png", (40, 20), 0)
    assert found.weights.getbbox() == (30, 0, 40, 20)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Image.new("L", (8, 8)), "black everywhere: nothing may change"),
        (box((9, 8), (0, 0, 4, 4)), "another size than the picture"),
        ("absent.png", "there is no picture absent.png"),
    ],
)
def test_a_mask_that_cannot_be_is_refused_with_the_sizes(mask, words) -> None:
    with pytest.raises(ImageError, match=words) as caught:
        open_mask(mask, (8, 8))
    assert caught.value.do


def test_refused_together_with_what_decides_against_it() -> None:
    with pytest.raises(UsageError, match="there is no mask"):
        EditRequest("a.png", "x", mask_feather=3).validate()
    with pytest.raises(UsageError, match="decides mask too"):
        EditRequest("a.png", "x", mask="m.png", like="authors").validate()
    with pytest.raises(UsageError, match="mask_feather is 300"):
        EditRequest("a.png", "x", mask="m.png", mask_feather=300).validate()


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_outside_the_mask_the_result_is_the_source(engine, fit) -> None:
    source = picture(96, 64)
    mask = box(source.size, (24, 8, 80, 40))
    asked = {"steps": 2, "seed": 3, "fit": fit, "size": "768", "max_pixels": 4096}
    free = engine.edit(EditRequest(source, "make it snow", **asked))
    held = engine.edit(EditRequest(source, "make it snow", mask=mask, mask_feather=4, **asked))
    crop = tuple(held.record["frame"]["crop"])
    result, before = numpy.asarray(held.pictures[0]), numpy.asarray(source.crop(crop))
    whole, may = numpy.asarray(free.pictures[0]), numpy.asarray(mask.crop(crop)) > 0
    assert result.shape == before.shape
    assert (result[~may] == before[~may]).all()
    inner = numpy.asarray(box(source.size, (28, 12, 76, 36)).crop(crop)) > 0
    assert (result[inner] == whole[inner]).all()
    assert (result[inner] != before[inner]).any()
    assert held.record["mask"] == {"name": "picture", "covers": pytest.approx(0.2917, abs=1e-3), "feather": 4}


def test_several_pictures_at_once_have_each_its_own_mask(engine) -> None:
    source = picture(64, 64)
    masks = [box((64, 64), (0, 0, 32, 64)), None, box((64, 64), (32, 0, 64, 64))]
    asked = [EditRequest(source, "make it snow", steps=1, seed=3, max_pixels=4096, mask=mask) for mask in masks]
    left, free, right = (numpy.asarray(each.pictures[0]) for each in engine.edit_all(asked))
    before = numpy.asarray(source)
    assert (left[:, 32:] == before[:, 32:]).all()
    assert (left[:, :32] != before[:, :32]).any()
    assert (right[:, :32] == before[:, :32]).all()
    assert (right[:, 32:] != before[:, 32:]).any()
    assert (free != before).any()


def test_jobs_find_masks_from_their_folder_and_begin_again_when_one_changes(tmp_path) -> None:
    picture().save(tmp_path / "cat.png")
    mask = tmp_path / "sky.png"
    box((64, 64), (0, 0, 32, 32)).save(mask)
    text = json.dumps({"image": "cat.png", "instruction": "x", "mask": "sky.png"})
    (job,) = number_jobs(read_jobs(text, {}, folder=str(tmp_path), name="jobs.jsonl"), {})
    assert (job.request.image, job.request.mask) == (str(tmp_path / "cat.png"), str(mask))
    used = {path: hash_of(path) for path in (job.request.image, job.request.mask)}
    record = {
        "job": {**job.as_json(), "picture": 1, "of": 1}, "picture": "cat-0001.png",
        "source": {"sha256": used[job.request.image]}, "mask": {"sha256": used[job.request.mask]},
    }  # fmt: skip
    done = finished({"cat-0001.json": record}, ["cat-0001.png"])
    assert undone([job], done, used) == []
    assert undone([job], done, used | {str(mask): "another"}) == [job]
    with pytest.raises(UsageError, match="line 1: mask is 3"):
        read_jobs(json.dumps({"image": "a.png", "instruction": "x", "mask": 3}), {}, folder="/", name="jobs.jsonl")


# ---- records inside pictures


def test_a_png_carries_its_record_and_no_folder_of_this_machine(engine, tmp_path) -> None:
    source, mask = tmp_path / "private" / "cat.png", tmp_path / "private" / "sky.png"
    source.parent.mkdir()
    picture().save(source)
    box((64, 64), (0, 0, 32, 32)).save(mask)
    request = EditRequest(str(source), "make it snow – 雪", steps=1, seed=3, max_pixels=4096, mask=str(mask))
    result = engine.edit(request)
    (path,) = Output(tmp_path / "out").save(Job(request, "cat"), result.pictures, result.record)
    record = record_in(path)
    assert record["request"]["instruction"] == "make it snow – 雪"
    assert (record["request"]["image"], record["request"]["mask"], record["seed"]) == ("image.png", "mask.png", 3)
    assert record["source"]["sha256"] == hash_of(source)
    assert record["mask"]["sha256"] == hash_of(mask)
    assert os.fspath(tmp_path) not in json.dumps(record)
    assert os.fspath(engine.loaded.folder) not in json.dumps(record)
    assert "written" not in record
    assert "seconds" not in record
    assert numpy.array_equal(numpy.asarray(open_picture(path).picture), numpy.asarray(result.pictures[0]))


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_other_formats_carry_none(tmp_path, suffix) -> None:
    path = save_picture(picture(), tmp_path / f"a.{suffix}", record={"request": {}})
    assert record_in(path) is None


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\nnothing", b"no picture", b"{}"])
def test_what_is_no_picture_carries_none(tmp_path, content) -> None:
    (tmp_path / "a.png").write_bytes(content)
    assert record_in(tmp_path / "a.png") is None


def run(*words) -> int:
    return main(["edit", *map(str, words)])


def test_each_difference_from_a_record_is_named() -> None:
    files = {"unet": {"sha256": "a", "sha256_of": "header"}}
    engine = {"device_name": "CPU", "dtype": "float32"}
    record = {"model_files": files, "engine": engine, "versions": versions()}
    assert differences(record, files, engine) == []
    assert differences(record, {**files, "vae": {}}, engine) == ["the model is not the one of the record: vae"]
    whole = {"unet": {"sha256": "b", "sha256_of": "file"}}  # hashed otherwise, which tells nothing
    assert differences({**record, "model_files": whole}, files, engine) == []
    now = {"device_name": "910B4", "dtype": "float16"}
    assert differences(record, files, now) == [
        "the device name is 910B4, and was CPU",
        "the dtype is float16, and was float32",
    ]
    (found,) = differences({**record, "versions": {**versions(), "python": "3.0"}}, files, engine)
    assert found == f"versions differ, here are python {versions()['python']}"


def test_a_picture_alone_repeats_its_edit_to_the_byte(tmp_path, capsys) -> None:
    model, source, mask = tiny("ip2p"), tmp_path / "cat.png", tmp_path / "sky.png"
    picture().save(source)
    box((64, 64), (0, 0, 32, 32)).save(mask)
    knobs = ("--steps", 1, "--seed", 3, "--max-pixels", 4096, "--device", "cpu", "--quiet")
    out = tmp_path / "out"
    given = ("--image", source, "--instruction", "make it snow", "--mask", mask, "--mask-feather", 2)
    assert run("--model", model, *given, "--out-dir", out, *knobs) == 0
    made = out / "cat-0001.png"
    sent = tmp_path / "sent" / "picture.png"
    sent.parent.mkdir()
    sent.write_bytes(made.read_bytes())
    (tmp_path / "sent" / "sources").symlink_to(out / "sources")
    source.unlink()
    mask.unlink()
    capsys.readouterr()
    assert run("--repeat", sent, "--out-dir", tmp_path / "again", "--device", "cpu") == 2
    assert "--model" in capsys.readouterr().err
    assert run("--repeat", sent, "--model", model, "--out-dir", tmp_path / "again", "--device", "cpu", "--quiet") == 0
    (again,) = (tmp_path / "again").glob("*.png")
    assert again.read_bytes() == made.read_bytes()
    assert run("--repeat", made, "--out-dir", tmp_path / "third", "--device", "cpu", "--quiet") == 0  # by its .json
    box((64, 64), (0, 0, 8, 8)).save(source)  # another picture where the edited one was
    assert run("--repeat", made, "--out-dir", tmp_path / "fourth", "--device", "cpu", "--quiet") == 0
    (fourth,) = (tmp_path / "fourth").glob("*.png")
    assert fourth.read_bytes() == made.read_bytes()
    picture().save(tmp_path / "plain.png")
    capsys.readouterr()
    assert run("--repeat", tmp_path / "plain.png", "--model", model) == 2
    assert "carries no record" in capsys.readouterr().err


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_and_a_mask_that_was_drawn_upright_go_together(engine, tmp_path, orientation) -> None:
    """unsloth #10553, stable-diffusion-webui #15062: the model changed another part than the one that was painted."""
    upright, exif = picture(40, 24), Image.Exif()
    exif[0x0112] = orientation
    turns = ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270"]
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose[turns[orientation - 2]])
    stored.save(tmp_path / "photo.png", exif=exif)
    request = EditRequest(
        str(tmp_path / "photo.png"), "snow", steps=1, seed=1, max_pixels=256, mask=box((40, 24), (0, 0, 16, 24))
    )
    made, source = numpy.asarray(engine.edit(request).pictures[0]), numpy.asarray(upright)
    assert made.shape == source.shape
    assert (made[:, 16:] == source[:, 16:]).all()
    assert (made[:, :16] != source[:, :16]).any()
