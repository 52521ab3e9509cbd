"""Callbacks of an engine: stages and notices, and each step of denoising, where numbers are checked.

`images.engine` makes both objects; families call `StepCallback` after each step, `images.resolve` and
`images.pipeline_manager` report through `Notices`. A new text of a notice needs its translation in
`images.web.messages`. Steps of several batches are counted together, also after a batch is repeated or halved. Tests:
tests/images/test_images_engine.py, tests/images/test_images_memory.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from toprope.errors import EditCancelled
from toprope.images.execution.guard import check_latents
from toprope.progress import Progress, Step

__all__ = ["Notices", "StepCallback"]

_log = logging.getLogger("toprope")


class Notices(Progress):
    """Stages of an engine's work, and notices about work done differently than requested.

    Args:
        on_stage: called with each stage and each notice.

    Attributes:
        kept: the notices of this edit.
    """

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        super().__init__(on_stage=on_stage)
        self.kept: list[str] = []

    def notice(self, text: str) -> None:
        """Report, log and keep for the record that something is done differently than requested."""
        self.kept.append(text)
        _log.warning("%s", text)
        self.stage(text)


class StepCallback(Progress):
    """The steps of one call of the engine, counted over its batches; an `OnStep` of families.

    Args:
        batches: number of batches.
        on_step: called with each step.
        cancelled: asked after each step whether to stop.
    """

    def __init__(
        self, batches: int, on_step: Callable[[Step], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        super().__init__(on_step)
        self._batches, self._cancelled = batches, cancelled
        self._before = 0  # steps of finished batches

    def __call__(self, number: int, of: int, latents: Any, stage: str = "edit") -> None:
        """Check and report a step of the current batch.

        Raises:
            NoPicture: the latents are not finite.
            EditCancelled: the caller asked to stop.
        """
        check_latents(latents, number, of)
        self.step(self._before + number, of * self._batches, stage)
        self.check()

    def check(self) -> None:
        """Stop if the caller asked to.

        Raises:
            EditCancelled: the caller asked to stop.
        """
        if self._cancelled is not None and self._cancelled():
            raise EditCancelled(f"the edit was cancelled after {self.done} step{'' if self.done == 1 else 's'}.")

    def restart(self, *, batches: int = 1) -> None:
        """Repeat the current batch, as that many batches."""
        self._batches += batches - 1
        self.done = self._before

    def batch_done(self) -> None:
        """Go on to the next batch."""
        self._before = self.done
