"""Output of `toprope cores` and `toprope doctor`.

Text, JSON and SARIF, made from the results of `toprope.cores`, `toprope.codes` and `device.doctor`; nothing is decided
here. Tests: tests/cli/test_cli_cores.py, tests/device/test_doctor_cli.py.
"""

__all__: list[str] = []
