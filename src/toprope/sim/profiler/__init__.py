"""The profiler of the simulated cards: what was recorded of a piece of a program, and the vendor's files of it.

Without torch, but for `collector`, which records.
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
