"""Facade package `torch_npu.distributed`: functions that torch_npu adds to torch.distributed, composed of torch's own.

Names, signatures and errors are torch_npu's, with their misspelling. The backend hccl itself is
toprope.sim.distributed. Parts that are slow to import are registered when torch's module is imported. Tests:
tests/sim/test_distributed.py, with the cases of tests/helpers/distributed_facade.py; tests/compat/test_torch_npu_rpc.py
and tests/compat/test_torch_npu_dtensor.py for what it registers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import _rendezvous_handlers, register_rendezvous_handler

from toprope.compat.missing import missing_from
from toprope.imports import after_import

from .parallel_store import ParallelStore

__all__ = [
    "ParallelStore",
    "all_gather_into_tensor_uneven",
    "all_to_all_vc",
    "is_available",
    "is_hccl_available",
    "reduce_scatter_tensor_uneven",
    "reinit_process_group",
]


def is_available() -> bool:
    """Return True if torch was built with torch.distributed."""
    return dist.is_available()


def _make_hccl_premul_sum(factor: float | Tensor) -> Any:
    """A reduction that multiplies each process's tensor by a factor, and sums the products."""
    return dist._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]


def _is_support_hccl_comm_name() -> bool:
    """Return True: a group's communicator can be given a name."""
    return True


def is_hccl_available() -> bool:
    """Return True if process groups can have the backend `hccl`: where there is a card."""
    return "hccl" in dist.Backend.backend_list


def reinit_process_group(group: Any = None, rebuild_link: bool = True) -> Any:
    """Repair the links of a group after a fault.

    Args:
        group: the group, None for the default one.
        rebuild_link: whether to make the links again.

    Returns:
        The group if the links are made again, else None.
    """
    return dist.reinit_process_group(group, rebuild_link)  # type: ignore[attr-defined]


def reduce_scatter_tensor_uneven(
    output: Tensor,
    input: Tensor,
    input_split_sizes: Sequence[int] | None = None,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor and give each process a part of the result, of a size of its own.

    Args:
        output: where this process's part goes.
        input: what is reduced.
        input_split_sizes: rows of the part of each process; None for equal parts.
        op: the reduction.
        group: the process group, None for the default one.
        async_op: whether to return a work that the caller waits for.

    Raises:
        RuntimeError: torch_npu's, the sizes do not go with the input.
    """
    if not _on_cards(output, input):
        return None
    parts = _split(input, input_split_sizes, group)
    return dist.reduce_scatter(output, parts, op, group, async_op)


def all_gather_into_tensor_uneven(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Give all processes the tensors of all as one; they may differ in their number of rows.

    Args:
        output: where they go.
        input: this process's tensor.
        output_split_sizes: rows of the tensor of each process; None for equal ones.
        group: the process group, None for the default one.
        async_op: whether to return a work that the caller waits for.

    Raises:
        RuntimeError: torch_npu's, the sizes do not go with the output.
    """
    if not _on_cards(output, input):
        return None
    return dist.all_gather(_split(output, output_split_sizes, group), input, group, async_op)


def all_to_all_vc(
    output: Tensor, input: Tensor, send_count_matrix: Sequence[Sequence[int]], group: Any = None, async_op: bool = False
) -> Any:
    """Have each process give every other one as many numbers as a matrix says that all of them have.

    Args:
        output: where the numbers go, those of the first process first.
        input: the numbers, those for the first process first.
        send_count_matrix: row i, column j: how many numbers process i gives to process j.
        group: the process group, None for the default one.
        async_op: whether to return a work that the caller waits for.

    Raises:
        ValueError: torch_npu's, the matrix is not as large as the group.
    """
    if not _on_cards(output, input):
        return None
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if len(send_count_matrix) != size:
        raise ValueError(f"send_count_matrix must have {size} rows (group size), got {len(send_count_matrix)}")
    for row in send_count_matrix:
        if len(row) != size:
            raise ValueError(
                f"send_count_matrix must be a square [{size}][{size}] matrix; got a row of length {len(row)}"
            )
    given, taken = list(send_count_matrix[rank]), [row[rank] for row in send_count_matrix]
    return dist.all_to_all_single(output.view(-1), input.view(-1), taken, given, group, async_op)


def _on_cards(output: Tensor, source: Tensor) -> bool:
    if output.device.type == "npu" == source.device.type:
        return True
    warnings.warn("Support for Tensors is limited to those of type npu", stacklevel=3)
    return False


def _split(tensor: Tensor, sizes: Sequence[int] | None, group: Any) -> list[Tensor]:
    count = dist.get_world_size(group)
    if not sizes:
        if len(tensor) % count:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        sizes = [len(tensor) // count] * count
    if len(sizes) != count:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(sizes) != len(tensor):
        raise RuntimeError("Split sizes dosen't match total dim 0 size")
    return list(torch.split_with_sizes(tensor, list(sizes)))


def _rendezvous(url: str, *args: Any, **kwargs: Any) -> Any:
    from .rendezvous import _parallel_rendezvous_handler  # torch's launcher is slow to import

    return _parallel_rendezvous_handler(url, *args, **kwargs)


def _register_rpc() -> None:
    if torch.distributed.rpc.is_available():
        from .rpc.backend_registry import _rpc_backend_registry

        _rpc_backend_registry()


def _register_tensor() -> None:
    from . import tensor  # noqa: F401


def extend_when_imported() -> None:
    """Extend torch's modules for requests and for DTensor, both slow to import, when a program imports them."""
    after_import("torch.distributed.rpc", _register_rpc)
    after_import("torch.distributed.tensor", _register_tensor)


if "parallel" not in _rendezvous_handlers:
    register_rendezvous_handler("parallel", _rendezvous)  # type: ignore[no-untyped-call]

__getattr__ = missing_from(__name__)
