"""Colours: pictures come in with the profile that they have, and go out as sRGB with a profile.

Holds `images.picture.colours`; profiles are made by hand (helpers/images_profiles.py).
"""

import io

import pytest
from PIL import Image, ImageCms

from images_profiles import ADOBE, P3, SRGB, profile
from toprope.images.picture.colours import srgb_profile
from toprope.images.picture.files import open_picture, save_picture, to_pictures

COLOUR = (120, 200, 90)
DISPLAY_P3 = profile(P3, 2.2, "Display P3")


@pytest.fixture
def saved(tmp_path):
    def save(picture, name="picture.png", **options):
        picture.save(tmp_path / name, **options)
        return open_picture(tmp_path / name)

    return save


def plain(mode="RGB"):
    return Image.new("RGB", (16, 16), COLOUR).convert(mode)


def as_viewers_show(picture, data):
    shown = ImageCms.profileToProfile(
        picture, ImageCms.ImageCmsProfile(io.BytesIO(data)), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    return shown.getpixel((0, 0))


def near(got, wanted, levels=1):
    return all(abs(a - b) <= levels for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("primaries", "name"), [(P3, "Display P3"), (ADOBE, "Adobe RGB")])
def test_an_embedded_profile_is_not_ignored(saved, primaries, name) -> None:
    data = profile(primaries, 2.2, name)
    opened = saved(plain(), icc_profile=data)
    got = opened.picture.getpixel((0, 0))
    assert near(got, as_viewers_show(plain(), data))
    assert not near(got, COLOUR, 5)
    assert opened.notes == (f"converted from {name} to sRGB",)
    assert "icc_profile" not in opened.picture.info


def test_a_profile_that_differs_from_srgb_in_dark_colours_alone_is_not_ignored(saved) -> None:
    """With sRGB's primaries and a gamma of 2.2 dark colours are some levels darker."""
    dark, data = Image.new("RGB", (16, 16), (17, 17, 17)), profile(SRGB, 2.2, "simple sRGB")
    opened = saved(dark, icc_profile=data)
    got = opened.picture.getpixel((0, 0))
    assert opened.notes == ("converted from simple sRGB to sRGB",)
    assert near(got, as_viewers_show(dark, data))
    assert not near(got, (17, 17, 17), 5)


def test_a_picture_in_memory_has_its_profile_too() -> None:
    picture = plain()
    picture.info["icc_profile"] = DISPLAY_P3
    opened = open_picture(picture)
    assert near(opened.picture.getpixel((0, 0)), as_viewers_show(plain(), DISPLAY_P3))
    assert picture.getpixel((0, 0)) == COLOUR  # which stays as it is


@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "P", "1"])
def test_pictures_of_every_mode_are_converted_and_what_is_transparent_stays_so(saved, mode) -> None:
    picture = plain(mode)
    if mode in ("RGBA", "LA"):
        picture.putalpha(Image.new("L", picture.size, 128))
    opened = saved(picture, icc_profile=DISPLAY_P3)
    assert opened.notes[0] == "converted from Display P3 to sRGB"
    assert opened.picture.mode == "RGB"
    if mode == "RGBA":  # half of it is the white below
        shown = [(value + 255) / 2 for value in as_viewers_show(plain(), DISPLAY_P3)]
        assert near(opened.picture.getpixel((0, 0)), shown, 2)
        assert "laid on white" in opened.notes


def test_grey_with_a_profile_is_converted_by_its_curve(saved) -> None:
    opened = saved(Image.new("L", (8, 8), 60), icc_profile=profile(None, 1.0, "linear"))
    assert near(opened.picture.getpixel((0, 0)), (133, 133, 133))  # 60 / 255 of the light, by the curve of sRGB


def test_srgb_by_any_name_changes_no_pixel_and_gives_no_note(saved) -> None:
    srgb = profile(((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)), 2.2, "my screen")
    for data in (srgb_profile(), srgb):
        opened = saved(Image.effect_noise((32, 32), 90).convert("RGB"), icc_profile=data)
        assert opened.notes == () or data == srgb  # a plain gamma is a few levels off in the dark
    noise = Image.merge("RGB", [Image.effect_noise((32, 32), 90) for _ in range(3)])
    assert saved(noise, icc_profile=srgb_profile()).picture.tobytes() == noise.tobytes()


@pytest.mark.parametrize(
    ("picture", "options", "note"),
    [
        (plain(), {"icc_profile": b"rubbish" * 30}, "cannot be used, its colours are taken as sRGB"),
        (plain("CMYK"), {"icc_profile": DISPLAY_P3}, "is for RGB, it is CMYK: the profile is ignored"),
        (plain("CMYK"), {}, "CMYK without a profile"),
        (plain(), {"exif": {0x8769: {0xA001: 2}}}, "its EXIF says Adobe RGB"),
    ],
)
def test_colours_that_are_not_known_are_said_to_be(saved, picture, options, note) -> None:
    if "exif" in options:
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0xA001] = 2
        options = {"exif": exif}
    opened = saved(picture, "picture.jpg", **options)
    assert len(opened.notes) == 1
    assert note in opened.notes[0]


def test_a_profiles_name_is_one_line_of_printable_letters(saved) -> None:
    opened = saved(plain(), icc_profile=profile(P3, 2.2, "evil\n\x1b[31m" + "x" * 200))
    assert opened.notes[0].isprintable()
    assert len(opened.notes[0]) < 120


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_results_say_that_they_are_srgb_with_the_same_bytes_each_time(tmp_path, suffix) -> None:
    first = save_picture(plain(), tmp_path / f"first.{suffix}")
    srgb_profile.cache_clear()
    second = save_picture(plain(), tmp_path / f"second.{suffix}")
    assert first.read_bytes() == second.read_bytes()
    with Image.open(first) as again:
        embedded = ImageCms.ImageCmsProfile(io.BytesIO(again.info["icc_profile"]))
    assert "sRGB" in ImageCms.getProfileDescription(embedded)
    assert open_picture(first).notes == ()


def test_pictures_of_the_engine_are_saved_with_their_profile_by_pillow_too(tmp_path) -> None:
    import torch

    to_pictures(torch.zeros(1, 3, 8, 8))[0].save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as again:
        assert again.info["icc_profile"] == srgb_profile()
