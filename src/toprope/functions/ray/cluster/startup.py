"""Start of a session on Ray: on a running cluster, or on one that is started here for this program.

`yr.init` with an address of a Ray comes here. It checks the address and the token, connects, and makes the session
actor and the driver's `RayBackend`; a worker's is registered here. Forms of addresses are openYuanrong's and Ray's, the
arguments of a start Ray's. A start that fails leaves no process and no variable behind. Tests:
tests/functions/test_functions_ray_auth.py, tests/functions/test_functions_ray_parts.py, and (slow)
tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from toprope.errors import EnvironmentProblem
from toprope.extras import advice
from toprope.functions.options import Config
from toprope.functions.ray.attach import NAMESPACE, manager_name, set_maker
from toprope.functions.ray.cluster.address_check import check_ray
from toprope.functions.ray.nodes.local_node import (
    auth_mode,
    begun_with,
    keep_token,
    offer,
    private_folder,
    read_auth,
    set_auth_mode,
    use_token,
)

if TYPE_CHECKING:
    import psutil

    from toprope.functions.backend import Backend

__all__ = ["import_ray", "start"]

_NOISY = ("ray._private.accelerators.npu", "ray._private.authentication.authentication_token_setup")
"""Ray's loggers that tell of a missing `acl`, as an error with a traceback, on every machine without CANN, and, as a
warning, that only those with the token of this user may use what is started."""

_END = 10.0
"""Time for the processes of a Ray that failed to start to end, in seconds."""


def _worker_backend(host: Any) -> Backend:
    from toprope.functions.ray.worker_backend import WorkerBackend

    return WorkerBackend(host)


set_maker(_worker_backend)


def import_ray() -> Any:
    """Ray itself.

    Raises:
        EnvironmentProblem: it is not installed, or cannot be imported.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise EnvironmentProblem(
                f"Ray is installed but cannot be imported: {error}.", do=advice("cluster")
            ) from error
        raise EnvironmentProblem(
            "functions on more than one machine need Ray, which is not installed.",
            do=f"{advice('cluster')}, or leave server_address empty for this machine",
        ) from None
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise EnvironmentProblem(
            f"Ray is installed but cannot be imported: {error}.", do="pip install --force-reinstall ray"
        ) from error
    for name in _NOISY:
        logging.getLogger(name).addFilter(_is_critical)
    return ray


def start(config: Config, address: str) -> Backend:
    """A session on Ray.

    Args:
        config: of the session.
        address: "ray" for the Ray that `toprope start` began or RAY_ADDRESS names, else for one that is started here
            and ends with the session; "auto" for one that runs on this machine; "ray://host:port" for Ray's client;
            "host:port" or "ray:host:port" for the Ray that this machine is a node of.

    Raises:
        EnvironmentProblem: Ray is not installed, or none can be reached there.
    """
    ray = import_ray()
    from toprope.functions.ray.backend import RayBackend
    from toprope.functions.ray.session_actor import AT_ONCE, SessionActor

    ours = not ray.is_initialized()
    mode = auth_mode()
    before = _ray_processes()

    def end() -> None:
        ray.shutdown()
        set_auth_mode(mode)

    try:
        if ours:
            read_auth()
            _connect(ray, config, address)
        manager = (
            ray.remote(SessionActor)
            .options(name=manager_name(), namespace=NAMESPACE, num_cpus=0, max_concurrency=AT_ONCE)
            .remote(config)
        )
        return RayBackend(config, manager, end=end if ours else None)
    except BaseException:
        if ours:
            end()
            _end_failed_start(before)
        raise


def _connect(ray: Any, config: Config, address: str) -> None:
    from ray.job_config import JobConfig

    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": config.log_to_driver,
        "logging_level": logging.WARNING,
        # what this program can import, its workers can: those on this machine, and others with the same folders
        # a worker puts one after the other in front of its own: the first one last
        "job_config": JobConfig(_py_driver_sys_path=[each for each in reversed(sys.path) if each]),
    }
    running, is_ours = _ray_to_join(address)
    if is_ours:
        use_token()
    if _is_endpoint(running):
        check_ray(running)
    began = time.monotonic()
    try:
        if running.startswith("ray://"):
            ray.init(
                address=running,
                namespace=NAMESPACE,
                log_to_driver=config.log_to_driver,
                runtime_env={"env_vars": {"PYTHONPATH": _python_path()}},
            )
            return
        if running:
            ray.init(address=running, **common)
            return
        keep_token()
        offered = offer(config)
        with begun_with(offered):
            ray.init(
                address="local",
                num_cpus=offered.cpus,
                num_gpus=offered.gpus,
                resources=offered.resources,
                labels=offered.labels,
                _memory=offered.memory,
                object_store_memory=_object_store(config),
                include_dashboard=False,
                _temp_dir=private_folder(),
                **common,
            )
    except EnvironmentProblem:
        raise
    except Exception as error:  # Ray raises that class itself, such as for a node that takes more than 30 s to begin
        do = "start one with toprope start --master --ray, or name another in server_address or TOPROPE_CLUSTER"
        raise EnvironmentProblem(
            f"no Ray can be {'reached at ' + running if running else 'started'}: {error}",
            looked_at=f"waited {time.monotonic() - began:.0f} s, in which {_load_text()}{'' if running else _logs()}",
            do="pip install 'ray[client]'" if "ray[client]" in str(error) else do,
        ) from error


def _ray_processes() -> set[psutil.Process]:
    """Ray's processes that this one has started."""
    import psutil

    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if any("ray" in word for word in process.cmdline()[:3]):
                found.add(process)
        except psutil.Error:
            continue  # it has ended
    return found


def _end_failed_start(before: set[psutil.Process]) -> None:
    """End the processes of a Ray that failed to start: Ray itself ends them only with this process."""
    import psutil

    left = list(_ray_processes() - before)
    for process in left:
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(left, timeout=_END)


def _python_path() -> str:
    return os.pathsep.join(each for each in sys.path if each)


def _load_text() -> str:
    """Format the load of this machine."""
    return f"{os.getloadavg()[0]:.0f} processes wanted the {len(os.sched_getaffinity(0))} cores of this machine"


def _logs() -> str:
    """The folder in which Ray says why it does not start."""
    folder = private_folder() or os.environ.get("RAY_TMPDIR", "")
    return f"; Ray's own reasons are in {os.path.join(folder, 'session_latest', 'logs')}"


def _object_store(config: Config) -> int | None:
    """Bytes of shared memory for objects: `deployment_config.datamem`, in MB; None for Ray's choice, a third of all."""
    megabytes = getattr(config.deployment_config, "datamem", 0) or 0
    return int(megabytes) * 2**20 or None


def _ray_to_join(address: str) -> tuple[str, bool]:
    """The Ray to join, "" to start one; and whether `toprope start` began it."""
    from toprope.functions.deployment import state_file

    began = state_file.read()
    ours = "" if began is None else began.address
    if not address.startswith("ray://"):
        address = address.removeprefix("ray:")
    named = address if address != "ray" else os.environ.get("RAY_ADDRESS", "") or ours
    return named, bool(named) and named == ours


def _is_endpoint(address: str) -> bool:
    """True if an address names a host and a port, as opposed to "auto" or a session's folder."""
    return address.rpartition(":")[2].isdecimal()


def _is_critical(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL
