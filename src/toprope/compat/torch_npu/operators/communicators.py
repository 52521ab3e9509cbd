"""Process groups for operators that communicate, found by the names of HCCL communicators, and an all-to-all of rows.

Used by matmul_collectives.py and moe_distribute.py. A name is what `get_hccl_comm_name` of the group's backend returns
(toprope.sim.distributed.process_group keeps them); every process of the group has to make the same calls. Tests:
tests/sim/test_distributed.py, with the cases of tests/helpers/distributed_fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .checks import refuse

__all__ = ["all_to_all", "required_group"]


def required_group(operator: str, name: str, size: int, rank: int | None = None) -> dist.ProcessGroup:
    """The process group whose communicator has a name.

    Args:
        operator: name of the operator, for the errors.
        name: from `get_hccl_comm_name` of the group's backend.
        size: number of processes that the caller assumes; 0 for any.
        rank: rank of this process that the caller assumes; None for any.

    Raises:
        RuntimeError: there is no such group, or it has another size or rank.
    """
    from toprope.sim.distributed.process_group import group_named

    group = group_named(name)
    if group is None:
        refuse(operator, f"no process group has an HCCL communicator of the name {name!r}; see get_hccl_comm_name")
    if size and size != group.size():
        refuse(operator, f"the world size is given as {size}, but the group {name!r} has {group.size()} processes")
    if rank is not None and rank != group.rank():
        refuse(operator, f"the rank is given as {rank}, but this process has rank {group.rank()} in the group {name!r}")
    return group


def all_to_all(
    rows: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Send rows to all processes, and receive rows of them.

    Args:
        rows: rows for process 0, then for process 1, and so on.
        received: number of rows from each process.
        sent: number of rows for each process.
        group: the processes.

    Returns:
        Rows of process 0, then of process 1, and so on.
    """
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), list(received), list(sent), group=group)
    return result
