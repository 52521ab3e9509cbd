"""The beginning of a session on this machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from toprope.functions.ledger import Node
from toprope.functions.options import Config

if TYPE_CHECKING:
    from toprope.functions.backend import Backend

__all__ = ["start", "this_node"]


def start(config: Config) -> Backend:
    """A session with the resources of this machine."""
    from toprope.functions.local.session import Session
    from toprope.functions.local.values import shared_folder

    return Session(config, this_node(config), shared_folder())


def this_node(config: Config) -> Node:
    """This machine: cores, memory, cards, and what the configuration adds."""
    import psutil

    from toprope.functions.collect import collect

    cores = config.num_cpus if config.num_cpus is not None else len(os.sched_getaffinity(0))
    host = socket.gethostname()
    return Node(
        id=host,
        cpu=cores * 1000,
        memory=int(psutil.virtual_memory().total / 2**20),
        cards=collect(config.npu_collection_mode or "all"),
        scalars=dict(config.custom_resources),
        labels={"NODE_ID": host, "HOST_IP": "127.0.0.1", **config.labels},
    )
