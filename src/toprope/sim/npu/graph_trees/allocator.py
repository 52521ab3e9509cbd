"""Functions on the allocator's pools, and on storages in them, that graph trees call.

Used by trees.py. torch has them for CUDA alone, and torch_npu in `torch_npu._C`, by these names. Tests:
tests/sim/simulated/test_graph_trees.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from toprope.sim.native import native
from toprope.sim.npu.history import is_recording
from toprope.sim.npu.pools import PoolId, pool_number

__all__ = ["FUNCTIONS", "PoolState"]

_OWNED = "Expected standard deleter"


class PoolState:
    """How the memory of a pool was divided at a time."""

    def __init__(self, device: int, pool: PoolId) -> None:
        self.number = pool_number(pool)
        self._forget = native().forget_pool_state
        self.state = native().pool_state(device, self.number)

    def __del__(self) -> None:
        if getattr(self, "state", None):
            self._forget(self.state)


def _restore(device: int, state: PoolState, stale: Iterable[int], live: Sequence[int]) -> None:
    """Make a pool what it was.

    Args:
        device: number of the card.
        state: of the pool.
        stale: addresses of storages in the pool that no longer own their memory.
        live: addresses of storages that own theirs from now on.

    Raises:
        RuntimeError: a storage owns its memory already, or a library of the host keeps memory in the pool.
    """
    for storage in stale:
        native().give_up_memory(storage)
    if any(native().owns_memory(storage) for storage in live):
        raise RuntimeError("Not expecting deleter function")
    if not native().restore_pool(device, state.number, state.state):
        raise RuntimeError(
            "The graph cannot be recorded: a library of the host keeps memory that it took while a graph of the same"
            " pool ran on the simulated card. do: torch._inductor.config.triton.cudagraphs = False"
        )
    for storage in live:
        native().take_memory(storage)


def _free(storage: int) -> None:
    if not native().owns_memory(storage):
        raise RuntimeError(_OWNED)
    native().give_up_memory(storage)


def _holds_only(device: int, pool: PoolId, addresses: Iterable[int]) -> bool:
    """Return True if these are all the blocks of a pool that are in use."""
    expected = list(addresses)
    numbers = (ctypes.c_uint64 * len(expected))(*expected)
    return bool(native().pool_uses_only(device, pool_number(pool), numbers, len(expected)))


def _release(device: int, pool: PoolId) -> None:
    native().release_pool(device, pool_number(pool))


def _same_addresses(tensors: Sequence[Any], addresses: Sequence[int | None], places: Iterable[int]) -> bool:
    return all(tensors[place].data_ptr() == addresses[place] for place in places)


def _tensor(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    """Tensor of a storage, with size, stride, offset and dtype of a recorded one."""
    with _disable_current_modes():
        made = torch.empty(0, dtype=metadata["dtype"], device=metadata["device"])
        made.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
    return made


def _refuse_tensor(tensor: torch.Tensor, text: str) -> None:
    native().refuse_tensor(tensor._cdata, text.encode())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_add_cached_tensor": torch._C._add_cached_tensor,
    "_construct_NPU_Tensor_From_Storage_And_Metadata": _tensor,
    "_free_And_Remove_DeleterFn": _free,
    "_has_Standard_Deleter": lambda storage: bool(native().owns_memory(storage)),
    "_npu_beginAllocateCurrentThreadToPool": lambda device, pool: native().open_pool(device, pool_number(pool), 0),
    "_npu_checkPoolLiveAllocations": _holds_only,
    "_npu_endAllocateToPool": lambda device, pool: native().close_pool(device, pool_number(pool)),
    "_npu_getCheckpointState": PoolState,
    "_npu_isHistoryEnabled": is_recording,
    "_npu_npuCachingAllocator_raw_delete": lambda address: native().release(address),
    "_npu_releasePool": _release,
    "_npu_setCheckpointPoolState": _restore,
    "_set_storage_access_error_msg": _refuse_tensor,
    "_set_storage_data_ptr_access_error_msg": lambda storage, text: native().refuse_storage(storage, text.encode()),
    "_tensors_data_ptrs_at_indices_equal": _same_addresses,
}
"""By the names of `torch_npu._C`."""
