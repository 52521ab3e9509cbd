"""Pictures of every kind come in as RGB and upright, or are refused with one error; results are whole files.

Holds `images.picture.files` and `images.picture.geometry`.
"""

import os
import struct
import time
import zlib

import numpy
import pytest
import torch
from PIL import Image

from images_tiny import picture
from toprope.errors import ImageError
from toprope.images.picture.files import MAX_PIXELS, fit_back, fit_in, open_picture, save_picture, to_pictures
from toprope.images.picture.geometry import plan_frame

SOURCE = picture(60, 40)


def values(image) -> numpy.ndarray:
    return numpy.asarray(image).astype(int)


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header has a width and height, and that has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("L", "png"),
        ("P", "gif"),
        ("RGB", "jpg"),
        ("CMYK", "jpg"),
        ("1", "png"),
        ("HSV", ""),
        ("YCbCr", "jpg"),
        ("RGB", "webp"),
    ],
)
def test_26_every_mode_becomes_rgb(tmp_path, mode, suffix) -> None:
    """Originals: L and P ended in an error about a convolution's channels."""
    made = SOURCE.convert(mode)
    given = made
    if suffix:
        given = tmp_path / f"a.{suffix}"
        made.save(given)
    opened = open_picture(given)
    notes = ("CMYK without a profile: its colours are approximate",) if mode == "CMYK" else ()
    assert (opened.picture.mode, opened.picture.size, opened.notes) == ("RGB", (60, 40), notes)
    assert numpy.abs(values(opened.picture) - values(made.convert("RGB"))).mean() < 8
    assert opened.name == (str(given) if suffix else "picture")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_26_what_is_transparent_is_laid_on_the_background(tmp_path, mode) -> None:
    """Originals: four channels were taken for latents, and a picture of twice the size came out."""
    made = SOURCE.convert("RGBA")
    made.putalpha(Image.new("L", made.size, 0))
    made.paste((200, 10, 10, 255), (0, 0, 30, 40))
    made = made.convert(mode) if mode != "P" else made.quantize()
    path = tmp_path / ("a.tif" if mode == "PA" else "a.png")
    if mode == "PA":
        path = made  # no file has this mode
    else:
        made.save(path)
    opened = open_picture(path)
    assert opened.notes == ("laid on white",)
    assert opened.picture.getpixel((50, 20)) == (255, 255, 255)
    left = opened.picture.getpixel((10, 20))
    assert left == open_picture(path, background=(0, 0, 255)).picture.getpixel((10, 20))
    assert left != (255, 255, 255)
    assert open_picture(path, background=(0, 0, 255)).picture.getpixel((50, 20)) == (0, 0, 255)


def test_26_sixteen_bits_are_scaled_and_not_cut_off(tmp_path) -> None:
    deep = numpy.linspace(0, 65535, 256 * 4).astype(numpy.uint16).reshape(4, 256)
    Image.fromarray(deep).save(tmp_path / "a.png")
    opened = open_picture(tmp_path / "a.png")
    assert opened.notes == ("16 bits made 8",)
    assert numpy.abs(values(opened.picture)[..., 0] - deep / 257).max() <= 0.5
    with pytest.raises(ImageError, match="pixel values of an unknown range"):
        open_picture(Image.new("F", (4, 4), 0.5))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_26_pictures_come_upright(tmp_path, orientation) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    SOURCE.save(tmp_path / "a.png", exif=exif)
    opened = open_picture(tmp_path / "a.png")
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }  # fmt: skip
    wanted = SOURCE.transpose(turns[orientation]) if orientation > 1 else SOURCE
    assert numpy.array_equal(values(opened.picture), values(wanted))
    assert opened.notes == (("turned upright",) if orientation > 1 else ())


def test_26_of_an_animation_the_first_frame_is_taken(tmp_path) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    opened = open_picture(tmp_path / "a.gif")
    assert opened.notes == ("the first of 3 frames",)
    assert opened.picture.getpixel((5, 5)) == (255, 0, 0)


@pytest.mark.parametrize("source", [(1, 1), (10, 4000), (4000, 10), (17, 31), (1023, 1025), (64, 64)])
@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
def test_26_odd_sizes_are_bounded_and_come_back(source, fit) -> None:
    given = picture(*source)
    frame = plan_frame(source, size="model", fit=fit, pixels=64 * 64, multiple=16)
    shown = fit_in(given, frame)
    assert shown.size == frame.model
    assert shown.size[0] * shown.size[1] <= 64 * 64
    back = fit_back(shown, frame)
    assert back.size == (frame.output if fit == "crop" else source)
    if source == (64, 64):
        assert back.tobytes() == given.tobytes()
    else:  # the same picture, but for what a smaller one cannot hold
        wanted = given.crop(frame.crop)
        assert numpy.abs(values(back).mean((0, 1)) - values(wanted).mean((0, 1))).max() < 12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot identify image file"),
        (b"no picture at all" * 100, "cannot identify image file"),
        (png_of(8, 8), "cannot be read as a picture"),
        (b"GIF89a" + b"\xff" * 40, "cannot be read as a picture"),
    ],
)
def test_26_what_is_no_picture_is_one_error_that_names_the_file(tmp_path, content, said) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        open_picture(path)
    assert caught.value.what.startswith(f"{path} cannot be read as a picture: ")
    assert said in caught.value.what
    assert caught.value.looked_at == f"{path}, {len(content)} bytes"


def test_26_a_picture_that_is_cut_short_is_refused(tmp_path) -> None:
    path = tmp_path / "a.jpg"
    picture(300, 300).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ImageError, match=r"a\.jpg cannot be read as a picture: .*truncated"):
        open_picture(path)


def test_26_a_path_that_is_none(tmp_path) -> None:
    with pytest.raises(ImageError, match="there is no picture"):
        open_picture(tmp_path / "b.png")
    with pytest.raises(ImageError, match="cannot be read as a picture"):
        open_picture(tmp_path)
    with pytest.raises(ImageError, match="not int"):
        open_picture(3)


@pytest.mark.parametrize("size", [(20000, 10000), (100000, 100000), (10000, 9000)])
def test_26_two_hundred_megapixels_are_refused_before_they_are_decoded(tmp_path, size) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png_of(*size))
    begin = time.monotonic()
    with pytest.raises(ImageError, match="too large: it is not decoded"):
        open_picture(path)
    assert time.monotonic() - begin < 5
    with pytest.raises(ImageError, match="too large"):
        open_picture(Image.new("1", (20000, 10000)))
    assert MAX_PIXELS == Image.MAX_IMAGE_PIXELS  # as Pillow has it


def test_the_given_picture_stays_as_it_is() -> None:
    given = picture(30, 20)
    before = given.tobytes()
    opened = open_picture(given)
    opened.picture.paste((0, 0, 0), (0, 0, 30, 20))
    assert given.tobytes() == before


@pytest.mark.parametrize("suffix", [".png", ".JPG", ".jpeg", ".webp"])
def test_results_are_whole_files_or_none(tmp_path, suffix, monkeypatch) -> None:
    path = save_picture(SOURCE, tmp_path / f"a{suffix}")
    with Image.open(path) as opened:
        assert opened.size == SOURCE.size
        assert opened.format == {".png": "PNG", ".webp": "WEBP"}.get(suffix, "JPEG")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    whole = path.read_bytes()

    def breaks(self, file, *args, **options):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", breaks)
    with pytest.raises(OSError, match="disk full"):
        save_picture(SOURCE, path)
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == [path.name]


def test_a_format_that_is_none(tmp_path) -> None:
    with pytest.raises(ImageError, match=r"cannot be saved as \.bmp"):
        save_picture(SOURCE, tmp_path / "a.bmp")


def test_tensors_become_pictures_as_diffusers_has_it() -> None:
    images = torch.rand(2, 3, 5, 7) * 1.2 - 0.1
    wanted = (images.clamp(0, 1).permute(0, 2, 3, 1).numpy() * 255).round().astype("uint8")
    got = to_pictures(images)
    assert [image.size for image in got] == [(7, 5), (7, 5)]
    assert all(numpy.array_equal(numpy.asarray(one), other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1"])
def test_a_heic_picture_says_what_it_is_and_how_to_get_one_that_can_be_read(tmp_path, brand) -> None:
    """InvokeAI #5349: the error said that a file of a phone could not be identified."""
    (tmp_path / "IMG_0001.HEIC").write_bytes(b"\0\0\0\x18ftyp" + brand + bytes(64))
    with pytest.raises(ImageError) as caught:
        open_picture(tmp_path / "IMG_0001.HEIC")
    assert "is a HEIC picture" in caught.value.what
    assert "save it as JPEG or PNG" in caught.value.do
    (tmp_path / "other.HEIC").write_bytes(b"no picture")
    with pytest.raises(ImageError, match="cannot be read as a picture"):
        open_picture(tmp_path / "other.HEIC")
