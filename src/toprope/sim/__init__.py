"""The simulated Ascend NPU: a real PyTorch device named `npu` on a machine that has none."""

from toprope.sim.installation import autoload as _autoload
from toprope.sim.installation import install, installed
from toprope.sim.spec import SimSpec

__all__ = ["SimSpec", "_autoload", "install", "installed"]
