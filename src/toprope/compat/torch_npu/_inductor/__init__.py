"""Facade package `torch_npu._inductor`, the compiler of torch_npu. Importing it changes nothing here.

torch.compile of a program on the simulated card is lowered by torch's own Inductor with or without this module, as for
the CPU (toprope.sim.inductor). The code generators for Ascend, their passes and their settings are missing: asking for
one is an error. Tests: tests/sim/simulated/test_graphs.py.
"""

from toprope.compat.missing import missing_from

__all__: list[str] = []

__getattr__ = missing_from(__name__)
