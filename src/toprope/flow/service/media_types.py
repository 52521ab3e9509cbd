"""Media types of answers: what a client accepts, and of which type bytes are by their content; pure.

For `service.app`. Names and signatures are those of the formats (RFC 9110 for Accept). Types that a browser would run
as a program are never recognised: add none of them. Tests: tests/flow/test_serve_app.py.
"""

from __future__ import annotations

__all__ = ["BYTES", "accepted", "fits", "may_be", "type_of"]

BYTES = "application/octet-stream"

_SIGNATURES: tuple[tuple[str, int, bytes], ...] = (
    ("image/png", 0, b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", 0, b"\xff\xd8\xff"),
    ("image/gif", 0, b"GIF87a"),
    ("image/gif", 0, b"GIF89a"),
    ("image/webp", 8, b"WEBPVP"),
    ("image/avif", 4, b"ftypavif"),
    ("image/bmp", 0, b"BM"),
    ("image/tiff", 0, b"II*\0"),
    ("image/tiff", 0, b"MM\0*"),
    ("audio/wav", 8, b"WAVE"),
    ("audio/mpeg", 0, b"ID3"),
    ("audio/flac", 0, b"fLaC"),
    ("application/ogg", 0, b"OggS\0"),
    ("video/mp4", 4, b"ftyp"),
    ("video/webm", 0, b"\x1a\x45\xdf\xa3"),
    ("application/pdf", 0, b"%PDF-"),
    ("application/zip", 0, b"PK\x03\x04"),
    ("application/gzip", 0, b"\x1f\x8b\x08"),
)
"""Type, and the bytes at a place of such a file (https://mimesniff.spec.whatwg.org, and the formats' own documents).

None of them runs in a browser: a client must not be able to have bytes of others shown as HTML.
"""


def type_of(body: bytes) -> str:
    """The media type of bytes, by their first ones."""
    for name, place, wanted in _SIGNATURES:
        if body[place : place + len(wanted)] == wanted:
            return name
    return BYTES


def may_be(wanted: str) -> bool:
    """True if bytes can have a type that is accepted, such as "image/png" or "image/*"."""
    return fits(BYTES, wanted) or any(fits(name, wanted) for name, _, _ in _SIGNATURES)


def fits(name: str, wanted: str) -> bool:
    """True if a type is accepted."""
    return wanted in ("*/*", name, f"{name.partition('/')[0]}/*")


def accepted(header: str) -> list[str]:
    """The media types of an Accept header, the most wanted first."""
    found = []
    for place, each in enumerate(header.split(",")):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if name and quality > 0:
            found.append((-quality, place, name))
    return [name for _, _, name in sorted(found)] or ["*/*"]
