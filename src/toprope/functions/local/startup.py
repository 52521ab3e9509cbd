"""Start of a session on this machine: `yr.init` without an address of a Ray comes here.

It collects the resources of the machine, from `toprope start` if that was called, and makes the `Session`; `this_node`
also tells a Ray what this machine offers (`ray.nodes.local_node`). The labels NODE_ID and HOST_IP are openYuanrong's.
Tests: tests/functions/test_functions_assertions_machines.py, tests/cli/test_cli_start.py.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from toprope.functions.options import Config
from toprope.functions.scheduling.ledger import Node

if TYPE_CHECKING:
    from toprope.functions.backend import Backend
    from toprope.functions.deployment.start_options import Deployment

__all__ = ["start", "this_node"]


def start(config: Config) -> Backend:
    """A session with the resources of this machine."""
    from toprope.functions.deployment import state_file
    from toprope.functions.deployment.start_options import Deployment
    from toprope.functions.local.object_store import shared_folder
    from toprope.functions.local.session import Session

    begun = state_file.read()
    deployment = begun or Deployment()
    reservations = None if begun is None else state_file.reservations()
    return Session(config, this_node(config, deployment), shared_folder(), deployment.no_set, reservations)


def this_node(config: Config, deployment: Deployment) -> Node:
    """Return this machine as a node: cores, memory, cards, and the additions of the configuration."""
    import psutil

    from toprope.functions.deployment.discover import collect

    cpu = deployment.cpu or len(os.sched_getaffinity(0)) * 1000
    host = socket.gethostname()
    return Node(
        id=host,
        cpu=cpu if config.num_cpus is None else config.num_cpus * 1000,
        memory=deployment.memory or int(psutil.virtual_memory().total / 2**20),
        cards=collect(config.npu_collection_mode or deployment.mode, deployment.gpus),
        scalars={**deployment.custom_resources, **config.custom_resources},
        labels={"NODE_ID": host, "HOST_IP": "127.0.0.1", **deployment.labels, **config.labels},
    )
