"""Part of `torch.npu`: stopping a card, starting it again, and release of memory that other processes no longer use.

_recovery.py has the marks on damaged memory. Tests: tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import sys

from toprope.sim.npu._recovery import restart_device, stop_device
from toprope.sim.npu._state import lazy_init

__all__ = ["check_uce_in_memory", "ipc_collect", "restart_device", "stop_device"]


def check_uce_in_memory(device_id: int) -> int:
    """0: no memory error that cannot be corrected, which the simulated card never has. (1 to 3 name such errors.)"""
    lazy_init()
    return 0


def ipc_collect() -> None:
    """Release memory that was shared with other processes and that none of them holds any more."""
    lazy_init()
    sharing = sys.modules.get("toprope.sim.sharing")
    if sharing is not None:
        sharing.collect()
