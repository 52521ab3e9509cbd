"""The error of tracing where there is no card to trace.

Holds src/toprope/sim/tracing/tracer.py.
"""

import pytest

import toprope.sim
from toprope.errors import SimulatorError


def test_there_is_nothing_to_trace() -> None:
    with pytest.raises(SimulatorError, match="there is no simulated card to trace"), toprope.sim.trace():
        pass
