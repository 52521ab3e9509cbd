"""Sessions of the editor: trees of steps in one SQLite file, which outlives the page, the connection and the server.

A step is a picture that was brought or the result of an edit; the step it was made from is its parent. Undo goes to the
parent, redo to the child that was shown last, and an edit of an earlier step begins a branch.

Used by the controller; the page reads `Step`. A change of the tables needs a new `FORM`, by which an older toprope
refuses the file; files of earlier versions are still opened. One process holds the file's lock, and each change is one
transaction. Tests: tests/images/test_images_sessions.py, tests/images/test_images_web_cards.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from toprope.errors import EnvironmentProblem, UsageError

__all__ = ["Sessions", "Step", "StepState", "new_session"]

FORM = 1
"""Version of the tables, kept in the file."""

_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")

_NEXT = "(SELECT coalesce(max(shown), 0) + 1 FROM steps WHERE session = ?)"
"""A number for the step that is shown now: larger than those of all before it. Clocks may go back."""

_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, current INTEGER, created REAL NOT NULL, seen REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    parent INTEGER REFERENCES steps (id),
    state TEXT NOT NULL, name TEXT NOT NULL, files TEXT NOT NULL, request TEXT, problem TEXT,
    created REAL NOT NULL, shown INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS of_session ON steps (session, id);
"""


class StepState(StrEnum):
    """State of a step. An edit that a server did not end is `interrupted` when the file is opened again."""

    SOURCE = "source"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def has_picture(self) -> bool:
        """True for a step with a picture, which can be shown and edited further."""
        return self in (StepState.SOURCE, StepState.DONE)

    @property
    def is_open(self) -> bool:
        """True for an edit that has not ended."""
        return self in (StepState.WAITING, StepState.RUNNING)


@dataclass(frozen=True)
class Step:
    """A step of a session.

    Attributes:
        number: tells it from all other steps of the file.
        parent: the number of the step that it was made from; None for a picture that was brought.
        state: of it.
        name: of the picture at the beginning of its branch, for people.
        files: the paths of its files by kind: "picture", "sidecar", "before". A caller may have others.
        request: the edit, ready for JSON; None for a picture that was brought.
        problem: the reason why it failed, ready for JSON.
        created: seconds since 1970.
    """

    number: int
    parent: int | None
    state: StepState
    name: str
    files: Mapping[str, str]
    request: Mapping[str, Any] | None = None
    problem: Mapping[str, Any] | None = None
    created: float = 0.0


def new_session() -> str:
    """Make an id that cannot be guessed, as a client with the id sees the session's pictures."""
    return secrets.token_urlsafe(24)


class Sessions:
    """All sessions of one server. Threads may call at the same time.

    Args:
        file: of SQLite; None keeps them in memory, for a server that keeps nothing. A lock next to it is held until
            `close`, or until the process ends: two servers would take each other's edits for interrupted ones.
        most: steps of one session at most. An edit beyond is refused, so that nothing is forgotten in silence.

    Raises:
        EnvironmentProblem: the file cannot be used, another server uses it, or a newer toprope wrote it.
    """

    def __init__(self, file: Path | None = None, *, most: int = 1000) -> None:
        self._most, self._lock = most, threading.RLock()
        self._held = None if file is None else _hold(Path(file).with_suffix(".lock"))
        try:
            self._open(file)
        except BaseException:
            self._release()
            raise

    def _open(self, file: Path | None) -> None:
        """Open the file, make its tables, and mark edits that no server ended as interrupted."""
        try:
            self._db = sqlite3.connect(
                ":memory:" if file is None else file, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.execute("PRAGMA journal_mode = WAL")
            (form,) = self._db.execute("PRAGMA user_version").fetchone()
            if form > FORM:
                raise EnvironmentProblem(
                    f"{file} was written by a newer toprope.",
                    looked_at=f"its tables are of version {form}, known is {FORM}",
                    do="update toprope, or name another folder with --out-dir",
                )
            self._db.executescript(_TABLES)
            self._db.execute(f"PRAGMA user_version = {FORM}")
            self._db.execute(
                "UPDATE steps SET state = ? WHERE state IN (?, ?)",
                (StepState.INTERRUPTED, StepState.WAITING, StepState.RUNNING),
            )
        except sqlite3.Error as error:
            raise EnvironmentProblem(
                f"the editor's sessions cannot be kept in {file}: {error}.",
                do="move that file away, or name another folder with --out-dir",
            ) from error

    def close(self) -> None:
        """Close the file; calls afterwards are errors."""
        with self._lock:
            self._db.close()
            self._release()

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    # Sessions

    def join(self, session: str) -> None:
        """Begin a session, or go on with it.

        Raises:
            UsageError: the id is none that `new_session` makes.
        """
        if not isinstance(session, str) or not _ID.fullmatch(session):
            raise UsageError("that is no session.", looked_at=f"{str(session)[:80]!r}", do="reload the page")
        now = time.time()
        with self._changing() as db:
            db.execute(
                "INSERT INTO sessions VALUES (?, NULL, ?, ?) ON CONFLICT (id) DO UPDATE SET seen = excluded.seen",
                (session, now, now),
            )

    def forget(self, session: str) -> list[Step]:
        """Remove a session; its steps, whose files the caller may remove."""
        with self._changing() as db:
            gone = self.steps(session)
            db.execute("UPDATE sessions SET current = NULL WHERE id = ?", (session,))
            db.execute("UPDATE steps SET parent = NULL WHERE session = ?", (session,))
            db.execute("DELETE FROM sessions WHERE id = ?", (session,))
        return gone

    def unseen(self, since: float) -> list[str]:
        """Sessions that were not joined since a time (seconds since 1970), the oldest first."""
        with self._lock:
            rows = self._db.execute("SELECT id FROM sessions WHERE seen < ? ORDER BY seen", (since,))
            return [row[0] for row in rows]

    # Steps

    def bring(self, session: str, name: str, files: Mapping[str, str], *, show: bool = True) -> Step:
        """Add a picture of the client; it becomes the current step if `show` is True."""
        with self._changing():
            step = self._add(session, None, StepState.SOURCE, name, files, None)
            return self.show(session, step.number) if show else step

    def begin(self, session: str, parent: int, *requests: Mapping[str, Any]) -> list[Step]:
        """Add edits of a step, which wait; the current step stays. All of them are added, or none.

        Raises:
            UsageError: the session has no such step with a picture, or has too many.
        """
        made_from = self.step(session, parent)
        if not made_from.state.has_picture:
            raise UsageError(
                "that step has no picture to edit.",
                looked_at=f"step {parent} is {made_from.state}",
                do="choose another",
            )
        with self._changing():
            return [self._add(session, parent, StepState.WAITING, made_from.name, {}, each) for each in requests]

    def again(self, session: str, number: int) -> Step | None:
        """Make an interrupted edit wait again; None if it is not interrupted any more."""
        with self._changing() as db:
            found = db.execute(
                "UPDATE steps SET state = ? WHERE session = ? AND id = ? AND state = ? RETURNING id",
                (StepState.WAITING, session, number, StepState.INTERRUPTED),
            ).fetchall()
            return self.step(session, number) if found else None

    def run(self, session: str, number: int) -> None:
        """Note that an edit runs."""
        self._end(session, number, StepState.RUNNING, {}, None)

    def done(self, session: str, number: int, files: Mapping[str, str]) -> Step:
        """End an edit with its files. It becomes the current step where its parent still is the current one."""
        with self._changing() as db:
            step = self._end(session, number, StepState.DONE, files, None)
            db.execute("UPDATE sessions SET current = ? WHERE id = ? AND current IS ?", (number, session, step.parent))
        return step

    def end(self, session: str, number: int, state: StepState, problem: Mapping[str, Any] | None = None) -> Step:
        """End an edit without a picture."""
        return self._end(session, number, state, {}, problem)

    def steps(self, session: str) -> list[Step]:
        """All steps of a session, the oldest first."""
        with self._lock:
            return [_step(row) for row in self._rows("session = ? ORDER BY id", session)]

    def step(self, session: str, number: int) -> Step:
        """A step by its number.

        Raises:
            UsageError: this session has none of that number.
        """
        with self._lock:
            for row in self._rows("session = ? AND id = ?", session, number):
                return _step(row)
        raise UsageError("this session has no such step.", looked_at=f"step {number}", do="reload the page")

    def current(self, session: str) -> Step | None:
        """The step that is shown; None before the first picture."""
        with self._lock:
            (row,) = self._db.execute("SELECT current FROM sessions WHERE id = ?", (session,)).fetchall() or [(None,)]
            return None if row[0] is None else self.step(session, row[0])

    # Moving

    def show(self, session: str, number: int) -> Step:
        """Make a step the current one.

        Raises:
            UsageError: the session has no such step, or it has no picture.
        """
        step = self.step(session, number)
        if not step.state.has_picture:
            raise UsageError(
                "that step has no picture.", looked_at=f"step {number} is {step.state}", do="choose another"
            )
        with self._changing() as db:
            db.execute("UPDATE sessions SET current = ? WHERE id = ?", (number, session))
            db.execute(f"UPDATE steps SET shown = {_NEXT} WHERE id = ?", (session, number))
        return step

    def undo(self, session: str) -> Step | None:
        """Go to the parent of the current step; None where there is none, and nothing changes."""
        with self._lock:
            now = self.current(session)
            return None if now is None or now.parent is None else self.show(session, now.parent)

    def redo(self, session: str) -> Step | None:
        """Go to the child of the current step that was shown last; None where it has none with a picture."""
        with self._lock:
            now = self.current(session)
            if now is None:
                return None
            rows = self._rows("session = ? AND parent = ? AND state = ? ORDER BY shown DESC, id DESC", session,
                              now.number, StepState.DONE)  # fmt: skip
            return self.show(session, _step(rows[0]).number) if rows else None

    # Inside

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Context of one transaction; a context inside another one is a part of it."""
        with self._lock:
            if self._db.in_transaction:  # a part of a larger change
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, where: str, *values: Any) -> list[Any]:
        columns = "id, parent, state, name, files, request, problem, created"
        return self._db.execute(f"SELECT {columns} FROM steps WHERE {where}", values).fetchall()

    def _add(
        self,
        session: str,
        parent: int | None,
        state: StepState,
        name: str,
        files: Mapping[str, str],
        request: Mapping[str, Any] | None,
    ) -> Step:
        """Add a step to a session that has not too many."""
        with self._changing() as db:
            (count,) = db.execute("SELECT count(*) FROM steps WHERE session = ?", (session,)).fetchone()
            if count >= self._most:
                raise UsageError(
                    f"the session has {count} steps, which is the most.", do="begin a new one with New session"
                )
            asked = None if request is None else json.dumps(request, ensure_ascii=False)
            row = db.execute(
                "INSERT INTO steps (session, parent, state, name, files, request, created, shown)"
                f" VALUES (?, ?, ?, ?, ?, ?, ?, {_NEXT}) RETURNING id",
                (session, parent, state, name, json.dumps(dict(files)), asked, time.time(), session),
            ).fetchone()
        return self.step(session, row[0])

    def _end(
        self,
        session: str,
        number: int,
        state: StepState,
        files: Mapping[str, str],
        problem: Mapping[str, Any] | None,
    ) -> Step:
        """Write the end of a step: its state, its files, its problem."""
        said = None if problem is None else json.dumps(problem, ensure_ascii=False)
        with self._changing() as db:
            db.execute(
                f"UPDATE steps SET state = ?, files = ?, problem = ?, shown = {_NEXT} WHERE session = ? AND id = ?",
                (state, json.dumps(dict(files)), said, session, session, number),
            )
        return self.step(session, number)


def _hold(path: Path) -> int:
    """Lock a file for this process and write its pid there; the descriptor, which holds the lock until it is closed.

    Raises:
        EnvironmentProblem: another process has the lock, or the file cannot be locked.
    """
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error.strerror}.", do="name another folder with --out-dir"
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(held, 0)
        os.write(held, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        pid = os.read(held, 20).decode("ascii", "replace").strip()
        os.close(held)
        raise EnvironmentProblem(
            f"another toprope ui keeps its sessions in {path.parent}.",
            looked_at=f"{path} is locked by the process {pid or 'of another server'}",
            do="stop that server, or name another folder with --out-dir",
        ) from None
    except OSError as error:
        os.close(held)
        raise EnvironmentProblem(
            f"{path} cannot be locked: {error.strerror}.",
            looked_at="without a lock a second server could take the edits of this one for interrupted ones",
            do="name a folder of a local disk with --out-dir",
        ) from error
    return held


def _step(row: Any) -> Step:
    number, parent, state, name, files, request, problem, created = row
    return Step(
        number, parent, StepState(state), name, json.loads(files), request and json.loads(request),
        problem and json.loads(problem), created,
    )  # fmt: skip
