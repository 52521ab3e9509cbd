"""Painted masks: strokes on a small copy become a mask of the picture's size; any other layer is one error.

Holds `images.web.painter`.
"""

import base64
import io

import pytest
from PIL import Image, ImageDraw

from images_tiny import picture
from images_web_stand_in import StandIn
from toprope.errors import UsageError
from toprope.images.web import Controller
from toprope.images.web.painter import LEAST, SIDE, painted_mask, shown_copy

LONG = 30.0


def layer(size, box, colour=(224, 55, 44, 255)):
    """A layer as the canvas gives it: strokes on nothing."""
    made, written = Image.new("RGBA", size, (0, 0, 0, 0)), io.BytesIO()
    if box:
        ImageDraw.Draw(made).rectangle(box, fill=colour)
    made.save(written, "PNG")
    return address(written.getvalue())


def address(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_strokes_are_scaled_to_the_size_of_the_picture(tmp_path):
    painted_mask(layer((768, 512), (77, 0, 384, 511)), (3000, 2001), tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as mask:
        assert (mask.mode, mask.size) == ("L", (3000, 2001))
        assert [mask.getpixel((x, 1000)) for x in (290, 400, 1400, 1520)] == [0, 255, 255, 0]


def test_the_copy_that_is_painted_on_has_the_shape_of_the_picture_and_fits_the_limit(tmp_path):
    for size, wanted in (((3000, 1), (SIDE, 1)), ((40, 30), (LEAST, 288)), ((999, 1501), (511, SIDE))):
        picture(*size).save(tmp_path / "source.png")
        head, _, data = shown_copy(tmp_path / "source.png").partition(",")
        assert head == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as shown:
            assert shown.size == wanted
        painted_mask(layer(wanted, (0, 0, *wanted)), size, tmp_path / "mask.png")  # no rounding is another shape


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("data:image/svg+xml,<svg/>", "no PNG of a canvas"), (["x"], "no PNG of a canvas"), ("x" * 2**20, "no PNG"),
        ("data:image/png;base64,???", "cannot be read"), (address(b"GIF89a"), "cannot be read"),
        (layer((40, 30), (0, 0, 9, 9))[:-40], "cannot be read"), (layer((4000, 3000), None), "cannot be read"),
        (layer((30, 40), (0, 0, 9, 9)), "of another shape"), (layer((40, 30), None), "nothing may change"),
    ],
)  # fmt: skip
def test_what_is_no_painted_layer_is_one_error_and_leaves_no_file(given, said, tmp_path):
    picture(40, 30).save(tmp_path / "cat.png")
    controller = Controller("tiny", lambda tell: StandIn(), out_dir=tmp_path / "out")
    try:
        mine = controller.join()
        controller.bring(mine, str(tmp_path / "cat.png"))
        with pytest.raises(UsageError, match=said) as found:
            controller.edit(mine, {"instruction": "snow", "painted": given})
        assert str(controller.scratch) not in str(found.value)
        assert len(controller.sessions.steps(mine)) == 1
        assert not list(controller.scratch.glob("mask-*"))
    finally:
        assert controller.close(LONG)


def test_a_painted_mask_is_kept_once_and_two_kinds_of_mask_are_refused(tmp_path):
    picture(40, 30).save(tmp_path / "cat.png")
    engine = StandIn()
    controller = Controller("tiny", lambda tell: engine, out_dir=tmp_path / "out")
    try:
        controller.load()
        mine = controller.join()
        controller.bring(mine, str(tmp_path / "cat.png"))
        painted = {"instruction": "snow", "painted": layer((20, 15), (0, 0, 9, 14))}
        for _ in range(2):
            assert controller.edit(mine, painted, 1).wait(LONG)
        step = controller.sessions.steps(mine)[-1]
        assert engine.edits[0].mask == engine.edits[1].mask == str(tmp_path / "out" / step.request["mask"])
        assert "painted" not in step.request
        with pytest.raises(UsageError, match="a rectangle and a painted mask"):
            controller.edit(mine, {**painted, "box": [0, 0, 50, 50]}, 1)
        with pytest.raises(UsageError, match="a batch has no mask"):
            controller.edit_all(mine, painted, [str(tmp_path / "cat.png")])
    finally:
        assert controller.close(LONG)
