"""Reads schedules from files, whichever kind they are, and writes them; docs/cores.md describes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toprope.cores.model import Program
from toprope.cores.record_csv import from_csv, looks_like_csv
from toprope.cores.record_graph import from_graph
from toprope.cores.record_json import from_data, from_json, parse, to_data, to_json
from toprope.cores.record_trace import from_chrome, from_traces
from toprope.errors import ScheduleError

__all__ = [
    "assuming_one_block",
    "from_chrome",
    "from_csv",
    "from_data",
    "from_graph",
    "from_json",
    "from_traces",
    "read",
    "to_data",
    "to_json",
]


def read(*paths: str | os.PathLike[str], chip: str = "", communicator: str = "") -> Program:
    """The program in a file or in several that belong together.

    Args:
        paths: one JSON schedule; one Chrome trace of `toprope run --trace`; or the `kernel_details.csv` of each rank.
        chip: the chip of the cards, for traces and CSV, which do not say it.
        communicator: name of the one communicator of all cards, for collectives whose record does not name theirs.

    Raises:
        ScheduleError: a file cannot be read, is none of these, or makes no sense; docs/errors/schedule.md.
    """
    if not paths:
        raise ScheduleError("there is no file to read.", do="name a schedule, a trace, or the CSV files of the ranks")
    texts = {os.fspath(path): _text(Path(path)) for path in paths}
    if all(looks_like_csv(text) for text in texts.values()):
        return from_csv(texts, _chip(chip, texts))
    if len(texts) > 1:
        raise ScheduleError(
            "several files are read together only where each is a CSV of the profiler.",
            looked_at=", ".join(texts),
            do="give one schedule or one trace at a time; the trace of a run holds all of its processes",
        )
    ((source, text),) = texts.items()
    data = parse(text, source)
    if isinstance(data, dict) and "traceEvents" in data:
        return from_chrome(data, _chip(chip, texts), communicator, source)
    return from_data(data, source)


def assuming_one_block(program: Program) -> Program:
    """The program whose operators need one block at a time wherever no source says that they need all of them."""
    streams = (
        replace(stream, ops=tuple(replace(op, sync_all=op.sync_all and not op.assumed) for op in stream.ops))
        for stream in program.streams
    )
    return replace(program, streams=tuple(streams))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ScheduleError(f"{path} is no text in UTF-8.", looked_at=str(path), do="give JSON or CSV") from None
    except OSError as error:
        raise ScheduleError(f"{path} cannot be read: {error.strerror}.", looked_at=str(path)) from None


def _chip(chip: str, texts: Mapping[str, str]) -> str:
    if not chip:
        raise ScheduleError(
            "the chip of the cards is not known.",
            looked_at=f"{', '.join(texts)}, which do not say it",
            do="name it: --chip 910B3, or chip='910B3'",
        )
    return chip
