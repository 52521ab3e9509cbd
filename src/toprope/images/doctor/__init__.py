"""Checks for `toprope doctor --images`.

`checks` runs in the command, `selftest_child` in a process of its own. Tests: tests/images/test_images_doctor.py.
"""

__all__: list[str] = []
