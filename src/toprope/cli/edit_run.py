"""The work of `toprope edit`: on a device of this process, or on several cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toprope.cli.edit_console import Console
    from toprope.cli.stopping import Stopping
    from toprope.images.jobs import Job, Summary
    from toprope.images.output import Output

__all__ = ["differences", "run_here"]


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
    from toprope.images.run_jobs import run_jobs

    with Engine.open(model, progress=console.stage, **options) as engine:
        console.watch(engine.describe, engine.memory)
        stopping.safely()
        if record is not None:
            for each in differences(record, engine.family.folders(Path(model)), engine.describe(), jobs[0]):
                console.say(each)
        run_jobs(engine, jobs, output, console, summary=summary, stopped=stopping.why, at_once=at_once)


def differences(record: Mapping[str, Any], folders: Sequence[Path], engine: Mapping[str, Any], job: Job) -> list[str]:
    """Why a picture may not come out as its record has it, in sentences.

    Args:
        record: that lies beside it.
        folders: of the model.
        engine: what `Engine.describe` says.
        job: that repeats it.
    """
    from toprope.images.output import hash_of
    from toprope.images.results import files_of, versions

    found = []
    before, now = record.get("model_files") or {}, files_of(*folders)
    other = [
        name for name in sorted({*before, *now})
        if before.get(name) != now.get(name) and (before.get(name) or {}).get("sha256_of") != "file"
    ]  # fmt: skip
    if other:
        found.append(f"the model is not the one of the record: {', '.join(other[:3])}{', ...' if other[3:] else ''}")
    source = (record.get("source") or {}).get("sha256")
    if source is not None and hash_of(job.request.image) != source:
        found.append(f"{job.request.image} is not the picture of the record, or was changed")
    was = record.get("engine") or {}
    for name in ("device_name", "dtype"):
        if was.get(name) != engine.get(name):
            found.append(f"the {name.replace('_', ' ')} is {engine.get(name)}, and was {was.get(name)}")
    packages = record.get("versions") or {}
    changed = [f"{name} {version}" for name, version in versions().items() if packages.get(name) != version]
    if changed:
        found.append(f"versions differ, here are {', '.join(changed)}")
    return found
