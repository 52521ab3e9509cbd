"""Diagnosis for `toprope doctor` and `toprope devices`: collect facts, then reason about them.

`collect` reads the machine, `torch_probe` asks torch in child processes, `diagnosis` and the `_checks` make findings
of it, which touch nothing of the machine. Called by `cli.doctor` and `cli.devices`; docs/doctor.md. Tests:
tests/device/test_doctor.py, tests/device/test_doctor_collect.py, tests/device/test_doctor_threads.py.
"""

__all__: list[str] = []
