"""Computing, communication and free time of each card, as in the vendor's step_trace_time.csv; pure.

Used by csv_views.py and trace_view.py. The definitions are those of Ascend/pytorch,
torch_npu/profiler/analysis/prof_view/_trace_step_time_parser.py. Tests: tests/sim/test_profiler_files.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from toprope.sim.profiler.capture import Capture
from toprope.sim.profiler.relations import Relations, Step
from toprope.sim.tracing.records import KERNELS, kernel_name

__all__ = ["COMMUNICATION", "COMPUTING", "FREE", "HEADER", "NOT_OVERLAPPED", "Span", "overlaps", "step_times"]

HEADER = (
    "Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage",
    "Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing",
)  # fmt: skip

COMPUTING, COMMUNICATION, FREE = "Computing", "Communication", "Free"
NOT_OVERLAPPED = "Communication(Not Overlapped)"


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A piece of time on the wall clock, in ns."""

    begin: int
    end: int


def overlaps(capture: Capture) -> dict[int, dict[str, list[Span]]]:
    """Spans in which each card computed, communicated, did so without computing, and was free."""
    computing: dict[int, list[Span]] = {}
    communication: dict[int, list[Span]] = {}
    for record in capture.trace.records:
        if record.act in KERNELS:
            kind = communication if record.act == "collective" else computing
            span = Span(capture.wall_ns(record.begin_ns), capture.wall_ns(record.end_ns))
            kind.setdefault(record.device, []).append(span)
    found = {}
    for card in sorted({*computing, *communication}):
        works = _union(computing.get(card, ()))
        talks = _union(communication.get(card, ()))
        busy = _union([*works, *talks])
        gaps = [Span(one.end, other.begin) for one, other in pairwise(busy)]
        found[card] = {
            COMPUTING: works, COMMUNICATION: talks, NOT_OVERLAPPED: list(_without(talks, works)), FREE: gaps,
        }  # fmt: skip
    return found


def _union(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def _without(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """The parts of spans that lie in none of the others; both are unions."""
    place = 0
    for span in spans:
        begin = span.begin
        while place < len(others) and others[place].end <= begin:
            place += 1
        following = place
        while following < len(others) and others[following].begin < span.end:
            if others[following].begin > begin:
                yield Span(begin, others[following].begin)
            begin = max(begin, others[following].end)
            following += 1
        if begin < span.end:
            yield Span(begin, span.end)


def step_times(capture: Capture, relations: Relations) -> list[tuple[object, ...]]:
    """The rows of step_trace_time.csv, in microseconds: one for each card and step, or for each card without steps."""
    received: dict[int, list[Span]] = {}
    for record in capture.trace.records:
        if record.act == "collective" and kernel_name(record).startswith("hcom_receive"):
            span = Span(capture.wall_ns(record.begin_ns), capture.wall_ns(record.end_ns))
            received.setdefault(record.device, []).append(span)
    rows: list[tuple[object, ...]] = []
    first = min((operator.begin_ns for operator in capture.operators if not operator.python), default=None)
    for card, spans in overlaps(capture).items():
        kinds = {**spans, "Bubble": received.get(card, [])}
        if not relations.steps:
            rows.append((card, "", *_row(kinds, first)))
        for step in relations.steps:
            inside = {kind: [span for span in spans if _begins_in(span, step)] for kind, spans in kinds.items()}
            if any(inside.values()):
                rows.append((card, step.number, *_row(inside, step.host_ns)))
    return rows


def _begins_in(span: Span, step: Step) -> bool:
    return step.begin_ns <= span.begin < step.end_ns


def _row(kinds: Mapping[str, Sequence[Span]], host_ns: int | None) -> Iterator[float]:
    """The figures of a row.

    Args:
        kinds: the spans of each kind.
        host_ns: begin of the first operator on the host; None where none was recorded.
    """
    total = {kind: sum(span.end - span.begin for span in spans) for kind, spans in kinds.items()}
    every = [span for spans in kinds.values() for span in spans]
    whole = max(span.end for span in every) - min(span.begin for span in every)
    tasks = [*kinds[COMPUTING], *kinds[COMMUNICATION]]
    first = min((span.begin for span in tasks), default=None)
    figures = (
        total[COMPUTING],
        total[NOT_OVERLAPPED],
        total[COMMUNICATION] - total[NOT_OVERLAPPED],
        total[COMMUNICATION],
        total[FREE],
        whole - total["Bubble"],
        total["Bubble"],
        max(total[NOT_OVERLAPPED] - total["Bubble"], 0),
        0 if first is None or host_ns is None else first - host_ns,
    )
    return (figure / 1000 for figure in figures)
