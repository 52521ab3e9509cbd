"""State file of `toprope start`, in the user's run-time directory; only the user can read or write it.

The commands `start`, `status`, `stop`, `run` and `cache`, the starts of sessions and of Ray read it: it says
which deployment is active, at which address its Ray is, and where the state of simulated cards is. XDG_RUNTIME_DIR
gives the place, `sim.metrics.cards` the file of cards. What another user could have written is never read: each
reader checks owner and rights first. Held by tests/cli/test_cli_start.py, against other users by
tests/functions/test_functions_security.py.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from toprope.errors import EnvironmentProblem, UsageError
from toprope.extras import advice
from toprope.functions.deployment.reservations import Reservations
from toprope.functions.deployment.start_options import Deployment
from toprope.sim.metrics import cards
from toprope.whole_file import writing_whole

__all__ = ["address", "cluster", "end", "is_own", "join_cards", "keep", "read", "reservations", "share_cards"]

FILE = "started.json"
HELD = "held.json"


def read() -> Deployment | None:
    """Return the deployment that was started and not stopped since the machine booted; None for none.

    A file or folder that is not this user's, or that others may write to, is ignored.
    """
    if not is_own(_folder(), 0o022):
        return None
    try:
        with open(os.open(_folder() / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
                return None
            found = Deployment.parse(file.read())
    except (OSError, ValueError, TypeError):
        return None
    return found if found.boot == _boot_id() else None


def reservations() -> Reservations:
    """Return the reservations of the cards that were started."""
    return Reservations(_folder() / HELD, _cards())


def _cards() -> str:
    """A key of the cards that this process sees: device and inode of their state file, else TOPROPE_SIM."""
    try:
        facts = os.stat(Path(os.environ.get("TOPROPE_RUN_DIR", "-")) / cards.FILE)
    except OSError:
        return os.environ.get("TOPROPE_SIM", "")
    return f"{facts.st_dev} {facts.st_ino}"


def address() -> str:
    """The address of the Ray that was started or joined; "" for none."""
    found = read()
    return "" if found is None else found.address


def keep(deployment: Deployment) -> Path:
    """Write the state file of a new deployment. Return its path.

    Raises:
        UsageError: a deployment is running already.
        EnvironmentProblem: the run-time directory cannot be used.
    """
    folder = _folder()
    if read() is not None:
        do = "toprope stop, or yr stop, ends it"
        raise UsageError("a deployment is running already.", looked_at=str(folder / FILE), do=do)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(folder, 0):
            raise PermissionError(f"{folder} belongs to another user")
        folder.chmod(0o700)
        with writing_whole(folder / FILE, mode=0o600) as file:
            file.write(replace(deployment, boot=_boot_id()).format().encode())
    except OSError as error:
        raise EnvironmentProblem(
            f"the state file cannot be written: {error}.", do="set XDG_RUNTIME_DIR to a folder of your own"
        ) from error
    return folder / FILE


def end() -> Deployment | None:
    """Remove the state file. Return its deployment; None for none."""
    found = read()
    if not is_own(_folder(), 0o022):
        return None  # another user has made it: what lies in it is none of ours
    for name in (FILE, HELD):
        (_folder() / name).unlink(missing_ok=True)
    if found is not None and found.cards:
        shutil.rmtree(found.cards, ignore_errors=True)
    return found


def share_cards(run: str) -> str:
    """Create a folder for the state of simulated cards, which later runs join; a run in progress goes on in it.

    Args:
        run: the folder of that run; "" for none.
    """
    folder = Path(tempfile.mkdtemp(prefix="toprope-cards-"))
    state = folder / cards.FILE
    if run and os.path.isdir(run):
        (Path(run) / cards.FILE).touch(0o600)
        try:
            os.link(Path(run) / cards.FILE, state)
        except OSError:
            pass  # on another file system: the run goes on with its own
    state.touch(0o600)
    return str(folder)


def join_cards(run: Path, deployment: Deployment) -> None:
    """Make a new run use the state of the cards that were started.

    Raises:
        EnvironmentProblem: the folder with that state is gone, and another user has made one of its name.
    """
    if os.path.lexists(deployment.cards) and not is_own(Path(deployment.cards), 0o077):
        raise EnvironmentProblem(
            f"{deployment.cards}, the folder of the cards that were started, belongs to another user, or others may "
            "enter it.",
            do="toprope stop, then toprope start again",
        )
    state = Path(deployment.cards) / cards.FILE
    try:
        os.link(state, run / cards.FILE)
    except OSError:
        (run / cards.FILE).symlink_to(state)


def cluster() -> Any:
    """Return the module that starts and joins Ray. Its `start(deployment)` and `join(address, deployment)` return the
    deployment with its address; `stop(deployment, force)` and `status(deployment)`, a text, take such a deployment.

    Raises:
        EnvironmentProblem: this toprope, or this machine, has no Ray.
    """
    try:
        from importlib import import_module

        return import_module("toprope.functions.ray.cluster.commands")
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise EnvironmentProblem(
            f"Ray cannot be used: {error}.", do=f"{advice('cluster')}, or start without --ray on one machine"
        ) from error


def is_own(folder: Path, others: int) -> bool:
    """True if a folder is this user's, no link, and others have none of these rights to it."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & others


def _folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    for folder in (named, f"/run/user/{os.getuid()}"):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK):
            return Path(folder) / "toprope"
    return Path(tempfile.gettempdir()) / f"toprope-{os.getuid()}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
