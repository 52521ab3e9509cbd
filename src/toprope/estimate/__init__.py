"""Estimates of how long a card takes, as ranges: for each operator of a run, and for models on paper.

`cost` is the arithmetic: operations and bytes of a call, a chip's speed, and a timeline, in which the host launches,
streams compute, and both wait for each other. `record` records what a model would call. `model` estimates a model
from its configuration (`toprope estimate`), `measured` fits the rates to a card's own profiles (`toprope calibrate`,
`toprope verify`). toprope.sim.tracing.timing estimates a run. Errors against public measurements:
docs/estimate_errors.md. Tests: tests/estimate/test_paper.py, tests/estimate/test_timeline.py,
tests/estimate/test_calibrate.py.
"""

__all__: list[str] = []
