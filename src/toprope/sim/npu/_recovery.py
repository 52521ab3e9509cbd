"""Module `torch_npu.npu._recovery`: marks on memory whose contents may be damaged, as after a card was restarted.

`torch.npu` exports `stop_device` and `restart_device` through recovery.py. Tests:
tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import TYPE, check_index, lazy_init, message, one_module

__all__ = [
    "check_npu_storage_is_safe",
    "check_npu_tensor_is_safe",
    "get_npu_tensor_unsafe_check_flag",
    "mark_all_npu_tensor_unsafe",
    "restart_device",
    "set_npu_tensor_unsafe_check_flag",
    "stop_device",
    "update_npu_storage_to_safe",
    "update_npu_tensor_to_safe",
]

one_module(__name__)


def _address(storage: Any) -> int:
    if not isinstance(storage, torch.TypedStorage | torch.UntypedStorage):
        text = f"param type should be TypedStorage or UntypedStorage, could not be {type(storage)}"
        raise RuntimeError(message(text, TYPE))
    return int(storage.data_ptr())


def _storage(tensor: Any) -> torch.UntypedStorage:
    if not isinstance(tensor, torch.Tensor):
        raise RuntimeError(message(f"param type should be Tensor, could not be {type(tensor)}", TYPE))
    return tensor.untyped_storage()


def check_npu_storage_is_safe(storage_obj: Any) -> bool:
    """Return True if a storage has no mark.

    Raises:
        RuntimeError: it is no storage.
    """
    return bool(native().is_safe(_address(storage_obj)))


def check_npu_tensor_is_safe(tensor_obj: Any) -> bool:
    """Return True if the memory of a tensor has no mark.

    Raises:
        RuntimeError: it is no tensor.
    """
    return check_npu_storage_is_safe(_storage(tensor_obj))


def mark_all_npu_tensor_unsafe(device: int) -> None:
    """Mark all memory of a card that is in use."""
    native().mark_all_unsafe(check_index(device))


def update_npu_storage_to_safe(storage_obj: Any) -> None:
    """Take the mark of a storage away."""
    native().set_safe(_address(storage_obj))


def update_npu_tensor_to_safe(tensor_obj: Any) -> None:
    """Take the mark of a tensor's memory away; a copy into it does so, too."""
    update_npu_storage_to_safe(_storage(tensor_obj))


def set_npu_tensor_unsafe_check_flag(flag: bool) -> None:
    """Choose whether operators refuse to read memory with a mark."""
    native().check_unsafe(int(flag))


def get_npu_tensor_unsafe_check_flag() -> bool:
    """Return True if operators refuse to read memory with a mark."""
    return bool(native().checks_unsafe())


def stop_device(device_id: int) -> None:
    """Drop the work that is queued on a card. Until `restart_device`, any use of it fails with 107022.

    Raises:
        AssertionError: no card of that number.
    """
    native().stop_device(check_index(device_id))


def restart_device(
    device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
) -> None:
    """Let a stopped card be used again. Its tensors keep what they held.

    Args:
        device_id: the card.
        rebuild_all_resources: mark all tensors of the card as perhaps damaged, and refuse to read them.
        disable_tensor_unsafe_check: do not mark them.

    Raises:
        AssertionError: no card of that number.
    """
    lazy_init()
    if rebuild_all_resources and not disable_tensor_unsafe_check:
        mark_all_npu_tensor_unsafe(device_id)
        set_npu_tensor_unsafe_check_flag(True)
    native().restart_device(check_index(device_id))
