"""The file trace_view.json of the vendor's profiler, for MindStudio Insight, Perfetto and chrome://tracing; pure.

analysis.py writes it. Tracks as the vendor has them: the host's threads under "Python", the streams of each card under
"Ascend Hardware", and when a card computes, communicates and is free under "Overlap Analysis". Times are the host's, in
microseconds. Tests: tests/sim/test_profiler_files.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toprope.sim.profiler.capture import Capture, HostOperator
from toprope.sim.profiler.csv_views import call_stack
from toprope.sim.profiler.relations import Relations
from toprope.sim.profiler.step_time import overlaps
from toprope.sim.tracing.records import CHROME_FRAME, KERNELS, Record, kernel_name, microseconds

__all__ = ["events"]

_HARDWARE, _OVERLAP = 1, 2
_LANES = 10**6
"""Distance of the tracks of one stream."""

_COPIES = {"copy to card": "to card", "copy from card": "from card", "copy between cards": "between cards"}


def events(capture: Capture, relations: Relations) -> Iterator[dict[str, Any]]:
    """The events of a capture."""
    if capture.options.host:
        yield from _host(capture, relations)
    if capture.options.card:
        yield from _cards(capture, relations)
        for card, kinds in overlaps(capture).items():
            pid = _pid(capture, _OVERLAP, card)
            yield from _process(pid, "Overlap Analysis", f"NPU {card}", _OVERLAP)
            for tid, (kind, spans) in enumerate(kinds.items()):
                yield _named("thread_name", pid, tid, name=kind)
                for span in spans:
                    yield _span(kind, pid, tid, span.begin, span.end, "overlap", {})


def _host(capture: Capture, relations: Relations) -> Iterator[dict[str, Any]]:
    pid = capture.trace.pid
    operators = [node.operator for node in relations.nodes]
    operators += [operator for operator in capture.operators if operator.python]
    yield from _process(pid, "Python", "CPU", 0)
    for thread in sorted({operator.thread for operator in operators}):
        yield _named("thread_name", pid, thread, name=f"Thread {thread}")
        yield _named("thread_sort_index", pid, thread, sort_index=thread)
    ends: dict[int, dict[bool, HostOperator]] = {}
    for operator in operators:
        category = "python_function" if operator.python else "cpu_op"
        place = pid, operator.thread, operator.begin_ns
        yield _span(operator.name, *place, operator.end_ns, category, _arguments(operator))
        if operator.sequence >= 0 and not operator.python:
            ends.setdefault(operator.sequence, {})[operator.forward_thread == 0] = operator
    for sequence, both in ends.items():
        if len(both) == 2 and both[True].thread != both[False].thread:
            for phase, operator in (("s", both[True]), ("f", both[False])):
                yield _flow(phase, "fwdbwd", "fwdbwd", sequence, pid, operator.thread, operator.begin_ns)


def _arguments(operator: HostOperator) -> dict[str, object]:
    if operator.python:
        return {}
    facts = {
        "Input Dims": operator.shapes,
        "Input type": operator.dtypes,
        "Call stack": call_stack(operator),
        "flops": operator.flops,
    }
    numbers = {"Sequence number": operator.sequence, "Fwd thread id": operator.forward_thread}
    return numbers | {name: value for name, value in facts.items() if value}


def _cards(capture: Capture, relations: Relations) -> Iterator[dict[str, Any]]:
    shown = [*KERNELS, *_COPIES]
    acts = [(index, record) for index, record in enumerate(capture.trace.records) if record.act in shown]
    ends: dict[tuple[int, int], list[int]] = {}
    for number, (index, record) in enumerate(sorted(acts, key=lambda act: act[1].begin_ns)):
        pid = _pid(capture, _HARDWARE, record.device)
        if all(card != record.device for card, _ in ends):
            yield from _process(pid, "Ascend Hardware", f"NPU {record.device}", _HARDWARE, **CHROME_FRAME["otherData"])
        # acts of one track must not overlap, so what two host threads do at once on a stream has tracks of its own
        lanes = ends.setdefault((record.device, record.stream), [])
        lane = next((lane for lane, end in enumerate(lanes) if end <= record.begin_ns), len(lanes))
        tid = record.stream + lane * _LANES
        if lane == len(lanes):
            lanes.append(0)
            yield _named("thread_name", pid, tid, name=f"Stream {record.stream}" + f" ({lane + 1})" * (lane > 0))
        lanes[lane] = record.end_ns
        begin, end = capture.wall_ns(record.begin_ns), capture.wall_ns(record.end_ns)
        name = "MEMCPY_ASYNC" if record.act in _COPIES else kernel_name(record)
        yield _span(name, pid, tid, begin, end, "npu", _facts(record, number))
        node = relations.launched_by.get(index)
        if node is not None:
            launcher = node.operator
            name, category = "torch_to_npu", "async_npu"
            yield _flow("s", name, category, begin, capture.trace.pid, launcher.thread, launcher.begin_ns)
            yield _flow("f", name, category, begin, pid, tid, begin)


def _facts(record: Record, number: int) -> dict[str, object]:
    facts: dict[str, object] = {"Task Type": record.kind, "Stream Id": record.stream, "Task Id": number}
    if record.act in _COPIES:
        facts |= {"Task Type": "MEMCPY_ASYNC", "direction": _COPIES[record.act], "bytes": record.bytes}
    return facts


def _pid(capture: Capture, kind: int, card: int) -> int:
    """A number of a process for each card and kind of track, as the vendor makes it."""
    return capture.trace.pid << 10 | kind << 5 | card


def _process(pid: int, name: str, label: str, place: int, **facts: str) -> Iterator[dict[str, Any]]:
    yield _named("process_name", pid, 0, name=name, **facts)
    yield _named("process_labels", pid, 0, labels=label)
    yield _named("process_sort_index", pid, 0, sort_index=place)


def _named(what: str, pid: int, tid: int, **arguments: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _span(
    name: str, pid: int, tid: int, begin: int, end: int, category: str, arguments: dict[str, object]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": microseconds(begin), "dur": (end - begin) / 1000,
        "cat": category, "args": arguments,
    }  # fmt: skip


def _flow(phase: str, name: str, category: str, number: int, pid: int, tid: int, moment: int) -> dict[str, Any]:
    return {
        "ph": phase, "bp": "e", "name": name, "id": str(number), "pid": pid, "tid": tid, "ts": microseconds(moment),
        "cat": category,
    }  # fmt: skip
