"""Ray for `toprope start`, `status` and `stop`: a node on this machine, with its cards, that outlives them.

Imported by name in `deployment.state_file.cluster`, as the commands must work without Ray. It runs `ray start` and
ends exactly the processes that this has started, which it knows by Ray's command lines and session folders: these, the
options and the printed address are Ray's (2.60). Tests: tests/functions/test_functions_ray_parts.py, and (slow)
tests/functions/test_functions_ray_start.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray  # noqa: F401  says at once, by an ImportError, that there is none

from toprope.errors import EnvironmentProblem
from toprope.functions.deployment.start_options import Deployment
from toprope.functions.ray.attach import NAMESPACE
from toprope.functions.ray.cluster.startup import import_ray
from toprope.functions.ray.nodes.cluster_view import resources_of
from toprope.functions.ray.nodes.local_node import Offer, has_token, keep_token, offer, private_folder, use_token
from toprope.functions.scheduling.holders import Holder

if TYPE_CHECKING:
    import psutil

__all__ = ["join", "listing_of", "start", "status", "stop"]

PORT = 6379
"""Port at which other machines join, unless it is in use."""

_LIMIT = 120
_GRACE = 3.0
_RAY = "from ray.scripts.scripts import main; main()"
_QUIET = f"import logging; logging.getLogger('ray._private.accelerators.npu').disabled = True; {_RAY}"


def start(deployment: Deployment) -> Deployment:
    """Start Ray's head on this machine: the deployment with its address.

    Raises:
        EnvironmentProblem: it does not start.
    """
    keep_token()
    port = PORT if _is_free(PORT) else _any_port()
    offered = offer(deployment=deployment)
    words = ["--head", f"--port={port}", "--include-dashboard=false"]
    text = _run(words, offered, deployment)
    found = re.search(r"address='([^']+)'", text)
    return replace(deployment, address=found[1] if found else f"{_own_address()}:{port}")


def join(address: str, deployment: Deployment) -> Deployment:
    """Have this machine join a Ray: the deployment with its address.

    Args:
        address: "host:port" of the head; a leading http:// and text after a comma are ignored.
        deployment: what this machine offers.

    Raises:
        EnvironmentProblem: there is no Ray, or it does not take this machine: both need the same token, Ray and Python.
    """
    plain = re.sub(r"^\w+://", "", address).partition(",")[0].rstrip("/")
    offered = offer(deployment=deployment)
    _run([f"--address={plain}"], offered, deployment)
    return replace(deployment, address=plain)


def stop(deployment: Deployment, force: bool = False) -> None:
    """End the Ray of this machine that `start` or `join` began, and no other.

    Args:
        deployment: the one that they returned.
        force: whether it is killed without time for a clean shutdown.
    """
    import psutil

    mine = _processes(deployment.address)
    for process in mine:
        try:
            if force:
                process.kill()
            else:
                process.terminate()
        except psutil.Error:
            pass
    _, left = psutil.wait_procs(mine, timeout=_GRACE)
    for process in [*left, *_processes(deployment.address)]:
        try:
            process.kill()
        except psutil.Error:
            pass


def status(deployment: Deployment) -> str:
    """The nodes of the Ray, what is free of each, and the instances of all programs, in lines."""
    if not _processes(deployment.address):
        return "  Ray has ended on this machine"
    module = import_ray()
    use_token()
    try:
        module.init(
            address=deployment.address, namespace=NAMESPACE, logging_level="ERROR", log_to_driver=False,
            configure_logging=True,
        )  # fmt: skip
        from toprope.functions.ray.cluster.listing import listed
        from toprope.functions.ray.manager import seen_nodes

        told = [_line(resources_of(seen)) for seen in seen_nodes()]
        told += [listing_of(*each) for each in listed(module)]
    except (ConnectionError, RuntimeError, ValueError, module.exceptions.RayError) as error:
        return f"  Ray at {deployment.address} does not answer: {error}"
    finally:
        module.shutdown()
    return "\n".join(told)


def _line(node: dict[str, Any]) -> str:
    capacity, free = Counter(node["capacity"]), Counter(node["allocatable"])
    amounts = [f"{key} {free[key]:g} of {capacity[key]:g} free" for key in capacity]
    return f"  node      {node['labels']['HOST_IP']} {node['id'][:8]}: {', '.join(amounts)}"


def listing_of(session: str, holder: Holder) -> str:
    """The line of an instance.

    Args:
        session: its session; "" where that has ended.
        holder: the instance, and what it holds.
    """
    name = f"  instance  {holder.name or holder.id}: {holder.of or 'unknown class'}"
    program = f"of session {session}" if session else "its session has ended"
    held = f", {holder.amounts}" if holder.cpu or holder.memory else ""
    process = f", process {holder.pid} on node {holder.node[:8]}" if holder.pid else ""
    return f"{name}, {holder.state}, {program}{held}{process}{', no handle left' * (holder.handles == 0)}"


def _run(words: Sequence[str], offered: Offer, deployment: Deployment) -> str:
    """Run `ray start` and return its output."""
    command = [
        sys.executable, "-c", _QUIET, "start", *words, "--disable-usage-stats", f"--num-cpus={offered.cpus}",
        f"--num-gpus={offered.gpus}", f"--resources={json.dumps(dict(offered.resources))}",
    ]  # fmt: skip
    folder = private_folder()
    if folder is not None:
        command.append(f"--temp-dir={folder}")
    if offered.memory:
        command.append(f"--memory={offered.memory}")
    if offered.labels:
        command.append("--labels=" + ",".join(f"{key}={value}" for key, value in offered.labels.items()))
    try:
        done = subprocess.run(
            command, env=_environment(offered, deployment), stdin=subprocess.DEVNULL, text=True, timeout=_LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as error:
        said, failed = f"it has not ended within {error.timeout} s", True
    if failed:
        if deployment.cards:
            shutil.rmtree(deployment.cards, ignore_errors=True)
        raise EnvironmentProblem(
            "Ray does not start.",
            looked_at=_last_lines(said),
            do=f"see session_latest/logs in {folder or os.environ['RAY_TMPDIR']}",
        )
    return said


def _environment(offered: Offer, deployment: Deployment) -> dict[str, str]:
    """The variables of a node's processes, which those of instances have too."""
    variables = {**os.environ, **offered.variables}
    variables.pop("TOPROPE_TRACE", None)
    if has_token():
        variables.setdefault("RAY_AUTH_MODE", "token")
    if deployment.sim:
        site = str(Path(__file__).resolve().parents[3] / "compat" / "site")
        path = [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each and each != site]
        variables["PYTHONPATH"] = os.pathsep.join([site, *path])
        variables["TOPROPE_DEVICE"] = "npu"
        # the run that this is in ends before the node does, and its folder with it
        variables.pop("TOPROPE_RUN_DIR", None)
        if deployment.cards:
            variables["TOPROPE_RUN_DIR"] = deployment.cards
    return variables


def _processes(address: str) -> list[psutil.Process]:
    """Ray's processes on this machine that belong to the Ray of an address, with what they have started."""
    import psutil

    session, found = "", []
    for process in psutil.process_iter(["uids", "cmdline"]):
        words = process.info["cmdline"] or []
        uids = process.info["uids"]
        if uids is None or uids.real != os.getuid() or not any("ray" in word for word in words[:3]):
            continue
        found.append((process, words))
        if f"--gcs-address={address}" in words:
            named = re.search(r"/session_[^/\s]+", " ".join(words))
            session = named[0] if named else session
    if not session:
        return []
    own = [
        process
        for process, words in found
        # Ray's client server names no session
        if any(session in word or word == f"--address={address}" for word in words)
    ]
    started = [child for process in own if process.is_running() for child in process.children(recursive=True)]
    return list(dict.fromkeys([*own, *started]))


def _last_lines(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return " / ".join(line.strip() for line in lines[-3:])


def _own_address() -> str:
    return str(import_ray().util.get_node_ip_address())


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
        return True


def _any_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])
