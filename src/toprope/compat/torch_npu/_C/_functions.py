"""Functions of `torch_npu._C` for devices, streams and graph trees, made of functions of `torch.npu`.

`torch_npu._C.__getattr__` calls `find`; the names are those of the compiled functions of Ascend/pytorch. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

from typing import Any

from toprope.compat import no_npu

from .._facade import current_npu

__all__ = ["SAME", "find"]

SAME = {
    "_get_cann_version": "utils.get_cann_version",
    "_is_gte_cann_version": "utils._is_gte_cann_version",
    "_npu_canDeviceAccessPeer": "can_device_access_peer",
    "_npu_emptyCache": "empty_cache",
    "_npu_getDevice": "current_device",
    "_npu_getDeviceCount": "device_count",
    "_npu_get_soc_version": "get_soc_version",
    "_npu_hostEmptyCache": "host_empty_cache",
    "_npu_init": "init",
    "_npu_setDevice": "set_device",
    "_npu_synchronize": "synchronize",
}
"""Names of functions that do what one of torch.npu does, with the same arguments and results."""


def find(name: str) -> Any:
    """Find the function of torch.npu, or of its graph trees, that has another name here; None where there is none."""
    if name not in SAME:
        return _of_graph_trees(name)
    place: Any = current_npu()
    for part in SAME[name].split("."):
        place = getattr(place, part, None)
    return place


def _of_graph_trees(name: str) -> Any:
    if current_npu() is no_npu:
        return None
    from toprope.sim.npu.graph_trees.allocator import FUNCTIONS, PoolState

    return PoolState if name == "_npu_NPUAllocator_AllocatorState" else FUNCTIONS.get(name)


def current_stream(device: int) -> tuple[int, int, int]:
    """Number, card and device type of the current stream of a card."""
    return _described(current_npu().current_stream(device))


def default_stream(device: int) -> tuple[int, int, int]:
    """Number, card and device type of the default stream of a card."""
    return _described(current_npu().default_stream(device))


def raw_stream(device: int) -> int:
    """Handle of the current stream of a card."""
    return int(current_npu().current_stream(device).npu_stream)


def local_device() -> int:
    """Number of the current card; -1 before the process uses one."""
    npu = current_npu()
    return int(npu.current_device()) if npu.is_initialized() else -1


def has_primary_context(device: int) -> bool:
    """Return True if the process has taken memory on a card, for which torch_npu makes a context there."""
    npu = current_npu()
    return bool(npu.is_initialized() and npu.max_memory_reserved(device))


def history_is_enabled() -> bool:
    """Return True while the history of allocations is recorded."""
    from toprope.sim.npu.history import is_recording

    return is_recording()


def option(name: str) -> bytes | None:
    """Value of an option that `torch.npu.set_option` or another call has set; None if none has."""
    from toprope.sim.npu.npu_config import kept_option

    value = kept_option(name)
    return None if value is None else value.encode()


def _described(stream: Any) -> tuple[int, int, int]:
    return int(stream.stream_id), int(stream.device_index), int(stream.device_type)
