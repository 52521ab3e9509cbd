"""Analysis of a profile's folder: it reads the capture and writes the vendor's files next to it.

`torch_npu.profiler` calls it at the end of a profile, and for `analyse` of a folder. Tests:
tests/sim/test_profiler_files.py.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

from toprope.sim.profiler.capture import Capture, load
from toprope.sim.profiler.csv_views import tables
from toprope.sim.profiler.relations import Relations, relate
from toprope.sim.profiler.trace_view import events

__all__ = ["RAW", "analyse", "export_chrome_trace", "export_stacks", "profiles"]

RAW = Path("FRAMEWORK", "toprope.json")
"""The record that the files are made of, in the folder of a profile."""

_OUTPUT = "ASCEND_PROFILER_OUTPUT"


def profiles(path: Path) -> list[Path]:
    """The folders of profiles: the path itself, or those directly inside."""
    if (path / RAW).is_file():
        return [path]
    return sorted(each for each in path.iterdir() if (each / RAW).is_file())


def analyse(folder: Path) -> None:
    """Write the files of a profile, in place of those of an earlier analysis.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the record is not of this version of toprope.
    """
    capture = load(folder / RAW)
    output = folder / _OUTPUT
    if output.exists():
        shutil.rmtree(output)
    output.mkdir(mode=0o750)
    relations = relate(capture)
    _write_timeline(capture, relations, output / "trace_view.json")
    for table in tables(capture, relations):
        if table.rows:
            with (output / table.name).open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table.header)
                writer.writerows(table.rows)
    (output / "analyse.done").touch()


def export_chrome_trace(folder: Path, path: Path) -> None:
    """Write the timeline of a profile alone.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the record is not of this version of toprope.
    """
    capture = load(folder / RAW)
    _write_timeline(capture, relate(capture), path)


def _write_timeline(capture: Capture, relations: Relations, path: Path) -> None:
    """Write a list of events, as the vendor does, one by one: a profile may have millions."""
    between = "["
    with path.open("w", encoding="utf-8") as file:
        for event in events(capture, relations):
            file.write(between + json.dumps(event, ensure_ascii=False))
            between = ",\n"
        file.write("[]" if between == "[" else "]")


def export_stacks(folder: Path, path: Path, *, of_card: bool) -> None:
    """Write the stacks of operators with their own time in whole microseconds, as flame graphs read them.

    Args:
        folder: of the profile.
        path: the file.
        of_card: whether the times are those of the kernels that the operators launched, and not their own.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the record is not of this version of toprope.
    """
    lines = []
    for node in relate(load(folder / RAW)).nodes:
        kernels = sum(record.end_ns - record.begin_ns for record in node.kernels)
        microseconds = (kernels if of_card else node.self_ns) // 1000
        if node.operator.stack and microseconds > 0:
            lines.append(f"{';'.join(reversed(node.operator.stack))} {microseconds}\n")
    path.write_text("".join(lines), encoding="utf-8")
