"""An estimate of a model as lines for a person, for `toprope estimate` (cli/estimate.py).

Nothing but output: words and layout are free, as long as each figure is marked as counted, estimate or profile. Tests:
tests/estimate/test_paper.py.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from toprope import terminal
from toprope.estimate.cost.span import Span, seconds_text
from toprope.estimate.model.estimate import Estimate, Part
from toprope.sizes import gibibytes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

__all__ = ["span_text", "text_of"]


def span_text(span: Span) -> str:
    """A range for a reader; without an upper end where none is known."""
    if isfinite(span.high):
        return span.text if span.high else "none"
    return f"{seconds_text(span.low)} or more"


def text_of(one: Estimate) -> Group:
    """The estimate for a person: parameters, memory with its verdict, time by kind of operator, what is assumed."""
    from rich.console import Group

    items: list[RenderableType] = [_head(one), *_parameters(one), *_memory(one), *_time(one)]
    if one.notes:
        items += terminal.field("notes", *one.notes, label_width=12)
    return Group(*items)


def _head(one: Estimate) -> str:
    work, layout = one.work, one.layout
    what = [one.work.mode, f"batch {work.batch}", work.dtype]
    if work.mode in ("prefill", "train") and not one.work.inputs and len(one.parts) == 1:
        what.insert(2, f"{work.length} tokens")
    if work.mode == "decode":
        what.insert(2, f"{work.length} tokens in the cache")
    if work.mode == "train":
        what += [work.optimizer, "checkpointing" if work.checkpointing else "no checkpointing"]
        what += ["float32 weights in the optimizer"] if work.master else []
        what += [f"{layout.micro_batches} micro-batches"] if layout.micro_batches > 1 else []
    cards = [f"{name}{value}" for name, value in
             (("dp", layout.dp), ("tp", layout.tp), ("pp", layout.pp), ("ep", layout.ep)) if value > 1]  # fmt: skip
    cards += [f"ZeRO {layout.zero}"] if layout.zero else []
    count = f"{layout.cards} x " if layout.cards > 1 else ""
    mode = "graph" if work.graph else "eager"
    return f"{one.model} on {count}{one.chip.name}: {', '.join(what)}, {mode}{', ' if cards else ''}{' '.join(cards)}"


def _parameters(one: Estimate) -> list[RenderableType]:
    if len(one.parts) == 1:
        return terminal.field("parameters", _counted(one.parts[0]), label_width=12)
    rows = [
        (each.name, each.class_name, f"{each.parameters:,}", gibibytes(each.weight_bytes), gibibytes(each.peak),
         f"{each.passes} x {span_text(each.time)}" if each.passes > 1 else span_text(each.time))
        for each in one.parts
    ]  # fmt: skip
    total = one.parameters
    rows.append(("all", "", f"{total:,}", gibibytes(sum(each.weight_bytes for each in one.parts)), "", ""))
    header = ("component", "class", "parameters (counted)", "weights", "alone (estimate)", "time (estimate)")
    return [terminal.table(rows, header, indent=2, right=(2, 3, 4))]


def _counted(part: Part) -> str:
    active = "" if part.active == part.parameters else f", {part.active:,} of them for one token"
    return f"{part.parameters:,}{active} (counted); {gibibytes(part.weight_bytes)} of weights in all"


def _memory(one: Estimate) -> list[RenderableType]:
    memory = one.memory
    buffers = f" and {gibibytes(memory.buffers)} of HCCL's buffers" if memory.buffers else ""
    usable = "an unknown size" if memory.usable is None else f"{gibibytes(memory.usable)} (profile)"
    lines = [f"{gibibytes(memory.peak)} at the peak (estimate){buffers}, of {usable}: {memory.fit}"]
    lines += [f"the usable size is from {memory.usable_source}"] if memory.usable_source else []
    items = terminal.field("memory", *lines, label_width=12)
    rows = [(name, gibibytes(size)) for name, size in memory.held.items() if size >= 0.001 * memory.peak]
    items.append(terminal.table(rows, indent=12, right=(1,)))
    large = [(name, size) for name, size in memory.largest.items() if size >= 0.02 * memory.peak]
    if large:
        items += terminal.field(
            "", "most of the activations at the peak, by the operator that made them:", label_width=12
        )
        items.append(terminal.table([(name, gibibytes(size)) for name, size in large], indent=12, right=(1,)))
    return items


def _time(one: Estimate) -> list[RenderableType]:
    time = one.time
    if time is None:
        return terminal.field("time", f"unknown: {one.why_no_time}", label_width=12)
    bound = {
        "launches": "host-bound: the host needs longer to launch than the card to compute",
        "copies": "host-bound: the host needs longer to go on after its waits than to launch, and than the card",
        "card": "card-bound: the card computes longer than the host launches",
    }[time.bound]
    lines = [f"{span_text(time.total)} a step (estimate); {bound}"]
    if len(one.parts) > 1:
        lines = [f"{span_text(time.total)} for one picture (estimate); {bound}"]
    lines.append(f"card busy {span_text(time.card)}, host busy {span_text(time.host)}")
    if time.waits:
        times = "once" if time.waits == 1 else f"{time.waits} times"
        lines.append(f"the host waits for the card {times}")
    if time.tokens_per_second.likely:
        low, high = time.tokens_per_second.low, time.tokens_per_second.high
        cards = f" on {one.layout.cards} cards" if one.layout.cards > 1 else ""
        speed = f"{_round(low)} to {_round(high)}" if low else f"at most {_round(high)}"
        lines.append(f"{speed} tokens a second{cards}")
    items = terminal.field("time", *lines, label_width=12)
    rows = [(kind, str(count), span_text(span)) for kind, count, span in time.kinds]
    items.append(terminal.table(rows, ("kind of operator", "launches", "card"), indent=12, right=(1,)))
    for basis in dict.fromkeys(one.basis.values()):
        named = ", ".join(kind for kind, each in one.basis.items() if each == basis)
        items += terminal.field("", f"basis of {named}: {basis}", label_width=12)
    if time.outside:
        waited = [(name, span_text(span)) for name, span in time.outside]
        items.append(terminal.table(waited, ("between cards", "waited for"), indent=12))
    return items


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
