"""The simulated Ascend NPU: a real PyTorch device named `npu` on a machine that has none."""

from toprope.sim import faults
from toprope.sim.installation import autoload as _autoload
from toprope.sim.installation import install
from toprope.sim.launching import Collective, KernelState, collective, dispatch, kernels, launch
from toprope.sim.records import Record
from toprope.sim.rehearsing import rehearse
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed
from toprope.sim.tracing import trace

__all__ = [
    "Collective",
    "KernelState",
    "Record",
    "SimSpec",
    "_autoload",
    "collective",
    "dispatch",
    "faults",
    "install",
    "installed",
    "kernels",
    "launch",
    "rehearse",
    "trace",
]
