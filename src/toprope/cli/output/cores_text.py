"""Output of `toprope cores`: the verdict with its proof or its witness, findings, plans. Pure.

Called by `cli.cores`, and by `cli.reports.run_cores` for `toprope run --check-cores`. `as_dict` is the JSON that
docs/cores.md describes, and `exit_status` an interface for CI; wording and layout are free, but a line must not claim
more than its verdict: "safe" names the way in which cores are handed out, and what is assumed. Tests:
tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from toprope.cores.descriptions import cores_text, holds_text, kinds_used, wait_text
from toprope.cores.findings import Finding, Level, assuming_cores
from toprope.cores.model import Discipline, Op, OpId, Program
from toprope.terminal import field, table, unbroken

if TYPE_CHECKING:
    from toprope.cores.check import Fixes, Result
    from toprope.cores.planning.limits import Plan
    from toprope.cores.state import State

__all__ = ["as_dict", "exit_status", "place", "plan_text", "program_text", "report"]

_RED, _GREEN, _YELLOW = "bold red", "bold green", "bold yellow"
_CARDS = 4
"""Cards whose waits are listed one by one; the others are counted."""

_NAMES = 8
"""Operators that are named where their needs are assumed."""

_OF_ORDER = ("cyclic-wait", "missing-rank", "sync-all-over-limit")
"""Findings with which a program hangs whatever its cores."""

_HANDED_OUT = {
    Discipline.D0: "under every dispatch order",
    Discipline.D0B: "when an operator takes all idle cores that it needs in one go (D0b)",
    Discipline.D1: "when an operator gets all of its cores or none, in order (D1)",
    Discipline.D2: "when an operator gets all of its cores or none, and may overtake (D2)",
}


def exit_status(result: Result, *, strict: bool = False, fail_on: Discipline | None = None) -> int:
    """0 safe, 1 deadlock or a finding of level error (with `strict` any finding), 3 unknown.

    Args:
        fail_on: the discipline to judge by; None for the result's own.
    """
    verdicts = {**result.weaker, result.discipline: result.verdict}
    verdict = verdicts.get(fail_on or result.discipline, "unknown")
    if verdict == "deadlock" or any(strict or each.level is Level.ERROR for each in result.findings):
        return 1
    return 3 if verdict == "unknown" else 0


def report(program: Program, result: Result) -> Group:
    """The verdict and the findings."""
    items = [*_verdict(program, result), *_assumed(program)]
    if result.findings:
        items.append("")
        for finding in result.findings:
            items += _finding(program, finding)
    return Group(*items)


def _verdict(program: Program, result: Result) -> Iterator[RenderableType]:
    """Yield the verdict, its proof or its witness, and the limit that would help."""
    what, how = program_text(program), _HANDED_OUT[result.discipline]
    if result.verdict == "safe":
        relaxed = any(op.assumed and not op.sync_all for _, op in program.ops())
        far = " if the operators below need one block at a time" if relaxed else ""
        others = {name: verdict for name, verdict in result.weaker.items() if verdict != "safe"}
        if others:  # an operator that lacks one kind of core may keep idle ones of the other kind from the rest
            how = "where cores are handed out one by one (D0)" if result.discipline is Discipline.D0 else how
        yield Text.assemble((f"safe {how}{far}", _YELLOW if relaxed else _GREEN), f": {what}")
        yield f"proven by: {result.proof}"
        if others:
            told = ", ".join(f"{name} {verdict}" for name, verdict in sorted(others.items()))
            yield f"with other ways to hand out cores: {told}"
        return
    if result.verdict == "unknown":
        yield Text.assemble(("not decided", _YELLOW), f": {what}")
        yield f"  {result.proof}"
        return
    yield Text.assemble(("deadlock possible", _RED), f"{_possible_under(result)} on {what}")
    if result.witness is not None:
        yield ""
        yield from _witness_rows(result.witness)
        cycle = result.witness.cycle()
        if cycle:
            yield ""
            yield "  " + " -> ".join(map(result.witness.program.describe, (*cycle, cycle[0])))
    elif result.proof:
        yield f"  {result.proof}"
    if result.weaker:
        yield ""
        told = ", ".join(f"{name} {verdict}" for name, verdict in sorted(result.weaker.items()))
        yield f"with other ways to hand out cores: {told}"
    yield ""
    if any(each.rule in _OF_ORDER for each in result.findings) and result.fix is None:
        yield "no limit of another operator helps: see the errors"
    else:
        yield from _fix(program, result)


def _possible_under(result: Result) -> str:
    """Name the strictest discipline under which a deadlock is possible: it allows the fewest orders of operators."""
    verdicts = {**result.weaker, result.discipline: result.verdict}
    most = next((each for each in reversed(Discipline) if verdicts.get(each) == "deadlock"), result.discipline)
    others = [verdict for each, verdict in verdicts.items() if each is not Discipline.D0]
    if most is Discipline.D0 and others and set(others) == {"safe"}:
        return " only under D0, where cores are handed out one by one in any order,"
    return "" if most is Discipline.D0 else f" even under {most}"


def assumed(program: Program) -> Counter[str]:
    """Count the operators of which no source says whether they need all of their blocks at once."""
    return Counter(op.name for op in _assumed_ops(program))


def _assumed_ops(program: Program) -> list[Op]:
    return [op for _, op in assuming_cores(program).ops() if op.assumed]


def _assumed(program: Program) -> Iterator[RenderableType]:
    """Yield the operators whose need of cores is assumed, since no source gives it."""
    ops = _assumed_ops(program)
    if not ops:
        return
    found, every = Counter(op.name for op in ops), any(op.sync_all for op in ops)
    names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in found.most_common(_NAMES))
    more = f" and {len(found) - _NAMES} more" if len(found) > _NAMES else ""
    what = "all of their blocks at once" if every else "one block at a time"
    other = "; --assume one-block takes the opposite for granted" if every else ", as --assume one-block says"
    yield ""
    yield f"assumed, since no source says it: these need {what}{other}"
    yield f"  {names}{more}"


def program_text(program: Program) -> str:
    """How large a program is: "2 cards, 3 streams each, 48 vector cores a card"."""
    count = len(program.cards)
    streams = [sum(stream.card == card.name for stream in program.streams) for card in program.cards]
    each = " each" if count > 1 else ""
    if streams and min(streams) == max(streams):
        parts = [f"{streams[0]} stream{'' if streams[0] == 1 else 's'}{each}"]
    else:
        parts = [f"{min(streams, default=0)} to {max(streams, default=0)} streams each"]
    kinds = kinds_used(program)
    cores = {
        tuple(number if used else 0 for number, used in zip(card.cores, kinds, strict=True)) for card in program.cards
    }
    if len(cores) == 1 and any(kinds):
        ((cube, vector),) = cores
        parts.append(cores_text((cube, vector)) + (" a card" if count > 1 else ""))
    return ", ".join([f"{count} card{'' if count == 1 else 's'}", *parts])


def _witness_rows(state: State) -> Iterator[RenderableType]:
    """The cores that operators hold and wait for, card by card; of many cards those in the cycle."""
    program = state.program
    waits = list(state.waits())
    in_cycle = {program.card_of(id).name for id in state.cycle()}
    cards = [card.name for card in program.cards if any(program.card_of(wait.op) == card for wait in waits)]
    shown = cards if len(cards) <= _CARDS else [name for name in cards if name in in_cycle] or cards[:_CARDS]
    rows: list[tuple[str, str, str, str]] = []
    for name in shown:
        here = [wait for wait in waits if program.card_of(wait.op).name == name]
        here.sort(key=lambda wait: _rank(state, wait.op))
        for number, wait in enumerate(here):
            label = f"card {name}" if number == 0 else ""
            held = holds_text(state, wait.op)
            op = program.op(wait.op)
            rows.append((label, op.name, f"holds {held}" if held else "", wait_text(state, wait)))
    if rows:
        yield table(rows, indent=2, gap=3, wrapped=(1, 3))
    if len(shown) < len(cards):
        yield f"  on {len(cards) - len(shown)} other cards operators wait too"


def _rank(state: State, id: OpId) -> tuple[int, OpId]:
    if id not in state.active or not state.held[id[0]]:
        return 2, id
    return (0 if state.has_all(id) else 1), id


def _fix(program: Program, result: Result) -> Iterator[str]:
    """Yield the limit on an operator that makes the program safe, or why there is none."""
    from toprope.cores.fix import with_limit

    fix, fixes = result.fix, result.fixes
    if fix is None:
        if fixes.undecided:
            yield f"no limit of one operator was found; not decided in time: {', '.join(fixes.undecided)}"
            yield "more time: --seconds N; limits for all streams: toprope cores plan"
        else:
            yield "no limit on one operator alone makes it safe (exact search); for all streams: toprope cores plan"
        yield from _no_effect(fixes)
        return
    numbers = {"cube": fix.cube, "vector": fix.vector}
    before = _largest(program, fix.op, fix.cards)
    limits = {kind: number for kind, number in numbers.items() if before[kind] > number} or {
        kind: number for kind, number in numbers.items() if before[kind]
    }
    exact = {"cube": fix.exact_cube, "vector": fix.exact_vector}
    more = [str(exact[kind]) for kind in limits if exact[kind] is not None and exact[kind] != limits[kind]]
    also = f" (the exact test also allows {' and '.join(more)})" if more else ""
    what = " and ".join(f"{number} {kind} core{'' if number == 1 else 's'}" for kind, number in limits.items())
    everywhere = len(fix.cards) == len(program.cards)
    where = "" if everywhere else f" on card{'' if len(fix.cards) == 1 else 's'} {', '.join(fix.cards)}"
    how = _HANDED_OUT[Discipline.D0 if fix.by_sums else result.discipline]
    yield f"what makes it safe {how}: limit {fix.op}{where} to {what}{also}"
    arguments = ", ".join(f"{kind}_num={number}" for kind, number in limits.items())
    yield unbroken(f"  torch.npu.set_stream_limit(stream, {arguments})")
    sums = _sums(with_limit(program, fix.op, (fix.cube, fix.vector)), tuple(limits))
    yield f"proven by: {sums or 'the exact test'}"
    yield from _no_effect(fixes)


def _no_effect(fixes: Fixes) -> Iterator[str]:
    for name, reason in fixes.no_effect.items():
        yield f"not proposed: a limit on {name}, which would have no effect ({reason})"


def _largest(program: Program, name: str, cards: Iterable[str]) -> dict[str, int]:
    ops = [op for id, op in program.ops() if op.name == name and program.card_of(id).name in set(cards)]
    return {
        "cube": max((op.cube for op in ops), default=0),
        "vector": max((op.vector for op in ops), default=0),
    }


def _sums(program: Program, kinds: tuple[str, ...]) -> str:
    """S1 of the limited program, for the fullest card: the sum that proves it; empty where S1 is not what does."""
    from toprope.cores.proof.bounds import largest_of_streams

    bounds = largest_of_streams(program)
    if not all(bound.fits for bound in bounds):
        return ""
    mine = [bound for bound in bounds if bound.kind in kinds]
    if not mine:
        return ""
    fullest = max(mine, key=lambda bound: (bound.total, -program.cards.index(bound.card)))
    kind = ("cube", "vector").index(fullest.kind)
    parts = [str(program.op(op).need[kind]) for op in sorted(fullest.ops)]
    within = "" if fullest.total == fullest.capacity else f", at most {fullest.capacity}"
    total = f" = {fullest.total}" if len(parts) > 1 else ""
    return f"sum of the streams' cores {' + '.join(parts)}{total}{within}"


def _finding(program: Program, finding: Finding) -> Iterator[RenderableType]:
    code = _RED if finding.level is Level.ERROR else _YELLOW
    places = [place(program, id) for id in finding.ops[:2]]
    if len(places) == 2:  # the file is named once
        file, colon, _ = places[0].rpartition(": ")
        places[1] = places[1].removeprefix(f"{file}{colon}")
    more = f" and {len(finding.ops) - 2} more" if len(finding.ops) > 2 else ""
    text = [f"{finding.rule}  {finding.text}"] + ([f"{', '.join(places)}{more}"] if places else [])
    yield from field(Text(finding.level.value, code), *text, label_width=9)


def place(program: Program, id: OpId) -> str:
    """The place in which an operator was read: "figure.json: streams[0].ops[1]"."""
    return program.op(id).source or f"streams[{id[0]}].ops[{id[1]}]"


def as_dict(
    program: Program,
    result: Result,
    files: Iterable[str],
    *,
    strict: bool = False,
    fail_on: Discipline | None = None,
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "files": list(files),
        "cards": len(program.cards),
        "streams": len(program.streams),
        "operators": sum(len(stream.ops) for stream in program.streams),
        "verdict": str(result.verdict),
        "discipline": str(result.discipline),
        "proof": result.proof,
        "weaker": {str(name): str(verdict) for name, verdict in result.weaker.items()},
        "assumed": dict(assumed(program)),
        "witness": None if result.witness is None else _witness(result.witness),
        "fix": None if result.fix is None else {**asdict(result.fix), "cards": list(result.fix.cards)},
        "fix_undecided": list(result.fixes.undecided),
        "fix_no_effect": result.fixes.no_effect,
        "findings": [
            {
                "level": str(each.level),
                "rule": each.rule,
                "text": each.text,
                "ops": [program.describe(id) for id in each.ops],
                "places": [place(program, id) for id in each.ops],
            }
            for each in result.findings
        ],
        "exit_status": exit_status(result, strict=strict, fail_on=fail_on),
    }


def _witness(state: State) -> dict[str, Any]:
    """The state of a deadlock as plain data: operators that are done, and those that wait for cores."""
    program = state.program
    return {
        "done": list(state.done),
        "waits": [
            {
                "op": program.describe(wait.op),
                "name": program.op(wait.op).name,
                "card": program.card_of(wait.op).name,
                "stream": program.streams[wait.op[0]].name,
                "place": place(program, wait.op),
                "wants": list(program.op(wait.op).cores),
                "holds": list(state.held_cores(wait.op)) if wait.op in state.active else [0, 0],
                "lacks": list(wait.lacking),
                "reason": wait.reason,
                "on": [program.describe(each) for each in wait.on],
            }
            for wait in state.waits()
        ],
        "cycle": [program.describe(id) for id in state.cycle()],
    }


def plan_text(plan: Plan) -> Group:
    """Limits of streams as a table, with their reasons and their proof."""
    if plan.method == "as it is":
        return Group(
            Text("safe as it is: no stream needs a limit", _GREEN),
            *(f"proven by: {line}" for line in plan.proof),
            f"all done after {plan.makespan:.1f} us ({plan.timing}); {plan.bound}",
            *(f"note: {line}" for line in plan.notes),
        )
    rows = []
    for each in plan.limits:
        cards = ", ".join(each.cards) if len(each.cards) <= 4 else f"{len(each.cards)} cards"
        cube, vector = ("-" if number is None else str(number) for number in (each.cube, each.vector))
        rows.append((each.stream, cards, cube, vector, f"{each.microseconds:.1f} us ({each.timing})", each.reason))
    return Group(
        table(rows, ("stream", "cards", "cube", "vector", "time", "why"), right=(2, 3), wrapped=(0, 5)),
        f"all done after {plan.makespan:.1f} us ({plan.timing}); {plan.bound}",
        *(f"proven by {plan.method}: {line}" for line in plan.proof),
        *(f"note: {line}" for line in plan.notes),
    )
