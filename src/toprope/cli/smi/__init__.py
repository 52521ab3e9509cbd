"""Contents of `npu-smi`: the simulated machine and the tables.

Used by `cli.npu_smi`.
"""

__all__: list[str] = []
