"""torch_npu's own collectives, from toprope's facade of it; as in distributed_values.py, with the facades installed."""

import pytest
import torch
import torch_npu
from torch.distributed import ReduceOp

from distributed_values import BOTH, RANK, here, made, reduced, same


def case_collectives_of_unequal_parts() -> None:
    sizes = [1, 3]
    output = torch.zeros(sizes[RANK], 2).npu()
    torch_npu.distributed.reduce_scatter_tensor_uneven(output, here(shape=(4, 2)), sizes)
    same(output, reduced(ReduceOp.SUM, torch.float32, (4, 2)).split(sizes)[RANK])
    gathered = torch.zeros(4, 2).npu()
    work = torch_npu.distributed.all_gather_into_tensor_uneven(
        gathered, here(shape=(sizes[RANK], 2)), sizes, async_op=True
    )
    work.wait()
    same(gathered, torch.cat([made(rank, shape=(sizes[rank], 2)) for rank in BOTH]))
    counts = [[1, 2], [3, 0]]
    taken = torch.zeros(4 if RANK == 0 else 2).npu()
    torch_npu.distributed.all_to_all_vc(taken, here(shape=(3,)), counts)
    same(taken, torch.cat([made(rank, shape=(3,)).split(counts[rank])[RANK] for rank in BOTH]))


def case_a_storage_format_of_the_card_and_an_offset() -> None:
    torch.npu.config.allow_internal_format = True
    whole = torch_npu.npu_format_cast(torch.ones(32, 16).npu(), 29)
    with pytest.raises(RuntimeError, match="For a tensor of internal format, it's storage_offset must be 0"):
        torch.distributed.all_reduce(whole[16:])
    torch.distributed.all_reduce(whole)
    same(whole, torch.full((32, 16), 2.0))


def case_the_name_of_a_communicator() -> None:
    backend, other = (torch.distributed.new_group()._get_backend(torch.device("npu")) for _ in range(2))
    for name in ("", "x" * 128):
        with pytest.raises(RuntimeError, match="The length of the name must be between 1 and 127"):
            backend._set_hccl_comm_name(name)
    backend._set_hccl_comm_name("trainers")
    backend._set_hccl_comm_name("trainers")
    assert backend.get_hccl_comm_name(RANK) == "trainers"
    assert other.get_hccl_comm_name(RANK) == other.get_hccl_comm_name(RANK) != "trainers"
    for named in (backend, other):
        with pytest.raises(RuntimeError, match="has already set the name and cannot be duplicated"):
            named._set_hccl_comm_name("others")


def case_a_sum_of_products() -> None:
    tensor = here()
    torch.distributed.all_reduce(tensor, torch_npu.distributed._make_hccl_premul_sum(2.0))
    same(tensor, 2 * reduced(ReduceOp.SUM, torch.float32))
