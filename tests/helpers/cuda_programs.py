"""Programs written for CUDA, in processes in which toprope's facades can be imported: one, or two of a group."""

import os
import socket
import sys
import textwrap

import forkserver

HEAD = "import toprope.compat\ntoprope.compat.install()\n"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE_S", "TOPROPE_D"))}
    return kept | {"TOPROPE_SIM": "910B3", "OMP_NUM_THREADS": "1"} | variables


def run(code, *, head=HEAD, **variables):
    """Run a program; its variables are set, too."""
    done = forkserver.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], timeout=120, env=environment(**variables)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def run_ranks(code, *, head=HEAD):
    """Run a program in two processes of a group, each with a card; what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    files = [(os.memfd_create("out"), os.memfd_create("err")) for _ in range(2)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "TOPROPE_SIM": "910B3x2"}
    processes = [
        forkserver.start(
            [sys.executable, "-c", head + textwrap.dedent(code)],
            env=environment(**group, RANK=str(rank), LOCAL_RANK=str(rank)), stdout=out, stderr=err,
        )
        for rank, (out, err) in enumerate(files)
    ]  # fmt: skip
    status = [process.wait(120) for process in processes]
    printed, errors = ([os.pread(file, 2**20, 0).decode() for file in kind] for kind in zip(*files, strict=True))
    for pair in files:
        for file in pair:
            os.close(file)
    assert status == [0, 0], errors
    return printed


DDP = """
import os, threading
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device(f"cuda:{rank}"))
assert dist.is_nccl_available()
torch.manual_seed(rank)
model = DDP(torch.nn.Linear(4, 2).cuda(), device_ids=[rank], output_device=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    torch.cuda.set_device(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((3, 4), float(rank + step), device="cuda")).sum().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
total = torch.ones(1, device="cuda") * (rank + 1)
dist.all_reduce(total)
dist.all_reduce(total, group=dist.new_group([0, 1], backend="nccl"))
on_host = torch.ones(1)
dist.all_reduce(on_host)
dist.barrier()
weights = [round(each, 4) for each in model.module.weight.detach().cpu().flatten().tolist()]
print(total.item(), on_host.item(), weights)
dist.destroy_process_group()
"""
"""DistributedDataParallel trained in a thread; both processes print the same."""
