"""Open pictures of any format as RGB, upright and complete, and save results atomically.

The only place that opens pictures for the engine, the command line and the page. Input comes from strangers: any file
that is broken or too large is an `ImageError`, before it is decoded. The keyword of the record in a PNG is in files
that users have; what a record looks like is decided in `images.results`. Tests: tests/images/test_images_masks.py,
tests/images/test_images_pictures.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toprope.errors import ImageError, PackageError
from toprope.extras import advice
from toprope.images.picture.colours import srgb_profile, to_srgb
from toprope.images.picture.geometry import Frame
from toprope.whole_file import writing_whole

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "MAX_PIXELS", "SUFFIXES", "Opened", "fit_back", "fit_in", "open_grey", "open_picture", "record_in",
    "save_picture", "to_pictures",
]  # fmt: skip

MAX_PIXELS = 89_478_485
"""Larger pictures are refused before they are decoded: 256 MiB as RGB, and the limit from which Pillow itself warns."""

SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Formats of results, by the ending of the name."""

WHITE = (255, 255, 255)

RECORD = "toprope"
"""Keyword of the text in a PNG that has the record of the edit."""

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """An opened picture, in the form that models take.

    Attributes:
        picture: the picture, RGB and upright.
        name: its path, or "picture" for one without a path.
        notes: remarks for the user on conversions, such as "the first of 12 frames".
    """

    picture: Image
    name: str
    notes: tuple[str, ...] = ()


def open_picture(source: Any, *, background: tuple[int, int, int] = WHITE, max_pixels: int = MAX_PIXELS) -> Opened:
    """Open a picture from a path or from Pillow, as sRGB and upright.

    Transparent parts get the background, 16 bits become 8, and the first frame of an animation is taken. Colours are
    converted to sRGB from the file's profile.

    Args:
        source: a path, or a picture of Pillow, which is not changed.
        background: red, green and blue, 0 to 255.
        max_pixels: larger pictures are refused before they are decoded.

    Raises:
        ImageError: it is no picture, cut short, or too large.
        PackageError: Pillow is not installed.
    """
    return _opened(source, max_pixels, lambda picture, name: _converted(picture, name, background))


def open_grey(source: Any, *, max_pixels: int = MAX_PIXELS) -> tuple[Image, str]:
    """Open a picture as one upright channel of 8 bits, its alpha channel or else its brightness; with its name.

    Args:
        source: a path, or a picture of Pillow, which is not changed.
        max_pixels: larger pictures are refused before they are decoded.

    Raises:
        ImageError: it is no picture, cut short, or too large.
        PackageError: Pillow is not installed.
    """
    return _opened(source, max_pixels, _grey)


def _opened(source: Any, max_pixels: int, convert: Callable[[Image, str], T]) -> T:
    """Open a picture and convert it; any problem of the file is an ImageError."""
    try:
        from PIL import Image
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise PackageError("pictures need Pillow, which cannot be imported.", str(error), advice("images")) from error

    if isinstance(source, Image.Image):
        name = os.fspath(getattr(source, "filename", "") or "picture")
        _check_size(name, source.size, max_pixels)
        return convert(source, name)
    if not isinstance(source, str | os.PathLike):
        raise ImageError(f"a picture is a path or one of Pillow's, not {type(source).__name__}.", do="give one of them")
    name = os.fspath(source)
    try:
        with Image.open(name) as opened:
            _check_size(name, opened.size, max_pixels)
            return convert(opened, name)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, _pixels_in(str(error)), max_pixels) from None
    except FileNotFoundError:
        raise ImageError(f"there is no picture {name}.", looked_at=name, do="check the path") from None
    except Exception as error:  # OSError, SyntaxError, ValueError, struct.error, ...: whatever a broken file raises
        if _is_heic(name):
            raise ImageError(
                f"{name} is a HEIC picture, which cannot be read here.",
                looked_at=name,
                do="save it as JPEG or PNG; iPhones take JPEG with Settings, Camera, Formats, Most Compatible",
            ) from None
        size = os.path.getsize(name) if os.path.isfile(name) else None
        raise ImageError(
            f"{name} cannot be read as a picture: {' '.join(str(error).split()) or type(error).__name__}.",
            looked_at=name if size is None else f"{name}, {size} bytes",
            do="check that it opens elsewhere, and save it as PNG",
        ) from error


def _is_heic(name: str) -> bool:
    """Tell whether a file is a picture of a phone that Pillow cannot read: HEVC in ISO/IEC 23008-12."""
    try:
        with open(name, "rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start[4:8] == b"ftyp" and start[8:] in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")


def _check_size(name: str, size: tuple[int, int], most: int) -> None:
    if size[0] * size[1] > most:
        raise _too_large(name, f"{size[0]} x {size[1]} pixels", most)
    if size[0] < 1 or size[1] < 1:
        raise ImageError(f"{name} has no pixels.", looked_at=f"{size[0]} x {size[1]}", do="give another picture")


def _too_large(name: str, seen: str, most: int) -> ImageError:
    return ImageError(
        f"{name} is too large: it is not decoded.",
        looked_at=f"{seen}; the most is {most / 1e6:.0f} million pixels",
        do="make it smaller first",
    )


def _pixels_in(said: str) -> str:
    """The number of pixels in Pillow's error, without Pillow's own limit."""
    found = re.search(r"\d+ pixels", said)
    return found[0] if found else "more pixels than Pillow opens"


def _converted(picture: Image, name: str, background: tuple[int, int, int]) -> Opened:
    """Make RGB of a loaded picture: first frame, upright, 8 bits, sRGB, on a background."""
    from PIL import Image, ImageOps

    notes = []
    frames = int(getattr(picture, "n_frames", 1))
    if frames > 1:
        picture.seek(0)
        notes.append(f"the first of {frames} frames")
    picture.load()
    upright = ImageOps.exif_transpose(picture) or picture
    if upright.size != picture.size or picture.getexif().get(0x0112, 1) not in (0, 1):
        notes.append("turned upright")
    if upright.mode.startswith("I") or upright.mode == "F":
        upright = _eight_bits(upright, name)
        notes.append("16 bits made 8")
    upright, told = to_srgb(upright, picture)
    notes += told
    if upright.has_transparency_data:
        above = upright.convert("RGBA")
        ground = Image.new("RGBA", above.size, (*background, 255))
        upright = Image.alpha_composite(ground, above)
        notes.append("laid on the background" if background != WHITE else "laid on white")
    result = upright.convert("RGB")
    if result is picture:
        result = picture.copy()
    result.info.pop("icc_profile", None)  # its colours are sRGB now
    return Opened(result, name, tuple(notes))


def _grey(picture: Image, name: str) -> tuple[Image, str]:
    """One channel of a loaded picture, upright: alpha if it has one, else brightness."""
    from PIL import ImageOps

    picture.load()
    upright = ImageOps.exif_transpose(picture) or picture
    if upright.has_transparency_data:
        return upright.convert("RGBA").getchannel("A"), name
    if upright.mode.startswith("I") or upright.mode == "F":
        upright = _eight_bits(upright, name)
    return upright.convert("L"), name


def _eight_bits(picture: Image, name: str) -> Image:
    """Convert a grey picture of 16 bits, which Pillow would clip at 255, to 8 bits."""
    import numpy
    from PIL import Image

    values = numpy.asarray(picture).astype(numpy.float64)
    if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ImageError(
            f"{name} has pixel values of an unknown range.",
            looked_at=f"mode {picture.mode}, {values.min():g} to {values.max():g}",
            do="save it with 8 or 16 bits a channel",
        )
    return Image.fromarray((values / 257).round().astype(numpy.uint8), "L")


def fit_in(picture: Image, frame: Frame) -> Image:
    """Make the model's input from a picture."""
    from PIL import Image

    if frame.script is not None:
        for _ in range(frame.script.halvings):
            picture = picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.BOX)
        return picture.resize(frame.script.resized, Image.Resampling.BICUBIC).crop(frame.script.crop)
    wide, high = frame.inner[2] - frame.inner[0], frame.inner[3] - frame.inner[1]
    if frame.crop == (0, 0, *picture.size) and (wide, high) == picture.size:
        shown = picture
    else:
        shown = picture.resize((wide, high), Image.Resampling.BICUBIC, box=frame.crop, reducing_gap=3.0)
    if (wide, high) == frame.model:
        return shown
    canvas = Image.new("RGB", frame.model, WHITE)
    canvas.paste(shown, frame.inner[:2])
    return canvas


def fit_back(result: Image, frame: Frame) -> Image:
    """Fit the model's result back to the frame's output size."""
    from PIL import Image

    if result.size != frame.model:  # a model that rounds sizes its own way
        result = result.resize(frame.model, Image.Resampling.BICUBIC)
    if frame.inner != (0, 0, *frame.model):
        result = result.crop(frame.inner)
    return result if result.size == frame.output else result.resize(frame.output, Image.Resampling.BICUBIC)


def to_pictures(images: torch.Tensor) -> list[Image]:
    """Make pictures with the sRGB profile from floats from 0 to 1, (pictures, 3, height, width), on the CPU."""
    from PIL import Image

    values = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    made = [Image.fromarray(each) for each in values]
    for each in made:
        each.info["icc_profile"] = srgb_profile()
    return made


def save_picture(
    picture: Image,
    path: str | os.PathLike[str],
    *,
    quality: int = 95,
    record: Mapping[str, Any] | None = None,
) -> Path:
    """Save a picture with the sRGB profile, atomically.

    Args:
        picture: the picture.
        path: a path with one of `SUFFIXES`, which chooses the format, in an existing folder.
        quality: quality of JPEG and WebP, 1 to 100.
        record: the record of the edit for JSON; it is stored in a PNG for `record_in`, but not in other formats.

    Raises:
        ImageError: the format is unknown.
        OSError: the file cannot be written.
    """
    path = Path(path)
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise ImageError(
            f"a result cannot be saved as {path.suffix or 'a file without an ending'}.",
            looked_at=os.fspath(path),
            do=f"give it one of the endings {', '.join(SUFFIXES)}",
        )
    with writing_whole(path) as file:
        options: dict[str, Any] = {"quality": quality} if kind != "PNG" else {}
        if kind == "PNG" and record is not None:
            from PIL.PngImagePlugin import PngInfo

            options["pnginfo"] = told = PngInfo()
            told.add_itxt(RECORD, json.dumps(record, ensure_ascii=False, sort_keys=True), zip=True)
        picture.save(file, kind, icc_profile=srgb_profile(), **options)
    return path


def record_in(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read the record in a PNG; None for a file without one.

    Raises:
        OSError: the file cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            picture.load()  # texts may come after the pixels
            record = json.loads(getattr(picture, "text", {})[RECORD])
    except (KeyError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
        return None
    return record if isinstance(record, dict) else None
