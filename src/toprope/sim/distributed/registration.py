"""Registration of the backend `hccl` for the device `npu` with torch.distributed, under torch_npu's names.

Called when the card is installed. It replaces a private function of torch.distributed, as torch_npu does; the backend
itself is imported with the first process group that uses it. Tests: tests/sim/test_distributed.py.
"""

from __future__ import annotations

import atexit
import functools
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from toprope.imports import after_import

__all__ = ["register"]

_made: list[Any] = []
"""Backends whose group is about to be made."""

_END_LIMIT = 5.0
"""Seconds that collectives under way get when the process ends."""

_kept: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
"""The backends of each group: it keeps only what of them is C++, and the collectives are Python."""


def register(torch: ModuleType) -> None:
    """Register the backend; nothing is done in a torch that was built without torch.distributed."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    distributed_c10d.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])
    distributed_c10d._new_process_group_helper = _with_default_backend(distributed_c10d._new_process_group_helper)
    torch.distributed.is_hccl_available = is_hccl_available
    torch.distributed.reinit_process_group = reinit_process_group
    after_import("torch._dynamo.trace_rules", _keep_dynamo_out)
    after_import("torch.distributed.fsdp.sharded_grad_scaler", _scale_on_cards)


def _keep_dynamo_out() -> None:
    """Have torch.compile run our Python as it is, which torch's C++ calls and no graph can hold."""
    from torch._dynamo import trace_rules

    trace_rules.add("toprope.sim.distributed")


def _scale_on_cards() -> None:
    """Put torch_npu's gradient scaler for FSDP in the place of torch's, as torch_npu does."""
    from torch.distributed.fsdp import sharded_grad_scaler

    from toprope.sim.npu.amp.sharded_grad_scaler import _ShardedGradScaler

    sharded_grad_scaler.ShardedGradScaler = _ShardedGradScaler  # type: ignore[misc]


def _create(options: Any, backend_options: Any) -> Any:
    """A backend for one process group, as torch asks for it."""
    from toprope.sim.distributed.process_group import ProcessGroupHCCL

    if isinstance(backend_options, ProcessGroupHCCL.Options):
        backend_options = backend_options.copied()  # a program may use one object for several groups
    else:
        backend_options = ProcessGroupHCCL.Options()
    backend_options._timeout = options.timeout
    backend_options.global_ranks_in_group = options.global_ranks_in_group
    backend_options.group_id = options.group_id
    if not _kept:
        atexit.unregister(_end_collectives)
        atexit.register(_end_collectives)
    _made.append(ProcessGroupHCCL(options.store, options.group_rank, options.group_size, backend_options))
    return _made[-1]


def _end_collectives() -> None:
    """End what is under way before Python ends: gloo's threads call Python, and would end the process with an abort."""
    from torch.distributed import distributed_c10d

    from toprope.sim.distributed.threads import wait_for_all

    for backends in list(_kept.values()):
        for backend in backends:
            backend.wait_for_all(_END_LIMIT)
    wait_for_all(_END_LIMIT)
    if distributed_c10d.is_initialized() and all(one.under_way is None for all_ in _kept.values() for one in all_):
        distributed_c10d.destroy_process_group()  # as torch_npu does at exit


def _with_default_backend(create_group: Any) -> Any:
    """torch's maker of process groups, and `hccl` as the default backend of those that have it for the cards.

    torch 2.13 sets none for a backend of others where it is one of several ("cpu:gloo,npu:hccl"), and gloo where it
    was found by the device; torch_npu replaces the same function.
    """

    @functools.wraps(create_group)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        _made.clear()  # of a group that could not be made
        group, store = create_group(*args, **kwargs)
        if _made:
            _kept[group] = tuple(_made)
            _made.clear()
            group._set_default_backend(type(group).BackendType.CUSTOM)
        return group, store

    return _new_process_group_helper


def is_hccl_available() -> bool:
    """Return True if process groups can have the backend `hccl`."""
    from torch.distributed import Backend

    return "hccl" in Backend.backend_list


def reinit_process_group(group: Any = None, rebuild_link: bool = True) -> Any:
    """torch_npu's function to repair a group's links after a fault; simulated links do not break and stay as they are.

    Args:
        group: the group, None for the default one.
        rebuild_link: whether the links are to be made again.

    Returns:
        The group where the links are made again, else None.
    """
    from torch.distributed import distributed_c10d

    if group is None:
        group = distributed_c10d._get_default_group()
    return group if rebuild_link else None
