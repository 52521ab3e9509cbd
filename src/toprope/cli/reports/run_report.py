"""The report at the end of `toprope run`: what the program did to the card, as text, and as JSON. Pure.

Called by `cli.run` and `rehearsal_file`. The counters are `sim.metrics`, findings and times `sim.rehearsal.facts`. The
keys of `as_dict` are the interface of `--json`; texts are free, and translated (locale/zh.po). An estimate is always
marked as one. Tests: tests/cli/test_report.py from counters made by hand, tests/cli/test_rehearsal_file.py (findings,
time), tests/cli/test_language.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toprope import chips, sizes
from toprope.cli.launch.select_target import Choice
from toprope.cli.reports.failure import Failure, FatalError, find
from toprope.cli.reports.run_cores import CoresCheck
from toprope.cli.reports.trace_file import TraceFile
from toprope.estimate.cost.span import seconds_text
from toprope.messages import Message, joined
from toprope.sim.metrics.counters import Counters, Lack
from toprope.sim.metrics.totals import AssumedDtype, Cause, Totals
from toprope.sim.rehearsal.facts import KIND_NAMES, Finding, Rehearsal, facts_of_run, place_text, short_name
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
        fatal_errors: the errors that ended its processes.
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
    fatal_errors: tuple[FatalError, ...] = ()
    folder: str = ""
    records: Mapping[int, Record] = dataclass_field(default_factory=dict)
    timings: Mapping[str, Timing] = dataclass_field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    bad_modules: tuple[BadModule, ...] = ()

    @cached_property
    def rehearsals(self) -> tuple[Rehearsal, ...]:
        """The facts of the run, one entry for each chip."""
        stopped: str = ""
        if self.status < 0:
            stopped = Message("signal {number}", number=-self.status)
        elif self.status:
            stopped = Message("exit status {number}", number=self.status)
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
    notes = (row for text in outcome.notes for row in _row(Message("note"), text))
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
    return find(outcome.processes, outcome.fatal_errors, outcome.status)


def _failure_as_dict(failure: Failure) -> dict[str, Any]:
    """The lack that ended the program, as plain data."""
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
    """The counters of the cards of one chip, as plain data."""
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
    """Yield the parts of the report in their order: card, failure, figures, findings, files."""
    choice = outcome.choice
    if choice.device != "sim":
        yield _without_simulated_card(outcome)
        yield from _chosen(choice)
        return
    groups = outcome.rehearsals
    origin = [
        *_chosen(choice),
        *_row(Message("time"), Message("{seconds:.1f} s here, on the host's CPU", seconds=outcome.seconds)),
    ]
    if (failure := _failure(outcome)) is not None:
        origin = [*_row(Message("failed"), _failure_text(failure, outcome.folder)), *origin]
    if not groups:
        assert choice.spec is not None
        size = sizes.gibibytes(choice.spec.capacity)
        yield Message(
            "toprope: the program did not touch the card: none of its processes loaded it (it comes with "
            "`import torch`)"
        )
        card = _chip_text(choice.spec.chip, size, choice.spec.hbm is not None)
        yield from _row(Message("card"), Message("{card}, {count} of it", card=card, count=choice.spec.count))
        yield from origin
    for place, rehearsal in enumerate(groups):
        totals = rehearsal.totals
        yield _headline(totals)
        if outcome.records and totals.used:
            yield from _row(
                Message("verdict"),
                Message("{verdict}; numbers: {numbers}", verdict=rehearsal.verdict, numbers=rehearsal.numbers),
                *_findings(rehearsal, outcome),
            )
        if place == 0:
            yield from origin
        yield from (row for mask in totals.masks for row in _row(Message("visible"), mask))
        if totals.used:
            if rehearsal.timing is not None:
                yield from _row(Message("card time"), *_card_time(rehearsal.timing, totals))
            yield from _row(Message("numbers"), *numbers_text(rehearsal, outcome.folder))
            yield from _figures(totals, outcome.folder)
    if outcome.trace is not None:
        yield from _row(Message("trace"), _trace(outcome.trace))


STEPS = {
    "training": Message("a step of training"),
    "inference": Message("a call of the model"),
    "forward": Message("a forward pass"),
}
_MUCH_OF_IT = 0.1
BOUNDS = {
    "launches": Message("launching on the host"),
    "copies": Message("copies and waits of the host"),
    "card": Message("computing on the card"),
}


def _card_time(timing: Timing, totals: Totals) -> Iterator[str]:
    """The time of the card: estimates."""
    if timing.unknown:
        yield Message("not known: {unknown}", unknown=timing.unknown)
        return
    step: str = ""
    if timing.step is not None:
        step = Message("{time} {step}; ", time=timing.step.text, step=STEPS[timing.steps[0]])
    basis = Message("; {measured}", measured=timing.measured) if timing.measured else ""
    yield Message(
        "{step}{time} in all, bound by {bound} (estimate{basis})",
        step=step,
        time=timing.total.text,
        bound=BOUNDS[timing.bound],
        basis=basis,
    )
    if timing.own > _MUCH_OF_IT * timing.total.likely:
        yield Message(
            "and the program's own code between operators: {own} here (measured on this host)",
            own=seconds_text(timing.own),
        )
    if timing.generated:
        yield Message(
            "{generated} calls of graphs that Inductor compiled: of their generated kernels one pass over inputs and "
            "results counts, so the card may take longer",
            generated=timing.generated,
        )
    kinds = [f"{kind} {span.text}" for kind, span in list(timing.kinds.items())[:_SHOWN]]
    if kinds:
        yield Message("of the card: {kinds}", kinds=joined(", ", kinds))
    if longer := [name for name, _ in totals.slow] + [one.operator for one in totals.on_host]:
        yield Message(
            "longer than that for {operators}: slow, or computed by the host",
            operators=joined(", ", list(dict.fromkeys(longer))[:_SHOWN]),
        )
    yield from (Message("saves {time}: {what}", time=one.saves.text, what=one.what) for one in timing.changes)


def numbers_text(rehearsal: Rehearsal, folder: str) -> list[str]:
    """The first bad numbers, and the modules that deviate most from float32; none where nobody looked."""
    names = {"nan": "NaN", "overflow": Message("overflow")}
    found: list[str] = [
        Message(
            "first {kind}: {operator}, {place}{within}",
            kind=names[kind],
            operator=operator,
            place=place_text(line.file, line.line, folder),
            within=Message(", in {module}", module=module) if (module := rehearsal.module_of(kind)) else "",
        )
        for kind, (operator, line) in rehearsal.bad_numbers.items()
    ]
    ordered = sorted(rehearsal.deviations, key=lambda one: -one.largest)
    found += [
        Message(
            "deviation from float32: {module} ({kind}, {dtype}) {largest:.1e} of the largest value (measured)",
            module=one.module or Message("the outermost module"),
            kind=one.kind,
            dtype=one.dtype,
            largest=one.largest,
        )
        for one in ordered[:_SHOWN]
    ]
    return found


def _chosen(choice: Choice) -> list[RenderableType]:
    return (
        _row(Message("chosen"), Message("by itself: {probe}", probe=choice.probe.text))
        if choice.automatic and choice.probe is not None
        else []
    )


def _without_simulated_card(outcome: Outcome) -> str:
    """The line about a run that used a real card, CUDA or the CPU."""
    took = f"{outcome.seconds:.1f} s"
    if outcome.choice.device == "npu":
        probe = outcome.choice.probe
        assert probe is not None
        return Message(
            "toprope: ran with the real card, {count} x {name} (torch_npu {version}), {took}; its "
            "memory and copies are not counted",
            count=probe.count,
            name=probe.name,
            version=probe.version,
            took=took,
        )
    name = {"cpu": Message("the CPU"), "cuda": "CUDA"}[outcome.choice.device]
    return Message(
        "toprope: ran with {name} (--device {device}), {took}; there was no NPU, real or simulated",
        name=name,
        device=outcome.choice.device,
        took=took,
    )


def _headline(totals: Totals) -> str:
    """The first line: the simulated chip, its memory, number of cards and processes, torch."""
    size = sizes.gibibytes(max((card.capacity for card in totals.cards), default=0))
    chip = _chip_text(totals.chip, size, totals.hbm_by_user)
    seen = (
        ""
        if totals.visible is None
        else Message(", {visible} card{s}", visible=totals.visible, s="" if totals.visible == 1 else "s")
    )
    cards = seen + (Message(", {processes} processes", processes=totals.processes) if totals.processes > 1 else "")
    torch = f"torch {totals.torch_version.partition('+')[0]}"
    if totals.visible == 0:
        return Message(
            "toprope: the program saw none of the simulated Ascend {chip}, {torch}", chip=totals.chip, torch=torch
        )
    if not totals.used:
        return Message(
            "toprope: the program did not use its card, a simulated Ascend {chip}{cards}, {torch}",
            chip=totals.chip,
            cards=cards,
            torch=torch,
        )
    names = _and([card.name for card in totals.cards]) or Message("no memory of any card")
    return Message(
        "toprope: ran on {names}, a simulated Ascend {chip}{cards}, {torch}",
        names=names,
        chip=chip,
        cards=cards,
        torch=torch,
    )


def _chip_text(name: str, size: str, by_user: bool) -> str:
    figures = _chip_figures(name)
    cores = [f"{number} {kind.removesuffix('_cores')}" for kind, number in figures.items() if number]
    parts: list[str] = [Message("{cores} cores", cores=" / ".join(cores))] if cores else []
    parts.append(Message("{size}, set by the user", size=size) if by_user else size)
    return Message("{chip} ({facts})", chip=name, facts=joined(", ", parts))


_LACKS = {
    Lack.KERNEL: Message("an operator had no kernel here"),
    Lack.DTYPE: Message("an operator had no kernel here"),
    Lack.LAYOUT: Message("an operator had no kernel here for sparse, nested or quantized tensors"),
    Lack.REFUSED: Message("an operator refused a dtype"),
    Lack.BY_TEST: Message("an operator refused a dtype"),
    Lack.FORMAT: Message("an operator refused an argument"),
    Lack.INDEX: Message("an operator read an index that no element has"),
    Lack.NAME: Message("a name is missing here"),
    Lack.DIMENSIONS: Message("an operator refused a tensor with that many dimensions"),
}


def _failure_text(failure: Failure, folder: str) -> str:
    """One sentence about the lack that ended the program, and a real card's answer."""
    record = failure.record
    dtype = f" ({record.dtype})" if record.dtype else ""
    rank = Message("rank {rank}: ", rank=failure.rank) if failure.rank else ""
    perhaps = "" if failure.certain else Message("perhaps because ")
    place = f", {short_name(failure.place, folder)}" if failure.place else ""
    lack = Lack.FORMAT if record.lack is Lack.REFUSED and not record.dtype else record.lack
    return Message(
        "{rank}{perhaps}{lack}: {name}{dtype}{place}; {card}",
        rank=rank,
        perhaps=perhaps,
        lack=_LACKS[lack],
        name=record.name,
        dtype=dtype,
        place=place,
        card=failure.card.text,
    )


_SHOWN = 3  # most frequent causes of a figure


def _causes(causes: Sequence[Cause], totals: Totals, folder: str, label: str = "") -> list[str]:
    return [
        Message(
            "{label}{operation}  {place}  {times}",
            label=label,
            operation=cause.operation,
            place=place_text(cause.file, cause.line, folder),
            times=_times(cause.times, totals.sampled),
        )
        for cause in causes[:_SHOWN]
    ]


def _findings(rehearsal: Rehearsal, outcome: Outcome) -> Iterator[str]:
    for one in rehearsal.findings[:_SHOWN]:
        yield finding_text(one, outcome.folder)
        if one.kind == "memory":
            yield from _holders(rehearsal, outcome.folder)
    if (more := len(rehearsal.findings) - _SHOWN) > 0:
        yield Message("and {more} more: --report FILE.html has all", more=more)


def finding_text(finding: Finding, folder: str) -> str:
    """A finding in one line.

    Args:
        finding: the finding.
        folder: files below it are shown without it.
    """
    place = Message(", {place}", place=place_text(finding.file, finding.line, folder)) if finding.file else ""
    shows_times = finding.times > 1 and finding.kind != "sync-in-loop"
    times = Message(" ({times})", times=_times(finding.times)) if shows_times else ""
    advice = Message("; {advice}", advice=finding.advice) if finding.advice else ""
    return Message("{text}{times}{place}{advice}", text=finding.text, times=times, place=place, advice=advice)


def _holders(rehearsal: Rehearsal, folder: str) -> Iterator[str]:
    """The lines and kinds that held the memory when an allocation failed."""
    for shortage in (one.shortage for one in rehearsal.memory if one.shortage is not None):
        kinds = _kinds(shortage.kinds) or Message("nothing")
        yield Message(
            "in use when {wanted} more were wanted: {kinds}", wanted=sizes.gibibytes(shortage.wanted), kinds=kinds
        )
        for held in shortage.lines[:_SHOWN]:
            where = held.line.group or place_text(held.line.file, held.line.line, folder)
            yield Message("held by {where}: {kinds}", where=where, kinds=_kinds(held.bytes))
        yield from (Message("would fit: {advice}", advice=text) for text in shortage.advice[1:])


def _kinds(kinds: Mapping[str, int]) -> str:
    """Bytes by kind, the most first."""
    return joined(
        ", ",
        (
            Message("{kind} {size}", kind=KIND_NAMES[kind], size=sizes.gibibytes(size))
            for kind, size in sorted(kinds.items(), key=lambda one: -one[1])
        ),
    )


def _times(number: int, estimated: bool = False) -> str:
    text = Message("once") if number == 1 else Message("{number} times", number=_number(number))
    return Message("about {times}", times=text) if estimated else text


def _assumed(one: AssumedDtype) -> str:
    argument = [one.argument] if one.argument else []
    ran = Message("the operator ran {times}", times=_times(one.calls))
    return joined("  ", [one.operator, *argument, one.dtype, ran])


def _figures(totals: Totals, folder: str) -> Iterator[RenderableType]:
    """Yield the rows of figures: memory, operators, copies, synchronisations, times."""
    memory = []
    for card in totals.cards:
        text = Message(
            "peak {peak_allocated} of {capacity}, {oom_retries} out-of-memory retries",
            peak_allocated=sizes.gibibytes(card.peak_allocated),
            capacity=sizes.gibibytes(card.capacity),
            oom_retries=_number(card.oom_retries),
        )
        if card.ooms:
            text += Message(", {ooms} allocation{s} failed", ooms=_number(card.ooms), s="s" if card.ooms != 1 else "")
        memory.append(Message("{card} {text}", card=card.name, text=text) if len(totals.cards) > 1 else text)
    if totals.processes > 1:
        memory.append(
            Message("each peak is the largest of any one of the {processes} processes", processes=totals.processes)
        )
    yield from _row(Message("memory"), *memory)
    (to, to_bytes), (back, back_bytes), (between, between_bytes) = totals.copies.values()
    yield from _row(
        Message("copies"),
        Message(
            "{to} to the card ({to_bytes}), {back} back ({back_bytes}), {between} between cards{between_bytes}",
            to=_number(to),
            to_bytes=sizes.decimal(to_bytes),
            back=_number(back),
            back_bytes=sizes.decimal(back_bytes),
            between=_number(between),
            between_bytes=f" ({sizes.decimal(between_bytes)})" if between else "",
        ),
        *_causes(totals.copies_back, totals, folder, Message("back: ")),
    )
    yield from _row(Message("operators"), _operators(totals), *map(_assumed, totals.assumed_dtypes[:_SHOWN]))
    if totals.on_host or totals.perhaps_on_host:
        yield from _row(Message("on host"), *_on_host(totals, folder))
    if totals.slow:
        yield from _row(
            Message("slow"), *(Message("{name}: {why}", name=name, why=why) for name, why in totals.slow[:_SHOWN])
        )
    if kernels := sum(card.kernels for card in totals.cards):
        yield from _row(Message("kernels"), Message("{kernels} launched by the program", kernels=_number(kernels)))
    waits = totals.synchronisations
    yield from _row(
        Message("waits"),
        Message("{waits} synchronisation{s}", waits=_number(waits), s="" if waits == 1 else "s"),
        *_causes(totals.waits, totals, folder),
    )


def _on_host(totals: Totals, folder: str) -> Iterator[str]:
    """Yield a line for each operator that runs on the host, with the bytes that it copies."""
    kinds = len({one.operator for one in totals.on_host})
    yield Message(
        "{kinds} operator{s} without a kernel in {torch_npu}",
        kinds=_number(kinds),
        s="" if kinds == 1 else "s",
        torch_npu=totals.torch_npu,
    )
    for one in totals.on_host[:_SHOWN]:
        copied = Message(
            "{bytes_to_host} to the host, {bytes_back} back",
            bytes_to_host=sizes.decimal(one.bytes_to_host),
            bytes_back=sizes.decimal(one.bytes_back),
        )
        place = place_text(one.file, one.line, folder)
        advice = Message("; {advice}", advice=one.advice) if one.advice else ""
        yield Message(
            "{operator}  {place}  {times}, {copied}{advice}",
            operator=one.operator,
            place=place,
            times=_times(one.times),
            copied=copied,
            advice=advice,
        )
    for operator, why in totals.perhaps_on_host[:_SHOWN]:
        yield Message("perhaps {operator}: {why}", operator=operator, why=why)


def _operators(totals: Totals) -> str:
    """Count the calls and kinds of operators, and those of which something is assumed."""
    text = Message(
        "{calls} ({kinds} kinds)",
        calls=_number(totals.operator_calls),
        kinds=_number(len(totals.operators)),
    )
    if totals.undocumented:
        text += Message(
            ", {undocumented} of them with a dtype that no document of the vendor mentions (assumed to run)",
            undocumented=_number(len(totals.undocumented)),
        )
    if assumed := len(totals.assumed_cores):
        text += Message("; {assumed} assumed core count{s}", assumed=_number(assumed), s="" if assumed == 1 else "s")
    return text


def _trace(trace: TraceFile) -> str:
    """One sentence about the trace file."""
    if trace.error:
        return Message("could not be written to {path}: {error}", path=trace.path, error=trace.error)
    if not trace.processes:
        return Message("{path} is empty: no process loaded the card", path=trace.path)
    several = Message(" of {processes} processes", processes=trace.processes) if trace.processes > 1 else ""
    lost = Message(", the {lost} oldest were lost", lost=_number(trace.lost)) if trace.lost else ""
    return Message(
        "{path} holds {records} records{several}{lost}; ui.perfetto.dev opens it",
        path=trace.path,
        records=_number(trace.records),
        several=several,
        lost=lost,
    )


def _row(name: Message, *texts: str) -> list[RenderableType]:
    return field(name, *texts, label_width=14, indent=2)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _and(names: Sequence[str]) -> str:
    return joined(" and ", [*([joined(", ", names[:-1])] if len(names) > 1 else []), *names[-1:]])
