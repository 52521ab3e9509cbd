"""Requests and frames: values of an edit, and the size at which the model sees the picture. Pure: no torch, no Pillow.

Holds `images.request`, `images.batching` and `images.picture.geometry`.
"""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.errors import SeedError, UsageError
from toprope.images.batching import ResolvedRequest, Row, batches, rows_of
from toprope.images.picture.geometry import area_size, halvings, plan_frame
from toprope.images.request import FITS, RANGES, SIZES, EditRequest

pytestmark = pytest.mark.process

SIDES = st.integers(1, 30_000)


def test_importing_the_room_imports_nothing_heavy() -> None:
    code = """
import sys
import toprope.images, toprope.images.picture.geometry, toprope.images.request, toprope.images.batching
import toprope.images.tiny
import toprope.images.families
print([name for name in ("torch", "numpy", "PIL", "diffusers", "transformers", "gradio") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ---- requests


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instruction", ""),
        ("instruction", "  \n"),
        ("instruction", None),
        ("image", None),
        ("image", ""),
        ("negative", 3),
        ("steps", 0),
        ("steps", 1001),
        ("steps", 2.5),
        ("steps", "28"),
        ("steps", True),
        ("guidance", -0.1),
        ("guidance", math.nan),
        ("image_guidance", math.inf),
        ("refine_strength", 1.1),
        ("cfg_norm", 1),
        ("refine", "yes"),
        ("num_images", 0),
        ("num_images", None),
        ("size", "1M"),
        ("fit", "cover"),
        ("max_pixels", 10),
        ("generator_device", "npu"),
    ],
)
def test_what_cannot_be_is_one_error_that_names_the_field(field, value) -> None:
    request = EditRequest(**({"image": "a.png", "instruction": "make it snow"} | {field: value}))
    with pytest.raises(UsageError) as caught:
        request.validate()
    assert str(caught.value).startswith(f"{field} is {value!r}, and must be ")
    if field in RANGES:
        assert str(int(RANGES[field][2])) in caught.value.what


@pytest.mark.parametrize("seed", [-2, 2**64, 1.5, "three", True])
def test_what_is_no_seed(seed) -> None:
    with pytest.raises(SeedError):
        EditRequest("a.png", "make it snow", seed=seed).validate()


def test_numbers_get_their_types_and_nothing_else_changes() -> None:
    request = EditRequest("a.png", "x", steps=28.0, guidance=5, seed="random").validate()
    assert (request.steps, type(request.steps), request.guidance, type(request.guidance)) == (28, int, 5.0, float)
    assert request.seed == "random"
    assert request.given() == ("steps", "guidance")


def test_a_row_of_json_and_back() -> None:
    row = {"image": "cat.png", "instruction": "make it snow", "steps": 10, "seed": 7, "cfg_norm": False}
    request = EditRequest.from_json(row | {"negative": None})
    assert EditRequest.from_json(json.loads(json.dumps(request.as_json()))) == request
    assert request.as_json().items() >= row.items()


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"an edit has no 'guidence'; 'guidance' is meant\?"):
        EditRequest.from_json({"image": "a.png", "instruction": "x", "guidence": 3})
    with pytest.raises(UsageError, match="without 'instruction'"):
        EditRequest.from_json({"image": "a.png"})


# ---- sizes


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ((1920, 1080), (1360, 768)),
        ((4000, 3000), (1168, 880)),
        ((300, 500), (784, 1312)),
        ((1, 1), (1024, 1024)),
        ((10, 4000), (48, 20480)),
        ((1023, 1025), (1008, 1024)),
    ],
)
def test_the_sizes_of_the_original_scripts(source, model) -> None:
    """The outputs of HiDream-E1.1's resize_image for these sizes; the spec has them."""
    assert plan_frame(source, size="1m", fit="crop", pixels=1024**2, multiple=16).model == model


@given(SIDES, SIDES, st.integers(16, 2048), st.sampled_from([8, 16, 32]))
def test_a_size_stays_within_its_pixels_and_fits_the_model(width, height, side, multiple) -> None:
    pixels = max(side, multiple) ** 2
    wide, high = area_size(width, height, pixels, multiple)
    assert wide % multiple == high % multiple == 0
    assert multiple <= wide
    assert multiple <= high
    assert wide * high <= pixels
    # as near as multiples allow, where the shape leaves room for more than one multiple
    exact = math.sqrt(pixels / (width * height))
    if min(width, height) * exact >= multiple:
        assert 0 <= width * exact + 0.5 - wide < multiple + 1
        assert 0 <= height * exact + 0.5 - high < multiple + 1
    else:
        assert min(wide, high) == multiple
        assert wide * high > pixels - multiple**2


@given(SIDES, SIDES)
def test_halving_stops_before_the_picture_gets_smaller_than_what_is_wanted(width, height) -> None:
    times = halvings(width, height)
    assert min(width >> times, height >> times) < 2048
    assert times == 0 or min(width >> times, height >> times) >= 1024


@given(
    st.tuples(SIDES, SIDES),
    st.sampled_from(SIZES),
    st.sampled_from(FITS),
    st.sampled_from([(64 * 64, 16), (768 * 768, 16), (1024 * 1024, 32)]),
    st.booleans(),
    st.one_of(st.none(), st.integers(256, 2**22)),
)
def test_a_frame_shows_what_is_there_and_gives_back_the_pictures_size(
    source, size, fit, native, square, max_pixels
) -> None:
    pixels, multiple = native
    frame = plan_frame(
        source, size=size, fit=fit, pixels=pixels, multiple=multiple, square=square, max_pixels=max_pixels
    )
    assert frame.model[0] % multiple == frame.model[1] % multiple == 0
    assert min(frame.model) >= multiple
    if max_pixels is not None:
        assert frame.model[0] * frame.model[1] <= max(max_pixels, multiple**2)
    for box, (width, height) in ((frame.crop, source), (frame.inner, frame.model)):
        assert 0 <= box[0] < box[2] <= width
        assert 0 <= box[1] < box[3] <= height
    if fit == "crop":
        assert frame.inner == (0, 0, *frame.model)
        assert frame.output == (frame.crop[2] - frame.crop[0], frame.crop[3] - frame.crop[1])
        assert frame.crop[2] - frame.crop[0] == source[0] or frame.crop[3] - frame.crop[1] == source[1]
    else:
        assert frame.crop == (0, 0, *source)
        assert frame.output == source
    if fit == "pad":  # one side is full
        assert frame.inner[2] - frame.inner[0] == frame.model[0] or frame.inner[3] - frame.inner[1] == frame.model[1]


def test_policies_of_size() -> None:
    def model(source, **options):
        given = {"size": "model", "fit": "stretch", "pixels": 512 * 512, "multiple": 64} | options
        return plan_frame(source, **given).model

    assert model((1000, 1000)) == (512, 512)
    assert model((2000, 1000)) == (704, 320)
    assert model((2000, 1000), square=True) == (512, 512)
    assert model((2000, 1000), size="768") == (768, 768)
    assert model((2000, 1000), size="768", max_pixels=512 * 512) == (512, 512)
    assert model((2000, 1000), size="keep") == (1984, 960)
    assert model((30, 20), size="keep") == (64, 64)
    assert model((2000, 1000), sizes=((1024, 1024), (1392, 752), (752, 1392))) == (1392, 752)
    assert model((1000, 1900), sizes=((1024, 1024), (1392, 752), (752, 1392))) == (752, 1392)


# ---- batches


def resolved(seed=0, images=1, source=(64, 64), **knobs) -> ResolvedRequest:
    request = EditRequest("a.png", "x", seed=seed, num_images=images, **knobs)
    frame = plan_frame(source, size="model", fit="stretch", pixels=4096, multiple=16)
    return ResolvedRequest(request, None, frame, seed)


def test_pictures_of_one_size_and_the_same_knobs_go_together() -> None:
    rows = rows_of(
        [resolved(1), resolved(2, source=(200, 64)), resolved(3), resolved(4, steps=3), resolved(2**64 - 1, images=3)]
    )
    assert [(row.at, row.seed) for row in rows] == [
        (0, 1), (1, 2), (2, 3), (3, 4), (4, 2**64 - 1), (4, 0), (4, 1),
    ]  # fmt: skip
    assert [[row.at for row in group] for group in batches(rows, 8)] == [[0, 2, 4, 4, 4], [1], [3]]
    assert [[row.at for row in group] for group in batches(rows, 2)] == [[0, 2], [4, 4], [4], [1], [3]]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([(64, 64), (200, 64)])), max_size=12), st.integers(1, 5))
def test_batches_hold_every_picture_once_and_in_order(edits, at_once) -> None:
    rows = rows_of([resolved(at * 10, images, source) for at, (images, source) in enumerate(edits)])
    groups = list(batches(rows, at_once))
    assert sorted(row.seed for group in groups for row in group) == sorted(row.seed for row in rows)
    for group in groups:
        assert 1 <= len(group) <= at_once
        assert len({row.kind for row in group}) == 1
        assert [row.at for row in group] == sorted(row.at for row in group)
    assert all(isinstance(row, Row) for row in rows)
