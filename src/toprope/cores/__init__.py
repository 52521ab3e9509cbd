"""Core limits: can a set of streams deadlock, why, and which limits make it safe."""

from toprope.cores.model import Card, Collective, Communicator, Cores, Discipline, Op, OpId, Program, Stream
from toprope.cores.state import State, Wait

__all__ = [
    "Card",
    "Collective",
    "Communicator",
    "Cores",
    "Discipline",
    "Op",
    "OpId",
    "Program",
    "State",
    "Stream",
    "Wait",
]
