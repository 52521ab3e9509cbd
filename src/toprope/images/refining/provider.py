"""Interface of the models that reword an instruction.

Implemented by `refining.openai` and `refining.local`, called by `refining.opening`. `ask` raises `NotRefined` and
nothing else, so that an edit goes on; what `describe` returns is recorded, so no key may be in it. Tests:
tests/images/test_images_refine.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NotRefined", "Provider"]


class NotRefined(Exception):  # noqa: N818 - it never leaves the refiner
    """A provider has no answer; the message gives the reason, as a part of a sentence."""


class Provider(ABC):
    """A chat model that rewrites instructions."""

    sees = True
    """True if it is shown the picture."""

    @abstractmethod
    def ask(self, picture: Image, text: str) -> str:
        """Send a prompt, and return the model's reply.

        Raises:
            NotRefined: it has none.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for JSON: "provider", "model" and its options, without keys."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release its resources."""
