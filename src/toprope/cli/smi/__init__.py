"""Contents of `npu-smi`: the simulated machine and the tables.

Used by `cli.npu_smi`. Tests: tests/cli/test_npu_smi.py.
"""

__all__: list[str] = []
