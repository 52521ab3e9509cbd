"""Checks for `toprope doctor --images`.

`checks` runs in the command, `selftest_child` in a process of its own.
"""

__all__: list[str] = []
