"""Contents of `npu-smi`: the simulated machine and the tables."""

__all__: list[str] = []
