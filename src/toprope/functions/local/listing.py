"""The instances of a session in a file, which `toprope status` reads.

The instance manager writes it after changes (`Listing`), the command reads it (`listed`): both are here, so that the
format is in one place. The command may be of another version than the program: names may be added, not changed. Tests:
tests/functions/test_functions_semantics.py, tests/cli/test_cli_start.py.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from toprope.functions.local.folder import LOCK, folders_of_sessions
from toprope.whole_file import writing_whole

if TYPE_CHECKING:
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.session_state import SessionState
    from toprope.functions.scheduling.holders import Holder

__all__ = ["Listing", "listed"]

_FILE = "instances.json"
_PAUSE = 0.5
"""Delay between a change and its write to the file, in seconds; a burst of changes is written once."""


class Listing:
    """Writes the file. The caller holds the session's lock.

    Args:
        session: the session.
        reactor: has the timers.
        holders: returns the instances.
    """

    def __init__(self, session: SessionState, reactor: Reactor, holders: Callable[[], list[Holder]]) -> None:
        self._session = session
        self._reactor = reactor
        self._holders = holders
        self._is_due = False

    def changed(self) -> None:
        """Schedule a write: instances were created, changed or ended."""
        if not self._is_due and not self._session.ended:
            self._is_due = True
            self._reactor.after(_PAUSE, self._write)

    def _write(self) -> None:
        session = self._session
        with session.lock:
            self._is_due = False
            if session.ended:
                return
            told = {"pid": os.getpid(), "instances": [each.as_dict() for each in self._holders()]}
        path = session.folder / _FILE
        try:
            with writing_whole(path, mode=0o600) as file:
                file.write(json.dumps(told).encode())
        except OSError:
            pass  # the store is full, or the session ends: a status without it is no reason to fail


def listed() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Each running session of this user on this machine: the program's process, and its instances."""
    for folder in folders_of_sessions():
        try:
            with open(folder / LOCK, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    continue  # nobody holds it: the session has ended
                except BlockingIOError:
                    pass
            told = json.loads((folder / _FILE).read_text())
            yield int(told["pid"]), list(told["instances"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of another kind, or gone in this moment
