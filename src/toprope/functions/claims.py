"""Which cards other programs of this user hold, after `toprope start`: a file that all of them read and write.

Without `toprope start` every program is by itself. With it they share the cards that were started: what one program
has given to a function or an instance, another hands out when it is free again. The entry of a program that is gone is
ignored.
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

from toprope.functions.cards import Share
from toprope.functions.ledger import Ledger
from toprope.whole_file import writing_whole

__all__ = ["Claims"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Claims:
    """The entries of a file. Held for all methods: the lock of the session whose claims these are.

    Args:
        file: where they are; its folder is the user's own.
        pool: names the cards that are meant; entries about others are left alone.
    """

    def __init__(self, file: Path, pool: str) -> None:
        self._file = file
        self._pool = pool
        self._name = f"{os.getpid()} {_born(os.getpid())} {id(self)}"
        self._told: list[Any] = []

    @contextmanager
    def known(self, ledger: Ledger, node: str) -> Iterator[None]:
        """Let a ledger know what others hold, and tell them afterwards what it holds; they wait meanwhile.

        Nothing is done, and nobody waits, where the ledger has given nothing back and nothing is asked of it.
        """
        if not ledger.is_waited_for and self._told == _entry(ledger, node):
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
            entries = {name: entry for name, entry in self._read().items() if _lives(name)}
            ledger.held_elsewhere(node, _shares(entries, self._pool, but=self._name))
            yield
            self._told = _entry(ledger, node)
            entries.pop(self._name, None)
            if self._told:
                entries[self._name] = [self._pool, self._told]
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
        """The session has ended: it holds nothing."""
        if self._told:
            with self.known(Ledger(), ""):
                pass


def _entry(ledger: Ledger, node: str) -> list[Any]:
    return [[vendor, id, *astuple(share)] for (vendor, id), share in sorted(ledger.shares(node).items())]


def _shares(entries: Mapping[str, Any], pool: str, but: str) -> dict[tuple[str, int], Share]:
    """What entries about these cards say, all together."""
    total: dict[tuple[str, int], Share] = {}
    for name, (of, held) in entries.items():
        if of == pool and name != but:
            for vendor, id, *amounts in held:
                total[vendor, id] = total.get((vendor, id), Share()) + Share(*amounts)
    return total


def _lives(name: str) -> bool:
    pid, born, _ = name.split(" ")
    return _born(int(pid)) == born


def _born(pid: int) -> str:
    """When a process began; "" where there is none. A number is given to another process some day."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
