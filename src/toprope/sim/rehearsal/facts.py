"""The facts of a rehearsal: verdict, findings, memory by kind and line, copies and waits by line; pure.

`toprope run --report`, `toprope.sim.rehearse` and the pytest plugin read them from here; cli/reports/rehearsal_page.py
and rehearsal_file.py show them. A new fact of `as_dict` needs its line in ../rehearsal.schema.json, a new text its
translation (scripts/messages.py). Tests: tests/sim/test_rehearsal.py, and tests/cli/test_rehearsal_file.py for the
schema.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from math import ceil
from typing import Any, Literal

from toprope import __version__, chips
from toprope.messages import Message, joined
from toprope.sim.metrics.counters import BACKWARD, NO_PYTHON, Counters, Lack, LackRecord, Site
from toprope.sim.metrics.totals import Card, Totals, merge
from toprope.sim.rehearsal.module_numbers import BadModule, Deviation
from toprope.sim.rehearsal.record_file import KINDS, STEPS, CardMemory, Held, Line, Record, Sample
from toprope.sim.spec import SimSpec
from toprope.sim.tracing.timing import Timing
from toprope.sizes import gibibytes
from toprope.support import operators_on_card

__all__ = [
    "TROUBLES", "Finding", "MemoryOfCard", "Rehearsal", "Shortage", "Wait", "facts_of", "facts_of_run", "place_text",
    "schema", "short_name",
]  # fmt: skip

Fit = Literal["fits", "may not fit", "does not fit"]
Trouble = Literal["refused", "memory", "host", "sync-in-loop"]
TROUBLES: tuple[Trouble, ...] = ("refused", "memory", "host", "sync-in-loop")
"""Kinds of findings, in the order in which they are shown."""

UNKNOWN_SHARE = 0.10
"""Share of the memory for what no document gives: an assumption.

It is the workspace of operators, and the driver's part where the usable memory of a chip is not published.
"""

NOT_ALLOCATABLE = 0.0105
"""Share of the usable memory that a program does not get.

FlagPerf measured 60.32 GiB as the most that a program allocates on an Atlas 800T A2, whose cards have 60.96 GiB.
"""

SCALER = "the gradient scaler's look for overflows"
"""The operation of the waits of torch.amp.GradScaler (csrc/torch/sites.cpp), which come with using it."""

NUMBERS = {
    "host": Message("computed on the CPU"),
    "card": Message(
        "computed on the CPU, products and convolutions of float32 in HF32 where the program's settings allow it"
    ),
}
"""Ways to compute numbers, by the `numerics` of the cards."""

KIND_NAMES = {
    "others": Message("others"), "weights": Message("weights"), "gradients": Message("gradients"),
    "optimizer": Message("optimizer"), "activations": Message("activations"),
}  # fmt: skip
"""Kinds of memory in words."""

_FITS: dict[Fit, str] = {
    "fits": Message("fits"), "does not fit": Message("does not fit"), "may not fit": Message("may not fit"),
}  # fmt: skip
_STEPS = {"training": Message("training"), "inference": Message("inference"), "forward": Message("inference")}
_WITHOUT_WORKSPACE = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "fill_", "zero_", "copy_", "resize_", "set_")
)
_REFUSED = (Lack.REFUSED, Lack.FORMAT, Lack.DIMENSIONS)
_FEWEST_STEPS, _IN_LOOP = 3, 0.9
_MOST_LINES = 24


@dataclass(frozen=True)
class Finding:
    """A trouble that the real card would have with the program.

    Attributes:
        kind: one of TROUBLES.
        text: the trouble, without its place.
        file: Python file; "" where it is not known.
        line: number of the line; 0 where it is not known.
        times: how often it happened.
        advice: what to write instead; "" where that is not known.
    """

    kind: Trouble
    text: str
    file: str = ""
    line: int = 0
    times: int = 1
    advice: str = ""


@dataclass(frozen=True)
class Wait:
    """A line of the program that copies from a card or waits for one.

    Attributes:
        operation: operator or call.
        file: Python file, or BACKWARD or NO_PYTHON of `toprope.sim.metrics.counters`.
        line: number of the line.
        waits: times that the host waited there.
        copies_back: copies from a card to the host.
        in_loop: whether it happens in every step.
        steps: steps of the kind that it happens in, such as "99 of 100 training steps"; "" where it is in no loop.
    """

    operation: str
    file: str
    line: int
    waits: int
    copies_back: int
    in_loop: bool = False
    steps: str = ""


@dataclass(frozen=True)
class Shortage:
    """An allocation that failed.

    Attributes:
        wanted: its bytes.
        line: the line that asked for it.
        kinds: bytes in use then, by kind.
        lines: what held them, the most first.
        advice: changes that would make it fit, each an estimate from these figures.
    """

    wanted: int
    line: Line
    kinds: Mapping[str, int]
    lines: tuple[Held, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True)
class MemoryOfCard:
    """The memory of one card; sizes in bytes.

    Attributes:
        card: its name.
        capacity: memory that a program gets.
        basis: where that figure is from: "profile", "nominal" (the usable figure is not known) or "user".
        peak: most memory that tensors of one process held at once.
        reserved: most memory that its allocator held.
        runtime: buffers of communicators (HCCL), which the allocator does not see.
        need: least and most memory that the program needs, an estimate.
        fit: the verdict.
        why: the reason of a verdict other than "fits".
        ooms: allocations that failed.
        kinds: bytes at the peak by kind.
        lines: what held them, the most first.
        samples: memory over time.
        shortage: the last allocation that failed; None for none.
    """

    card: str
    capacity: int
    basis: str
    peak: int
    reserved: int
    runtime: int
    need: tuple[int, int]
    fit: Fit
    why: str
    ooms: int
    kinds: Mapping[str, int]
    lines: tuple[Held, ...]
    samples: tuple[Sample, ...] = ()
    shortage: Shortage | None = None


@dataclass(frozen=True)
class Rehearsal:
    """The facts of a program on the cards of one chip.

    Attributes:
        chip: name of the chip.
        torch_version: torch's version.
        totals: sums of the counters of all processes.
        memory: the cards that were used.
        waits: lines that copy back or wait: those in loops first, then the most frequent.
        findings: troubles, the worst first.
        steps: steps that were counted, by kind.
        estimated: whether the figures of lines are estimates from samples.
        numbers: how numbers were computed.
        stopped: how the program ended, where it failed: "exit status 1", "signal 9".
        timing: how long the card would take; None where nothing was traced.
        bad_numbers: operator and line of the first NaN ("nan") and the first overflow ("overflow"), where numbers were
            looked at.
        deviations: of modules from float32, where numbers were looked at.
        bad_modules: the modules of `bad_numbers`.
    """

    chip: str
    torch_version: str
    totals: Totals
    memory: tuple[MemoryOfCard, ...] = ()
    waits: tuple[Wait, ...] = ()
    findings: tuple[Finding, ...] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    estimated: bool = False
    numbers: str = NUMBERS["host"]
    stopped: str = ""
    timing: Timing | None = None
    bad_numbers: Mapping[str, tuple[str, Line]] = field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    bad_modules: tuple[BadModule, ...] = ()

    @property
    def verdict(self) -> str:
        """The answer in a few words."""
        if not self.totals.used:
            return Message("did not use the card")
        found = Counter(each.kind for each in self.findings)
        parts: list[str] = []
        if found["refused"]:
            parts.append(Message("will be refused ({operators})", operators=_operators(found["refused"])))
        parts += [
            text for fit, text in _FITS.items() if fit != "fits" and any(each.fit == fit for each in self.memory)
        ][:1]
        if found["host"]:
            runs = "" if parts else Message("runs; ")
            falls = "falls" if found["host"] == 1 else "fall"
            operators = _operators(found["host"])
            parts.append(
                Message("{runs}{operators} {falls} back to the host", runs=runs, operators=operators, falls=falls)
            )
        text = joined("; ", parts or [Message("runs on the card")])
        if found["sync-in-loop"]:
            lines = found["sync-in-loop"]
            text += Message("; waits in every step at {lines} line{s}", lines=lines, s="" if lines == 1 else "s")
        if not self.stopped:
            return text
        return Message("ended with {stopped}; until then: {verdict}", stopped=self.stopped, verdict=text)

    @property
    def peak(self) -> int:
        """Most bytes that tensors held at once on any card."""
        return max((each.peak for each in self.memory), default=0)

    @property
    def syncs(self) -> int:
        """Times that the host waited for a card."""
        return self.totals.synchronisations

    def of(self, *kinds: str) -> tuple[Finding, ...]:
        """The findings of these kinds (`TROUBLES`)."""
        return tuple(each for each in self.findings if each.kind in kinds)

    def module_of(self, kind: str) -> str:
        """The module that made the first bad number of a kind, for a reader; "" outside of modules."""
        found = next((each for each in self.bad_modules if each.kind == kind and each.class_name), None)
        return "" if found is None else f"{found.module or 'the outermost module'} ({found.class_name})"

    def as_dict(self) -> dict[str, Any]:
        """The facts as plain data, which `schema()` describes: sizes in bytes, times in seconds."""
        chip = chips.get(self.chip)
        totals = self.totals
        return {
            "chip": self.chip,
            "cube_cores": chip.cube_cores,
            "vector_cores": chip.vector_cores,
            "torch": self.torch_version,
            "toprope": __version__,
            "verdict": self.verdict,
            "numbers": self.numbers,
            "findings": [
                {
                    "kind": one.kind, "text": one.text, "file": one.file, "line": one.line, "times": one.times,
                    "advice": one.advice,
                }
                for one in self.findings
            ],
            "memory": [_memory_as_dict(one) for one in self.memory],
            "copies": {way: {"number": number, "bytes": size} for way, (number, size) in totals.copies.items()},
            "synchronisations": totals.synchronisations,
            "waits": [
                {
                    "operation": one.operation, "file": one.file, "line": one.line, "waits": one.waits,
                    "copies_back": one.copies_back, "in_loop": one.in_loop, "steps": one.steps,
                }
                for one in self.waits
            ],
            "waits_estimated": self.estimated,
            "steps": dict(self.steps),
            "operators": {
                "calls": totals.operator_calls,
                "by_name": totals.operators,
                "undocumented": {name: list(dtypes) for name, dtypes in totals.undocumented.items()},
                "assumed_cores": list(totals.assumed_cores),
            },
            **totals.fallbacks_as_dict(),
            "time": None if self.timing is None else self.timing.as_dict(),
            "first_bad_numbers": {
                kind: {"operator": operator, "file": line.file, "line": line.line, "module": self.module_of(kind)}
                for kind, (operator, line) in self.bad_numbers.items()
            },
            "deviations": [asdict(one) for one in self.deviations],
        }  # fmt: skip


def schema() -> dict[str, Any]:
    """The JSON schema of the file of `toprope run --report FILE.json`."""
    text = resources.files("toprope.sim").joinpath("rehearsal.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _memory_as_dict(one: MemoryOfCard) -> dict[str, Any]:
    return {
        "card": one.card,
        "capacity": one.capacity,
        "capacity_basis": one.basis,
        "peak": one.peak,
        "reserved": one.reserved,
        "runtime": one.runtime,
        "need": {"least": one.need[0], "most": one.need[1], "basis": "estimate"},
        "fit": one.fit,
        "why": one.why,
        "failed_allocations": one.ooms,
        "kinds_at_peak": dict(one.kinds),
        "lines_at_peak": _lines_as_list(one.lines),
        "over_time": [{"seconds": round(each.seconds, 6), "bytes": dict(each.bytes)} for each in one.samples],
        "shortage": None
        if one.shortage is None
        else {
            "wanted": one.shortage.wanted,
            "file": one.shortage.line.file,
            "line": one.shortage.line.line,
            "kinds": dict(one.shortage.kinds),
            "lines": _lines_as_list(one.shortage.lines),
            "advice": list(one.shortage.advice),
        },
    }


def _lines_as_list(lines: Iterable[Held]) -> list[dict[str, Any]]:
    return [
        {"file": one.line.file, "line": one.line.line, "group": one.line.group, "bytes": dict(one.bytes)}
        for one in lines
    ]


def facts_of_run(
    processes: Sequence[Counters],
    records: Mapping[int, Record],
    spec: SimSpec | None,
    mask: str | None = None,
    stopped: str = "",
    timings: Mapping[str, Timing] | None = None,
    deviations: Sequence[Deviation] = (),
    bad_modules: Sequence[BadModule] = (),
) -> tuple[Rehearsal, ...]:
    """The facts of all processes of a run, one entry for each chip.

    Args:
        processes: their counters.
        records: their records, by process.
        spec: the cards of the run.
        mask: ASCEND_RT_VISIBLE_DEVICES as the program was given it.
        stopped: how the program ended, where it failed.
        timings: how long the card would take, by chip.
        deviations: of modules from float32.
        bad_modules: of the first bad numbers.
    """
    numbers = NUMBERS["host" if spec is None else spec.numerics]
    found = (
        _facts(totals, [one for one in processes if one.chip == totals.chip], records)
        for totals in merge(processes, spec, mask)
    )
    times = timings or {}
    return tuple(
        replace(
            facts,
            numbers=numbers,
            stopped=stopped,
            deviations=tuple(deviations),
            bad_modules=tuple(bad_modules),
            timing=times.get(facts.chip) if facts.totals.used else None,
        )
        for facts in found
    )


def facts_of(
    processes: Sequence[Counters], records: Mapping[int, Record], spec: SimSpec, timing: Timing | None = None
) -> Rehearsal:
    """The facts of processes that all have cards of one chip."""
    (one,) = facts_of_run(processes, records, spec, timings=None if timing is None else {timing.chip: timing})
    return one


def _facts(totals: Totals, processes: Sequence[Counters], records: Mapping[int, Record]) -> Rehearsal:
    waits = _waits(processes, records)
    memory = tuple(_memory(card, totals, processes, records) for card in totals.cards)
    findings = [*_refused(processes, records), *map(_memory_finding, memory), *_on_host(totals), *map(_loop, waits)]
    steps: Counter[str] = Counter()
    for record in records.values():
        steps.update(record.all_steps)
    return Rehearsal(
        totals.chip, totals.torch_version, totals, memory, waits,
        tuple(sorted((one for one in findings if one is not None), key=lambda one: TROUBLES.index(one.kind))),
        {kind: steps[kind] for kind in STEPS}, totals.sampled, bad_numbers=_bad_numbers(records),
    )  # fmt: skip


def _bad_numbers(records: Mapping[int, Record]) -> dict[str, tuple[str, Line]]:
    """The first NaN and the first overflow of the first process that has one."""
    found: dict[str, tuple[str, Line]] = {}
    for record in records.values():
        for kind, one in record.numbers.items():
            found.setdefault(kind, one)
    return found


def _on_host(totals: Totals) -> list[Finding]:
    """Operators without a kernel on the card."""
    text = Message("runs on the host: {torch_npu} has no kernel of it", torch_npu=totals.torch_npu)
    return [
        Finding(
            "host",
            Message("{operator} {text}", operator=one.operator, text=text),
            one.file,
            one.line,
            one.times,
            one.advice,
        )
        for one in totals.on_host
    ]


def _refused(processes: Sequence[Counters], records: Mapping[int, Record]) -> list[Finding]:
    found: dict[tuple[str, str, int], Finding] = {}
    for process in processes:
        record = records.get(process.pid)
        for place, lack in enumerate(process.lacks):
            line = None if record is None else record.lacks[place]
            fails = lack.lack is Lack.KERNEL and operators_on_card.failing(lack.name, process.torch_npu)
            if not lack.times or not (fails or lack.lack in _REFUSED):
                continue
            file, number = ("", 0) if line is None else (line.file, line.line)
            one = Finding("refused", _refusal(lack), file, number, lack.times, _instead(lack))
            found.setdefault((one.text, file, number), one)
    return list(found.values())


def _refusal(lack: LackRecord) -> str:
    ending = (
        Message("fails: neither a card nor the CPU has a kernel of it")
        if lack.lack is Lack.KERNEL
        else Message("is refused")
    )
    name = f"{lack.name} ({lack.dtype})" if lack.dtype else lack.name
    return Message("{operator} {ending}", operator=name, ending=ending)


def _instead(lack: LackRecord) -> str:
    if lack.lack is Lack.KERNEL:
        return ""
    if lack.lack is Lack.DIMENSIONS:
        return Message("merge dimensions of its tensors before it, as with flatten or reshape")
    if lack.lack is Lack.FORMAT:
        return Message("leave the memory format or layout out") if "format" in lack.text else ""
    return (
        Message("give it another dtype than {dtype}: toprope explain refusals lists those it takes", dtype=lack.dtype)
        if lack.dtype
        else ""
    )


def _memory_finding(memory: MemoryOfCard) -> Finding | None:
    if memory.fit == "fits":
        return None
    shortage = memory.shortage
    place = shortage.line if shortage is not None else memory.lines[0].line if memory.lines else Line("", 0)
    advice = shortage.advice[0] if shortage is not None and shortage.advice else ""
    text = Message("{card} {fit}: {why}", card=memory.card, fit=_FITS[memory.fit], why=memory.why)
    return Finding("memory", text, place.file, place.line, 1, advice)


def _loop(wait: Wait) -> Finding | None:
    if not wait.in_loop:
        return None
    text = Message("{operation} waits for the card in a loop ({steps})", operation=wait.operation, steps=wait.steps)
    return Finding("sync-in-loop", text, wait.file, wait.line, wait.waits, _less_waiting(wait))


def _less_waiting(wait: Wait) -> str:
    if wait.operation == "aten::_local_scalar_dense":
        return Message("keep the value on the card and call item() every N steps")
    if wait.operation == "aten::copy_ to the card":
        return Message("copy from pinned memory with non_blocking=True")
    if wait.operation == "aten::copy_ to the host":
        return Message("copy back every N steps, or with non_blocking=True into pinned memory")
    return ""


# ---- waits


def _waits(processes: Sequence[Counters], records: Mapping[int, Record]) -> tuple[Wait, ...]:
    found: dict[tuple[str, str, int], Wait] = {}
    for process in processes:
        record = records.get(process.pid)
        for site in process.sites:
            if not site.back and not site.waits:
                continue
            steps = "" if record is None or not site.waits else _steps_of_loop(site, record)
            key = site.operation, site.file, site.line
            known = found.get(key, Wait(*key, 0, 0))
            found[key] = Wait(
                *key, known.waits + site.waits, known.copies_back + site.back,
                known.in_loop or bool(steps and site.operation != SCALER), known.steps or steps,
            )  # fmt: skip
    return tuple(sorted(found.values(), key=lambda one: (not one.in_loop, -one.waits, -one.copies_back, one.file)))


def _steps_of_loop(site: Site, record: Record) -> str:
    """In how many steps a place waits, where that is nearly every one since it did so first; else ""."""
    if not 0 <= site.number < len(record.sites):
        return ""
    for kind in STEPS:
        if kind == "forward" and record.steps["training"]:
            continue  # each of them is a part of a training step
        seen = record.sites[site.number][kind]
        steps = record.steps[kind] - seen.first
        if min(steps + 1, seen.seen) >= _FEWEST_STEPS and seen.seen >= _IN_LOOP * steps:
            return Message(
                "{seen} of {steps} {kind} steps", seen=seen.seen, steps=max(steps, seen.seen), kind=_STEPS[kind]
            )
    return ""


# ---- memory


def _memory(card: Card, totals: Totals, processes: Sequence[Counters], records: Mapping[int, Record]) -> MemoryOfCard:
    parts = [
        (figures.peak_allocated, found.cards[figures.index])
        for one in processes
        for figures in one.cards
        if figures.physical == card.physical and (found := records.get(one.pid)) and figures.index in found.cards
    ]
    ours = [part for _, part in parts]
    peaks = [part.peak for part in ours] or [card.peak_allocated]
    runtime = sum(part.runtime for part in ours)
    basis = _basis(totals)
    allowance = ceil(_share(basis, totals.operators) * card.capacity)
    need = max(peaks) + runtime, sum(peaks) + runtime + allowance
    largest = max(ours, key=lambda part: part.peak, default=None)
    short = next((part for part in ours if part.wanted), None)
    fit, why = _fit(card, need, runtime, basis, short is not None or card.ooms > 0)
    return MemoryOfCard(
        card.name, card.capacity, basis, max(peaks), card.peak_reserved, runtime, need, fit, why, card.ooms,
        _by_kind(() if largest is None else largest.at_peak),
        () if largest is None else largest.at_peak[:_MOST_LINES],
        () if largest is None else largest.samples,
        None if short is None else _shortage(short, card.capacity),
    )  # fmt: skip


def _basis(totals: Totals) -> str:
    if totals.hbm_by_user:
        return "user"
    return "profile" if chips.get(totals.chip).hbm_usable_mib is not None else "nominal"


def _share(basis: str, operators: Iterable[str]) -> float:
    """Share of the memory that the program may need besides its tensors and the buffers of communicators."""
    computes = any(name not in _WITHOUT_WORKSPACE for name in operators)
    return UNKNOWN_SHARE if computes or basis == "nominal" else NOT_ALLOCATABLE


def _fit(card: Card, need: tuple[int, int], runtime: int, basis: str, failed: bool) -> tuple[Fit, str]:
    of = Message("of {capacity}", capacity=gibibytes(card.capacity))
    if failed:
        peak = gibibytes(need[0] - runtime)
        return "does not fit", Message("an allocation failed; the peak is {peak} {of}", peak=peak, of=of)
    if need[0] > card.capacity:
        return (
            "does not fit",
            Message(
                "{need} {of}, {runtime} of it HCCL's buffers (estimate)",
                need=gibibytes(need[0]),
                of=of,
                runtime=gibibytes(runtime),
            ),
        )
    if need[1] > card.capacity:
        unknown = (
            Message("the usable memory of this chip is not published")
            if basis == "nominal"
            else Message("unknown workspace")
        )
        return "may not fit", Message(
            "{least} to {most} {of} (estimate: {unknown})",
            least=gibibytes(need[0]),
            most=gibibytes(need[1]),
            of=of,
            unknown=unknown,
        )
    return "fits", ""


def _by_kind(lines: Iterable[Held]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for one in lines:
        sums.update(one.bytes)
    return {kind: sums[kind] for kind in KINDS if sums[kind]}


def _shortage(part: CardMemory, capacity: int) -> Shortage:
    kinds = _by_kind(part.at_shortage)
    return Shortage(
        part.wanted, part.wanted_line, kinds, part.at_shortage[:_MOST_LINES],
        tuple(advice(kinds, part.wanted, part.runtime, capacity, part.to_come)),
    )  # fmt: skip


def advice(
    kinds: Mapping[str, int], wanted: int, runtime: int, capacity: int, to_come: Mapping[str, int] | None = None
) -> list[str]:
    """Changes that would make an allocation fit, from what holds the memory: each an estimate.

    Args:
        kinds: bytes in use by kind.
        wanted: bytes of the allocation.
        runtime: bytes that the runtime takes.
        capacity: memory that a program gets.
        to_come: bytes by kind that the step will make whatever the batch: gradients, and states of the optimizer.
    """
    if wanted > capacity:
        return [Message("a smaller tensor: {wanted} at once are more than the card has", wanted=gibibytes(wanted))]
    held = {kind: kinds.get(kind, 0) for kind in KINDS}
    later = {kind: (to_come or {}).get(kind, 0) for kind in KINDS}
    total = sum(held.values()) + wanted + runtime
    moving = held["activations"] + (wanted if held["activations"] else 0)
    fixed = total - moving
    kept = {kind: held[kind] + later[kind] for kind in ("weights", "gradients", "optimizer")}  # at every batch
    least = sum(kept.values()) + runtime
    found: list[str] = []
    if least > capacity:
        coming = (
            Message(", {size} of it still to come", size=gibibytes(sum(later.values()))) if any(later.values()) else ""
        )
        found.append(
            Message(
                "no batch is small enough: weights {weights}, gradients {gradients} and optimizer "
                "states {optimizer} do not depend on it (estimate: {least} of {capacity}{coming})",
                weights=gibibytes(kept["weights"]),
                gradients=gibibytes(kept["gradients"]),
                optimizer=gibibytes(kept["optimizer"]),
                least=gibibytes(least),
                capacity=gibibytes(capacity),
                coming=coming,
            )
        )
    elif total <= capacity and not any(held.values()):  # csrc/core/block.h: no piece fits, and nothing is cached
        found.append(
            Message(
                "more memory: the allocator takes pieces of 2 MiB, of 20 MiB for tensors of 1 to 10 MiB, and none of "
                "them fits into {capacity} (estimate: {total} are needed at this point)",
                capacity=gibibytes(capacity),
                total=gibibytes(total),
            )
        )
    elif total <= capacity and "expandable_segments:True" not in os.environ.get("PYTORCH_NPU_ALLOC_CONF", ""):
        found.append(
            Message(
                "less fragmentation: PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, which is not "
                "simulated (estimate: {total} of {capacity} are needed at this point; the rest is "
                "cached in pieces)",
                total=gibibytes(total),
                capacity=gibibytes(capacity),
            )
        )
    if moving and moving >= total / 2 and max(fixed, least) < capacity:
        share = 0.5
        while fixed + share * moving > capacity:
            share /= 2
        found.append(
            Message(
                "a batch of {share:g} times this one (estimate: {need} of {capacity} at this point, "
                "and more where the step had not ended)",
                share=share,
                need=gibibytes(fixed + share * moving),
                capacity=gibibytes(capacity),
            )
        )
        if total > capacity:
            room = gibibytes(capacity - fixed)
            found.append(
                Message(
                    "gradient checkpointing (torch.utils.checkpoint; estimate: fits where the outputs of "
                    "all blocks and the inside of one are at most {room}; activations are {activations})",
                    room=room,
                    activations=gibibytes(moving),
                )
            )
    need = max(total, least)
    without_states = max(total - held["optimizer"], least - kept["optimizer"])
    if need > capacity and kept["optimizer"] and without_states <= capacity:
        found.append(
            Message(
                "optimizer states on the host (toprope.tiers; estimate: {optimizer} less, "
                "{without_states} at this point)",
                optimizer=gibibytes(kept["optimizer"]),
                without_states=gibibytes(without_states),
            )
        )
    if held["weights"] >= total / 2 and total > capacity:
        found.append(
            Message(
                "weights of which a part is on the host (toprope.tiers; estimate: {size} of {weights} "
                "have to be there)",
                size=gibibytes(total - capacity),
                weights=gibibytes(held["weights"]),
            )
        )
    held_states, states = sum(held[kind] for kind in kept), sum(kept.values())
    if states > 0 and total - held_states < capacity < need:
        cards = ceil(max(held_states / (capacity - (total - held_states)), states / (capacity - runtime)))
        if cards > 1:
            found.append(
                Message(
                    "FSDP over {cards} cards or more (estimate: weights, gradients and optimizer in equal parts)",
                    cards=cards,
                )
            )
    if not found:
        missing = gibibytes(max(total - capacity, 0))
        found.append(
            Message(
                "{missing} are missing at this point (estimate); what would have come after it is not known",
                missing=missing,
            )
        )
    return found


# ---- texts


def place_text(file: str, line: int, folder: str = "") -> str:
    """A place of the program for a reader.

    Args:
        file: as of a Wait or a Finding.
        line: its number.
        folder: files below it are shown without it.
    """
    if file in (BACKWARD, NO_PYTHON):
        return Message("backward") if file == BACKWARD else Message("a thread without Python")
    if not file:
        return Message("other places")
    if file.startswith("<frozen "):  # the outermost frame, of Python's own start: no frame is the program's
        return Message("no line of the program")
    return f"{short_name(file, folder)}:{line}"


def short_name(path: str, folder: str) -> str:
    """A path without the folder that the program was started in, or what is before an installed package."""
    if folder and path.startswith(f"{folder}/"):
        return path.removeprefix(f"{folder}/")
    return path.rpartition("/site-packages/")[2]


def _operators(number: int) -> str:
    return Message("{number} operator{s}", number=number, s="" if number == 1 else "s")
