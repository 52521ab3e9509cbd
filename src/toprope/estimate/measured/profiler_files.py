"""Files of the vendor's profilers: kernels with shapes and times, and what else a folder says of its run.

`toprope calibrate` fits the rates of estimates to them. The vendor fixes the names of files, folders and columns:
Ascend/pytorch, torch_npu/profiler/analysis (kernel_details.csv, operator_details.csv, step_trace_time.csv), and its
pages about msprof's op_summary. Files that the simulated card wrote are refused. Start times are microseconds since
1970 with three decimals: more digits than a float holds, so they are kept as whole nanoseconds. Tests:
tests/estimate/test_profile_reading.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import median
from typing import Any

from toprope.errors import UsageError

__all__ = ["KernelRow", "Profile", "read_profile"]

_COLUMNS = {
    "name": ("Name", "Op Name"),
    "kind": ("Type", "OP Type"),
    "core": ("Accelerator Core", "Task Type"),
    "device": ("Device_id", "Device ID"),
    "start": ("Start Time(us)", "Task Start Time(us)"),
    "duration": ("Duration(us)", "Task Duration(us)"),
    "input_shapes": ("Input Shapes",),
    "input_dtypes": ("Input Data Types",),
    "input_formats": ("Input Formats",),
    "output_shapes": ("Output Shapes",),
    "output_dtypes": ("Output Data Types",),
    "output_formats": ("Output Formats",),
}
"""Our names of the columns, by those of kernel_details.csv and op_summary.csv."""

_SIMULATED = frozenset({"Block Dim", "Block Num"})
"""Two names of one column: the vendor's files have one of them, by their age, the simulated card's have both."""

_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_SHAPES = "the profiler wrote no shapes"
_LEVEL = (
    "profile with experimental_config=torch_npu.profiler._ExperimentalConfig("
    "profiler_level=torch_npu.profiler.ProfilerLevel.Level1), which writes the shapes of kernels"
)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel that a card ran.

    Attributes:
        name, kind: as the profiler has them: "aclnnAdd_AddAiCore_Add", "Add".
        core: the unit that ran it, such as "AI_VECTOR_CORE".
        device: number of the card.
        start_ns, duration_us: when, and for how long.
        inputs, outputs: shapes and dtypes: ("4,8;8", "FLOAT;FLOAT"); ("", "") where the profiler wrote none.
    """

    name: str
    kind: str
    core: str
    device: str
    start_ns: int
    duration_us: float
    inputs: tuple[str, str]
    outputs: tuple[str, str]


@dataclass(frozen=True)
class Profile:
    """Contents of the files of a profile.

    Attributes:
        file: name of the file with the kernels.
        rows: the kernels in the order in which they began.
        clock: cores and clock of the card by the folder's info.json: (20, 1800); None where it has none.
        host_us: median time of the host inside an operator that launched a kernel; None without operator_details.csv.
        host_rows: operators behind it.
        idle: share of the steps in which the card had nothing to do, by step_trace_time.csv; None without it.
    """

    file: str
    rows: tuple[KernelRow, ...]
    clock: tuple[int, int] | None = None
    host_us: float | None = None
    host_rows: int = 0
    idle: float | None = None


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Args:
        path: a folder *_ascend_pt or ASCEND_PROFILER_OUTPUT, msprof's PROF_* or mindstudio_profiler_output, a
            kernel_details.csv, or an op_summary_*.csv.

    Raises:
        UsageError: there is no such file, it has no kernels with shapes, or it is the simulated card's.
    """
    file = _find(path)
    _refuse_simulated(file)
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            rows = sorted(_rows(csv.reader(text), file), key=lambda row: row.start_ns)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} cannot be read: {error}.", do="give a file that the profiler wrote") from None
    if not rows:
        raise UsageError(f"{file} has no kernels.", do="profile a few steps of a program that uses the card")
    host, count = _host(file.parent / "operator_details.csv")
    return Profile(file.name, tuple(rows), _clock(file), host, count, _idle(file.parent / "step_trace_time.csv"))


def _find(path: Path) -> Path:
    """The file with the kernels."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(f"there is no {path}.", do="name a folder or a file that the profiler wrote")
    for folder in (path, path / _OUTPUT, path / "mindstudio_profiler_output"):
        if (folder / "kernel_details.csv").is_file():
            return folder / "kernel_details.csv"
        found = sorted(folder.glob("op_summary*.csv"))
        if len(found) > 1:
            raise _several(path, found)
        if found:
            return found[0]
    profiles = sorted(each for pattern in ("*_ascend_pt", "PROF_*") for each in path.glob(pattern) if each.is_dir())
    if len(profiles) == 1:
        return _find(profiles[0])
    if profiles:
        raise _several(path, profiles)
    if (path / "op_statistic.csv").is_file() or any(path.glob("op_statistic*.csv")):
        raise UsageError(f"{path} has sums by type of operator alone (op_statistic.csv): {_SHAPES}.", do=f"{_LEVEL}")
    raise UsageError(
        f"{path} has no kernel_details.csv and no op_summary_*.csv.",
        looked_at=f"{path}, {_OUTPUT} and mindstudio_profiler_output in it",
        do="name the folder *_ascend_pt or ASCEND_PROFILER_OUTPUT; where it has FRAMEWORK and PROF_* alone, run "
        "torch_npu.profiler.profiler.analyse(FOLDER) first",
    )


def _several(path: Path, found: list[Path]) -> UsageError:
    names = ", ".join(each.name for each in found[:4]) + (", ..." if len(found) > 4 else "")
    return UsageError(f"{path} has several profiles.", looked_at=names, do="name one of them")


def _rows(lines: Iterator[list[str]], file: Path) -> Iterator[KernelRow]:
    header = [cell.strip() for cell in next(lines, [])]
    if "OP Type" in header and "Total Time(us)" in header:
        raise UsageError(
            f"{file} has sums by type of operator alone: {_SHAPES}.", do="give kernel_details.csv or op_summary_*.csv"
        )
    if set(header) >= _SIMULATED or any(name.startswith("Card Duration Estimate") for name in header):
        raise _simulated(file)
    places: dict[str, int] = {}
    for name, known in _COLUMNS.items():
        found = [header.index(each) for each in known if each in header]
        if found:
            places[name] = found[0]
    if not {"kind", "duration", "start"} <= set(places):
        raise UsageError(
            f"{file} is no table of kernels.",
            looked_at=f"its columns: {', '.join(header[:8])}",
            do="give kernel_details.csv or op_summary_*.csv",
        )
    if not {"input_shapes", "output_shapes"} <= set(places):
        raise UsageError(f"{file} has no column of shapes: {_SHAPES}.", do=_LEVEL)

    for row in lines:
        cell = {name: row[place].strip() if place < len(row) else "" for name, place in places.items()}
        try:
            start, duration = int(Decimal(cell["start"]) * 1000), float(cell["duration"])
        except (InvalidOperation, ValueError, OverflowError):
            if {cell["start"], cell["duration"]} & {"N/A", "NA", "-"}:
                continue  # a task that did not end
            raise UsageError(
                f"{file} is damaged: a row cannot be read.",
                looked_at=",".join(row)[:80].encode("unicode_escape").decode(),
                do="export the profile again, or take the row out",
            ) from None
        if not 0 < duration < 1e9:
            continue
        yield KernelRow(
            cell.get("name", ""), cell["kind"], cell.get("core", ""), cell.get("device", ""), start, duration,
            _plain(cell["input_shapes"], cell.get("input_dtypes", ""), cell.get("input_formats", "")),
            _plain(cell["output_shapes"], cell.get("output_dtypes", ""), cell.get("output_formats", "")),
        )  # fmt: skip


def _plain(shapes: str, dtypes: str, formats: str) -> tuple[str, str]:
    """Shapes and dtypes as text; blocked formats as the plain shape that they hold, or more by the padding."""
    shapes = shapes.strip('"; ')
    if not shapes or shapes == "N/A":
        return "", ""
    kinds = formats.strip('"; ').split(";")
    made = []
    for place, part in enumerate(shapes.split(";")):
        sizes = [size for size in part.split(",") if size.strip()]
        kind = kinds[place] if place < len(kinds) else ""
        if kind == "FRACTAL_NZ" and len(sizes) >= 4:
            *outer, columns, rows, row, column = (int(size) for size in sizes)
            sizes = [str(size) for size in (*outer, rows * row, columns * column)]
        elif kind == "NC1HWC0" and len(sizes) == 5:
            batch, channels, height, width, inner = (int(size) for size in sizes)
            sizes = [str(size) for size in (batch, channels * inner, height, width)]
        elif kind.startswith("FRACTAL_Z"):
            return "", ""  # channels and the window are one number
        made.append(",".join(sizes))
    return ";".join(made), dtypes.strip('"; ')


def _simulated(file: Path) -> UsageError:
    return UsageError(
        f"{file} was written on a simulated card: its times are this machine's, not a card's.",
        do="profile the program on a card, or give one who has it the file of `toprope verify`",
    )


def _refuse_simulated(file: Path) -> None:
    for folder in (file.parent, file.parent.parent):
        if (folder / "FRAMEWORK" / "toprope.json").is_file():
            raise _simulated(file)
        found = _json(folder / "profiler_metadata.json")
        if isinstance(found, dict) and "toprope" in found:
            raise _simulated(file)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _clock(file: Path) -> tuple[int, int] | None:
    """Cores and clock by msprof's info.json, in the device_* folders of a PROF_* folder."""
    for folder in (file.parent, file.parent.parent):
        for info in sorted(each for depth in ("", "PROF_*/") for each in folder.glob(f"{depth}device_*/info.json*")):
            try:
                device = _json(info)["DeviceInfo"][0]
                return int(device["ai_core_num"]), int(float(device["aic_frequency"]))
            except (TypeError, LookupError, ValueError):
                continue
    return None


def _host(file: Path) -> tuple[float | None, int]:
    """Median time of the host inside an operator that launched something."""
    found = [
        host
        for host, device in _numbers(file, "Host Total Duration(us)", "Device Self Duration(us)")
        if device > 0 and host > 0
    ]
    return (median(found) if found else None), len(found)


def _idle(file: Path) -> float | None:
    sums = [0.0, 0.0, 0.0]
    for row in _numbers(file, "Computing", "Communication(Not Overlapped)", "Free"):
        sums = [total + each for total, each in zip(sums, row, strict=True)]
    return sums[2] / sum(sums) if sum(sums) else None


def _numbers(file: Path, *columns: str) -> Iterable[tuple[float, ...]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            rows = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error):
        return
    for row in rows:
        try:
            yield tuple(float((row.get(column) or "").strip()) for column in columns)
        except ValueError:
            continue
