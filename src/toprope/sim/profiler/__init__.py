"""The profiler of the simulated cards: what was recorded of a piece of a program, and the vendor's files of it."""

from toprope.sim.profiler.analysis import RAW, analyse, export_chrome_trace, export_stacks, profiles
from toprope.sim.profiler.capture import Capture, HostOperator, Options
from toprope.sim.profiler.collector import Collector

__all__ = [
    "RAW",
    "Capture",
    "Collector",
    "HostOperator",
    "Options",
    "analyse",
    "export_chrome_trace",
    "export_stacks",
    "profiles",
]
