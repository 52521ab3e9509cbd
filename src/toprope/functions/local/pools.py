"""Function calls of a local session: pools of workers that run them, one pool for each set of options.

The session calls `add` for each call of a function; the scheduler has pools make room. What happens on an event is
decided by `lifecycle.PoolLife`; here its commands are carried out. That idle workers end after `Config.recycle_time`,
and the limits on their number, are openYuanrong's; the times of grace are ours. Tests:
tests/functions/test_functions_instances.py, tests/functions/test_functions_objects.py,
tests/functions/test_functions_resource_groups.py.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError
from toprope.functions.lifecycle import Command, Do, Fail, Kill, PoolLife, admitted, too_late
from toprope.functions.local.masks import mask
from toprope.functions.local.object_store import NOTHING
from toprope.functions.local.process import Call, Process
from toprope.functions.objects import Entry
from toprope.functions.options import InvokeOptions
from toprope.functions.scheduling.holders import Holder
from toprope.functions.scheduling.ledger import Grant
from toprope.functions.scheduling.requests import Request
from toprope.functions.timers import Timer
from toprope.functions.transport.wire import Kind

if TYPE_CHECKING:
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.scheduling.scheduler import Scheduler
    from toprope.functions.local.session_state import SessionState

__all__ = ["Pools"]

GRACE = 5.0
AT_END = 1.0
"""Grace period of functions at the session's end, in seconds: nobody can get their results any more."""

_OF_A_CALL = ("retry_times", "trace_id", "max_invoke_latency", "name", "namespace", "need_order")
"""Options that do not affect the choice of a pool."""


@dataclass(eq=False, kw_only=True)
class Pool(PoolLife[Call, Process, "Asking"]):
    """The workers for calls with the same options.

    Attributes:
        options: of the calls.
        request: resources of each worker.
        grants: what each worker holds.
        warned: whether a permanent shortage was logged.
        ledger: where their resources come from.
    """

    options: InvokeOptions
    request: Request
    grants: dict[Process, Grant] = field(default_factory=dict)
    warned: bool = False
    ledger: str = ""


@dataclass(eq=False)
class Asking:
    """A request for the resources of one more worker."""

    pool: Pool
    options: InvokeOptions
    ledger: str = ""
    asked: int = 0
    grant: Grant | None = None
    group: Any = None
    late: Timer | None = None


class Pools:
    """The worker pools of a session. For all methods but `add` and `cancel` the caller holds its lock."""

    def __init__(self, session: SessionState, reactor: Reactor, scheduler: Scheduler) -> None:
        self._session = session
        self._reactor = reactor
        self._scheduler = scheduler
        self._pools: dict[bytes, Pool] = {}
        self._numbers = itertools.count(1)

    def add(self, call: Call) -> None:
        """Add a function call: it runs once its argument objects and a worker are available."""
        options = call.options
        assert options is not None
        request, refused = admitted(options, self._scheduler.check_keys)
        if isinstance(refused, YRequestError):
            call.fail(refused)
            return
        if refused is not None:
            raise refused
        with self._session.lock:
            key = _key(options)
            pool = self._pools.get(key)
            if pool is None:
                try:
                    ledger = self._scheduler.ledger_name(options)
                except YRequestError as error:
                    call.fail(error)
                    return
                pool = self._pools[key] = Pool(
                    options=options.copy(), request=request, ledger=ledger, most=self._most(options),
                    at_once=options.calls_at_once(is_async=False),
                )  # fmt: skip
            call.owner = _Owner(self, pool)
            self._when_ready(pool, call)

    def _when_ready(self, pool: Pool, call: Call, checked: int = 0) -> None:
        with self._session.lock:
            for place, entry in enumerate(call.needed[checked:], checked):
                if not entry.done:
                    entry.when_done(functools.partial(self._when_ready, pool, call, place))
                    return
                if entry.error is not None:
                    call.fail(entry.error)
                    return
            self._do(pool, pool.submit(call))

    def _do(self, pool: Pool, commands: Sequence[Command]) -> None:
        """Carry out commands of the life of a pool."""
        for command in commands:
            match command:
                case Do.SEND:
                    self.advance(pool)
                case Fail(calls, error):
                    for call in calls:
                        call.fail(error)
                case Kill(workers):
                    for process in workers:
                        self._reactor.kill(process)
                case Do.WITHDRAW:
                    for asking in pool.asked:
                        self._scheduler.withdraw(asking)
                    pool.asked.clear()

    def advance(self, pool: Pool) -> None:
        """Give waiting calls to idle workers, and ask for more workers where there is more work."""
        session = self._session
        if session.ended:
            return
        while (found := pool.next_call()) is not None:
            session.send(*found)
        for _ in range(pool.wanted):
            asking = Asking(pool, pool.options)
            pool.asked.append(asking)
            self._scheduler.place(asking, pool.request, pool.options, self.granted)
            limit = pool.options.schedule_timeout_ms
            if limit >= 0:
                late = functools.partial(self._too_late, asking, limit)
                asking.late = self._reactor.after(limit / 1000, late)
        self._scheduler.serve()
        if pool.asked:
            if not pool.warned:
                pool.warned = True
                self._scheduler.warn_if_never("a function", pool.asked[0], pool.request)
            self.make_room(but=pool)

    def granted(self, asking: Asking, grant: Grant) -> None:
        """Start a worker whose resources were granted."""
        session, pool = self._session, asking.pool
        if asking.late is not None:
            asking.late.cancel()
        ledger = self._scheduler.ledger_of(asking)
        if Do.START not in pool.granted(asking) or session.ended:
            ledger.release(grant.number)
            return
        options = pool.options
        try:
            variables = {**session.variables_for(f"function-{next(self._numbers)}"), **options.environment()}
            environment, unset = mask(grant, ledger.nodes, {**os.environ, **variables})
            process = self._reactor.take()
        except YRRuntimeError as error:
            ledger.release(grant.number)
            self._do(pool, pool.refused(error))
            return
        asking.grant = grant
        process.owner, process.on_lost = asking, self.lost
        pool.workers[process], pool.grants[process] = None, grant
        folder = options.runtime_env.get("working_dir", "") or session.config.working_dir
        variables |= environment
        process.works_on(pool.at_once)
        setup = ("", variables, unset, folder, session.python_path(), pool.at_once, False, False, None)
        call = Call(Kind.CREATE, setup, NOTHING, [], 1)
        call.owner = _Owner(self, pool)
        session.send(process, call)

    def ended(self, pool: Pool, process: Process, call: Call, error: BaseException | None) -> bool:
        """Handle a worker that finished a call or its setup. Return True if the call is retried."""
        commands: list[Command] = []
        if call.kind == Kind.CREATE:
            if error is not None:
                # it is not as the options say: nothing may run in it, and another would be no better
                self._do(pool, pool.refused(error))
                self._reactor.stop(process, GRACE)
                return False
            pool.up.add(process)
        elif error is not None:
            commands = pool.failed(call, error)
        while (next_call := pool.next_call_for(process)) is not None:
            self._session.send(process, next_call)
        if pool.idle and pool.idle[-1] is process:
            process.idle_since = time.monotonic()
            if process.recycling is None:
                self._recycle_in(self._session.config.recycle_time, pool, process)
        self._do(pool, commands)
        return Do.SEND in commands

    def _recycle_in(self, seconds: float, pool: Pool, process: Process) -> None:
        process.recycling = self._reactor.after(seconds, lambda: self._recycle(pool, process))

    def _recycle(self, pool: Pool, process: Process) -> None:
        with self._session.lock:
            process.recycling = None
            if process in pool.idle:
                left = process.idle_since + self._session.config.recycle_time - time.monotonic()
                if left > 0:
                    self._recycle_in(left, pool, process)
                else:
                    self._release(pool, process)

    def _release(self, pool: Pool, process: Process) -> None:
        pool.idle.remove(process)
        self._reactor.stop(process, GRACE)

    def make_room(self, but: Pool | None = None) -> None:
        """Stop idle workers, whose resources others need."""
        for pool in self._pools.values():
            for process in list(pool.idle if pool is not but else ()):
                self._release(pool, process)

    def lost(self, process: Process) -> None:
        """Handle a lost worker: release its resources; its call fails or is retried elsewhere."""
        asking: Asking = process.owner
        pool = asking.pool
        grant = pool.grants.pop(process, None)
        begun = [call for call in process.pending.values() if call.kind == Kind.FUNCTION]
        never_begun = [call for call in process.backlog if call.kind == Kind.FUNCTION]
        process.pending.clear()
        process.backlog.clear()
        if grant is not None:
            self._scheduler.ledger_of(asking).release(grant.number)
        error = YRequestError(f"the worker of a function exited: {process.how_it_ended}", CODES["instance exited"], 22)
        self._do(pool, pool.lost(process, begun, never_begun, error))
        self._scheduler.serve()
        self.advance(pool)

    def cancel(self, entry: Entry, force: bool) -> None:
        """Cancel the call that makes an object, where it is a function's and not done."""
        with self._session.lock:
            call: Call | None = entry.call
            if call is None or call.kind != Kind.FUNCTION or entry.done:
                return
            self._do(call.owner.pool, call.owner.pool.cancel(call, force=force))

    def holders(self, ledger: str) -> list[Holder]:
        """The workers that hold resources of a ledger."""
        return [
            Holder(
                f"worker {process.number}", pid=process.pid, node=grant.node, cpu=grant.request.cpu,
                memory=grant.request.memory, cards=grant.cards, resources=grant.request.scalars,
            )
            for pool in self._pools.values() if pool.ledger == ledger
            for process, grant in pool.grants.items()
        ]  # fmt: skip

    def leave(self, ledger: str, error: BaseException) -> None:
        """End the workers and calls of a resource group that is removed."""
        for key, pool in list(self._pools.items()):
            if pool.ledger == ledger:
                del self._pools[key]
                self._do(pool, pool.close(error))

    def end_all(self, error: BaseException) -> None:
        """Fail the calls without a result and end all workers: the session ends."""
        with self._session.lock:
            for pool in self._pools.values():
                self._do(pool, pool.refused(error))
                for process in pool.workers:
                    for call in (*process.pending.values(), *process.backlog):
                        call.fail(error)
                    self._reactor.stop(process, AT_END)

    def why_waiting(self, pool: Pool, call: Call) -> str:
        """Return what a call waits for."""
        if call.process is not None:
            return "the function had not returned"
        missing = [entry for entry in call.needed if not entry.done]
        if missing:
            return f"the function had not begun: {len(missing)} of its arguments were not there"
        asking = pool.asked[0] if pool.asked else Asking(pool, pool.options)
        return f"the function had not begun: {self._scheduler.shortage_of(asking, pool.request)}"

    def _too_late(self, asking: Asking, limit: int) -> None:
        with self._session.lock:
            pool = asking.pool
            if asking not in pool.asked:
                return
            self._scheduler.withdraw(asking)
            if pool.late(asking):
                why = self._scheduler.shortage_of(asking, pool.request)
                code = self._scheduler.code_of_shortage(asking, pool.request)
                self._do(pool, pool.refused(too_late(limit, why, code)))

    def _most(self, options: InvokeOptions) -> int:
        limits = [each for each in (options.max_instances, self._session.config.max_task_instance_num) if each > 0]
        return min(limits, default=1000)


class _Owner:
    def __init__(self, pools: Pools, pool: Pool) -> None:
        self._pools = pools
        self.pool = pool

    def ended(self, process: Process, call: Call, error: BaseException | None) -> bool:
        """Handle the result of a call. Return True if the call is retried."""
        return self._pools.ended(self.pool, process, call, error)

    def withdraw(self, call: Call) -> None:
        """Drop a queued call that was cancelled."""
        self._pools._do(self.pool, self.pool.cancel(call, force=False))

    def why_waiting(self, call: Call) -> str:
        """Return what a call waits for."""
        return self._pools.why_waiting(self.pool, call)


def _key(options: InvokeOptions) -> bytes:
    return pickle.dumps([getattr(options, each.name) for each in fields(options) if each.name not in _OF_A_CALL])
