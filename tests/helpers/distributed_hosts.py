"""A group with gloo for host tensors beside `hccl` for the cards'; as in distributed_values.py."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from distributed_values import RANK, here, made, reduced, same


def case_tensors_of_both_kinds() -> None:
    assert dist.get_backend_config() == "cpu:gloo,npu:hccl"
    host, tensor = made(RANK), here()
    dist.all_reduce(host)
    dist.all_reduce(tensor)
    assert torch.equal(host, reduced(ReduceOp.SUM, torch.float32))
    same(tensor, host)
    both = dist.new_group()
    dist.all_reduce(host, group=both)
    dist.all_reduce(tensor, group=both)
    same(tensor, host)
    dist.destroy_process_group(both)
    torch.manual_seed(RANK)
    for device in ("cpu", "npu"):
        model = DistributedDataParallel(nn.Linear(3, 2).to(device))
        model(made(RANK).to(device)).sum().backward()
    dist.barrier()


def case_different_collectives_are_told() -> None:
    """torch's own checks, under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    tensor = torch.ones(2 + RANK).npu()
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        dist.all_reduce(tensor)
    dist.barrier()


def case_threads_of_both_kinds() -> None:
    """Host tensors in one thread while the cards' are in another: torch saves checkpoints like that."""
    results: dict[str, Any] = {}

    def on(device: str) -> None:
        tensor = torch.ones(1000, device=device)
        for _ in range(20):
            dist.all_reduce(tensor)
        results[device] = tensor.cpu()

    thread = threading.Thread(target=on, args=("cpu",))
    thread.start()
    on("npu")
    thread.join()
    assert torch.equal(results["npu"], results["cpu"])
    assert results["npu"][0] == 2.0**20
