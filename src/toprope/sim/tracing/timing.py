"""Time that a card would take for a trace: its records, turned into acts of a timeline (toprope.estimate.cost).

For the run report and the rehearsal. Not included: what the program computes on the host between its operators, and
data that it waits for. Tests: tests/sim/simulated/test_timing.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from toprope.estimate.cost.changes import Change, changes
from toprope.estimate.cost.costs import Cost
from toprope.estimate.cost.rates import Rates, UnknownRateError
from toprope.estimate.cost.span import NOTHING, Span, total_of
from toprope.estimate.cost.timeline import Act, Timeline, bound_by
from toprope.sim.tracing.records import GENERATED, Record, Trace
from toprope.sim.tracing.tracer import TIMED, read_ends

__all__ = ["Timing", "acts_of", "of_run", "timing_of"]

_STEPS = ("training", "inference", "forward")
_PAUSE_NS = 100_000
"""Pause of the host between two operators that is more than launching the next one."""


@dataclass(frozen=True)
class Timing:
    """The time of a program on the card: an estimate.

    Attributes:
        chip: name of the chip.
        step: time of one step, the median; None where there were fewer than two of a kind.
        steps: what a step is, and how many that time rests on: "training", 9.
        total: time of all that the program did on the card; what its own code takes on the host is not in it.
        card: how long the card is busy.
        host: how long the host is busy with launching.
        aside: how long the host is busy with copies, and with going on after waits.
        kinds: time of the card by kind of operator, the longest first.
        calls: launches by kind.
        unknown: why there is no estimate; "" where there is one.
        changes: what would save most, the best first.
        measured: what was measured on a card of the user's own, or why that is not used; "" for nothing.
        own: seconds of the program's own code between operators, measured here; on top of `total` where nothing hides
            it.
        generated: calls of graphs whose kernels Inductor generated: each is one pass over its inputs and results.
    """

    chip: str
    step: Span | None = None
    steps: tuple[str, int] = ("", 0)
    total: Span = NOTHING
    card: Span = NOTHING
    host: Span = NOTHING
    aside: Span = NOTHING
    kinds: Mapping[str, Span] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""
    changes: tuple[Change, ...] = ()
    measured: str = ""
    own: float = 0.0
    generated: int = 0

    @property
    def bound(self) -> str:
        """Return the longest: "launches" or "copies" of the host, or the "card"."""
        return bound_by(self.host, self.aside, self.card)

    @property
    def basis(self) -> str:
        """Basis of the figures."""
        measured = f"; {self.measured}" if self.measured else ""
        return f"estimate: figures of the {self.chip}, fitted to public measurements{measured} (toprope explain time)"

    def as_dict(self) -> dict[str, Any]:
        """The times as plain data, in seconds; each a list of its lower end, the likely value and its upper end."""
        return {
            "basis": self.basis,
            "unknown": self.unknown or None,
            "step": None if self.step is None else list(self.step),
            "step_kind": self.steps[0] or None,
            "steps": self.steps[1],
            "total": list(self.total),
            "card": list(self.card),
            "host": list(self.host),
            "copies_and_waits": list(self.aside),
            "own_code_measured_here": self.own,
            "generated_graphs": self.generated,
            "bound": self.bound,
            "kinds": [
                {"kind": kind, "calls": self.calls.get(kind, 0), "card": list(span)}
                for kind, span in self.kinds.items()
            ],
            "changes": [{"what": one.what, "saves": list(one.saves)} for one in self.changes],
        }


def of_run(folder: Path) -> dict[str, Timing]:
    """The time of a run by chip: of the process whose card is busy longest."""
    found: dict[str, Timing] = {}
    for trace in read_ends(folder, TIMED):
        if not trace.records or not trace.chip:
            continue
        timing, former = timing_of(trace), found.get(trace.chip)
        if former is None or timing.card.likely > former.card.likely:
            found[trace.chip] = timing
    return found


def timing_of(trace: Trace, *, queue: int | None = None) -> Timing:
    """The time of a trace.

    Args:
        trace: of one process, with its calls.
        queue: TASK_QUEUE_ENABLE of torch_npu; None for the value in the environment.
    """
    rates = trace.rates
    queue = _task_queue() if queue is None else queue
    try:
        acts = [act for act, _ in acts_of(trace, queue=queue)]
        made = Timeline.of(acts)
        kinds, calls = _sums(trace) if trace.lost and trace.counts else (made.busy, made.calls)
    except UnknownRateError as error:
        return Timing(trace.chip, unknown=str(error))
    launched = max(sum(made.calls.values()), 1)
    share = sum(calls.values()) / launched if calls else 1.0
    step, steps = None, ("", 0)
    for kind in _STEPS:
        spans = sorted(made.steps(kind), key=lambda span: span.likely)
        if spans and 2 * sum(span.likely for span in spans) > made.total.likely:
            step, steps = spans[len(spans) // 2], (kind, len(spans))
            break
    ordered = dict(sorted(kinds.items(), key=lambda each: -each[1].likely))
    total = made.total.times(share)
    return Timing(
        trace.chip, step, steps, total, total_of(kinds.values()), made.host.times(share), made.aside.times(share),
        ordered, calls,
        changes=tuple(changes(acts, rates, total, share)), measured=_measured(rates),
        own=_host_pauses(trace) * share,
        generated=sum(record.name == GENERATED for record in trace.records if record.act == "composite"),
    )  # fmt: skip


def _measured(rates: Rates) -> str:
    """The figures that were measured on a card of the user's own, in words, or why they are not used; "" for none."""
    if rates.stored is None:
        return rates.not_used
    return f"{len(rates.stored.figures)} of them {rates.stored.basis}"


def _host_pauses(trace: Trace) -> float:
    """Seconds of pauses between acts of one thread that are longer than a launch; of the steps, where there are any."""
    ends: dict[int, int] = {}
    total = 0
    steps = [record.begin_ns for record in trace.records if record.act == "step"]
    first, last = (min(steps), max(steps)) if len(steps) > 1 else (0, 2**63)
    inside = (record for record in trace.records if first <= record.begin_ns <= last)
    for record in sorted(inside, key=attrgetter("begin_ns")):
        pause = record.begin_ns - ends.get(record.thread, record.begin_ns)
        total += pause if pause > _PAUSE_NS else 0
        ends[record.thread] = max(record.end_ns, ends.get(record.thread, 0))
    return total / 1e9


def _task_queue() -> int:
    text = os.environ.get("TASK_QUEUE_ENABLE", "1").strip()
    return int(text) if text in ("0", "1", "2") else 1


def _sums(trace: Trace) -> tuple[dict[str, Span], dict[str, int]]:
    """Time of the card and calls by kind of operator, over the whole run; collectives from the records alone."""
    kinds: dict[str, Span] = {}
    calls: dict[str, int] = {}
    for cost, time, number in zip(trace.costs, trace.times, trace.counts, strict=True):
        kinds[cost.kind] = kinds.get(cost.kind, NOTHING).plus(time.times(number))
        calls[cost.kind] = calls.get(cost.kind, 0) + number
    for record in trace.records:
        if record.act == "collective":
            span = trace.rates.collective(record.name, record.bytes, record.ranks)
            kinds["collective"] = kinds.get("collective", NOTHING).plus(span)
            calls["collective"] = calls.get("collective", 0) + 1
    return kinds, calls


def acts_of(trace: Trace, *, queue: int = 1) -> Iterator[tuple[Act, int]]:
    """The acts of a trace in the order in which the host did them, each with the index of its record."""
    launch = cache(partial(trace.rates.launch, queue=queue))
    given = trace.rates, trace.costs, trace.times, launch
    order = sorted(range(len(trace.records)), key=lambda index: trace.records[index].begin_ns)
    for index in order:
        record = trace.records[index]
        act = None if record.is_part else _act(record, *given)
        if act is not None:
            yield act, index


def _act(
    record: Record, rates: Rates, costs: Sequence[Cost], times: Sequence[Span], launch: Callable[..., Span]
) -> Act | None:
    place = record.device, record.stream
    match record.act:
        case "operator" if record.on_host:  # on the host: the card waits for it, and for both copies
            return Act("synchronise", *place, host=launch().plus(rates.copy(record.bytes)))
        case "operator" | "composite":
            known = 0 < record.signature <= len(costs)
            kind = costs[record.signature - 1].kind if known else "other"
            busy = times[record.signature - 1] if known else rates.seconds(Cost("other"))
            return Act("launch", *place, host=launch(kind, graph=record.in_graph), card=busy, kind=kind)
        case "collective":
            card = rates.collective(record.name, record.bytes, record.ranks)
            return Act("launch", *place, host=launch("collective"), card=card, kind="collective")
        case "copy to card" | "copy from card":
            return Act("synchronise", *place, host=rates.copy(record.bytes))
        case "copy between cards":
            return Act("launch", *place, host=launch("copy"), card=rates.copy(record.bytes, pinned=True), kind="copy")
        case "event record":
            return Act("record", *place, host=launch("event"), event=record.address)
        case "event wait":
            return Act("wait", *place, event=record.address)
        case "synchronise":
            return Act("synchronise", *place, host=rates.synchronise())
        case "step":
            return Act("mark", kind=record.name)
    return None
