"""Cost of operator calls: operations and bytes, a chip's speed, and a timeline of host and streams.

Used by estimates of models (`estimate.model`) and of runs (toprope.sim.tracing.timing). Pure, without torch: `costs`
counts, `rates` knows the chip, `timeline` adds up. Tests: tests/estimate/test_costs.py, tests/estimate/test_rates.py,
tests/estimate/test_timeline.py.
"""

__all__: list[str] = []
