"""Rehearsal: recording of a run, its facts, and the deviation of its modules from float32.

`toprope run --report`, `toprope.sim.rehearse` and the pytest plugin use it. `schema`, the JSON schema of the facts, is
loaded when it is named: a process that only records needs no facts. Tests: tests/sim/test_rehearsal.py, and
tests/sim/simulated/test_rehearsal.py on a card.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.sim.rehearsal.facts import schema

__all__ = ["schema"]


def __getattr__(name: str) -> object:
    if name != "schema":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from toprope.sim.rehearsal import facts

    return facts.schema
