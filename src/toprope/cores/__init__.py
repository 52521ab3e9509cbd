"""Core limits: can a set of streams deadlock, why, and which limits make it safe."""

from toprope.cores.model import Card, Collective, Communicator, Cores, Discipline, Op, OpId, Program, Stream
from toprope.cores.simulate import Interval, Moment, Run, hunt, simulate
from toprope.cores.state import State, Wait
from toprope.cores.timeouts import TimeOut

__all__ = [
    "Card",
    "Collective",
    "Communicator",
    "Cores",
    "Discipline",
    "Interval",
    "Moment",
    "Op",
    "OpId",
    "Program",
    "Run",
    "State",
    "Stream",
    "TimeOut",
    "Wait",
    "hunt",
    "simulate",
]
