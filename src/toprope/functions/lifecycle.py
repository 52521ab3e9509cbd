"""Life cycles of instances, instance groups and function calls: pure state machines, driven by the backends.

A backend (`local.instance_manager`, `local.pools`, `ray.instances`, ...) calls a method for each event, and carries out
the commands that it returns, in their order. The machines decide; they start, send and wait for nothing. A command may
cause further events before the next one is carried out: every state is final before its commands are returned.
openYuanrong's are the error codes and texts, the codes after which a call runs again, and the 64 bytes of an id. States
and commands are free; rules for both backends belong here. tests/functions/test_functions_lifecycle.py tries every
order of events, tests/functions/test_functions_lifecycle_rules.py has each rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

from toprope.functions.exceptions import CODES, YRequestError, YRError, YRInvokeError, YRRuntimeError, said
from toprope.functions.options import GroupOptions, InvokeOptions
from toprope.functions.scheduling.bundles import check_strategy
from toprope.functions.scheduling.requests import InvalidRequestError, Request, parse

__all__ = [
    "GRACE",
    "Do",
    "End",
    "Fail",
    "Gone",
    "GroupLife",
    "Kill",
    "Life",
    "PoolLife",
    "Stage",
    "State",
    "admitted",
    "freed",
    "grace_of",
    "is_detached",
    "terminated",
    "too_late",
]


class Call(Protocol):
    """A call of an instance or function.

    Attributes:
        tries: runs left after a failure.
        cancelled: whether it was cancelled.
        process: the worker that was sent it; None before.
    """

    tries: int
    cancelled: bool
    process: Any

    @property
    def is_begun(self) -> bool:
        """True if a part of its result has been delivered: it cannot be retried."""

    def cancel_error(self) -> BaseException:
        """Return the error of a cancelled call."""


class Worker(Protocol):
    """A process that runs functions."""

    @property
    def is_open(self) -> bool:
        """True while it takes calls."""

    @property
    def load(self) -> int:
        """Number of calls that it works on."""


C = TypeVar("C", bound=Call)
M = TypeVar("M")
W = TypeVar("W", bound=Worker)
A = TypeVar("A")

GRACE = 30.0
"""Default time limit of an instance's shutdown hook, in seconds."""

_LONGEST_ID = 64


class State(StrEnum):
    """State of an instance, from its request to its end."""

    WAITING = "waits for resources"
    STARTING = "its constructor runs"
    READY = "runs"
    ENDING = "ends"
    DEAD = "has ended"


class Stage(StrEnum):
    """State of an instance group, from its first member to its end."""

    GATHERING = "waits until Group.invoke starts it"
    WAITING = "waits for the resources of all its members"
    STARTING = "starts"
    RUNNING = "runs"
    ENDED = "has ended"


class Do(Enum):
    """Commands to the backend that need no arguments."""

    START = "have a process run the constructor"
    GIVE_BACK = "release resources that were granted too late"
    WITHDRAW = "cancel the request for resources"
    SEND = "send the calls of the queue"
    STOP = "end the process: its hook, then by force"
    FREE = "release what the instance held"
    PLACE = "ask for the resources of all members"
    LAUNCH = "start all members"
    READY = "say that all members run"
    DISSOLVE = "forget the group: its name is free"


@dataclass(frozen=True)
class Fail(Generic[C]):
    """Command: have these calls raise an error."""

    calls: Sequence[C]
    error: BaseException


@dataclass(frozen=True)
class Gone:
    """Command: report the end of an instance to its group: by itself (`crashed`), or because it was requested."""

    error: BaseException
    crashed: bool


@dataclass(frozen=True)
class End:
    """End all members of a group that live; where it has not started, its start `failed`."""

    error: BaseException
    failed: bool = False


@dataclass(frozen=True)
class Kill(Generic[W]):
    """Command: end workers by force."""

    workers: Sequence[W]


Command = Do | Fail[Any] | Gone | End | Kill[Any]


@dataclass(eq=False)
class Life(Generic[C]):
    """State machine of one instance: events in, commands out.

    Attributes:
        lives: number of times that it may still be brought back.
        state: its state.
        error: what calls of it raise; None while it lives.
        saved: its newest checkpoint.
        queue: calls that have not been sent.
    """

    lives: int = 0
    state: State = State.WAITING
    error: BaseException | None = None
    saved: bytes | None = None
    queue: deque[C] = field(default_factory=deque)
    _has_process: bool = False

    @property
    def is_over(self) -> bool:
        """True once its end was requested."""
        return self.error is not None

    def granted(self) -> list[Command]:
        """Event: its resources were granted."""
        if self.state is not State.WAITING:
            return [Do.GIVE_BACK]
        return self._start()

    def not_started(self, error: BaseException) -> list[Command]:
        """Event: no process could be started for it."""
        self._has_process = False
        return self.fail(error)

    def late(self, error: BaseException) -> list[Command]:
        """Event: the time limit for its resources was reached."""
        return self.fail(error) if self.state is State.WAITING else []

    def constructed(self, checkpoint: bytes | None = None) -> list[Command]:
        """Event: its constructor has run; an instance that can be restarted has its first checkpoint."""
        if self.state is not State.STARTING:
            return []
        self.state = State.READY
        self.saved = checkpoint if self.saved is None else self.saved
        return [Do.SEND]

    def submit(self, call: C) -> list[Command]:
        """Event: a call was made."""
        if self.error is not None:
            return [Fail([call], self.error)]
        self.queue.append(call)
        return [Do.SEND] if self.state is State.READY else []

    def end(self, error: BaseException) -> list[Command]:
        """Event: end it after the calls that were sent; other calls raise the error from now on."""
        if self.is_over:
            return []
        if not self._has_process:
            return self.fail(error)
        self.state, self.error = State.ENDING, error
        return [*self._fail_queue(error), Do.STOP]

    def fail(self, error: BaseException) -> list[Command]:
        """Event: it failed: refused, not started, its constructor raised, or its process was lost."""
        if self.state is State.DEAD:
            return []
        before, self.state, self.error = self.state, State.DEAD, error
        commands = self._fail_queue(error)
        if before is State.WAITING:
            commands.append(Do.WITHDRAW)
        commands.append(Gone(error, before is not State.ENDING))
        return [*commands, Do.STOP if self._has_process else Do.FREE]

    def lost(self, sent: Sequence[C], error: BaseException, *, may_return: bool) -> list[Command]:
        """Event: its process was lost.

        Args:
            sent: calls that it had and that have no result, in their order.
            error: how it ended.
            may_return: whether the process did not end by itself, and the session lives.
        """
        self._has_process = False
        if self.state is State.DEAD:
            return [Fail(sent, error), Do.FREE]
        if may_return and not self.is_over and self.lives > 0 and self.saved is not None:
            self.lives -= 1
            self.queue.extendleft(reversed([call for call in sent if not call.is_begun]))
            return [Fail([call for call in sent if call.is_begun], error), *self._start()]
        return [Fail(sent, error), *self.fail(self.error or error)]

    def unused(self, *, is_busy: bool) -> list[Command]:
        """Event: no handle is left; it ends once all its calls have ended."""
        if is_busy or self.queue or self.state not in (State.WAITING, State.READY):
            return []
        return self.end(freed())

    def _start(self) -> list[Command]:
        self.state, self._has_process = State.STARTING, True
        return [Do.START]

    def _fail_queue(self, error: BaseException) -> list[Command]:
        calls = list(self.queue)
        self.queue.clear()
        return [Fail(calls, error)] if calls else []


@dataclass(eq=False)
class GroupLife(Generic[M]):
    """Life of a group of instances, which start all or none.

    Attributes:
        name: what users call it.
        members: in the order in which they were created; their ranks.
        options: how they live together; set when the group starts.
        stage: the group's state.
        error: why it failed.
    """

    name: str
    members: list[M] = field(default_factory=list)
    options: GroupOptions = field(default_factory=GroupOptions)
    stage: Stage = Stage.GATHERING
    error: BaseException | None = None
    _up: list[M] = field(default_factory=list)

    def join(self, member: M) -> None:
        """Add an instance to the group before its start.

        Raises:
            YRequestError: the group has started (1010).
        """
        if self.stage is not Stage.GATHERING:
            text = f"group {self.name} {self.stage}, nobody can join it"
            raise YRequestError(text, CODES["group schedule failed"])
        self.members.append(member)

    def start(self, options: GroupOptions) -> list[Command]:
        """Event: start the group.

        Raises:
            ValueError: a timeout or strategy that cannot be.
            YRequestError: it has no members, or has started before (1010).
        """
        if options.timeout != -1 and options.timeout < 0:
            raise ValueError(f"invalid timeout {options.timeout} in GroupOptions, expect: -1, or >= 0")
        check_strategy(options.strategy)
        if self.stage is not Stage.GATHERING or not self.members:
            why = f"it {self.stage}" if self.members else "it has no members"
            raise YRequestError(f"group {self.name} cannot be started: {why}", CODES["group schedule failed"])
        self.options, self.stage = options, Stage.WAITING
        return [Do.PLACE] if self.error is None else self.fail(said(self.error))

    def granted(self) -> list[Command]:
        """Event: the resources of all members were granted."""
        if self.stage is not Stage.WAITING:
            return []
        self.stage = Stage.STARTING
        return [Do.LAUNCH]

    def up(self, member: M) -> list[Command]:
        """Event: the constructor of a member has run."""
        if member not in self._up:
            self._up.append(member)
        if self.stage is not Stage.STARTING or len(self._up) < len(self.members):
            return []
        self.stage = Stage.RUNNING
        return [Do.READY]

    def gone(self, member: M, name: str, end: Gone) -> list[Command]:
        """Event: a member, the instance of this name, has ended."""
        if member in self._up:
            self._up.remove(member)
        if not end.crashed:
            return []
        if self.stage in (Stage.WAITING, Stage.STARTING):
            return self.fail(f"instance {name}: {said(end.error)}")
        if self.stage is Stage.GATHERING:
            self.error = self.error or end.error
        elif self.stage is Stage.RUNNING and self.options.same_lifecycle:
            self.stage = Stage.ENDED
            text = f"instance {name} of group {self.name} has exited, and the members of the group end together"
            return [End(YRequestError(text, CODES["group exit together"], 22))]
        return []

    def late(self, why: str) -> list[Command]:
        """Event: the time limit for its resources was reached."""
        if self.stage is not Stage.WAITING:
            return []
        return self.fail(f"it cannot be scheduled within {self.options.timeout} s. {why}")

    def fail(self, why: str) -> list[Command]:
        """Event: it cannot start; no member stays alive."""
        self.stage = Stage.ENDED
        self.error = YRequestError(f"group {self.name} failed to start: {why}", CODES["group schedule failed"])
        return [End(self.error, failed=True)]

    def terminate(self) -> list[Command]:
        """Event: end all members."""
        self.stage = Stage.ENDED
        return [End(terminated())]

    def freed(self) -> list[Command]:
        """Event: no member holds resources any more. A group that failed before its start raises at its start."""
        if self.stage is Stage.GATHERING and self.error is not None:
            return []
        self.stage = Stage.ENDED
        return [Do.DISSOLVE]


@dataclass(eq=False)
class PoolLife(Generic[C, W, A]):
    """Life of the calls of functions with the same options, and of the workers that take them.

    Attributes:
        at_once: calls that a worker works on at once.
        most: number of workers at most.
        queue: calls whose arguments are there and that no worker has.
        workers: all workers, those on their way too.
        up: those that are set up.
        idle: those without a call.
        asked: requests for the resources of one more worker each.
        error: what calls raise since the pool is closed.
    """

    at_once: int = 1
    most: int = 1000
    queue: deque[C] = field(default_factory=deque)
    workers: dict[W, None] = field(default_factory=dict)
    up: set[W] = field(default_factory=set)
    idle: deque[W] = field(default_factory=deque)
    asked: list[A] = field(default_factory=list)
    error: BaseException | None = None

    def submit(self, call: C) -> list[Command]:
        """Event: the arguments of a call are available."""
        if call.cancelled:
            return []
        if self.error is not None:
            return [Fail([call], self.error)]
        self.queue.append(call)
        return [Do.SEND]

    def next_call(self) -> tuple[W, C] | None:
        """Return the next call to send, and its worker; None if there is no call or no free worker."""
        if not self.queue:
            return None
        worker = self._free_worker()
        return None if worker is None else (worker, self.queue.popleft())

    def next_call_for(self, worker: W) -> C | None:
        """Return the next call for a worker that has finished one; None if it is busy, or idle from now on."""
        if not worker.is_open:
            return None
        if self.queue and worker.load < self.at_once:
            return self.queue.popleft()
        if not worker.load:
            self.idle.append(worker)
        return None

    @property
    def wanted(self) -> int:
        """Return the number of workers to request in addition to those that exist, start or are requested."""
        starting = len(self.workers) - len(self.up)
        wanted = math.ceil(len(self.queue) / self.at_once) - len(self.asked) - starting
        return max(0, min(wanted, self.most - len(self.workers) - len(self.asked)))

    def granted(self, request: A) -> list[Command]:
        """Event: resources for one more worker were granted."""
        self.asked.remove(request)
        return [Do.START] if self.queue else [Do.GIVE_BACK]

    def late(self, request: A) -> bool:
        """Event: the time limit of a worker request was reached. True if the calls fail, since no worker exists."""
        self.asked.remove(request)
        return bool(self.queue) and not self.workers

    def refused(self, error: BaseException) -> list[Command]:
        """Event: no worker can be had: none is free in time, or it cannot be started or set up."""
        calls = list(self.queue)
        self.queue.clear()
        return [Fail(calls, error)] if calls else []

    def failed(self, call: C, error: BaseException) -> list[Command]:
        """Event: a call raised, or its worker was lost. It is retried while tries are left and the error allows it.

        Returns:
            Do.SEND where it is retried. Its own worker comes first (`next_call_for`), but may be about to end.
        """
        if self.error is None and call.tries > 0 and not call.cancelled and not call.is_begun and _may_run_again(error):
            call.tries -= 1
            self.queue.append(call)
            return [Do.SEND]
        return [Fail([call], self.error or error)]

    def lost(self, worker: W, begun: Sequence[C], never_begun: Sequence[C], error: BaseException) -> list[Command]:
        """Event: a worker was lost.

        Args:
            worker: it.
            begun: calls that it may have begun.
            never_begun: calls that were on their way to it; they run elsewhere, first.
            error: how it ended.
        """
        self.workers.pop(worker, None)
        self.up.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        commands: list[Command] = [
            Fail([call], call.cancel_error()) for call in (*begun, *never_begun) if call.cancelled
        ]
        for call in begun:
            if not call.cancelled:
                commands += self.failed(call, error)
        left = [call for call in never_begun if not call.cancelled]
        if self.error is not None:
            return [*commands, Fail(left, self.error)]
        for call in left:
            call.process = None
        self.queue.extendleft(reversed(left))
        return commands

    def cancel(self, call: C, *, force: bool) -> list[Command]:
        """Event: a call was cancelled. If it runs alone in its worker, the worker is killed."""
        call.cancelled = True
        if call in self.queue:
            self.queue.remove(call)
        elif call.process is not None:
            return [Kill([call.process])] if force and self.at_once == 1 else []
        return [Fail([call], call.cancel_error())]

    def close(self, error: BaseException) -> list[Command]:
        """Event: its resource group was removed; its workers and calls end."""
        self.error = error
        return [Do.WITHDRAW, *self.refused(error), Kill(list(self.workers))]

    def _free_worker(self) -> W | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.is_open:
                return worker
        if self.at_once == 1:
            return None
        return next((each for each in self.workers if self._has_room(each)), None)

    def _has_room(self, worker: W) -> bool:
        return worker in self.up and worker.is_open and worker.load < self.at_once


def _may_run_again(error: BaseException) -> bool:
    """True if a call may be retried after this error; the user's own errors are retried too."""
    if isinstance(error, YRInvokeError):
        return True
    return isinstance(error, YRError) and error.code in (1003, 1007, 1009, 2002, 3001, 3002, 3008, 4202, 4203, 4204)


def freed() -> YRRuntimeError:
    """The error of calls of an instance that was ended because nobody had a handle to it."""
    return YRRuntimeError("this instance was freed: its handles are gone", CODES["instance exited"])


def terminated() -> YRRuntimeError:
    """The error of calls of an instance that was ended."""
    return YRRuntimeError("this instance is terminated", CODES["instance exited"])


def too_late(limit: int, why: str, code: int) -> YRequestError:
    """Return the error of a request that has no resources after `limit` ms."""
    return YRequestError(f"the instance cannot be scheduled within {limit} ms. {why}", code)


def is_detached(options: InvokeOptions) -> bool:
    """True for an instance that is to outlive its session."""
    return options.custom_extensions.get("lifecycle") == "detached"


def grace_of(options: InvokeOptions) -> float:
    """Seconds that an instance may take to end."""
    try:
        seconds = float(options.custom_extensions.get("GRACEFUL_SHUTDOWN_TIME", ""))
    except ValueError:
        return GRACE
    return GRACE if seconds < 0 else seconds


def admitted(
    options: InvokeOptions, check: Callable[[Request], None], *, id: str = "", is_async: bool = False
) -> tuple[Request, BaseException | None]:
    """Return the resources that a function or instance requests, and the error if the request is refused.

    Args:
        options: its options.
        check: raises for resources that the backend does not have; its error is returned.
        id: of an instance.
        is_async: whether it has a coroutine method.
    """
    request = Request()
    try:
        if options.name and (size := len(id.encode())) > _LONGEST_ID:
            text = f"The instance ID size is {size}, exceeds the maximum length of {_LONGEST_ID} bytes"
            raise YRequestError(text, CODES["invalid parameter"], 10)
        options.check(is_async=is_async)
        request = parse(options.custom_resources, options.cpu, options.memory)
        check(request)
    except InvalidRequestError as error:
        return request, YRequestError(error.explained, error.code)
    except (ValueError, TypeError, NotImplementedError, YRequestError) as error:
        return request, error
    return request, None
