"""Facade module: the rendezvous `parallel`, which is torch's own with a ParallelStore.

For launchers (run.py) and for `init_method="parallel://..."`. Tests: tests/compat/test_torch_npu_launcher.py.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torch._C._distributed_c10d import _DEFAULT_PG_TIMEOUT, PrefixStore, Store
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry as _registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler

from .launch_options import parse_args
from .parallel_store import ParallelStore

__all__ = ["launching"]

_PORTS = range(2**16)
_options: ContextVar[argparse.Namespace | None] = ContextVar("_options", default=None)


@contextmanager
def launching(options: argparse.Namespace) -> Iterator[None]:
    """Context of a launch: its rendezvous takes the address and the rank of the node from these options."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


def _rendezvous_error(msg: str) -> ValueError:
    return ValueError("Error initializing torch_npu.distributed using " + msg)


def _torchelastic_use_agent_store() -> bool:
    return os.environ.get("TORCH_NPU_ELASTIC_USE_AGENT_STORE") == str(True)


def _create_c10d_store(hostname: str, port: int, rank: int, world_size: int, timeout: timedelta) -> Store:
    """The store of a worker: its launcher's where that has one, else rank 0 serves."""
    if port not in _PORTS:
        raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
    pid = int(os.environ.get("PROXY_AGENT_PID_USE_LOCAL_SOCKET_PATH", "-1"))
    if _torchelastic_use_agent_store():
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = ParallelStore(hostname, port, world_size, False, pid, timeout=timeout)
        return PrefixStore(f"/worker/attempt_{attempt}", store)
    return ParallelStore(hostname, port, world_size, False, pid, rank == 0, timeout=timeout, multi_tenant=True)


def _parallel_rendezvous_handler(
    url: str, timeout: timedelta = _DEFAULT_PG_TIMEOUT, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Store, rank and number of processes for `parallel://host:port?rank=0&world_size=2`."""
    parts = urlparse(url)
    query = dict(parse_qsl(parts.query))
    missing = "" if parts.port else "port number"
    for name, text in (("rank", "rank parameter"), ("world_size", "world size parameter")):
        missing = missing or ("" if name in query else text)
    if missing or parts.port is None:
        raise _rendezvous_error(f"parallel:// rendezvous: {missing} missing")
    rank, world_size = int(query["rank"]), int(query["world_size"])
    yield _create_c10d_store(parts.hostname or "", parts.port, rank, world_size, timeout), rank, world_size
    raise RuntimeError("Unable to perform re-rendezvous using parallel:// method")


class _ParallelTCPRendezvous(StaticTCPRendezvous):
    def get_backend(self) -> str:
        return "parallel"

    def next_rendezvous(self) -> RendezvousInfo:
        if not self._store:
            is_server = self.rank == 0
            self._store = ParallelStore(
                self.master_addr, self.master_port, self.world_size, True, os.getpid(), is_server,
                timeout=self.timeout, multi_tenant=True,
            )  # fmt: skip
        return super().next_rendezvous()


def _create_parallel_handler(params: RendezvousParameters) -> RendezvousHandler:
    options = _options.get() or parse_args(None)
    params.config["rank"] = options.node_rank
    params.endpoint = f"{options.master_addr}:{options.master_port}"
    static = create_rdzv_handler(params)
    assert isinstance(static, StaticTCPRendezvous)
    return _ParallelTCPRendezvous(
        static.master_addr, static.master_port, static.rank, static.world_size, static.run_id,
        int(static.timeout.total_seconds()),
    )  # fmt: skip


def _rendezvous_init() -> None:
    """Let torch's launcher know the rendezvous."""
    if "parallel" not in _registry._registry:
        _registry.register("parallel", _create_parallel_handler)


_rendezvous_init()
