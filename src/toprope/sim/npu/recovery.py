"""`torch.npu`: stopping a card, starting it again, and what is left of other processes."""

from __future__ import annotations

import sys

from toprope.sim.native import native
from toprope.sim.npu._state import check_index, lazy_init

__all__ = ["check_uce_in_memory", "ipc_collect", "restart_device", "stop_device"]


def stop_device(device_id: int) -> None:
    """Drops the work that is queued on a card. Until `restart_device`, whatever uses it fails with 107022.

    Raises:
        AssertionError: no card of that number.
    """
    native().stop_device(check_index(device_id))


def restart_device(
    device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
) -> None:
    """Lets a stopped card be used again. Its tensors keep what they held.

    Args:
        device_id: the card.
        rebuild_all_resources: accepted; the simulated card has nothing to build again.
        disable_tensor_unsafe_check: accepted; tensors are not marked as unsafe here.

    Raises:
        AssertionError: no card of that number.
    """
    native().restart_device(check_index(device_id))


def check_uce_in_memory(device_id: int) -> int:
    """0: no memory error that cannot be corrected, which the simulated card never has. (1 to 3 name such errors.)"""
    lazy_init()
    return 0


def ipc_collect() -> None:
    """Lets go of memory that was shared with other processes and that none of them holds any more."""
    lazy_init()
    sharing = sys.modules.get("toprope.sim.sharing")
    if sharing is not None:
        sharing.collect()
