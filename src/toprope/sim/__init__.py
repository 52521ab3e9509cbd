"""The simulated Ascend NPU: a real PyTorch device named `npu` on a machine that has none.

Every process of a run that imports torch imports this package, so what only some programs use is loaded when it is
named. The device itself is C++ and is built at the first use.

Users' page: docs/simulator.md. For contributors: csrc/ is the C++, build.py builds it, installation/installer.py puts
the device into torch; toprope.compat and the entry point torch.backends import this package. Tests:
tests/sim/test_sim_install.py, and tests/base/test_import.py for what an import loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from toprope.sim.installation.installer import autoload as _autoload
from toprope.sim.installation.installer import install
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed

if TYPE_CHECKING:
    from toprope.sim import faults
    from toprope.sim.launching import Collective, KernelState, collective, dispatch, kernels, launch
    from toprope.sim.rehearsal.recorder import rehearse
    from toprope.sim.tracing.records import Record
    from toprope.sim.tracing.tracer import trace

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

_HOMES = {
    "Collective": "launching",
    "KernelState": "launching",
    "Record": "tracing.records",
    "collective": "launching",
    "dispatch": "launching",
    "kernels": "launching",
    "launch": "launching",
    "rehearse": "rehearsal.recorder",
    "trace": "tracing.tracer",
}


def __getattr__(name: str) -> object:
    if name == "faults":
        return import_module(f"{__name__}.faults")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
