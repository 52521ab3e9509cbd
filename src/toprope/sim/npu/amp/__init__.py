"""Package `torch.npu.amp`: torch.amp for the device npu, with torch_npu's arguments.

Tests: tests/sim/simulated/test_amp.py.
"""

from toprope.sim.npu.amp import common as common
from toprope.sim.npu.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from toprope.sim.npu.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
