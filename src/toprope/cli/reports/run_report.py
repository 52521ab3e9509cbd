"""The report of a run: what the program did to the card, from the counters of its processes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toprope import chips, sizes
from toprope.cli.launch.select_target import Choice
from toprope.cli.reports.failure import Ending, Failure, find
from toprope.cli.reports.run_cores import CoresCheck
from toprope.cli.reports.trace_file import TraceFile
from toprope.estimate.cost.span import seconds_text
from toprope.sim.metrics.counters import Counters, Lack
from toprope.sim.metrics.totals import AssumedDtype, Cause, Totals
from toprope.sim.rehearsal.facts import Finding, Rehearsal, facts_of_run, place_text, short_name
from toprope.sim.rehearsal.module_numbers import BadModule, Deviation
from toprope.sim.rehearsal.record_file import Record
from toprope.sim.tracing.timing import Timing
from toprope.terminal import field, render

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Outcome", "as_dict", "as_json_line", "as_text"]


@dataclass(frozen=True)
class Outcome:
    """One finished run.

    Attributes:
        choice: the card that the program had.
        seconds: wall time of the program.
        status: its exit status; the negative number of the signal that killed it.
        processes: the counters of every process in which the simulated card was installed.
        trace: what became of the trace; None where none was asked for.
        notes: what there is to say about the program beyond figures, a line each.
        mask: ASCEND_RT_VISIBLE_DEVICES as the program was given it; None where it was not set.
        cores: what the check of its cores found; None where none was asked for.
        endings: the errors that ended its processes.
        folder: the folder it was started in; files below it are shown without it.
        records: the records of its processes' rehearsals, by process; none where none was recorded.
        timings: how long the card would take, by chip.
        deviations: of modules from float32.
        bad_modules: of the first bad numbers.
    """

    choice: Choice
    seconds: float
    status: int
    processes: tuple[Counters, ...] = ()
    trace: TraceFile | None = None
    notes: tuple[str, ...] = ()
    mask: str | None = None
    cores: CoresCheck | None = None
    endings: tuple[Ending, ...] = ()
    folder: str = ""
    records: Mapping[int, Record] = dataclass_field(default_factory=dict)
    timings: Mapping[str, Timing] = dataclass_field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    bad_modules: tuple[BadModule, ...] = ()

    @cached_property
    def rehearsals(self) -> tuple[Rehearsal, ...]:
        """The facts of the run, one entry for each chip."""
        stopped = f"signal {-self.status}" if self.status < 0 else f"exit status {self.status}" if self.status else ""
        return facts_of_run(
            self.processes,
            self.records,
            self.choice.spec,
            self.mask,
            stopped,
            self.timings,
            self.deviations,
            self.bad_modules,
        )


def as_text(outcome: Outcome, *, width: int | None = None, colour: bool = False) -> str:
    """The report for a reader, a few lines; width and colour as of `toprope.terminal.render`."""
    notes = (row for text in outcome.notes for row in _row("note", text))
    cores = () if outcome.cores is None else outcome.cores.text
    return render(*_items(outcome), *notes, *cores, width=width, colour=colour)


def as_json_line(outcome: Outcome) -> str:
    """The report for a machine, one line."""
    return json.dumps(as_dict(outcome), ensure_ascii=False) + "\n"


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The report as plain data: sizes in bytes, times in seconds.

    `simulated` has one entry for each chip that a process had: one, unless children were given another.
    """
    choice = outcome.choice
    probe = choice.probe
    failure = _failure(outcome)
    return {
        "device": choice.device,
        "chosen_by": "toprope" if choice.automatic else "user",
        "exit_status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        "real_card": None
        if probe is None
        else {
            "state": probe.state,
            "torch_npu": probe.version or None,
            "name": probe.name or None,
            "count": probe.count,
            "reason": probe.reason or None,
        },
        "simulated": [_rehearsal_as_dict(one, bool(outcome.records)) for one in outcome.rehearsals],
        "trace": None if outcome.trace is None else asdict(outcome.trace),
        "failed": None if failure is None else _failure_as_dict(failure),
        "lacks": [
            {
                "pid": one.pid,
                "name": record.name,
                "reason": record.lack.name.lower(),
                "dtype": record.dtype,
                "times": record.times,
                "text": record.text,
            }
            for one in outcome.processes
            for record in one.lacks
        ],
        "notes": list(outcome.notes),
        "cores": None if outcome.cores is None else outcome.cores.facts,
    }


def _failure(outcome: Outcome) -> Failure | None:
    return find(outcome.processes, outcome.endings, outcome.status)


def _failure_as_dict(failure: Failure) -> dict[str, Any]:
    return {
        "name": failure.record.name,
        "dtype": failure.record.dtype,
        "reason": failure.record.lack.name.lower(),
        "chip": failure.chip,
        "card": failure.card.verdict,
        "card_text": failure.card.text,
        "certain": failure.certain,
        "rank": failure.rank or None,
        "place": failure.place or None,
        "text": failure.record.text,
    }


def _rehearsal_as_dict(rehearsal: Rehearsal, is_recorded: bool) -> dict[str, Any]:
    facts = _totals_as_dict(rehearsal.totals)
    if is_recorded:
        facts |= {"verdict": rehearsal.verdict, "findings": [asdict(one) for one in rehearsal.findings]}
        facts["time"] = None if rehearsal.timing is None else rehearsal.timing.as_dict()
    return facts


def _totals_as_dict(totals: Totals) -> dict[str, Any]:
    return {
        "chip": totals.chip,
        **_chip_figures(totals.chip),
        "hbm_by_user": totals.hbm_by_user,
        "torch": totals.torch_version,
        "processes": totals.processes,
        "visible_cards": totals.visible,
        "masks": list(totals.masks),
        "used_cards": [
            {
                "card": card.physical,
                "name": card.name,
                "capacity": card.capacity,
                "peak_allocated": card.peak_allocated,
                "peak_reserved": card.peak_reserved,
                "oom_retries": card.oom_retries,
                "ooms": card.ooms,
                "kernels": card.kernels,
            }
            for card in totals.cards
        ],
        "copies": {way: {"number": number, "bytes": size} for way, (number, size) in totals.copies.items()},
        "operators": {
            "calls": totals.operator_calls,
            "kinds": len(totals.operators),
            "by_name": totals.operators,
            "undocumented": {name: list(dtypes) for name, dtypes in totals.undocumented.items()},
            "undocumented_arguments": [asdict(one) for one in totals.assumed_dtypes],
            "assumed_cores": list(totals.assumed_cores),
        },
        "synchronisations": totals.synchronisations,
        **totals.fallbacks_as_dict(),
        "places": {
            "estimated": totals.sampled,
            "copies_back": [asdict(cause) for cause in totals.copies_back],
            "synchronisations": [asdict(cause) for cause in totals.waits],
        },
    }


def _chip_figures(name: str) -> dict[str, int | None]:
    chip = chips.get(name)
    return {"cube_cores": chip.cube_cores, "vector_cores": chip.vector_cores}


def _items(outcome: Outcome) -> Iterator[RenderableType]:
    choice = outcome.choice
    if choice.device != "sim":
        yield _without_simulated_card(outcome)
        yield from _chosen(choice)
        return
    groups = outcome.rehearsals
    origin = [*_chosen(choice), *_row("time", f"{outcome.seconds:.1f} s here, on the host's CPU")]
    if (failure := _failure(outcome)) is not None:
        origin = [*_row("failed", _failure_text(failure, outcome.folder)), *origin]
    if not groups:
        assert choice.spec is not None
        size = sizes.gibibytes(choice.spec.capacity)
        yield (
            "toprope: the program did not touch the card: "
            "none of its processes loaded it (it comes with `import torch`)"
        )
        card = _chip_text(choice.spec.chip, size, choice.spec.hbm is not None)
        yield from _row("card", f"{card}, {choice.spec.count} of it")
        yield from origin
    for place, rehearsal in enumerate(groups):
        totals = rehearsal.totals
        yield _headline(totals)
        if outcome.records and totals.used:
            yield from _row(
                "verdict", f"{rehearsal.verdict}; numbers: {rehearsal.numbers}", *_findings(rehearsal, outcome)
            )
        if place == 0:
            yield from origin
        yield from (row for mask in totals.masks for row in _row("visible", mask))
        if totals.used:
            if rehearsal.timing is not None:
                yield from _row("card time", *_card_time(rehearsal.timing, totals))
            yield from _row("numbers", *numbers_text(rehearsal, outcome.folder))
            yield from _figures(totals, outcome.folder)
    if outcome.trace is not None:
        yield from _row("trace", _trace(outcome.trace))


STEPS = {"training": "a step of training", "inference": "a call of the model", "forward": "a forward pass"}
_MUCH_OF_IT = 0.1
BOUNDS = {
    "launches": "launching on the host",
    "copies": "copies and waits of the host",
    "card": "computing on the card",
}


def _card_time(timing: Timing, totals: Totals) -> Iterator[str]:
    """The time of the card: estimates."""
    if timing.unknown:
        yield f"not known: {timing.unknown}"
        return
    step = f"{timing.step.text} {STEPS[timing.steps[0]]}; " if timing.step is not None else ""
    basis = f"; {timing.measured}" if timing.measured else ""
    yield f"{step}{timing.total.text} in all, bound by {BOUNDS[timing.bound]} (estimate{basis})"
    if timing.own > _MUCH_OF_IT * timing.total.likely:
        yield f"and the program's own code between operators: {seconds_text(timing.own)} here (measured on this host)"
    if timing.generated:
        yield (
            f"{timing.generated} calls of graphs that Inductor compiled: of their generated kernels one pass over "
            "inputs and results counts, so the card may take longer"
        )
    kinds = [f"{kind} {span.text}" for kind, span in list(timing.kinds.items())[:_SHOWN]]
    if kinds:
        yield f"of the card: {', '.join(kinds)}"
    if longer := [name for name, _ in totals.slow] + [one.operator for one in totals.on_host]:
        yield f"longer than that for {', '.join(list(dict.fromkeys(longer))[:_SHOWN])}: slow, or computed by the host"
    yield from (f"saves {one.saves.text}: {one.what}" for one in timing.changes)


def numbers_text(rehearsal: Rehearsal, folder: str) -> list[str]:
    """The first bad numbers, and the modules that deviate most from float32; none where nobody looked."""
    names = {"nan": "NaN", "overflow": "overflow"}
    found = [
        f"first {names[kind]}: {operator}, {place_text(line.file, line.line, folder)}"
        + (f", in {module}" if (module := rehearsal.module_of(kind)) else "")
        for kind, (operator, line) in rehearsal.bad_numbers.items()
    ]
    ordered = sorted(rehearsal.deviations, key=lambda one: -one.largest)
    found += [
        f"deviation from float32: {one.module or 'the outermost module'} ({one.kind}, {one.dtype}) {one.largest:.1e} "
        "of the largest value (measured)"
        for one in ordered[:_SHOWN]
    ]
    return found


def _chosen(choice: Choice) -> list[RenderableType]:
    return _row("chosen", f"by itself: {choice.probe.text}") if choice.automatic and choice.probe is not None else []


def _without_simulated_card(outcome: Outcome) -> str:
    took = f"{outcome.seconds:.1f} s"
    if outcome.choice.device == "npu":
        probe = outcome.choice.probe
        assert probe is not None
        return (
            f"toprope: ran with the real card, {probe.count} x {probe.name} (torch_npu {probe.version}), {took}; "
            "its memory and copies are not counted"
        )
    name = {"cpu": "the CPU", "cuda": "CUDA"}[outcome.choice.device]
    return f"toprope: ran with {name} (--device {outcome.choice.device}), {took}; there was no NPU, real or simulated"


def _headline(totals: Totals) -> str:
    size = sizes.gibibytes(max((card.capacity for card in totals.cards), default=0))
    chip = _chip_text(totals.chip, size, totals.hbm_by_user)
    seen = "" if totals.visible is None else f", {totals.visible} card{'' if totals.visible == 1 else 's'}"
    cards = seen + (f", {totals.processes} processes" if totals.processes > 1 else "")
    torch = f"torch {totals.torch_version.partition('+')[0]}"
    if totals.visible == 0:
        return f"toprope: the program saw none of the simulated Ascend {totals.chip}, {torch}"
    if not totals.used:
        return f"toprope: the program did not use its card, a simulated Ascend {totals.chip}{cards}, {torch}"
    names = _and([card.name for card in totals.cards]) or "no memory of any card"
    return f"toprope: ran on {names}, a simulated Ascend {chip}{cards}, {torch}"


def _chip_text(name: str, size: str, by_user: bool) -> str:
    figures = _chip_figures(name)
    cores = [f"{number} {kind.removesuffix('_cores')}" for kind, number in figures.items() if number]
    parts = [f"{' / '.join(cores)} cores"] if cores else []
    parts.append(f"{size}, set by the user" if by_user else size)
    return f"{name} ({', '.join(parts)})"


_LACKS = {
    Lack.KERNEL: "an operator had no kernel here",
    Lack.DTYPE: "an operator had no kernel here",
    Lack.LAYOUT: "an operator had no kernel here for sparse, nested or quantized tensors",
    Lack.REFUSED: "an operator refused a dtype",
    Lack.BY_TEST: "an operator refused a dtype",
    Lack.FORMAT: "an operator refused an argument",
    Lack.INDEX: "an operator read an index that no element has",
    Lack.NAME: "a name is missing here",
}


def _failure_text(failure: Failure, folder: str) -> str:
    record = failure.record
    dtype = f" ({record.dtype})" if record.dtype else ""
    rank = f"rank {failure.rank}: " if failure.rank else ""
    perhaps = "" if failure.certain else "perhaps because "
    place = f", {short_name(failure.place, folder)}" if failure.place else ""
    return f"{rank}{perhaps}{_LACKS[record.lack]}: {record.name}{dtype}{place}; {failure.card.text}"


_SHOWN = 3  # most frequent causes of a figure


def _causes(causes: Sequence[Cause], totals: Totals, folder: str, label: str = "") -> list[str]:
    return [
        f"{label}{cause.operation}  {place_text(cause.file, cause.line, folder)}  {_times(cause.times, totals.sampled)}"
        for cause in causes[:_SHOWN]
    ]


def _findings(rehearsal: Rehearsal, outcome: Outcome) -> Iterator[str]:
    for one in rehearsal.findings[:_SHOWN]:
        yield finding_text(one, outcome.folder)
        if one.kind == "memory":
            yield from _holders(rehearsal, outcome.folder)
    if (more := len(rehearsal.findings) - _SHOWN) > 0:
        yield f"and {more} more: --report FILE.html has all"


def finding_text(finding: Finding, folder: str) -> str:
    """A finding in one line.

    Args:
        finding: the finding.
        folder: files below it are shown without it.
    """
    place = f", {place_text(finding.file, finding.line, folder)}" if finding.file else ""
    times = f" ({_times(finding.times)})" if finding.times > 1 and finding.kind != "sync-in-loop" else ""
    return f"{finding.text}{times}{place}{f'; {finding.advice}' if finding.advice else ''}"


def _holders(rehearsal: Rehearsal, folder: str) -> Iterator[str]:
    """The lines and kinds that held the memory when an allocation failed."""
    for shortage in (one.shortage for one in rehearsal.memory if one.shortage is not None):
        kinds = _kinds(shortage.kinds) or "nothing"
        yield f"in use when {sizes.gibibytes(shortage.wanted)} more were wanted: {kinds}"
        for held in shortage.lines[:_SHOWN]:
            where = held.line.group or place_text(held.line.file, held.line.line, folder)
            yield f"held by {where}: {_kinds(held.bytes)}"
        yield from (f"would fit: {text}" for text in shortage.advice[1:])


def _kinds(kinds: Mapping[str, int]) -> str:
    """Bytes by kind, the most first."""
    return ", ".join(f"{kind} {sizes.gibibytes(size)}" for kind, size in sorted(kinds.items(), key=lambda one: -one[1]))


def _times(number: int, estimated: bool = False) -> str:
    text = "once" if number == 1 else f"{_number(number)} times"
    return f"about {text}" if estimated else text


def _assumed(one: AssumedDtype) -> str:
    return "  ".join(
        [one.operator, *([one.argument] if one.argument else []), one.dtype, f"the operator ran {_times(one.calls)}"]
    )


def _figures(totals: Totals, folder: str) -> Iterator[RenderableType]:
    memory = []
    for card in totals.cards:
        text = (
            f"peak {sizes.gibibytes(card.peak_allocated)} of {sizes.gibibytes(card.capacity)}, "
            f"{_number(card.oom_retries)} out-of-memory retries"
        )
        if card.ooms:
            text += f", {_number(card.ooms)} allocation{'s' if card.ooms != 1 else ''} failed"
        memory.append(f"{card.name} {text}" if len(totals.cards) > 1 else text)
    if totals.processes > 1:
        memory.append(f"each peak is the largest of any one of the {totals.processes} processes")
    yield from _row("memory", *memory)
    (to, to_bytes), (back, back_bytes), (between, between_bytes) = totals.copies.values()
    yield from _row(
        "copies",
        f"{_number(to)} to the card ({sizes.decimal(to_bytes)}), {_number(back)} back ({sizes.decimal(back_bytes)}), "
        f"{_number(between)} between cards" + (f" ({sizes.decimal(between_bytes)})" if between else ""),
        *_causes(totals.copies_back, totals, folder, "back: "),
    )
    yield from _row("operators", _operators(totals), *map(_assumed, totals.assumed_dtypes[:_SHOWN]))
    if totals.on_host or totals.perhaps_on_host:
        yield from _row("on host", *_on_host(totals, folder))
    if totals.slow:
        yield from _row("slow", *(f"{operator}: {why}" for operator, why in totals.slow[:_SHOWN]))
    if kernels := sum(card.kernels for card in totals.cards):
        yield from _row("kernels", f"{_number(kernels)} launched by the program")
    waits = totals.synchronisations
    yield from _row(
        "waits",
        f"{_number(waits)} synchronisation{'' if waits == 1 else 's'}",
        *_causes(totals.waits, totals, folder),
    )


def _on_host(totals: Totals, folder: str) -> Iterator[str]:
    kinds = len({one.operator for one in totals.on_host})
    yield f"{_number(kinds)} operator{'' if kinds == 1 else 's'} without a kernel in {totals.torch_npu}"
    for one in totals.on_host[:_SHOWN]:
        copied = f"{sizes.decimal(one.bytes_to_host)} to the host, {sizes.decimal(one.bytes_back)} back"
        place = place_text(one.file, one.line, folder)
        advice = f"; {one.advice}" if one.advice else ""
        yield f"{one.operator}  {place}  {_times(one.times)}, {copied}{advice}"
    for operator, why in totals.perhaps_on_host[:_SHOWN]:
        yield f"perhaps {operator}: {why}"


def _operators(totals: Totals) -> str:
    text = f"{_number(totals.operator_calls)} ({_number(len(totals.operators))} kinds)"
    if totals.undocumented:
        text += (
            f", {_number(len(totals.undocumented))} of them with a dtype that no document of the vendor mentions"
            " (assumed to run)"
        )
    if assumed := len(totals.assumed_cores):
        text += f"; {_number(assumed)} assumed core count{'' if assumed == 1 else 's'}"
    return text


def _trace(trace: TraceFile) -> str:
    if trace.error:
        return f"could not be written to {trace.path}: {trace.error}"
    if not trace.processes:
        return f"{trace.path} is empty: no process loaded the card"
    several = f" of {trace.processes} processes" if trace.processes > 1 else ""
    lost = f", the {_number(trace.lost)} oldest were lost" if trace.lost else ""
    return f"{trace.path} holds {_number(trace.records)} records{several}{lost}; ui.perfetto.dev opens it"


def _row(name: str, *texts: str) -> list[RenderableType]:
    return field(name, *texts, label_width=14, indent=2)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _and(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])
