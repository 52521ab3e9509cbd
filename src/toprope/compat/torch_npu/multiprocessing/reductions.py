"""Facade module: what torch.multiprocessing pickles in the place of a tensor on a card, under torch_npu's names.

The work is done by toprope.sim.sharing, which the card registers with torch when it is installed; names, and torch's
functions that are found here, are torch_npu's. Events of a card do not travel yet. Tests:
tests/sim/simulated/test_sharing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions as _reductions
from torch.multiprocessing.reductions import (
    StorageWeakRef,
    fd_id,
    rebuild_meta_tensor,
    rebuild_storage_empty,
    rebuild_storage_fd,
    rebuild_storage_filename,
    rebuild_tensor,
    reduce_nested_tensor,
    shared_cache,
    storage_from_cache,
)

from toprope.compat.missing import missing_from
from toprope.sim.sharing import rebuild_npu_tensor

__all__ = ["rebuild_npu_event", "rebuild_npu_tensor"]

_TORCHS = (
    StorageWeakRef, fd_id, rebuild_meta_tensor, rebuild_storage_empty, rebuild_storage_fd, rebuild_storage_filename,
    rebuild_tensor, reduce_nested_tensor, shared_cache, storage_from_cache,
)  # fmt: skip
"""Names that torch_npu imports into this module, where programs and tests replace them."""


def rebuild_npu_event(device: torch.device, handle: bytes) -> Any:
    """Make an event of another process's handle.

    Raises:
        NotImplementedError: events of the simulated card do not travel between processes.
    """
    return torch.npu.Event.from_ipc_handle(device, handle)  # type: ignore[attr-defined]


def _npu_reduce_event(event: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return rebuild_npu_event, (event.device, event.ipc_handle())


def _npu_reduce_tensor(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call, no-any-return]


def _npu_reduce_storage(storage: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _reductions.reduce_storage(storage)  # type: ignore[no-untyped-call, no-any-return]


def _add_reductions_methods() -> None:
    """Do nothing: torch has them since the card was installed."""


__getattr__ = missing_from(__name__)
