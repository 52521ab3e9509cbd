"""Runs of a program on a virtual clock, the time-outs that a card reports, and their picture.

Behind `toprope cores simulate` and the pictures of `toprope cores`; the tests compare the checker with it. Tests:
tests/cores/test_cores_simulate.py, tests/cores/test_cores_timeline.py.
"""

__all__: list[str] = []
