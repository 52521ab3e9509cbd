"""`torch.npu` of the simulated card: torch_npu's names and signatures.

Topics: devices, memory, streams, random, amp. What torch_npu has and this has not raises AttributeError that says so.
"""

from typing import Any

from toprope.sim.native import native
from toprope.sim.npu import amp
from toprope.sim.npu._state import device_index as _device_index
from toprope.sim.npu._state import lazy_init as _lazy_init  # noqa: F401 - libraries call it
from toprope.sim.npu.amp.autocast_mode import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from toprope.sim.npu.devices import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_name,
    get_device_properties,
    get_soc_version,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    mem_get_info,
    set_device,
    synchronize,
)
from toprope.sim.npu.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from toprope.sim.npu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from toprope.sim.npu.streams import Event, Stream, StreamContext, current_stream, default_stream, set_stream, stream

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "amp",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_soc_version",
    "init",
    "initial_seed",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used a card."""
    return bool(native().forked_after_use())


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a card; torch's own helper of this name is asked for by libraries."""
    return _device_index(device, optional, allow_cpu)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        from toprope.sim.npu.random import default_generators

        return default_generators()
    raise AttributeError(f"torch.npu.{name} is not there on the simulated card (toprope has no such API yet)")
