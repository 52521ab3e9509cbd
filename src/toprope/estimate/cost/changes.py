"""Advice: changes of a program that would save most of a card's time, each with its estimated gain; pure.

The run report shows them (through toprope.sim.tracing.timing). A change is a variant of the recorded acts, timed by
the same `Timeline`; a new one is a `yield` in `_variants`, and its text is translated (locale/zh.po). The limits at the
top are free choices. Tests: tests/estimate/test_timeline.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from toprope.estimate.cost.rates import Rates
from toprope.estimate.cost.span import Span
from toprope.estimate.cost.timeline import Act, Timeline
from toprope.messages import Message

__all__ = ["Change", "changes"]

_LEAST = 0.05
"""Share of the time that a change has to save to be named."""

_MOST = 3
_LAUNCHES_OF_A_GRAPH = 20
"""Launches between two waits from which on a graph is proposed: it ends where the host wants to know something."""


@dataclass(frozen=True)
class Change:
    """A change of the program.

    Attributes:
        what: what to do.
        saves: seconds that it saves of the whole.
    """

    what: str
    saves: Span


def changes(acts: Sequence[Act], rates: Rates, total: Span, share: float = 1.0) -> list[Change]:
    """The changes that save most, the best first; none that saves less than a twentieth.

    Where steps are marked only they count, not what comes before the first and after the last.

    Args:
        acts: what the program does, as `Timeline.of` takes it.
        rates: of the chip.
        total: time of the whole program.
        share: of the program by the acts, above 1 where they are a part of it.
    """
    marks = [place for place, act in enumerate(acts) if act.what == "mark"]
    steps = acts[marks[0] : marks[-1] + 1] if len(marks) > 1 else acts
    now = Timeline.of(steps)
    found = [Change(what, _saved(now, other).times(share)) for what, other in _variants(steps, now, rates)]
    wanted = [one for one in found if one.saves.likely > _LEAST * total.likely]
    return sorted(wanted, key=lambda one: -one.saves.likely)[:_MOST]


def _saved(now: Timeline, other: Timeline) -> Span:
    ends = [max(before - after, 0.0) for before, after in zip(now.total, other.total, strict=True)]
    return Span(min(ends), ends[1], max(ends))


def _variants(acts: Sequence[Act], now: Timeline, rates: Rates) -> Iterator[tuple[str, Timeline]]:
    waits = sum(act.what == "synchronise" for act in acts)
    launches = sum(act.what == "launch" for act in acts)
    if waits > 1:
        without = [act for act in acts if act.what != "synchronise"]
        yield (
            Message("wait for the card less often (all {waits} waits and blocking copies left out)", waits=waits),
            Timeline.of([*without, Act("synchronise", stream=-1)]),
        )
    if now.host.likely > now.card.likely:
        if waits * _LAUNCHES_OF_A_GRAPH < launches:
            graph = rates.launch(graph=True)
            yield (
                Message("launch by a graph: torch.npu.graph, or torch.compile with the backend of torchair"),
                Timeline.of(replace(act, host=graph) if act.what == "launch" else act for act in acts),
            )
        if any(act.what == "mark" for act in acts):
            yield (
                Message("compute twice as much in each launch: a batch of twice the size, half as many steps"),
                _with_larger_batch(acts),
            )
    if sum(map(_is_small, acts)) > 1 and any(act.kind in ("reduction", "softmax") for act in acts):
        yield (
            Message(
                "fused operators (npu_rms_norm, npu_swiglu, npu_rotary_mul, npu_fusion_attention, "
                "fused optimizers) in the place of chains of small ones: half of these launches left "
                "out"
            ),
            Timeline.of(_every_second_left_out(acts, _is_small)),
        )


def _with_larger_batch(acts: Sequence[Act]) -> Timeline:
    """Half the launches, each twice as long on the card."""
    kept = _every_second_left_out(acts, lambda act: act.what == "launch")
    return Timeline.of(replace(act, card=act.card.times(2)) if act.what == "launch" else act for act in kept)


def _is_small(act: Act) -> bool:
    return act.what == "launch" and act.kind in ("elementwise", "normalisation", "copy")


def _every_second_left_out(acts: Sequence[Act], chosen: Callable[[Act], bool]) -> Iterator[Act]:
    odd = False
    for act in acts:
        if chosen(act):
            odd = not odd
            if odd:
                continue
        yield act
