"""State that the parts of a local session share: the base class of `local.session.Session`.

A part (dispatcher, instances, pools, scheduler, object store, reactor, requests of workers) imports this module and the
parts below it, never `local.session`. What a part needs of one above it is declared here; the session provides it.
All of it is free but the lock, which code that changes the state holds, and the names INSTANCE_ID and YR_JOB_ID, which
are openYuanrong's. Tests: tests/functions/test_functions_semantics.py, tests/functions/test_functions_objects.py.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import uuid
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope.functions.backend import DEFAULT_NAMESPACE, Backend, Code
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local.folder import hold
from toprope.functions.local.instance import Instance
from toprope.functions.local.process import Call, Process, Stream
from toprope.functions.objects import Entry
from toprope.functions.options import Config
from toprope.functions.scheduling.holders import Holder
from toprope.functions.scheduling.ledger import Ledger, Node
from toprope.functions.transport.wire import Message

__all__ = ["SessionState"]


class SessionState(Backend):
    """The state of a session, without its parts. One lock guards it; no code blocks while it is held.

    Args:
        config: see `yr.init`.
        node: the resources of this machine.
        folder: for shared memory.
        variables: workers' environment variables in addition to those of this process.

    Attributes:
        send, handle, close_stream, release: these methods of the dispatcher.
    """

    send: Callable[[Process, Call], None]
    handle: Callable[[Process, Sequence[Message]], None]
    close_stream: Callable[[Stream], None]
    release: Callable[[Process], None]

    def __init__(self, config: Config, node: Node, folder: Path, variables: Mapping[str, str] | None) -> None:
        self.config = config
        self._variables = variables or {}
        self.folder = folder
        self.job_id = config.job_id or f"job-{uuid.uuid4().hex[:8]}"
        self.hold = hold(folder)
        self.lock = threading.RLock()
        self.ledger = Ledger([node])
        self.node = node.id
        self.codes: dict[str, Code] = {}
        self.objects: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self._object_numbers = itertools.count(1)
        self.ended = False
        self._process = os.getpid()

    def check(self) -> None:
        """Refuse work once the session has ended.

        Raises:
            YRRuntimeError: it has.
        """
        if self.ended:
            what = "already finalized"
            if os.getpid() != self._process:
                what = "this process is a fork of the one that called yr.init: call yr.init in it too"
            raise YRRuntimeError(what, CODES["finalized"])

    # Of workers

    def variables_for(self, id: str) -> dict[str, str]:
        """Variables of a worker in addition to those of this process.

        Args:
            id: of the instance, or of the worker for functions.
        """
        kept = {name: value for name, value in self._variables.items() if name not in os.environ}
        return {**kept, **self.config.environment(), "INSTANCE_ID": id, "YR_JOB_ID": self.job_id}

    def python_path(self) -> list[str]:
        """Return the folders to put in front of the workers' sys.path: this process's own."""
        return [*self.config.load_paths, *(each for each in sys.path if each)]

    @property
    def namespace(self) -> str:
        """The namespace of named instances that name none."""
        return self.config.ns or DEFAULT_NAMESPACE

    # Numbers of objects

    def object(self, number: int, owner: Process) -> Entry:
        """Return the object that a worker knows by this number."""
        held = owner.held.get(number)
        if held is not None:
            found: Entry = held[0]
            return found
        entry = self.objects.get(number)
        if entry is None:
            raise YRRuntimeError(f"there is no object {number:016x} any more", CODES["get failed"])
        return entry

    def expose(self, entry: Entry, to: Process) -> int:
        """Return the number of an object for a worker, which holds the object from now on."""
        number = self._number(entry)
        held = to.held.setdefault(number, [entry, 0])
        held[1] += 1
        return number

    def adopt(self, entry: Entry, number: int, owner: Process) -> None:
        """Register the number that a worker has chosen for an object that it requests, and holds."""
        entry.number = number
        self.objects[number] = entry
        owner.held[number] = [entry, 1]

    def object_id(self, entry: Entry) -> str:
        """A name for an object."""
        with self.lock:
            return f"{self._number(entry):016x}"

    def _number(self, entry: Entry) -> int:
        """Return the number of an object; it gets one at the first use."""
        if not entry.number:
            entry.number = next(self._object_numbers)
            self.objects[entry.number] = entry
        return entry.number

    # Of several parts

    @abstractmethod
    def tidy(self) -> None:
        """Free the values, instances and generators that this process has dropped."""

    @abstractmethod
    def result(self, entry: Entry) -> Any:
        """The value of an object that is there.

        Raises:
            The error in its place.
        """

    @abstractmethod
    def living(self) -> list[Instance]:
        """The instances that hold resources."""

    @abstractmethod
    def holders(self, ledger: str) -> list[Holder]:
        """The instances and workers that hold resources of a ledger."""

    @abstractmethod
    def leave(self, ledger: str, error: BaseException) -> None:
        """End the instances, workers and calls of a resource group that is removed."""
