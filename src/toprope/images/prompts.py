"""Cache of encoded texts, so that a batch with one instruction encodes it once.

Used by `images.engine`. Whatever changes what a text encoder computes must be a part of the key, or clear the cache.
The number of prompts that are kept is free. Tests: tests/images/test_images_engine.py.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from toprope.images.families.base import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PromptCache"]


class PromptCache:
    """Cache of the last encoded prompts, on the host.

    Args:
        most: largest number of prompts; one of a model with a large text encoder takes tens of megabytes.

    Attributes:
        hits: number of prompts found.
        misses: number of prompts that had to be encoded.
    """

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], Prompt] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @staticmethod
    def key(instruction: str, negative: str, picture: Image | None, like: str | None = None) -> tuple[str, ...]:
        """Key of a prompt. The picture is a part of it if the encoder sees the picture."""
        if picture is None:
            return instruction, negative, like or ""
        return instruction, negative, like or "", str(picture.size), hashlib.sha256(picture.tobytes()).hexdigest()

    def get(self, key: tuple[str, ...]) -> Prompt | None:
        """Find a prompt; None if it has to be encoded."""
        found = self._kept.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return found

    def put(self, key: tuple[str, ...], prompt: Prompt) -> Prompt:
        """Keep a copy of a prompt on the host and return it; drops the oldest prompt if there are too many."""
        import torch

        kept = self._kept[key] = prompt.to(torch.device("cpu"))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return kept

    def clear(self) -> None:
        """Clear the cache; called when the text encoders have changed."""
        self._kept.clear()
