"""Processes of a graph in the driver: creation, supervision, restarts and end.

A part of `executor.runner`. A process is an instance of `toprope.functions` whose class is `worker.process.Host`;
without a session of the program's, a graph begins one of its own. A restarted process has a new name, by which files
and routes find it. What a restart does to inputs in flight is in docs/flow.md; the times at the head are free. Tests:
tests/flow/test_serve_graph.py, tests/flow/test_flow_faults.py.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprope import functions
from toprope.flow.exceptions import FAILED, FLOW_FUNC_FAILED, MODEL_EXECUTE_TIMEOUT, DfException, with_notes
from toprope.flow.executor.placement import Placed
from toprope.flow.stage.plan import Address, HostPlan, Reach, Route, StagePlan
from toprope.flow.stage.spec import Failure, RunOptions, StageFunction
from toprope.flow.stage.status import SINCE, TRANSACTION, Status
from toprope.flow.worker.process import Host
from toprope.functions import context
from toprope.functions.backend import Code
from toprope.functions.options import InvokeOptions

__all__ = ["Hosts", "end_session", "ensure_session"]

_log = logging.getLogger("toprope")

_STOP = 2.0
"""Seconds that stages may take to end when the graph is closed."""

_NEWS = 30.0
"""Seconds after which the log names, again and again, the stage whose start is waited for."""

_PLENTY = 4096
"""Cores of a session that only flow uses: there it is the machine that shares its cores among the stages."""

_own_session = False


def ensure_session() -> None:
    """Make sure that there is a session of `toprope.functions`: the program's, else flow's own."""
    global _own_session
    if not context.is_set():
        functions.init(functions.Config(num_cpus=_PLENTY))
        _own_session = True


def end_session() -> None:
    """End the session, where it is flow's own."""
    global _own_session
    if _own_session:
        _own_session = False
        functions.finalize()


@dataclass
class _Running:
    plan: HostPlan
    id: str
    name: str
    status: list[memoryview]
    pid: int = 0
    run: Any = None
    why: Failure | None = None
    ended: bool = False


class Hosts:
    """The processes of a graph, as the driver creates and watches them.

    Args:
        placed: what they are.
        options: how the graph runs.
        folder: of the graph.
        reach: how processes on other machines find each other; None if there are none.
        on_moved: called with the old and new name of a process that replaces a dead one, and what failed.
        on_broken: called with the reason why the graph cannot go on.
    """

    def __init__(
        self, placed: Placed, options: RunOptions, folder: Path, reach: Reach | None,
        on_moved: Callable[[str, str, Failure], None], on_broken: Callable[[Failure], None],
    ) -> None:  # fmt: skip
        self._placed = placed
        self._options = options
        self._folder = folder
        self._reach = reach
        self.book: dict[str, Address] = {}
        """Addresses of the processes, by name, if they are on several machines."""
        self._on_moved = on_moved
        self._on_broken = on_broken
        self._code = Code(Host)
        self._starting = threading.Lock()
        self._closing = False
        self._lives = dict.fromkeys(placed.hosts, options.restarts)
        self._generations = dict.fromkeys(placed.hosts, 0)
        self._running: dict[str, _Running] = {}
        self._past: dict[str, list[list[int]]] = {}
        self.restarts = 0

    def start(self, ready: Callable[[str], None]) -> None:
        """Start all processes.

        Args:
            ready: called with the name of each that has made its stages, before anything runs.

        Raises:
            DfException: one could not be started (4294967295), with the cause.
        """
        until = time.monotonic() + self._options.start_timeout_ms / 1000
        self._running = {base: self._create(base) for base in self._placed.hosts}
        for each in self._running.values():
            self._open(each, until)
        for each in self._running.values():
            ready(each.name)
        for base, each in self._running.items():
            self._run(base, each)

    def names(self, *, apart: bool = False) -> list[str]:
        """Names of the processes that are there; of those on other machines alone."""
        return [each.name for each in self._running.values() if not apart or self._is_far(each.name)]

    def current(self, base: str) -> str:
        """Return the current name of a process of the plan: a restarted process has a new name."""
        generation = self._generations.get(base, 0)
        return f"{base}.{generation}" if generation else base

    def pids(self) -> dict[str, int]:
        """The processes, by the names of the stages in them."""
        return {stage.context.name: each.pid for each in self._running.values() for stage in each.plan.stages}

    def figures(self) -> list[tuple[StagePlan, StageFunction, list[int]]]:
        """For each function of each instance its cells, see `toprope.flow.stage.status`, of dead processes too."""
        found = []
        for base, host in list(self._running.items()):
            functions_of = [(stage, each) for stage in host.plan.stages for each in stage.spec.functions]
            rows = _figures(host, self._past.get(base))
            found += [(*each, row) for each, row in zip(functions_of, rows, strict=True)]
        return found

    def _create(self, base: str) -> _Running:
        plan = self._placed.hosts[base]
        name = self.current(base)
        stages = tuple(
            replace(stage, routes=tuple(tuple(map(self._renamed, row)) for row in stage.routes))
            for stage in plan.stages
        )
        plan = replace(plan, name=name, stages=stages, reach=self._reach)
        cpu, memory = self._placed.charged[base]
        options = InvokeOptions(
            cpu=cpu, memory=memory, env_vars=self._placed.variables[base],
            custom_extensions={"GRACEFUL_SHUTDOWN_TIME": str(_STOP)},
            schedule_timeout_ms=self._options.start_timeout_ms,
        )  # fmt: skip
        id = context.backend().create(self._code, (plan,), {}, options)
        functions_of = [function for stage in plan.stages for function in stage.spec.functions]
        status = Status(self._folder / f"status-{name}", len(functions_of))
        return _Running(plan, id, name, [status.cells(place) for place in range(len(functions_of))])

    def _renamed(self, route: Route) -> Route:
        targets = tuple(replace(each, host=self.current(each.host)) for each in route.targets)
        return replace(route, targets=targets)

    def _open(self, host: _Running, until: float) -> None:
        """Wait until a process has made its stages, and log which are waited for.

        Raises:
            DfException: it has not in time, or one of them cannot start; the traceback is a note.
        """
        backend, names = context.backend(), ", ".join(each.context.name for each in host.plan.stages)
        try:
            opened = backend.call(host.id, "open", (), {}, 1)
            is_open = self._wait_for(opened, names, until)
            if is_open:
                host.pid, address = backend.get([opened], -1, False)[0]
        except Exception as error:
            raise _not_started(names, error) from error
        if not is_open:
            raise DfException(
                f"stage {names} has not started within {self._options.start_timeout_ms / 1000:g} s. do: give all "
                "stages longer, by FlowGraph(..., start_timeout_ms=n) or toprope serve --start-timeout SECONDS",
                FAILED,
            )
        if address is not None:
            self.book[host.name] = address

    def _wait_for(self, opened: Any, names: str, until: float) -> bool:
        """Wait for the answer of a process, and log the wait. Return True if it arrives in time."""
        limit = self._options.start_timeout_ms / 1000
        left = until - time.monotonic()
        while not context.backend().wait([opened], 1, min(_NEWS, max(0.1, left)))[0]:
            left = until - time.monotonic()
            if left <= 0:
                return False
            _log.warning("waiting for stage %s to start: %.0f s of %.0f s have passed", names, limit - left, limit)
        return True

    def _run(self, base: str, host: _Running) -> None:
        backend = context.backend()
        host.run = backend.call(host.id, "run", (dict(self.book),), {}, 1)
        host.run.on_complete(lambda ref: self._ended(base, host))

    # Death and deadlines

    def _ended(self, base: str, host: _Running) -> None:
        """Handle the end or the error of a process, in a separate thread."""
        error = host.run.exception(1)
        host.ended = True
        if self._closing:
            return
        with self._starting:
            if self._is_closing() or self._running.get(base) is not host:
                return
            names = ", ".join(each.context.name for each in host.plan.stages)
            why = host.why or _died_failure(names, error)
            if host.why is None:
                if not self._lives[base]:
                    self._on_broken(_no_restart_failure(why, self._options.restarts))
                    return
                self._lives[base] -= 1
            self._kill(host)
            context.backend().terminate(host.id, False)
            self._past[base] = _figures(host, self._past.get(base))
            try:
                self._generations[base] += 1
                self.restarts += 1
                new = self._create(base)
                self._running[base] = new
                self._open(new, time.monotonic() + self._options.start_timeout_ms / 1000)
                self._check_place(host.name, new.name, names)
                if not self._is_closing():
                    self._run(base, new)
                    self._on_moved(host.name, new.name, why)
            except Exception as problem:
                if not self._is_closing():
                    _log.error("a stage that had ended was not restarted: %s", with_notes(problem))
                    self._on_broken(Failure(problem, stage=names, code=FAILED))

    def _check_place(self, old: str, new: str, names: str) -> None:
        """Check that a replacement process runs where its neighbours' memory is."""
        if self.book and self.book[old].node != self.book[new].node:
            raise DfException(f"stage {names} has ended, and was started again on another machine: start a new graph")

    def _is_closing(self) -> bool:
        """True if the end has begun, in another thread."""
        return self._closing

    def check_deadlines(self) -> None:
        """End the processes whose stages have exceeded the deadline of an input."""
        limit = self._options.deadline_ms * 1_000_000
        if not limit:
            return
        now = time.monotonic_ns()
        for host in list(self._running.values()):
            stages = [(stage, function) for stage in host.plan.stages for function in stage.spec.functions]
            for (stage, _), cells in zip(stages, host.status, strict=True):
                transaction, since = cells[TRANSACTION], cells[SINCE]
                if transaction and now - since > limit and host.why is None and not host.ended:
                    host.why = _overdue_failure(stage, transaction, self._options.deadline_ms)
                    self._kill(host)

    def _kill(self, host: _Running) -> None:
        if self._is_far(host.name):
            # it has a moment to exit by itself; this thread does not wait for it
            end = context.backend().terminate
            threading.Thread(target=end, args=(host.id, False), name="flow end", daemon=True).start()
        elif host.pid and not host.ended:
            try:
                os.kill(host.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _is_far(self, name: str) -> bool:
        address = self.book.get(name)
        return address is not None and self._reach is not None and address.node != self._reach.node

    def status(self, name: str) -> list[memoryview]:
        """Counters of the functions of a process; none for one that has ended."""
        return next((each.status for each in self._running.values() if each.name == name), [])

    # The end

    def expect_end(self) -> None:
        """Note that the graph ends: processes that end from now on are not restarted."""
        self._closing = True

    def close(self) -> None:
        """End all processes; those that do not end on request are killed."""
        self.expect_end()
        self._end()
        with self._starting:  # one that was being started just then
            self._end()

    def _end(self) -> None:
        hosts = list(self._running.values())
        if not context.is_set():
            return
        backend = context.backend()
        runs = [each.run for each in hosts if each.run is not None]
        try:
            if runs:
                backend.wait(runs, len(runs), _STOP)
            for host in hosts:
                if host.run is None or not host.run.done():
                    self._kill(host)
            for host in hosts:
                backend.terminate(host.id, True)
        except RuntimeError:
            pass  # the session has ended before

    def explain(self) -> str:
        """Describe the stages at work."""
        at_work: Sequence[str] = [
            f"{host.plan.stages[0].context.name} works on input {cells[TRANSACTION]}"
            for host in self._running.values()
            for cells in host.status
            if cells[TRANSACTION]
        ]
        return ", ".join(at_work) or "no stage works on an input"


def _figures(host: _Running, past: list[list[int]] | None) -> list[list[int]]:
    """The cells of a process's functions, added to those of the processes before it."""
    rows = [list(cells) for cells in host.status]
    return (
        rows
        if past is None
        else [[sum(pair) for pair in zip(*each, strict=True)] for each in zip(rows, past, strict=True)]
    )


_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")


def _died_failure(names: str, error: BaseException | None) -> Failure:
    text = f"stage {names} has ended while it had this input: {error}"
    if "SIGKILL" in text:
        text += "; the system ends processes so where memory is short, and its log says so then"
    elif any(name in text for name in _CRASHES):
        text += "; native code has crashed: PYTHONFAULTHANDLER=1 shows where"
    return Failure(RuntimeError(text), stage=names, code=FLOW_FUNC_FAILED)


def _not_started(names: str, error: Exception) -> DfException:
    """Return the one-line error of a stage whose constructor raised; the traceback is a note."""
    origin = getattr(error, "origin", None)
    text = f"{type(origin).__name__}: {origin}" if isinstance(origin, BaseException) else str(error)
    found = DfException(f"stage {names} cannot start: {text}", FAILED)
    if isinstance(origin, BaseException):
        found.add_note(str(error).rstrip())
    return found


def _no_restart_failure(why: Failure, restarts: int) -> Failure:
    """Return the failure of a process that is not restarted."""
    times = "restarts=0" if not restarts else f"it was started again {restarts} times, as restarts={restarts} says"
    text = f"{why.error} ({times}). do: make the graph again, or allow more by FlowGraph(..., restarts=n)"
    return Failure(RuntimeError(text), why.traceback, why.stage, FAILED)


def _overdue_failure(stage: StagePlan, transaction: int, deadline_ms: int) -> Failure:
    name = stage.context.name
    text = f"stage {name} has worked on input {transaction} for more than its deadline of {deadline_ms} ms"
    return Failure(TimeoutError(text), stage=name, code=MODEL_EXECUTE_TIMEOUT)
