"""Sums of the counters of all processes of a run, for the cards of one chip; pure.

For the run report (cli/reports/run_report.py) and the rehearsal's facts. Tests: tests/cli/test_report.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from toprope import chips
from toprope.messages import joined
from toprope.sim import dtypes
from toprope.sim.metrics.counters import Assumed, CardCounters, Counters, HostSite, Site
from toprope.sim.spec import MAX_CARDS, SimSpec
from toprope.support import operator_advice, operator_kinds, operators_on_card, refusals
from toprope.visible_devices import explain, visible_cards

__all__ = ["AssumedDtype", "Card", "Cause", "OnHost", "Totals", "merge"]


@dataclass(frozen=True)
class Cause:
    """A place of the program that copies from cards or waits for them, over all processes.

    Attributes:
        operation: operator or call.
        file: Python file, or BACKWARD or NO_PYTHON of `toprope.sim.metrics.counters`.
        line: number of the line.
        times: how often.
    """

    operation: str
    file: str
    line: int
    times: int


@dataclass(frozen=True)
class OnHost:
    """A place of the program where an operator runs on the host, over all processes.

    Attributes:
        operator: the operator that torch_npu's warning names.
        file: as of `Cause`.
        line: number of the line.
        times: how often.
        bytes_to_host: bytes of operands copied to the host.
        bytes_back: bytes of results copied back.
        advice: what to write instead; empty where no source says it.
    """

    operator: str
    file: str
    line: int
    times: int
    bytes_to_host: int
    bytes_back: int
    advice: str = ""


@dataclass(frozen=True)
class AssumedDtype:
    """An argument that had a dtype of which no document of the vendor says anything.

    Attributes:
        operator: its name.
        argument: the vendor's name of the argument; None where its documents do not mention the operator.
        dtype: name of the dtype.
        calls: calls of the operator, whatever the dtype.
    """

    operator: str
    argument: str | None
    dtype: str
    calls: int


@dataclass(frozen=True)
class Card:
    """One card of the simulated machine, over all processes; sizes in bytes. Peaks are those of one process."""

    name: str
    physical: int
    capacity: int
    peak_allocated: int
    peak_reserved: int
    oom_retries: int
    ooms: int
    kernels: int


@dataclass(frozen=True)
class Totals:
    """Acts of all processes on the cards of one chip.

    Attributes:
        chip: name of the chip.
        hbm_by_user: whether the user set the memory.
        torch_version: torch's version in the first process.
        processes: number of processes.
        visible: cards that some process used or could have used; None where no process used any.
        masks: a sentence for each ASCEND_RT_VISIBLE_DEVICES that shows less than it lists.
        cards: those that were used.
        copies: number and bytes by way ("to_card", "from_card", "between_cards").
        operators: calls by name, the most frequent first.
        undocumented: operators that ran with dtypes which no document of the vendor mentions for them, and these.
        assumed_cores: operators whose number of cores is assumed, because no source says on which cores they run.
        operator_calls: calls of all operators.
        synchronisations: times that the host waited for a card.
        copies_back: places that copied from a card, the most frequent first.
        waits: places that waited for a card, the most frequent first.
        sampled: whether the figures of places are estimates.
        assumed_dtypes: the undocumented dtypes by argument, those of the most frequent operators first.
        on_host: places where an operator ran on the host, those with the most bytes first.
        torch_npu: the release of torch_npu that decides it, in words; empty where no process had one.
        perhaps_on_host: operators that ran and that the release may compute on the host, with the reason.
        slow: operators that ran on the card and are known to be slow there, with the reason and its source.
    """

    chip: str
    hbm_by_user: bool
    torch_version: str
    processes: int
    visible: int | None
    masks: tuple[str, ...]
    cards: tuple[Card, ...]
    copies: dict[str, tuple[int, int]]
    operators: dict[str, int]
    undocumented: dict[str, tuple[str, ...]]
    assumed_cores: tuple[str, ...]
    operator_calls: int
    synchronisations: int
    copies_back: tuple[Cause, ...] = ()
    waits: tuple[Cause, ...] = ()
    sampled: bool = False
    assumed_dtypes: tuple[AssumedDtype, ...] = ()
    on_host: tuple[OnHost, ...] = ()
    torch_npu: str = ""
    perhaps_on_host: tuple[tuple[str, str], ...] = ()
    slow: tuple[tuple[str, str], ...] = ()

    def fallbacks_as_dict(self) -> dict[str, Any]:
        """Return operators on the host, or slow on the card, as plain data: for the report and for rehearsals."""
        places = [
            asdict(one) | {"bytes": one.bytes_to_host + one.bytes_back, "advice": one.advice or None}
            for one in self.on_host
        ]
        return {
            "torch_npu": self.torch_npu or None,
            "on_host": places,
            "perhaps_on_host": [{"operator": operator, "why": why} for operator, why in self.perhaps_on_host],
            "slow_on_card": [{"operator": operator, "why": why} for operator, why in self.slow],
        }

    @property
    def used(self) -> bool:
        """Return True if any process used a card."""
        return bool(self.cards or self.operator_calls or any(number for number, _ in self.copies.values()))


def merge(processes: Iterable[Counters], spec: SimSpec | None, mask: str | None = None) -> list[Totals]:
    """Sums over processes, one entry for each chip.

    Args:
        processes: their counters.
        spec: the cards of the run, whose number says what a mask hides.
        mask: ASCEND_RT_VISIBLE_DEVICES as the program was given it, for processes that only asked for cards.
    """

    def chip(counters: Counters) -> str:
        return counters.chip

    return [_merge_chip(name, tuple(group), spec, mask) for name, group in groupby(sorted(processes, key=chip), chip)]


def _merge_chip(chip: str, processes: tuple[Counters, ...], spec: SimSpec | None, mask: str | None) -> Totals:
    operators: Counter[str] = Counter()
    undocumented: dict[str, int] = {}
    for counters in processes:
        operators.update(counters.operators)
        for name, bits in counters.undocumented.items():
            undocumented[name] = undocumented.get(name, 0) | bits
    used: dict[int, list[CardCounters]] = {}
    for counters in processes:
        for card in counters.cards:
            if card.used:
                used.setdefault(card.physical, []).append(card)
    masks = [mask if one.mask is None and not one.cards else one.mask for one in processes]
    # npu:1 is the same card for every process only where none of them has a mask of visible cards
    masked = any(card.index != card.physical for seen in used.values() for card in seen)
    return Totals(
        chip=chip,
        hbm_by_user=any(counters.hbm_by_user for counters in processes),
        torch_version=processes[0].torch_version,
        processes=len(processes),
        visible=_visible(processes, masks),
        masks=_explained(masks, len(processes), spec) if spec is not None and spec.chip == chip else (),
        cards=tuple(_merge_card(seen, masked) for _, seen in sorted(used.items())),
        copies={
            "to_card": _sum((one.copies_to_card, one.bytes_to_card) for one in processes),
            "from_card": _sum((one.copies_from_card, one.bytes_from_card) for one in processes),
            "between_cards": _sum((one.copies_between, one.bytes_between) for one in processes),
        },
        operators=dict(operators.most_common()),
        undocumented={name: dtypes.names(bits) for name, bits in sorted(undocumented.items())},
        assumed_cores=tuple(sorted(filter(operator_kinds.assumed, operators))),
        operator_calls=sum(one.operator_calls for one in processes),
        synchronisations=sum(one.synchronisations for one in processes),
        copies_back=_causes(processes, lambda site: site.back),
        waits=_causes(processes, lambda site: site.waits),
        sampled=any(one.sampled for one in processes),
        assumed_dtypes=_assumed_dtypes(chip, processes, operators),
        on_host=_on_host(processes),
        torch_npu=_torch_npu(processes),
        perhaps_on_host=_perhaps_on_host(processes, operators),
        slow=_slow(processes, operators),
    )


def _slow(processes: Iterable[Counters], operators: Iterable[str]) -> tuple[tuple[str, str], ...]:
    on_host = {site.operation.partition(".")[0] for one in processes for site in one.host_sites}
    return tuple((name, why) for name in operators if name not in on_host and (why := operator_advice.slow(name)))


def _perhaps_on_host(processes: Iterable[Counters], operators: Iterable[str]) -> tuple[tuple[str, str], ...]:
    branches = {one.torch_npu for one in processes}
    found: dict[str, str] = {}
    for release in operators_on_card.releases() if any(branches) else ():
        if release.branch in branches:
            found |= operators_on_card.perhaps_on_host(release)
    return tuple((name, found[name]) for name in operators if name in found)


def _torch_npu(processes: Iterable[Counters]) -> str:
    branches = dict.fromkeys(one.torch_npu for one in processes if one.torch_npu)
    known = {one.branch: one.text for one in operators_on_card.releases()} if branches else {}
    return joined(", ", (known.get(branch, branch) for branch in branches))


def _on_host(processes: Iterable[Counters]) -> tuple[OnHost, ...]:
    sites: dict[tuple[str, str, int], list[HostSite]] = {}
    for site in (site for one in processes for site in one.host_sites):
        sites.setdefault((site.operation, site.file, site.line), []).append(site)
    all_places = (
        OnHost(
            *place,
            times=sum(site.times for site in found),
            bytes_to_host=sum(site.bytes_to_host for site in found),
            bytes_back=sum(site.bytes_back for site in found),
            advice=operator_advice.instead(place[0]),
        )
        for place, found in sites.items()
    )
    return tuple(sorted(all_places, key=lambda one: (-one.bytes_to_host - one.bytes_back, -one.times, one.operator)))


def _causes(processes: Iterable[Counters], figure: Callable[[Site], int]) -> tuple[Cause, ...]:
    found: Counter[tuple[str, str, int]] = Counter()
    for site in (site for one in processes for site in one.sites):
        found[site.operation, site.file, site.line] += figure(site)
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Cause(*place, times) for place, times in ranked if times)


def _assumed_dtypes(chip: str, processes: Iterable[Counters], operators: Mapping[str, int]) -> tuple[AssumedDtype, ...]:
    met = {assumed for one in processes for assumed in one.assumed}
    found = {AssumedDtype(one.operator, _argument(chip, one), one.dtype, operators.get(one.operator, 0)) for one in met}
    return tuple(sorted(found, key=lambda one: (-one.calls, one.operator, one.argument or "", one.dtype)))


def _argument(chip: str, assumed: Assumed) -> str | None:
    if assumed.position is None:
        return None
    for row in refusals.rows(chips.get(chip)):
        if any(operator.partition(".")[0] == assumed.operator for operator in row.operators):
            for operand in row.operands:
                if operand.position == assumed.position:
                    return operand.parameter
    return f"argument {assumed.position + 1}"


def _visible(processes: tuple[Counters, ...], masks: Sequence[str | None]) -> int | None:
    seen = {card.physical for counters in processes for card in counters.cards}
    shows_none = any(mask is not None and not visible_cards(mask, MAX_CARDS).cards for mask in masks)
    return len(seen) if seen or shows_none else None


def _explained(masks: Sequence[str | None], processes: int, spec: SimSpec) -> tuple[str, ...]:
    found = Counter(mask for mask in masks if mask is not None and visible_cards(mask, spec.count).problem)
    return tuple(
        explain(mask, spec.count) + (f" ({number} of {processes} processes)" if number < processes else "")
        for mask, number in sorted(found.items())
    )


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    numbers, amounts = zip(*pairs, strict=True)
    return sum(numbers), sum(amounts)


def _merge_card(seen: list[CardCounters], masked: bool) -> Card:
    physical = seen[0].physical
    return Card(
        name=f"card {physical}" if masked else f"npu:{physical}",
        physical=physical,
        capacity=max(card.capacity for card in seen),
        peak_allocated=max(card.peak_allocated for card in seen),
        peak_reserved=max(card.peak_reserved for card in seen),
        oom_retries=sum(card.oom_retries for card in seen),
        ooms=sum(card.ooms for card in seen),
        kernels=sum(card.kernels for card in seen),
    )
