"""Report the parts of texts that are too long for a text encoder, instead of cutting them silently.

Called by `images.resolve`; each family names its tokenizers in `Family.readers`. How a text is cut is decided by
transformers' tokenizers. The sentence needs its translation in `images.web.messages`. Tests:
tests/images/test_images_samplers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Reader", "truncated"]

SHOWN = 300
"""Largest number of cut characters that a notice shows."""


@dataclass(frozen=True)
class Reader:
    """A text encoder's tokenizer.

    Attributes:
        name: name of the encoder for users: "CLIP".
        tokenizer: its tokenizer of transformers.
        tokens: largest number of tokens for the encoder, including begin and end marks.
    """

    name: str
    tokenizer: Any
    tokens: int


def truncated(readers: Sequence[Reader], text: str, what: str) -> list[str]:
    """Sentences about the part of a text that each encoder does not read; empty if all of it is read.

    Args:
        readers: the model's tokenizers.
        text: the text.
        what: the text's name in the sentences: "instruction".
    """
    found: dict[tuple[str, int], list[str]] = {}
    for reader in readers:
        cut = _cut(reader, text)
        if cut:
            found.setdefault((cut, reader.tokens), []).append(reader.name)
    return [
        f"the {what} is too long for {' and '.join(dict.fromkeys(names))}, which reads {tokens} tokens. Not read: "
        f"{(cut if len(cut) <= SHOWN else f'{cut[:SHOWN]}…')!r}"
        for (cut, tokens), names in found.items()
    ]


def _cut(reader: Reader, text: str) -> str:
    """The end of a text that an encoder does not read."""
    given = reader.tokenizer(
        text, truncation=True, max_length=reader.tokens, return_offsets_mapping=reader.tokenizer.is_fast
    )
    if reader.tokenizer.is_fast:
        end = max((stop for _, stop in given["offset_mapping"]), default=0)
        return text[end:].strip()
    kept = len(given["input_ids"])
    ids = reader.tokenizer(text, truncation=False)["input_ids"]
    return str(reader.tokenizer.decode(ids[kept:], skip_special_tokens=True)).strip() if len(ids) > kept else ""
