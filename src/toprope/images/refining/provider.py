"""Interface of the models that reword an instruction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NotRefined", "Provider"]


class NotRefined(Exception):  # noqa: N818 - it never leaves the refiner
    """A provider has no answer; the message says why, as a part of a sentence."""


class Provider(ABC):
    """A model that answers."""

    sees = True
    """Whether it is shown the picture."""

    @abstractmethod
    def ask(self, picture: Image, text: str) -> str:
        """Its answer.

        Raises:
            NotRefined: it has none.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What it is, ready for JSON: "provider", "model" and what it was told. No key is in it."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""
