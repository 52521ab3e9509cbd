"""Reads schedules from files of every kind that `cores.formats` knows, and writes them as JSON.

For `toprope cores` and the report of `toprope run`. The kind is found by the content of a file, not by its name;
docs/cores.md lists them. Names in folders (`kernel_details.csv`, `op_summary*.csv`) are those of the vendor's profiler.
A new format is a module of `cores.formats` and a branch of `read`. Tests: tests/cores/test_cores_record.py,
tests/cores/test_cores_record_csv.py; for folders and several files tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toprope.cores.findings import assuming_cores
from toprope.cores.formats.fx_graph import from_graph
from toprope.cores.formats.profiler_csv import from_csv, looks_like_csv
from toprope.cores.formats.schedule_json import from_data, from_json, parse, to_data, to_json
from toprope.cores.formats.trace import from_chrome, from_traces
from toprope.cores.model import Program
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
        paths: one JSON schedule; one Chrome trace of `toprope run --trace`; or what the vendor's profiler wrote of
            each rank: `kernel_details.csv`, `op_summary*.csv`, or a folder that has them at any depth, such as
            ASCEND_PROFILER_OUTPUT. A path with `*` stands for all files that match.
        chip: the chip of the cards, for traces and CSV, which do not say it.
        communicator: name of the one communicator of all cards, for collectives whose record does not name theirs.

    Raises:
        ScheduleError: a file cannot be read, is none of these, or makes no sense; docs/errors/schedule.md.
    """
    if not paths:
        raise ScheduleError("there is no file to read.", do="name a schedule, a trace, or the CSV files of the ranks")
    texts = {os.fspath(path): _text(path) for path in _files(paths)}
    if all(looks_like_csv(text) for text in texts.values()):
        return _with_operators(from_csv(texts, _chip(chip, texts)), ", ".join(texts))
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
    if isinstance(data, list) and any(isinstance(each, dict) and "ph" in each for each in data):
        raise ScheduleError(
            f"{source} is the profiler's timeline, which does not say how many blocks a kernel has.",
            looked_at=f"{source}: a list of {len(data)} trace events",
            do="give kernel_details.csv, which the profiler writes into the same folder, or that folder",
        )
    return _with_operators(from_data(data, source), source)


def _with_operators(program: Program, source: str) -> Program:
    if not any(True for _ in program.ops()):
        raise ScheduleError(
            f"{source} has no operators: there is nothing to check.",
            looked_at=f"{source}: {len(program.cards)} cards, {len(program.streams)} streams",
            do="check that the record is complete",
        )
    return program


def assuming_one_block(program: Program) -> Program:
    """The program whose operators need one block at a time wherever no source says that they need all of them."""
    program = assuming_cores(program, all_blocks=False)
    streams = (
        replace(stream, ops=tuple(replace(op, sync_all=op.sync_all and not op.assumed) for op in stream.ops))
        for stream in program.streams
    )
    return replace(program, streams=tuple(streams))


_PROFILED = ("kernel_details.csv", "op_summary*.csv")
"""Files of the profiler in the order in which they are looked for: the first says more, but not in all releases."""


def _files(paths: tuple[str | os.PathLike[str], ...]) -> list[Path]:
    """The files that paths stand for, each once.

    Raises:
        ScheduleError: a folder or a pattern has none, or a file is given twice.
    """
    files: list[Path] = []
    for given in map(Path, paths):
        if given.is_dir():
            files += _files_of_ranks(given)
        elif "*" in given.name and not given.exists():
            found = sorted(given.parent.glob(given.name))
            if not found:
                raise ScheduleError(f"no file matches {given}.", looked_at=str(given.parent))
            files += found
        else:
            files.append(given)
    twice = sorted({str(file) for file in files if [each.resolve() for each in files].count(file.resolve()) > 1})
    if twice:
        raise ScheduleError("a file is given twice.", looked_at=", ".join(twice), do="give each rank's file once")
    return files


def _files_of_ranks(folder: Path) -> list[Path]:
    """The profiler's file of each rank: of one folder `kernel_details.csv`, where that names streams."""
    ranks: dict[Path, list[Path]] = {}
    for pattern in _PROFILED:
        for file in sorted(folder.rglob(pattern)):
            ranks.setdefault(_rank_folder(file, folder), []).append(file)
    if not ranks:
        raise ScheduleError(
            f"{folder} has no file of the profiler.",
            looked_at=f"{folder}, at any depth: {', '.join(_PROFILED)}",
            do="give the profiler's folder, after the profiler has ended and written its analysis",
        )
    files: list[Path] = []
    for found in ranks.values():
        details = [file for file in found if file.name == _PROFILED[0]]
        with_streams = [file for file in details if "Stream ID" in file.read_text("utf-8-sig").partition("\n")[0]]
        files += with_streams or [file for file in found if file not in details] or details
    return files


def _rank_folder(file: Path, top: Path) -> Path:
    """The folder of one run of the profiler, such as `host_4711_20260101_ascend_pt`; else the file's own."""
    inside = [parent for parent in file.parents if parent == top or top in parent.parents]
    return next((each for each in inside if each.name.endswith("_ascend_pt")), file.parent)


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
