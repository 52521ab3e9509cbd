"""`torch.npu`: stopping a card, starting it again, and damaged memory."""

from __future__ import annotations

import sys
from typing import Any

from toprope.sim.npu._state import lazy_init, not_here

__all__ = ["check_uce_in_memory", "ipc_collect", "restart_device", "stop_device"]


def stop_device(device_id: int) -> Any:
    """Not there yet: dropping all work that is queued on a card.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("stop_device", "work that is queued on it cannot be dropped")


def restart_device(
    device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
) -> Any:
    """Not there yet: use of a card after `stop_device`.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("restart_device", "it cannot be stopped")


def check_uce_in_memory(device_id: int) -> int:
    """0: no memory error that cannot be corrected, which the simulated card never has. (1 to 3 name such errors.)"""
    lazy_init()
    return 0


def ipc_collect() -> None:
    """Lets go of memory that was kept for other processes, where these are done with it."""
    lazy_init()
    if "toprope.sim.sharing" in sys.modules:
        from toprope.sim import sharing

        sharing.collect()
