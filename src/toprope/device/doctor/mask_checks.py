"""Checks of the variables that choose cards: which cards they show and hide. Pure.

Called by `diagnosis`. The vendor fixes the meaning of the variables; `toprope.visible_devices` has it for all of
toprope, so no rule of a mask belongs here. Names of findings are an interface for programs. Tests:
tests/device/test_doctor.py, tests/device/test_doctor_threads.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from toprope.device.doctor.finding import Finding
from toprope.device.host.machine import Facts
from toprope.messages import Message, joined
from toprope.visible_devices import (
    CONTAINER_VARIABLE,
    CUDA_VARIABLE,
    VARIABLE,
    explain,
    explain_grant,
    granted_cards,
    npu_map,
    visible_cards,
)

__all__ = ["card_numbers", "masks", "process_cards"]

_HAMI = "https://github.com/Project-HAMi/HAMi/issues/1894"
_RULES = (
    "https://github.com/hicann/runtime/blob/681ef7610df13c8128982901142a2c869ddbb53e/docs/zh/env_vars/"
    "ASCEND_RT_VISIBLE_DEVICES.md"
)


def masks(facts: Facts) -> Iterator[Finding]:
    """The findings about masks."""
    yield from _misspelt(facts)
    mask, cards = facts.environment.get(VARIABLE), card_numbers(facts)
    if mask is not None and cards and visible_cards(mask, len(cards)).problem:
        yield Finding(
            "mask",
            Message("{sentence}.", sentence=explain(mask, len(cards))),
            (
                Message(
                    "{better}, before the program starts: in a running one it comes too late",
                    better=_better(facts, mask, cards),
                ),
            ),
            sources=(_RULES, "https://github.com/agentscope-ai/Trinity-RFT/pull/618"),
        )
    granted = facts.environment.get(CONTAINER_VARIABLE)
    if granted is not None and not facts.simulated:
        yield from (_in_container if facts.ascend.container else _on_host)(facts, granted)


def card_numbers(facts: Facts) -> tuple[int, ...]:
    """The numbers of all cards here, before any mask; empty where there is none or they are not known."""
    if facts.simulated:
        found = re.match(r"[^,]*[xX](\d+)\s*(?:,|$)", facts.environment.get("TOPROPE_SIM", ""))
        return tuple(range(int(found[1]) if found else 1))
    return facts.ascend.cards


def process_cards(facts: Facts) -> tuple[int, ...]:
    """The machine's numbers of npu:0, npu:1, ... of a process with these masks; empty where they are not known."""
    return npu_map(facts.environment.get(VARIABLE), None, card_numbers(facts)).physical


def _better(facts: Facts, mask: str, cards: Sequence[int]) -> str:
    """Return the mask that was probably intended."""
    numbers = sorted({int(number) for number in re.findall(r"\d+", mask)})
    there = [number for number in numbers if number < len(cards)]
    if there:
        return f"export {VARIABLE}={_list(there)}"
    named = [cards.index(number) for number in numbers if number in cards]
    if named:
        return Message(
            "CANN counts the cards here from 0: export {variable}={named}", variable=VARIABLE, named=_list(named)
        )
    return Message(
        "unset {variable}, or list some of {cards}, rising", variable=VARIABLE, cards=_list(range(len(cards)))
    )


def _on_host(facts: Facts, granted: str) -> Iterator[Finding]:
    """ASCEND_VISIBLE_DEVICES outside of a container, where nothing reads it."""
    cards = facts.ascend.cards
    if not cards or VARIABLE in facts.environment:
        return
    wanted = granted_cards(granted).cards
    yield Finding(
        "container-mask",
        Message(
            "{container_variable}={granted} has no effect here: it is read when a container is "
            "started. CANN reads {variable}, which is not set, so programs see all {cards} cards.",
            container_variable=CONTAINER_VARIABLE,
            granted=granted,
            variable=VARIABLE,
            cards=len(cards),
        ),
        (
            Message(
                "export {variable}={cards} to choose cards for a program",
                variable=VARIABLE,
                cards=_list(wanted) or "...",
            ),
        ),
        sources=(_HAMI,),
    )


def _in_container(facts: Facts, granted: str) -> Iterator[Finding]:
    """The cards that the container was granted, that are in it, and that its programs open."""
    cards, wanted, mask = facts.ascend.cards, granted_cards(granted).cards, facts.environment.get(VARIABLE)
    examination = facts.examination
    # some runtimes give the files new numbers: as many files as granted cards are right
    if len(cards) < len(wanted):
        here = (
            Message("no /dev/davinci*")
            if not cards
            else Message("only {cards}", cards=joined(", ", (f"/dev/davinci{each}" for each in cards)))
        )
        yield Finding(
            "granted-not-here",
            Message(
                "this container was granted {container_variable}={granted}, and has {here}: the "
                "variable alone brings no card in.",
                container_variable=CONTAINER_VARIABLE,
                granted=granted,
                here=here,
            ),
            (
                Message(
                    "start the container with Ascend Docker Runtime (--runtime ascend), which acts on the variable"
                ),
                Message("or with --device /dev/davinciN for each card, and davinci_manager, devmm_svm and hisi_hdc"),
            ),
            sources=("https://github.com/vllm-project/vllm-ascend/issues/14631",),
        )
    elif wanted and set(cards) > set(wanted) and explain_grant(mask, granted, cards):
        yield Finding(
            "more-than-granted",
            Message(
                "{difference}. CANN does not read {container_variable}: it takes cards that are another's, "
                "or fails with 507033.",
                difference=explain_grant(mask, granted, cards),
                container_variable=CONTAINER_VARIABLE,
            ),
            (
                f"export {VARIABLE}={_list([cards.index(each) for each in wanted])}",
                Message("or start the container without --privileged"),
            ),
            sources=(_HAMI,),
        )
    elif wanted and wanted[0] and mask is None and examination is not None and not examination.of("npu"):
        yield Finding(
            "granted-numbers",
            Message(
                "this container was granted the machine's cards {wanted}; CANN reads {variable}, which "
                "is not set, and counts from 0. Where the container's cards keep their numbers, it "
                "opens others (507033).",
                wanted=_list(wanted),
                variable=VARIABLE,
            ),
            (
                Message("use npu:0 to npu:{last} in the program", last=len(wanted) - 1),
                Message("if that fails: export {variable}={wanted}", variable=VARIABLE, wanted=_list(wanted)),
            ),
            sources=(_HAMI,),
            problem=bool(examination.torch_npu),
        )


def _misspelt(facts: Facts) -> Iterator[Finding]:
    """Findings about variables whose names are almost a mask's."""
    known = (VARIABLE, CONTAINER_VARIABLE, CUDA_VARIABLE)
    for name in facts.environment:
        meant = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if name not in known and meant:
            yield Finding(
                "misspelt",
                Message("{name} is set, and nothing reads a variable of that name.", name=name),
                (Message("did you mean {meant}?", meant=meant[0]),),
                sources=("https://github.com/vllm-project/vllm-ascend/pull/5581",),
            )


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
