"""Between two steps of denoising: they are counted and told, numbers are looked at, and the caller may stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toprope.errors import EditCancelled
from toprope.images.guard import check_latents
from toprope.images.results import Step

__all__ = ["Watch"]


class Watch:
    """The steps of one call of the engine.

    Args:
        groups: batches that are to come; their steps are counted together.
        on_step: told of each step; None for nobody.
        cancelled: asked whether to stop; None for nobody.
    """

    def __init__(
        self, groups: int, on_step: Callable[[Step], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self._begin = time.perf_counter()
        self._groups = groups
        self._on_step, self._cancelled = on_step, cancelled
        self._done = 0  # steps of batches that are done
        self._number = 0

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._begin

    def check(self) -> None:
        """Go on, or not.

        Raises:
            EditCancelled: the caller said so.
        """
        if self._cancelled is not None and self._cancelled():
            steps = self._done + self._number
            raise EditCancelled(f"the edit was cancelled after {steps} step{'' if steps == 1 else 's'}.")

    def step(self, number: int, of: int, latents: Any, stage: str = "edit") -> None:
        """A step is done; called by the family.

        Raises:
            NoPicture: the latents are not finite.
            EditCancelled: the caller said so.
        """
        check_latents(latents, number, of)
        self._number = number
        if self._on_step is not None:
            self._on_step(Step(self._done + number, of * self._groups, self.seconds, stage))
        self.check()

    def again(self) -> None:
        """The steps of this batch are done anew."""
        self._number = 0

    def split(self) -> None:
        """A batch is done anew as two."""
        self._groups += 1
        self._number = 0

    def group_done(self) -> None:
        """A batch is done."""
        self._done, self._number = self._done + self._number, 0
