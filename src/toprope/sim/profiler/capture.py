"""Capture of a profile: operators on the host and acts on the cards, and its file; pure.

collector.py makes it, analysis.py reads it. All times are those of the host: how long a card would take is not
simulated. The file has the fields of `Record` and `HostOperator`: after a change of one, older files are refused.
Tests: tests/sim/test_profiler_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from toprope.estimate.record.calls import OperatorCall, TensorShape
from toprope.sim.tracing.records import Record, Trace

__all__ = ["Capture", "HostOperator", "Options", "load", "save"]


@dataclass(frozen=True, slots=True)
class HostOperator:
    """One operator, range or Python function on the host.

    Attributes:
        name: the operator's ("aten::mm"), the range's or the function's name.
        begin_ns, end_ns: on the wall clock.
        thread: the system's number of the thread.
        shapes: of the inputs, as the vendor writes them ("4,3;3,5"); empty where they were not recorded.
        dtypes: of the inputs ("float;float"); empty where they were not recorded.
        stack: frames of the Python stack, the innermost first.
        sequence: autograd's number that a forward and a backward operator share; -1 where there is none.
        forward_thread: of a backward operator, torch's number of the thread of its forward operator; 0 otherwise.
        flops: operations by torch's formulas; 0 where there is none.
        python: whether it is a Python function.
    """

    name: str
    begin_ns: int
    end_ns: int
    thread: int
    shapes: str = ""
    dtypes: str = ""
    stack: tuple[str, ...] = ()
    sequence: int = -1
    forward_thread: int = 0
    flops: int = 0
    python: bool = False

    @property
    def is_step(self) -> bool:
        """True for the range of a step of the profiler's schedule."""
        return self.name.startswith("ProfilerStep#")


@dataclass(frozen=True)
class Options:
    """Choice of what is recorded and written.

    Attributes:
        host: operators on the host.
        card: acts on the cards.
        shapes, stack, modules, flops: with each operator on the host.
        memory: memory taken on the cards and given back.
        level: the profiler's level: "Level0", "Level1", "Level2" or "Level_none".
        metrics: the group of core metrics, of which nothing is known here: their columns are N/A.
    """

    host: bool = True
    card: bool = True
    shapes: bool = False
    stack: bool = False
    modules: bool = False
    flops: bool = False
    memory: bool = False
    level: str = "Level0"
    metrics: str = "ACL_AICORE_NONE"


@dataclass(frozen=True)
class Capture:
    """One profile of one process.

    Attributes:
        options: what was asked for.
        trace: acts on the cards.
        operators: on the host, by their begin.
        allocated: bytes in use on each card when the profile began.
    """

    options: Options
    trace: Trace
    operators: tuple[HostOperator, ...] = ()
    allocated: Mapping[int, int] = field(default_factory=dict)

    def wall_ns(self, steady_ns: int) -> int:
        """A time of a record on the wall clock."""
        return self.trace.wall_ns + steady_ns - self.trace.began_ns


_LISTS = ("records", "calls", "counts")
_RECORD = tuple(each.name for each in fields(Record))
_HOST = tuple(each.name for each in fields(HostOperator))
_record_values = attrgetter(*_RECORD)
_host_values = attrgetter(*_HOST)


def save(capture: Capture, path: Path) -> None:
    """Write a capture to a JSON file.

    Raises:
        OSError: the file cannot be written.
    """
    head = {each.name: getattr(capture.trace, each.name) for each in fields(Trace) if each.name not in _LISTS}
    data = {
        "options": asdict(capture.options),
        "trace": head,
        "allocated": {str(card): size for card, size in capture.allocated.items()},
        "calls": [asdict(call) for call in capture.trace.calls],
        "record_fields": _RECORD,
        "records": [_record_values(record) for record in capture.trace.records],
        "operator_fields": _HOST,
        "operators": [_host_values(operator) for operator in capture.operators],
    }
    path.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")  # much faster than json.dump


def load(path: Path) -> Capture:
    """Read a capture.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no capture of this version of toprope.
    """
    data: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or (data.get("record_fields"), data.get("operator_fields")) != (
        list(_RECORD),
        list(_HOST),
    ):
        raise ValueError(f"{path} was not written by this version of toprope")
    stack = _HOST.index("stack")
    limit = _RECORD.index("limit")
    records = tuple(Record(*_with_tuple(row, limit)) for row in data["records"])
    operators = tuple(HostOperator(*_with_tuple(row, stack)) for row in data["operators"])
    allocated = {int(card): size for card, size in data["allocated"].items()}
    trace = Trace(**data["trace"], records=records, calls=tuple(map(_call, data["calls"])))
    return Capture(Options(**data["options"]), trace, operators, allocated)


def _call(data: dict[str, Any]) -> OperatorCall:
    tensors = (TensorShape(**{**each, "sizes": tuple(each["sizes"])}) for each in data["tensors"])
    return OperatorCall(**{**data, "tensors": tuple(tensors)})


def _with_tuple(row: list[Any], place: int) -> list[Any]:
    """A row whose list at a place is a tuple again: JSON has lists alone."""
    if row[place] is not None:
        row[place] = tuple(row[place])
    return row
