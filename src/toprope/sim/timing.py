"""How long a card would take for a trace: its records as the acts of a timeline; pure.

What a trace does not hold is not in the time: what the program computes on the host between its operators, and data
that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from toprope import chips
from toprope.estimate.costs import Cost, cost_of
from toprope.estimate.rates import Rates, UnknownRateError, rates_of
from toprope.estimate.span import NOTHING, Span
from toprope.estimate.timeline import Act, Timeline
from toprope.sim.records import Record, Trace

__all__ = ["Timing", "acts_of", "durations", "timing_of"]

_STEPS = ("training", "inference", "forward")


@dataclass(frozen=True)
class Timing:
    """The time of a traced program on the card: an estimate.

    Attributes:
        chip: name of the chip.
        step: time of one step; None where there were fewer than two of a kind.
        steps: what a step is, and how many were counted: "training", 9.
        total: time of all that was traced.
        card: how long the card is busy.
        host: how long the host is busy with launching.
        bound: "host" or "card": what takes longer.
        kinds: time of the card by kind of operator, the longest first.
        calls: launches by kind.
        unknown: why there is no estimate; "" where there is one.
        lost: acts that the trace no longer held.
    """

    chip: str
    step: Span | None = None
    steps: tuple[str, int] = ("", 0)
    total: Span = NOTHING
    card: Span = NOTHING
    host: Span = NOTHING
    bound: str = ""
    kinds: Mapping[str, Span] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""
    lost: int = 0


def timing_of(trace: Trace, *, queue: int = 1) -> Timing:
    """The time of a trace.

    Args:
        trace: of one process, with its signatures.
        queue: TASK_QUEUE_ENABLE of torch_npu.
    """
    rates = rates_of(chips.get(trace.chip))
    try:
        made = Timeline.of(act for act, _ in acts_of(trace, rates, queue=queue))
    except UnknownRateError as error:
        return Timing(trace.chip, unknown=str(error), lost=trace.lost)
    step, steps = None, ("", 0)
    for kind in _STEPS:
        spans = sorted(made.steps(kind), key=lambda span: span.likely)
        if spans:
            step, steps = spans[len(spans) // 2], (kind, len(spans))
            break
    kinds = dict(sorted(made.busy.items(), key=lambda each: -each[1].likely))
    return Timing(
        trace.chip, step, steps, made.total, made.card, made.host, made.bound, kinds, made.calls, lost=trace.lost
    )


def acts_of(trace: Trace, rates: Rates, *, queue: int = 1) -> Iterator[tuple[Act, int]]:
    """The acts of a trace in the order in which the host did them, each with the index of its record."""
    costs = [cost_of(call) for call in trace.calls]
    launch = partial(rates.launch, queue=queue)
    order = sorted(range(len(trace.records)), key=lambda index: trace.records[index].begin_ns)
    for index in order:
        record = trace.records[index]
        act = None if record.is_part else _act(record, rates, costs, launch)
        if act is not None:
            yield act, index


def durations(trace: Trace) -> dict[int, Span]:
    """How long the card is busy with each operator, composite and collective, by the index of its record.

    Raises:
        UnknownRateError: a figure of the chip is not known.
    """
    rates = rates_of(chips.get(trace.chip))
    return {index: act.card for act, index in acts_of(trace, rates) if act.what == "launch"}


def _act(record: Record, rates: Rates, costs: list[Cost], launch: Callable[[str], Span]) -> Act | None:
    place = record.device, record.stream
    match record.act:
        case "operator" | "composite":
            known = 0 < record.signature <= len(costs)
            cost = costs[record.signature - 1] if known else Cost("other")
            return Act("launch", *place, host=launch(cost.kind), card=rates.seconds(cost), kind=cost.kind)
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
