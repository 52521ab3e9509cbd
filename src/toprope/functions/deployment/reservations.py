"""Reservations of cards among the programs of a user, after `toprope start`: a file that all of them read and write.

`local.scheduling.scheduler` keeps it up to date. Without `toprope start` programs are independent. With it they share
the cards that were started: a card that one program has granted to a function or an instance is granted by another
one once it is free. Entries of programs that have ended are ignored. The form of the file is ours, and must stay as it
is: programs that run may be of an older version. A reader or writer holds the lock next to it. Tests:
tests/functions/test_functions_claims.py.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from toprope.functions.scheduling.cards import Share
from toprope.functions.scheduling.ledger import Ledger
from toprope.whole_file import writing_whole

__all__ = ["Reservations"]


class Reservations:
    """Reservations in a file. The caller holds the lock of its session.

    Args:
        file: where they are; its folder is the user's own.
        pool: names the cards that are meant; entries about others are left alone.
    """

    def __init__(self, file: Path, pool: str) -> None:
        self._file = file
        self._pool = pool
        self._name = f"{os.getpid()} {_start_time(os.getpid())} {id(self)}"
        self._published: list[Any] = []

    @contextmanager
    def synchronized(self, ledger: Ledger, node: str) -> Iterator[None]:
        """Update a ledger with other programs' reservations, then publish its own. Locks the file meanwhile.

        No-op without locking if the ledger has released nothing and has no queued request.
        """
        if not ledger.is_waited_for and self._published == _entry(ledger, node):
            yield
            return
        try:
            lock = os.open(
                self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            yield  # `toprope stop` has removed the folder
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # each holds it for a moment
            entries = {name: entry for name, entry in self._read().items() if _is_alive(name)}
            ledger.held_elsewhere(node, _shares(entries, self._pool, but=self._name))
            yield
            self._published = _entry(ledger, node)
            entries.pop(self._name, None)
            if self._published:
                entries[self._name] = [self._pool, self._published]
            self._write(entries)
        finally:
            os.close(lock)

    def _read(self) -> dict[str, Any]:
        try:
            read = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return read if isinstance(read, dict) else {}

    def _write(self, entries: Mapping[str, Any]) -> None:
        with writing_whole(self._file, mode=0o600) as file:
            file.write(json.dumps(entries).encode())

    def forget(self) -> None:
        """Remove the reservations of this session, which has ended."""
        if self._published:
            with self.synchronized(Ledger(), ""):
                pass


def _entry(ledger: Ledger, node: str) -> list[Any]:
    return [[vendor, id, *astuple(share)] for (vendor, id), share in sorted(ledger.shares(node).items())]


def _shares(entries: Mapping[str, Any], pool: str, but: str) -> dict[tuple[str, int], Share]:
    """Sum the entries of these cards."""
    total: dict[tuple[str, int], Share] = {}
    for name, (of, held) in entries.items():
        if of == pool and name != but:
            for vendor, id, *amounts in held:
                total[vendor, id] = total.get((vendor, id), Share()) + Share(*amounts)
    return total


def _is_alive(name: str) -> bool:
    pid, born, _ = name.split(" ")
    return _start_time(int(pid)) == born


def _start_time(pid: int) -> str:
    """Return the start time of a process; "" if there is none. Process numbers are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
