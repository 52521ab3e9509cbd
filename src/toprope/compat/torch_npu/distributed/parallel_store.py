"""Facade module: `ParallelStore`, the key-value store of torch_npu's launcher, for rendezvous.py and for programs.

The arguments are torch_npu's; that its proxy and its threads are not here is no loss for programs on one machine.
Tests: tests/compat/test_torch_npu_launcher.py.
"""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

__all__ = ["ParallelStore"]


class ParallelStore(TCPStore):
    """Key-value store of a launch, which is torch's TCPStore here.

    torch_npu's serves thousands of processes from several threads, and those of one machine through a proxy, if it is
    `enable_tiered`. Each client has a connection of its own here.

    Args:
        host: name or address of the server.
        port: of the server.
        world_size: number of the store's users; below 0 if it is not known.
        agent_run: whether this process is a launcher, not a worker.
        agent_pid: process of the launcher.
        is_server: whether this process serves.
        enable_tiered: whether workers go through a proxy of their launcher; they do not, here.
        timeout: of the connection and of calls that wait.
        wait_workers: whether a launcher that serves waits for the others; a worker never does.
        multi_tenant: whether several stores of a process share its server.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 29500,
        world_size: int = -1,
        agent_run: bool = False,
        agent_pid: int = -1,
        is_server: bool = False,
        enable_tiered: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_workers: bool = True,
        multi_tenant: bool = False,
    ) -> None:
        users = None if world_size < 0 else world_size
        super().__init__(host, port, users, is_server, timeout, wait_workers and agent_run, multi_tenant)
