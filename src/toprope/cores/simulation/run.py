"""The run of a program on a virtual clock, as data: when each operator held which cores, and how it ended; pure.

`simulation.simulate` makes it; users and the picture (`simulation.timeline`) read it, so its fields are public. Tests:
tests/cores/test_cores_simulate.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from toprope.cores.model import Discipline, OpId, Program
from toprope.cores.simulation.timeouts import TimeOut
from toprope.cores.state import State

__all__ = ["Interval", "Moment", "Run"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An operator in the course of a run; all times in microseconds.

    Attributes:
        op: the operator.
        ready: when the card could have begun it: issued, and all before it finished.
        begin: when it got its first block, or began without any; None where it never did.
        running: when it (and all of its peers) had what they need and it went to work; None where it never did.
        end: when it finished and gave back its cores; None where it did not.
        held: the blocks that it held from each moment on, up to `end`.
    """

    op: OpId
    ready: float
    begin: float | None
    running: float | None
    end: float | None
    held: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """The state from this time on: as in `State`.

    Attributes:
        microseconds: the time.
        done: operators that have finished, by stream.
        held: blocks that the heads of the streams hold, by stream.
    """

    microseconds: float
    done: tuple[int, ...]
    held: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One run of a program: its intervals, and how it ended.

    Attributes:
        program: what ran.
        discipline: how cores were handed out.
        seed: what the order was drawn from; the same seed gives the same run.
        microseconds: the virtual time of the last change.
        end: the last moment.
        deadlocked: whether work is left that can never go on.
        moments: the moments of the run, one for each time at which something changed; empty where not kept.
        intervals: the operators that became ready, in that order; empty where not kept.
        time_out: the first report of the card, in virtual time, when deadlocked and an operator has begun.
        notes: what was assumed.
    """

    program: Program
    discipline: Discipline
    seed: int
    microseconds: float
    end: State
    deadlocked: bool
    moments: tuple[Moment, ...]
    intervals: tuple[Interval, ...]
    time_out: TimeOut | None
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """True if every operator finished."""
        return self.end.finished

    def state(self, moment: Moment) -> State:
        """The moment as a state, which knows who waits for whom."""
        return State(self.program, moment.done, moment.held)
