"""Conditions on CUDA and on devices: what they guard, and whether their answer may change.

Called by `port.engine` after the rules have found their places, and before anything is edited. Tests:
tests/port/test_port_conditions.py.
"""

__all__: list[str] = []
