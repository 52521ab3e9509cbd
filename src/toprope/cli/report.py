"""The report of a run: what the program did to the card, from the counters of its processes. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from toprope import chips, sizes
from toprope.cli.choose import Choice
from toprope.sim.counters import CardCounters, Counters

__all__ = ["Outcome", "as_dict", "as_json_line", "as_text"]


@dataclass(frozen=True)
class Outcome:
    """One finished run.

    Attributes:
        choice: the card that the program had.
        seconds: wall time of the program.
        status: its exit status; the negative number of the signal that killed it.
        processes: the counters of every process in which the simulated card was installed.
    """

    choice: Choice
    seconds: float
    status: int
    processes: tuple[Counters, ...] = ()


@dataclass(frozen=True)
class _Card:
    """One card of the simulated machine, over all processes; sizes in bytes. Peaks are those of one process."""

    name: str
    physical: int
    capacity: int
    peak_allocated: int
    peak_reserved: int
    oom_retries: int
    ooms: int


@dataclass(frozen=True)
class _Totals:
    """What all processes did to the cards of one chip."""

    chip: str
    hbm_by_user: bool
    torch_version: str
    processes: int
    visible: int
    cards: tuple[_Card, ...]
    copies: dict[str, tuple[int, int]]
    operators: dict[str, int]
    operator_calls: int
    synchronisations: int

    @property
    def used(self) -> bool:
        return bool(self.cards or self.operator_calls or any(number for number, _ in self.copies.values()))


def as_text(outcome: Outcome) -> str:
    """The report for a reader, a few lines."""
    return "".join(f"{line}\n" for line in _lines(outcome))


def as_json_line(outcome: Outcome) -> str:
    """The report for a machine, one line."""
    return json.dumps(as_dict(outcome), ensure_ascii=False) + "\n"


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The report as plain data: sizes in bytes, times in seconds.

    `simulated` has one entry for each chip that a process had: one, unless children were given another.
    """
    choice = outcome.choice
    probe = choice.probe
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
        "simulated": [_totals_as_dict(totals) for totals in _merge(outcome.processes)],
    }


def _totals_as_dict(totals: _Totals) -> dict[str, Any]:
    return {
        "chip": totals.chip,
        **_chip_figures(totals.chip),
        "hbm_by_user": totals.hbm_by_user,
        "torch": totals.torch_version,
        "processes": totals.processes,
        "visible_cards": totals.visible,
        "used_cards": [
            {
                "card": card.physical,
                "name": card.name,
                "capacity": card.capacity,
                "peak_allocated": card.peak_allocated,
                "peak_reserved": card.peak_reserved,
                "oom_retries": card.oom_retries,
                "ooms": card.ooms,
            }
            for card in totals.cards
        ],
        "copies": {way: {"number": number, "bytes": size} for way, (number, size) in totals.copies.items()},
        "operators": {"calls": totals.operator_calls, "kinds": len(totals.operators), "by_name": totals.operators},
        "synchronisations": totals.synchronisations,
    }


def _chip_figures(name: str) -> dict[str, int | None]:
    chip = chips.get(name)
    return {"cube_cores": chip.cube_cores, "vector_cores": chip.vector_cores}


def _lines(outcome: Outcome) -> Iterable[str]:
    choice = outcome.choice
    if choice.device != "sim":
        yield _without_simulated_card(outcome)
        if choice.automatic and choice.probe is not None:
            yield _line("chosen", f"by itself: {choice.probe.text}")
        return
    groups = _merge(outcome.processes)
    if not groups:
        assert choice.spec is not None
        size = sizes.gibibytes(choice.spec.capacity)
        yield (
            "toprope: the program did not touch the card: "
            "none of its processes loaded it (it comes with `import torch`)"
        )
        yield _line(
            "card", f"{_chip_text(choice.spec.chip, size, choice.spec.hbm is not None)}, {choice.spec.count} of it"
        )
    for place, totals in enumerate(groups):
        yield _headline(totals)
        if place == 0:
            yield from _origin(outcome)
        yield from _figures(totals)
    if not groups:
        yield from _origin(outcome)


def _origin(outcome: Outcome) -> Iterable[str]:
    if outcome.choice.automatic and outcome.choice.probe is not None:
        yield _line("chosen", f"by itself: {outcome.choice.probe.text}")
    yield _line("time", f"{outcome.seconds:.1f} s here (the card's own time is not simulated)")


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


def _headline(totals: _Totals) -> str:
    size = sizes.gibibytes(max((card.capacity for card in totals.cards), default=0))
    chip = _chip_text(totals.chip, size, totals.hbm_by_user)
    cards = f"{totals.visible} card{'' if totals.visible == 1 else 's'}"
    if totals.processes > 1:
        cards += f", {totals.processes} processes"
    torch = f"torch {totals.torch_version.partition('+')[0]}"
    if not totals.used:
        return f"toprope: the program did not use its card, a simulated Ascend {totals.chip}, {cards}, {torch}"
    names = _and([card.name for card in totals.cards]) or "no memory of any card"
    return f"toprope: ran on {names}, a simulated Ascend {chip}, {cards}, {torch}"


def _chip_text(name: str, size: str, by_user: bool) -> str:
    figures = _chip_figures(name)
    cores = [f"{number} {kind.removesuffix('_cores')}" for kind, number in figures.items() if number]
    parts = [f"{' / '.join(cores)} cores"] if cores else []
    parts.append(f"{size}, set by the user" if by_user else size)
    return f"{name} ({', '.join(parts)})"


def _figures(totals: _Totals) -> Iterable[str]:
    if not totals.used:
        return
    for place, card in enumerate(totals.cards):
        text = (
            f"peak {sizes.gibibytes(card.peak_allocated)} of {sizes.gibibytes(card.capacity)}, "
            f"{_number(card.oom_retries)} out-of-memory retries"
        )
        if card.ooms:
            text += f", {_number(card.ooms)} allocation{'s' if card.ooms != 1 else ''} failed"
        if len(totals.cards) > 1:
            text = f"{card.name} {text}"
        yield _line("memory" if place == 0 else "", text)
    if totals.processes > 1:
        yield _line("", f"each peak is the largest of any one of the {totals.processes} processes")
    (to, to_bytes), (back, back_bytes), (between, between_bytes) = totals.copies.values()
    yield _line(
        "copies",
        f"{_number(to)} to the card ({sizes.decimal(to_bytes)}), {_number(back)} back ({sizes.decimal(back_bytes)}), "
        f"{_number(between)} between cards" + (f" ({sizes.decimal(between_bytes)})" if between else ""),
    )
    yield _line("operators", f"{_number(totals.operator_calls)} ({_number(len(totals.operators))} kinds)")
    waits = totals.synchronisations
    yield _line("waits", f"{_number(waits)} synchronisation{'' if waits == 1 else 's'}")


def _line(name: str, text: str) -> str:
    return f"  {name:<12}  {text}"


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _and(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def _merge(processes: Iterable[Counters]) -> list[_Totals]:
    """Sums over processes, one entry for each chip."""

    def chip(counters: Counters) -> str:
        return counters.chip

    return [_merge_chip(name, tuple(group)) for name, group in groupby(sorted(processes, key=chip), chip)]


def _merge_chip(chip: str, processes: tuple[Counters, ...]) -> _Totals:
    operators: Counter[str] = Counter()
    for counters in processes:
        operators.update(counters.operators)
    used: dict[int, list[CardCounters]] = {}
    for counters in processes:
        for card in counters.cards:
            if card.used:
                used.setdefault(card.physical, []).append(card)
    # npu:1 is the same card for every process only where none of them has a mask of visible cards
    masked = any(card.index != card.physical for seen in used.values() for card in seen)
    return _Totals(
        chip=chip,
        hbm_by_user=any(counters.hbm_by_user for counters in processes),
        torch_version=processes[0].torch_version,
        processes=len(processes),
        visible=len({card.physical for counters in processes for card in counters.cards}),
        cards=tuple(_merge_card(seen, masked) for _, seen in sorted(used.items())),
        copies={
            "to_card": _sum((one.copies_to_card, one.bytes_to_card) for one in processes),
            "from_card": _sum((one.copies_from_card, one.bytes_from_card) for one in processes),
            "between_cards": _sum((one.copies_between, one.bytes_between) for one in processes),
        },
        operators=dict(operators.most_common()),
        operator_calls=sum(one.operator_calls for one in processes),
        synchronisations=sum(one.synchronisations for one in processes),
    )


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    numbers, amounts = zip(*pairs, strict=True)
    return sum(numbers), sum(amounts)


def _merge_card(seen: list[CardCounters], masked: bool) -> _Card:
    physical = seen[0].physical
    return _Card(
        name=f"card {physical}" if masked else f"npu:{physical}",
        physical=physical,
        capacity=max(card.capacity for card in seen),
        peak_allocated=max(card.peak_allocated for card in seen),
        peak_reserved=max(card.peak_reserved for card in seen),
        oom_retries=sum(card.oom_retries for card in seen),
        ooms=sum(card.ooms for card in seen),
    )
