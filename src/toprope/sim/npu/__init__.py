"""`torch.npu` of the simulated card: torch_npu's names and signatures.

The installation puts this package in torch as `torch.npu`; programs and libraries call it. One file for each topic. A
function that torch_npu has and the simulated card cannot have raises NotImplementedError when it is used
(unavailable.py); any other name raises AttributeError. names.toml says which of torch_npu's names are here;
tests/sim/simulated/test_npu_names.py and tests/compat/test_compat_torch_npu.py hold names and signatures;
docs/compat.md shows them.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch as _torch  # noqa: F401 # first: it installs the card where TOPROPE_SIM asks for one, which needs this package

from toprope.sim.metrics.python_errors import note_missing as _note_missing
from toprope.sim.native import native
from toprope.sim.npu import (  # the private ones so that each is one module under torch_npu's name, too
    _aclgraph_update_plan,  # noqa: F401
    _memory_viz,  # noqa: F401
    _npugraph_conditional_nodes,  # noqa: F401
    aclnn,
    amp,
    backends,
    npugraph_ex,
    utils,
)
from toprope.sim.npu._backends import (
    enable_flash_sdp,
    enable_math_sdp,
    enable_mem_efficient_sdp,
    flash_sdp_enabled,
    get_soc_version,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
    preferred_linalg_library,
    sdp_kernel,
)
from toprope.sim.npu._npugraph_handlers.npugraph_handler import NpuGraphOpHandler, register_npu_graph_handler
from toprope.sim.npu._state import lazy_init as _lazy_init
from toprope.sim.npu.amp.autocast_mode import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from toprope.sim.npu.deterministic import (
    disable_deterministic_with_backward,
    enable_deterministic_with_backward,
    set_deterministic_level,
)
from toprope.sim.npu.devices import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    mem_get_info,
    set_device,
    synchronize,
    utilization,
)
from toprope.sim.npu.events import sleep as _sleep
from toprope.sim.npu.graphs import (
    NPUGraph,
    graph,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
    make_graphed_callables,
    super_kernel_scope_begin,
    super_kernel_scope_end,
)
from toprope.sim.npu.host_functions import launch_host_func as _launch_host_func  # noqa: F401
from toprope.sim.npu.host_functions import launch_host_func_pending as _launch_host_func_pending  # noqa: F401
from toprope.sim.npu.host_functions import subscribe_report as _subscribe_report  # noqa: F401
from toprope.sim.npu.host_functions import unsubscribe_report as _unsubscribe_report  # noqa: F401
from toprope.sim.npu.host_memory import (
    host_empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    reset_accumulated_host_memory_stats,
    reset_peak_host_memory_stats,
)
from toprope.sim.npu.launch import (
    get_sync_debug_mode,
    get_task_queue_enable,
    set_op_timeout_ms,
    set_sync_debug_mode,
    set_task_queue_enable,
)
from toprope.sim.npu.memory import (
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    empty_virt_addr_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from toprope.sim.npu.memory_table import memory_summary
from toprope.sim.npu.mstx import mstx
from toprope.sim.npu.npu_config import (
    CubeMathType,
    are_compatible_impl_enabled,
    config,
    conv,
    get_device_limit,
    get_stream_limit,
    is_jit_compile_false,
    matmul,
    reset_stream_limit,
    set_compile_mode,
    set_device_limit,
    set_option,
    set_stream_limit,
    use_compatible_impl,
)
from toprope.sim.npu.npurt import npurt
from toprope.sim.npu.overflow import clear_npu_overflow_flag, get_npu_overflow_flag
from toprope.sim.npu.pools import MemPool, graph_pool_handle, use_mem_pool
from toprope.sim.npu.random import (
    _get_rng_state_offset as _get_rng_state_offset,
)
from toprope.sim.npu.random import (
    _set_rng_state_offset as _set_rng_state_offset,
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
from toprope.sim.npu.recovery import check_uce_in_memory, ipc_collect, restart_device, stop_device
from toprope.sim.npu.storage_types import (
    BFloat16Storage,
    BoolStorage,
    ByteStorage,
    CharStorage,
    DoubleStorage,
    FloatStorage,
    HalfStorage,
    IntStorage,
    LongStorage,
    ShortStorage,
)
from toprope.sim.npu.streams import (
    Event,
    ExternalEvent,
    ExternalStream,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from toprope.sim.npu.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from toprope.sim.npu.unavailable import NAMES as _NAMES
from toprope.sim.npu.utils import _get_device_index as _get_device_index
from toprope.sim.npu.utils import current_blas_handle

__all__ = [
    "BFloat16Storage",
    "BFloat16Tensor",
    "BoolStorage",
    "BoolTensor",
    "ByteStorage",
    "ByteTensor",
    "CharStorage",
    "CharTensor",
    "CubeMathType",
    "DoubleStorage",
    "DoubleTensor",
    "Event",
    "ExternalEvent",
    "ExternalStream",
    "FloatStorage",
    "FloatTensor",
    "HalfStorage",
    "HalfTensor",
    "IntStorage",
    "IntTensor",
    "LongStorage",
    "LongTensor",
    "MemPool",
    "NPUGraph",
    "NpuGraphOpHandler",
    "ShortStorage",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "SyncLaunchStream",
    "_sleep",
    "aclnn",
    "amp",
    "are_compatible_impl_enabled",
    "backends",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "disable_deterministic_with_backward",
    "empty_cache",
    "empty_virt_addr_cache",
    "enable_deterministic_with_backward",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_limit",
    "get_device_name",
    "get_device_properties",
    "get_npu_overflow_flag",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_soc_version",
    "get_stream_limit",
    "get_sync_debug_mode",
    "get_task_queue_enable",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_jit_compile_false",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "math_sdp_enabled",
    "matmul",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_efficient_sdp_enabled",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "mstx",
    "npugraph_ex",
    "npurt",
    "preferred_linalg_library",
    "register_npu_graph_handler",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "reset_stream_limit",
    "restart_device",
    "sdp_kernel",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_deterministic_level",
    "set_device",
    "set_device_limit",
    "set_op_timeout_ms",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_stream_limit",
    "set_sync_debug_mode",
    "set_task_queue_enable",
    "stop_device",
    "stream",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
    "synchronize",
    "use_compatible_impl",
    "use_mem_pool",
    "utilization",
    "utils",
]
__all__ += sorted(_NAMES)

globals().update(_NAMES)

# Under its other name, too, each module is one module: `import torch.npu.streams` must not load it again.
for _name, _module in {**sys.modules}.items():
    if _name.startswith(f"{__name__}."):
        sys.modules[f"torch.npu.{_name.removeprefix(f'{__name__}.')}"] = _module


def _is_in_bad_fork() -> bool:
    """Return True if this process was forked from one that had used a card."""
    return bool(native().forked_after_use())


def _lazy_call(cb: Callable[[], Any]) -> None:
    """Call a function once the cards are initialised, which they are from here on."""
    _lazy_init()
    cb()


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint asks whether there are random numbers to repeat
        return is_initialized()
    if name == "default_generators":
        from toprope.sim.npu.random import default_generators

        return default_generators()
    if name.startswith("__"):  # Python's own questions
        raise AttributeError(f"module 'torch.npu' has no attribute {name!r}", name=name)
    from toprope.support.vendor_names import npu_name

    text = f"torch.npu.{name} is not there on the simulated card: {npu_name(name, globals())}"
    _note_missing(f"torch.npu.{name}", text)
    raise AttributeError(text, name=name)
