"""Collectives on vector cores and the limits of the streams that they are called on: two simulated cards.

Held: errors and warnings of the simulated HCCL, number 15 of the assertions about cores.
"""

import os
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.native, pytest.mark.process]

PROGRAM = """
import logging, os, torch, torch_npu
import torch.distributed as dist
logging.basicConfig(format="%(message)s")
rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
stream = torch.npu.Stream()
torch.npu.set_stream_limit(stream, vector_num=24 if rank == 0 else 32)
with torch.npu.stream(stream):
    for _ in range(2):
        x = torch.full((4,), rank + 1.0, device="npu")
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 4
    torch.npu.set_stream_limit(stream, vector_num=16)
    y = torch.ones(2, device="npu")
    dist.broadcast(y, 0)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        print("refused:", error)
dist.all_reduce(y)
print("and then", y.tolist())
dist.destroy_process_group()
"""


def run(mode: str) -> list[tuple[str, str]]:
    """What each of the two ranks prints, and what it warns of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE", "HCCL", "ASCEND"))}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", "import toprope.compat; toprope.compat.install(simulated_card=True)\n" + PROGRAM],
            env=kept | {"TOPROPE_SIM": "910B1x2", "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port, "HCCL_OP_EXPANSION_MODE": mode},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    return told


@pytest.mark.slow
def test_15_too_few_cores_are_an_error_and_other_limits_a_warning_per_peer() -> None:
    for rank, (out, err) in enumerate(run("AIV")):
        assert "refused: HCCL function error: allreduce, HCCL_E_PARA: 16 vector cores are fewer than the 24" in out
        assert out.rstrip().endswith("and then [2.0, 2.0]")
        mine, other = (24, 32) if rank == 0 else (32, 24)
        warning = f"rank {rank} may use {mine} vector cores and rank {1 - rank} {other}"
        assert [warning in line for line in err.splitlines() if "aivCoreLimit check fail" in line] == [True]


@pytest.mark.slow
def test_15_elsewhere_no_core_is_asked_for() -> None:
    for out, err in run("AI_CPU"):
        assert "refused" not in out
        assert "aivCoreLimit" not in err
