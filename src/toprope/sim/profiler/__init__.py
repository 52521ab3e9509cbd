"""Profiles of the simulated cards: recording of a piece of a program, and the vendor's files of it.

`torch_npu.profiler` (toprope.compat) calls it. Only `collector`, which records, imports torch. Tests:
tests/sim/test_profiler_files.py.
"""

from toprope.sim.profiler.analysis import RAW, analyse, export_chrome_trace, export_stacks, profiles
from toprope.sim.profiler.capture import Capture, HostOperator, Options, load, save

__all__ = [
    "RAW",
    "Capture",
    "HostOperator",
    "Options",
    "analyse",
    "export_chrome_trace",
    "export_stacks",
    "load",
    "profiles",
    "save",
]
