"""A worker of the server: an engine that loads in the background, with the LoRAs that it has now.

The controller has one for each card, and one thread edits with it at a time. Tests: tests/images/test_images_web.py,
tests/images/test_images_web_cards.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from toprope.images.request import EditRequest
from toprope.images.web.job_queue import Job
from toprope.images.web.loading import Loader

if TYPE_CHECKING:
    from toprope.images.engine import Engine
    from toprope.images.results import EditResult
    from toprope.progress import Step

__all__ = ["Worker"]

OpenEngine = Callable[[Callable[[str], None]], "Engine"]
"""Function that opens an engine; it gets a function that takes sentences about the progress, now and later."""


class Worker:
    """An engine on one device. One thread edits with it at a time.

    Args:
        open_engine: called in a thread once `loader` is started.
        loras: paths that may be picked, by name.

    Attributes:
        loader: of the engine.
    """

    def __init__(self, open_engine: OpenEngine, loras: Mapping[str, str]) -> None:
        self.loader: Loader[Engine] = Loader(lambda tell: open_engine(self._telling(tell)))
        self._has_loras = bool(loras)
        self._loras_now: list[str] | None = []  # with which the engine is opened
        self._job: Job | None = None

    def edit(self, job: Job, request: EditRequest, loras: list[str], *, on_step: Callable[[Step], None]) -> EditResult:
        """Edit for a job that may cancel it; the engine must be there.

        Args:
            job: the job, which shows the progress.
            request: the request.
            loras: the LoRAs for this edit, "path:scale" each.
            on_step: called with each step.
        """
        engine = self.loader.get(job.check)
        self._job = job
        try:
            if self._has_loras and loras != self._loras_now:
                self._loras_now = None  # not known while it is changed
                engine.set_loras(loras)
                self._loras_now = loras
            return engine.edit(request, on_step=on_step, cancelled=job.cancelled)
        finally:
            self._job = None

    def _telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Pass the engine's sentences to the edit that runs and to the loader, for as long as the engine lives."""

        def telling(note: str) -> None:
            job = self._job
            if job is not None:
                job.tell(note)
            tell(note)

        return telling

    def close(self, seconds: float, *, ended: bool) -> None:
        """Wait for the loader and close the engine, unless an edit still runs."""
        engine = self.loader.close(seconds)
        if engine is not None and ended:
            engine.close()
