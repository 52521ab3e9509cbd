"""The work of `toprope edit` on a device of this process: one engine is opened, and the jobs are run with it.

Called by `cli.edit`; several cards are the work of `images.runs.cards`. From `stop_at_safe_points` on a signal stops
between steps; before, while the model loads, it ends at once. Tests: tests/images/test_images_cli.py,
tests/images/test_images_masks.py (a record repeated).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toprope.cli.editing.console import Console
    from toprope.cli.stopping import Stopping
    from toprope.images.runs.jobs import Job, Summary
    from toprope.images.runs.output import Output

__all__ = ["run_here"]


def run_here(
    model: str,
    options: Mapping[str, Any],
    jobs: Sequence[Job],
    output: Output,
    console: Console,
    *,
    summary: Summary,
    stopping: Stopping,
    at_once: int,
    record: Mapping[str, Any] | None,
) -> None:
    """Do jobs with one engine.

    Args:
        model: the folder that a pipeline was saved to.
        options: of `Engine.open`.
        jobs: those that are to be done.
        output: where to.
        console: shows progress and results.
        summary: counts.
        stopping: asked between steps.
        at_once: pictures that go through the model at once.
        record: that is repeated; what is otherwise now is said first.
    """
    from toprope.images.engine import Engine
    from toprope.images.runs.running import run_jobs

    with Engine.open(model, progress=console.stage, **options) as engine:
        console.watch(engine.describe, engine.memory)
        stopping.stop_at_safe_points()
        if record is not None:
            for each in (*engine.differences(record), *_other_source(record, jobs[0])):
                console.say(each)
        run_jobs(engine, jobs, output, console, summary=summary, stopped=stopping.signal_name, at_once=at_once)


def _other_source(record: Mapping[str, Any], job: Job) -> list[str]:
    """Say in a sentence that the record has another picture than the edited one."""
    from toprope.images.runs.output import SOURCES, hash_of

    source, image = (record.get("source") or {}).get("sha256"), job.request.image
    if source is None or hash_of(image) == source:
        before = (record.get("request") or {}).get("image")
        if os.path.basename(os.path.dirname(image)) != SOURCES or before in (None, image):
            return []
        return [f"{before} is gone or was changed: the copy of it that was kept, {image}, is edited"]
    return [f"{job.request.image} is not the picture of the record, or was changed"]
