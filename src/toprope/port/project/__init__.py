"""Facts about the whole project that one file depends on: its folders, classes, re-exports, scripted code.

Read by `scan` before the first file is ported, and handed to `engine` with each. Tests:
tests/port/test_port_across.py.
"""

__all__: list[str] = []
