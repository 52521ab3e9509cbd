"""Output of `toprope cores` and `toprope doctor`.

Text, JSON and SARIF, made from the results of `toprope.cores` and `device.doctor`; nothing is decided here. Tests:
tests/cli/test_language.py.
"""

__all__: list[str] = []
