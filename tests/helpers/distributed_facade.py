"""torch_npu's own collectives, from toprope's facade of it; as in distributed_values.py, with the facades installed."""

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
