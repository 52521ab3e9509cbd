"""Core limits: can a set of streams deadlock, why, and which limits make it safe.

For users, and for `toprope cores`. Only the public names are here. `record` reads a schedule into a `Program`
(`model`), `check` decides if it can deadlock (`proof`), `planning` finds limits, `simulation` runs it on a virtual
clock. Nothing here needs torch or a card. docs/cores.md describes it, docs/core_proof.md proves it. Tests:
tests/cores/test_cores_check.py, tests/cores/test_cores_examples.py.
"""

from toprope.cores.check import Fix, Result, Verdict, check
from toprope.cores.model import Card, Collective, Communicator, Cores, Discipline, Op, OpId, Program, Stream
from toprope.cores.planning.exact import plan_exact
from toprope.cores.planning.limits import Limit, Plan, plan
from toprope.cores.planning.program import Sources, limited, plan_by_sums
from toprope.cores.planning.safe import plan_program
from toprope.cores.planning.times import Demand, Times, Work
from toprope.cores.simulation.run import Interval, Moment, Run
from toprope.cores.simulation.simulate import hunt, simulate
from toprope.cores.simulation.timeouts import TimeOut
from toprope.cores.state import State, Wait

__all__ = [
    "Card",
    "Collective",
    "Communicator",
    "Cores",
    "Demand",
    "Discipline",
    "Fix",
    "Interval",
    "Limit",
    "Moment",
    "Op",
    "OpId",
    "Plan",
    "Program",
    "Result",
    "Run",
    "Sources",
    "State",
    "Stream",
    "TimeOut",
    "Times",
    "Verdict",
    "Wait",
    "Work",
    "check",
    "hunt",
    "limited",
    "plan",
    "plan_by_sums",
    "plan_exact",
    "plan_program",
    "simulate",
]
