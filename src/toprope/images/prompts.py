"""Embeddings of texts that were encoded before, so that a batch with one instruction encodes it once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from toprope.images.families.base import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PromptCache"]


class PromptCache:
    """The last prompts that were encoded, on the host.

    Args:
        most: prompts that are kept; of a model with a large text encoder, one takes tens of megabytes.

    Attributes:
        hits: prompts that were there.
        misses: prompts that had to be encoded.
    """

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], Prompt] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @staticmethod
    def key(instruction: str, negative: str, picture: Image | None, like: str | None = None) -> tuple[str, ...]:
        """What a prompt depends on. Give the picture where it is seen by the encoder."""
        if picture is None:
            return instruction, negative, like or ""
        return instruction, negative, like or "", str(picture.size), hashlib.sha256(picture.tobytes()).hexdigest()

    def get(self, key: tuple[str, ...]) -> Prompt | None:
        """The prompt, or None where it has to be encoded."""
        found = self._kept.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return found

    def put(self, key: tuple[str, ...], prompt: Prompt) -> Prompt:
        """Keep one, on the host, where it is given back; the oldest goes where there are too many."""
        import torch

        kept = self._kept[key] = prompt.to(torch.device("cpu"))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return kept

    def clear(self) -> None:
        """Forget all: the encoders are others now."""
        self._kept.clear()
