"""Module `torch.npu.utils`: the names that torch_npu has in `torch_npu.npu.utils`.

Tests: tests/sim/simulated/test_npu_names.py.
"""

import warnings
from typing import Any

from toprope.sim.npu._backends import get_soc_version
from toprope.sim.npu._state import VALUE as _VALUE
from toprope.sim.npu._state import also_in_torch_npu as _also_in_torch_npu
from toprope.sim.npu._state import device_index as _device_index
from toprope.sim.npu._state import message as _message
from toprope.sim.npu.devices import current_device, device, device_of, is_bf16_supported, set_device, synchronize
from toprope.sim.npu.launch import (
    get_sync_debug_mode,
    get_task_queue_enable,
    set_op_timeout_ms,
    set_sync_debug_mode,
    set_task_queue_enable,
)
from toprope.sim.npu.overflow import (
    clear_npu_overflow_flag,
    get_cann_version,
    get_npu_overflow_flag,
    is_force_overflow_check,
    is_support_inf_nan,
    npu_check_overflow,
)
from toprope.sim.npu.recovery import check_uce_in_memory, ipc_collect
from toprope.sim.npu.streams import StreamContext, current_stream, default_stream, set_stream, stream

__all__ = [
    "StreamContext",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_of",
    "get_cann_version",
    "get_npu_overflow_flag",
    "get_soc_version",
    "get_sync_debug_mode",
    "get_task_queue_enable",
    "ipc_collect",
    "is_bf16_supported",
    "is_force_overflow_check",
    "is_support_inf_nan",
    "npu_check_overflow",
    "set_device",
    "set_op_timeout_ms",
    "set_stream",
    "set_sync_debug_mode",
    "set_task_queue_enable",
    "stream",
    "synchronize",
]


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a card; torch's own helper of this name is asked for by libraries."""
    return _device_index(device, optional, allow_cpu)


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Return True if a part of CANN is of this version or later: never, as the simulated card has no version of CANN.

    Raises:
        RuntimeError: torch_npu's, for the driver and for versions before 8.1.RC1.
    """
    if module == "DRIVER":
        raise RuntimeError(_message("Versions of the module DRIVER cannot be compared.", _VALUE))
    first = version.partition(".")[0]
    if first.isdigit() and int(first) <= 8 and version < "8.1.RC1":
        raise RuntimeError(_message(f"Versions before 8.1.RC1 cannot be compared, such as {version}.", _VALUE))
    return False


def current_blas_handle() -> None:
    """None: an NPU has no such handle, which a warning says."""
    warnings.warn("An NPU has no blas handle: torch.npu.current_blas_handle() is None.", stacklevel=2)


__getattr__ = _also_in_torch_npu(__name__)
