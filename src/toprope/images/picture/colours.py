"""Colour profiles: pictures are converted to sRGB from the profile embedded in them, and results carry one.

Models are trained on numbers that mean sRGB. Phones write Display P3, cameras Adobe RGB, print shops CMYK; the profile
in the file says so. Without a profile, numbers are taken as sRGB, with a note where other metadata says otherwise.

Called by `picture.files` for each picture that is opened. Profiles are converted by Pillow's LittleCMS. Fixed by their
formats: ICC, the chunks of PNG, the tags of EXIF and DCF 2.0. The profile of results has the same bytes every time, as
repeated edits are compared by their files. A note needs its translation in `images.web.messages`. Tests:
tests/images/test_images_colours.py.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["srgb_profile", "to_srgb"]

SAME = 2
"""A profile whose colours are at most this many levels of 255 from sRGB's is sRGB, whatever it is called."""

MODES = {"RGB": ("RGB",), "GRAY": ("L",), "CMYK": ("CMYK",), "Lab": ("LAB",)}
"""Modes of Pillow that a profile of a colour space is for."""

PNG_GAMMA = 0.45455
PNG_PRIMARIES = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
"""Values of the chunks gAMA and cHRM of a PNG in sRGB."""


@cache
def srgb_profile() -> bytes | None:
    """The profile that results are written with, the same bytes every time; None where Pillow has no LittleCMS."""
    try:
        from PIL import ImageCms

        made = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    except (ImportError, OSError):
        return None
    made[24:36] = bytes((0x07, 0xE8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0))  # LittleCMS writes the time of the call
    return bytes(made)


def to_srgb(picture: Image, source: Image) -> tuple[Image, list[str]]:
    """Convert a picture to sRGB; return it with notes about the conversion.

    Args:
        picture: with 8 bits a channel.
        source: as it was opened: its metadata says which colours it has.

    Returns:
        The picture itself where its colours are sRGB or unknown; else one in RGB or RGBA.
    """
    data = source.info.get("icc_profile")
    if not data:
        return picture, _doubts(picture, source)
    try:
        from PIL import ImageCms
    except (ImportError, OSError):  # built without LittleCMS
        return picture, ["its colour profile is ignored: this Pillow has no LittleCMS"]
    try:
        return _converted(picture, ImageCms.ImageCmsProfile(io.BytesIO(data)))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        return picture, [f"its colour profile cannot be used, its colours are taken as sRGB: {_short(str(error))}"]


def _converted(picture: Image, profile: Any) -> tuple[Image, list[str]]:
    """Convert a picture from its profile to sRGB; a profile that does not fit is ignored with a note."""
    from PIL import ImageCms

    space = str(profile.profile.xcolor_space).strip()
    name = _short(ImageCms.getProfileDescription(profile)) or "an unnamed profile"
    colours, alpha = _without_alpha(picture)
    if space == "RGB" and colours.mode in ("1", "L", "P"):
        colours = colours.convert("RGB")
    elif space == "GRAY" and colours.mode == "1":
        colours = colours.convert("L")
    if colours.mode not in MODES.get(space, ()):
        return picture, [f"its profile {name} is for {space}, it is {colours.mode}: the profile is ignored"]
    intent = ImageCms.Intent(ImageCms.getDefaultIntent(profile))
    if ImageCms.isIntentSupported(profile, intent, ImageCms.Direction.INPUT) != 1:
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    transform = ImageCms.buildTransform(
        profile, ImageCms.createProfile("sRGB"), colours.mode, "RGB", intent, ImageCms.Flags.BLACKPOINTCOMPENSATION
    )
    if colours.mode in ("RGB", "L") and _is_srgb(transform, colours.mode):
        return picture, []
    result = ImageCms.applyTransform(colours, transform)
    assert result is not None
    result.info.pop("icc_profile", None)
    if alpha is not None:
        result.putalpha(alpha)
    return result, [f"converted from {name} to sRGB"]


def _without_alpha(picture: Image) -> tuple[Image, Image | None]:
    if not picture.has_transparency_data:
        return picture, None
    above = picture.convert("LA" if picture.mode in ("L", "LA", "La") else "RGBA")
    return above.convert(above.mode[:-1]), above.getchannel("A")


def _is_srgb(transform: Any, mode: str) -> bool:
    """Tell whether a transform to sRGB leaves colours as they are, tried on colours of all kinds."""
    from PIL import Image, ImageChops, ImageCms

    levels = range(0, 256, 17)
    if mode == "L":
        tried = Image.new("L", (16, 1))
        tried.putdata(list(levels))
    else:
        tried = Image.new("RGB", (256, 16))
        tried.putdata([(red, green, blue) for red in levels for green in levels for blue in levels])
    after = ImageCms.applyTransform(tried, transform)
    assert after is not None
    far = ImageChops.difference(after, tried.convert("RGB")).getextrema()
    return all(most <= SAME for _, most in far)  # type: ignore[misc]


def _doubts(picture: Image, source: Image) -> list[str]:
    """Reasons to doubt that the numbers of a picture without a profile mean sRGB."""
    if picture.mode == "CMYK":
        return ["CMYK without a profile: its colours are approximate"]
    if _says_adobe(source.getexif()):
        return ["its EXIF says Adobe RGB, and it has no profile: its colours are taken as sRGB"]
    info = source.info
    if source.format == "PNG" and "srgb" not in info:
        gamma, primaries = info.get("gamma"), info.get("chromaticity")
        if gamma and abs(gamma - PNG_GAMMA) > 0.01:
            return [f"it was written for a gamma of {1 / gamma:.2f}: its colours are taken as sRGB"]
        if primaries and max(abs(a - b) for a, b in zip(primaries, PNG_PRIMARIES, strict=True)) > 0.01:
            return ["it has primaries that are not sRGB's, and no profile: its colours are taken as sRGB"]
    return []


def _says_adobe(exif: Any) -> bool:
    """Tell whether a camera wrote that the colours are Adobe RGB: by a value of its own, or as DCF 2.0 has it."""
    try:
        taken = exif.get_ifd(0x8769)
        interoperability = exif.get_ifd(0xA005) if 0xA005 in taken else {}
    except (KeyError, ValueError, TypeError, struct.error):  # EXIF that is broken says nothing
        return False
    return taken.get(0xA001) == 2 or str(interoperability.get(1)).startswith("R03")


def _short(text: str) -> str:
    """One line of a text that comes from a file."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())[:80]
