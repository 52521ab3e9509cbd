"""Resources that this machine offers to a Ray cluster: cores, memory, cards and labels; and its token.

Used where a Ray is started or joined (`ray.cluster`). Variables, the file of the token, its modes and the private
modules that read them are Ray's (2.60; a Ray without them is left alone). Token and folder of sockets belong to the
user alone, or the start is refused. Tests: tests/functions/test_functions_ray_auth.py, and (slow)
tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toprope.errors import EnvironmentProblem
from toprope.functions.deployment.start_options import Deployment
from toprope.functions.local.masks import VISIBLE
from toprope.functions.options import Config
from toprope.functions.ray.nodes.resource_mapping import card_labels, whole_resources

__all__ = [
    "Offer",
    "auth_mode",
    "begun_with",
    "has_token",
    "keep_token",
    "offer",
    "private_folder",
    "read_auth",
    "registration_limit",
    "set_auth_mode",
    "use_token",
]

_ALWAYS = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a process that requests no card sees all cards, as with openYuanrong
    "RAY_USAGE_STATS_ENABLED": "0",
}


_TOKEN = Path.home() / ".ray" / "auth_token"  # Ray's place for it
_AUTH_MODE = "RAY_AUTH_MODE"
_TEMPORARY = Path("/tmp")  # paths of sockets are short
_NAME_ANOTHER = "set RAY_TMPDIR to a folder of your own, with a short path"


@dataclass(frozen=True)
class Offer:
    """Resources that a node offers.

    Attributes:
        cpus: cores.
        memory: bytes; None for Ray's own choice.
        gpus: NVIDIA's cards.
        resources: all others by Ray's names.
        labels: of the node.
        variables: of the environment of the node's processes.
    """

    cpus: int
    memory: int | None = None
    gpus: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def offer(config: Config | None = None, deployment: Deployment | None = None) -> Offer:
    """Return the resources that this machine offers.

    Args:
        config: of the session that starts it.
        deployment: options of `toprope start`; None for the running deployment, if any.
    """
    from toprope.functions.deployment import state_file
    from toprope.functions.local.startup import this_node

    config = Config() if config is None else config
    simulated = {"TOPROPE_SIM": deployment.sim} if deployment is not None and deployment.sim else {}
    deployment = deployment or state_file.read() or Deployment()
    with _variables(simulated):
        node = this_node(config, deployment)
    resources, gpus = whole_resources(node.cards, node.scalars)
    own = {key: value for key, value in node.labels.items() if key not in ("NODE_ID", "HOST_IP")}
    variables = {**_ALWAYS, **deployment.no_set, **simulated}
    for vendor, name in VISIBLE.items():
        ids = sorted(card.id for card in node.cards if card.vendor == vendor and card.healthy)
        if ids and (name in os.environ or ids != list(range(len(ids)))):
            variables[name] = ",".join(map(str, ids))  # Ray grants numbers of this list
    return Offer(
        max(1, node.cpu // 1000),
        deployment.memory * 2**20 if deployment.memory else None,
        gpus,
        resources,
        {**own, **card_labels(node.cards)},
        variables,
    )


def keep_token() -> None:
    """Have a token that only this user can read, which Ray then asks of everybody; Ray's own file is for all to read.

    Nothing is done where a token, or Ray's mode, is the user's own choice.

    Raises:
        EnvironmentProblem: there is one that others can read or replace.
    """
    if any(os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    try:
        _TOKEN.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(_TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        _check_token()
        return
    except OSError:
        return  # Ray says what is wrong
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))


def _check_token() -> None:
    for path, others in ((_TOKEN.parent, 0o022), (_TOKEN, 0o077)):
        try:
            facts = path.stat()
        except OSError:
            return  # Ray says what is wrong
        if facts.st_uid != os.getuid() or facts.st_mode & others:
            raise EnvironmentProblem(
                f"{path} belongs to another user, or others can use it, and anyone with Ray's token can run code here.",
                looked_at=f"owner {facts.st_uid}, mode {facts.st_mode & 0o777:o}",
                do=f"chmod go-rwx {_TOKEN.parent} {_TOKEN}; where others may have read the token, remove it: a new one "
                "is made",
            )


def has_token() -> bool:
    """True if this user has a Ray token."""
    return any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")) or _TOKEN.is_file()


def auth_mode() -> str | None:
    """How this process's environment says that Ray checks its users; None where it says nothing."""
    return os.environ.get(_AUTH_MODE)


def set_auth_mode(mode: str | None) -> None:
    """Give the environment back what `auth_mode` returned: Ray changes it for the Ray that it starts."""
    if mode is None:
        os.environ.pop(_AUTH_MODE, None)
    else:
        os.environ[_AUTH_MODE] = mode
    read_auth()


def read_auth() -> None:
    """Have Ray read the mode and the token from the environment again.

    Ray keeps both for the life of a process. With those of the Ray before it, a session refuses what the next Ray says,
    which then takes this program for dead and ends all of its actors, the session's own included.
    """
    raylet = _raylet()
    if not hasattr(raylet, "AuthenticationTokenLoader"):
        return  # a Ray that knows no tokens
    raylet.Config.initialize("")  # first: a thread of Ray that still runs would miss a token which that mode needs
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def private_folder() -> str | None:
    """Folder for the sockets and logs of a Ray that is started here; None where the user has named one.

    Ray's own, /tmp/ray, is open to everybody: another user could put a socket in the place of the object store's.

    Raises:
        EnvironmentProblem: another user has made a folder of its name.
    """
    from toprope.functions.deployment.state_file import is_own

    if os.environ.get("RAY_TMPDIR"):
        return None
    folder = _TEMPORARY / f"toprope-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be made for Ray: {error}.", do=_NAME_ANOTHER) from None
    if not is_own(folder, 0o077):
        raise EnvironmentProblem(
            f"{folder} is for Ray's sockets, and belongs to another user, or others may enter it.", do=_NAME_ANOTHER
        )
    return str(folder / "ray")  # Ray opens this one to everybody


def registration_limit() -> float:
    """Seconds in which a process that Ray starts has to register with it; Ray ends one that does not."""
    limit = getattr(getattr(_raylet(), "Config", None), "worker_register_timeout_seconds", None)
    return 60.0 if limit is None else float(limit())  # 60 is Ray's default


def _raylet() -> Any:
    """Ray's own extension module, which tells no types."""
    return importlib.import_module("ray._raylet")


def use_token() -> None:
    """Show the token to the Ray that this user has started. To one at another address it is only shown on demand."""
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:
        return  # a Ray that knows no tokens
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


@contextmanager
def begun_with(offered: Offer) -> Iterator[None]:
    """The environment in which a node's processes begin; this process has its own again afterwards."""
    # the user's own settings of Ray stay
    chosen = {
        name: value
        for name, value in offered.variables.items()
        if not name.startswith("RAY_") or name not in os.environ
    }
    with _variables(chosen):
        yield


@contextmanager
def _variables(chosen: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
