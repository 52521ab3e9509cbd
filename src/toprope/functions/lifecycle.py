"""Life cycle of instances and of their groups: pure state machines that both backends drive.

A backend calls a method for each event, and carries out the commands that it returns, in their order. The machines
decide; they start, send and wait for nothing. A command may bring about further events before the next one is carried
out: every state is final before its commands are returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError, said
from toprope.functions.groups import check_strategy
from toprope.functions.options import GroupOptions, InvokeOptions
from toprope.functions.resources import InvalidRequestError, Request, parse

__all__ = [
    "GRACE",
    "Command",
    "Do",
    "End",
    "Fail",
    "Gone",
    "GroupLife",
    "Life",
    "Stage",
    "State",
    "admitted",
    "grace_of",
    "is_detached",
    "terminated",
    "too_late",
]

C = TypeVar("C")
M = TypeVar("M")

GRACE = 30.0
"""Seconds that an instance's hook may take at its end, where the options say nothing."""

_LONGEST_ID = 64


class State(StrEnum):
    """Where an instance is in its life."""

    WAITING = "waits for resources"
    STARTING = "its constructor runs"
    READY = "runs"
    ENDING = "ends"
    DEAD = "has ended"


class Stage(StrEnum):
    """Where a group is in its life."""

    GATHERING = "waits until Group.invoke starts it"
    WAITING = "waits for the resources of all its members"
    STARTING = "starts"
    RUNNING = "runs"
    ENDED = "has ended"


class Do(Enum):
    """Commands without arguments."""

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
    """Have calls raise an error."""

    calls: Sequence[C]
    error: BaseException


@dataclass(frozen=True)
class Gone:
    """Tell the group of an instance that it has ended, of itself (`crashed`) or because it was asked to."""

    error: BaseException
    crashed: bool


@dataclass(frozen=True)
class End:
    """End all members of a group that live; where it has not started, its start `failed`."""

    error: BaseException
    failed: bool = False


Command = Do | Fail[Any] | Gone | End


@dataclass(eq=False)
class Life(Generic[C]):
    """Life of an instance.

    Attributes:
        lives: number of times that it may still be brought back.
        state: where it is in its life.
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
        """True from the moment at which it is to end."""
        return self.error is not None

    def granted(self) -> list[Command]:
        """It has its resources."""
        if self.state is not State.WAITING:
            return [Do.GIVE_BACK]
        return self._start()

    def not_started(self, error: BaseException) -> list[Command]:
        """There is no process for it."""
        self._has_process = False
        return self.fail(error)

    def late(self, error: BaseException) -> list[Command]:
        """Its time to get resources is over."""
        return self.fail(error) if self.state is State.WAITING else []

    def constructed(self, checkpoint: bytes | None = None) -> list[Command]:
        """Its constructor has run; one that may come back has made its first checkpoint."""
        if self.state is not State.STARTING:
            return []
        self.state = State.READY
        self.saved = checkpoint if self.saved is None else self.saved
        return [Do.SEND]

    def submit(self, call: C) -> list[Command]:
        """A call was made."""
        if self.error is not None:
            return [Fail([call], self.error)]
        self.queue.append(call)
        return [Do.SEND] if self.state is State.READY else []

    def end(self, error: BaseException) -> list[Command]:
        """It is to end, after the calls that were sent; others raise the error from now on."""
        if self.is_over:
            return []
        if not self._has_process:
            return self.fail(error)
        self.state, self.error = State.ENDING, error
        return [*self._fail_queue(error), Do.STOP]

    def fail(self, error: BaseException) -> list[Command]:
        """It cannot live: refused, not started, its constructor raised, or its process is gone."""
        if self.state is State.DEAD:
            return []
        before, self.state, self.error = self.state, State.DEAD, error
        commands = self._fail_queue(error)
        if before is State.WAITING:
            commands.append(Do.WITHDRAW)
        commands.append(Gone(error, before is not State.ENDING))
        return [*commands, Do.STOP if self._has_process else Do.FREE]

    def lost(
        self, sent: Sequence[C], error: BaseException, *, may_return: bool, is_begun: Callable[[C], bool]
    ) -> list[Command]:
        """Its process is gone.

        Args:
            sent: calls that it had and that have no result, in their order.
            error: how it ended.
            may_return: whether the process did not end by itself, and the session lives.
            is_begun: whether a part of a call's result has been handed on, so that it cannot run again.
        """
        self._has_process = False
        if self.state is State.DEAD:
            return [Fail(sent, error), Do.FREE]
        if may_return and not self.is_over and self.lives > 0 and self.saved is not None:
            self.lives -= 1
            self.queue.extendleft(reversed([call for call in sent if not is_begun(call)]))
            return [Fail([call for call in sent if is_begun(call)], error), *self._start()]
        return [Fail(sent, error), *self.fail(self.error or error)]

    def unused(self, *, is_busy: bool) -> list[Command]:
        """Nobody can call it any more; it ends once nothing is left for it to do."""
        if is_busy or self.queue or self.state not in (State.WAITING, State.READY):
            return []
        return self.end(YRRuntimeError("this instance was freed: its handles are gone", CODES["instance exited"]))

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
        stage: where the group is in its life.
        error: why it failed.
    """

    name: str
    members: list[M] = field(default_factory=list)
    options: GroupOptions = field(default_factory=GroupOptions)
    stage: Stage = Stage.GATHERING
    error: BaseException | None = None
    _up: list[M] = field(default_factory=list)

    def join(self, member: M) -> None:
        """An instance is to start with the group.

        Raises:
            YRequestError: the group has started (1010).
        """
        if self.stage is not Stage.GATHERING:
            text = f"group {self.name} {self.stage}, nobody can join it"
            raise YRequestError(text, CODES["group schedule failed"])
        self.members.append(member)

    def start(self, options: GroupOptions) -> list[Command]:
        """The group is to start.

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
        """All members have their resources."""
        if self.stage is not Stage.WAITING:
            return []
        self.stage = Stage.STARTING
        return [Do.LAUNCH]

    def up(self, member: M) -> list[Command]:
        """The constructor of a member has run."""
        if member not in self._up:
            self._up.append(member)
        if self.stage is not Stage.STARTING or len(self._up) < len(self.members):
            return []
        self.stage = Stage.RUNNING
        return [Do.READY]

    def gone(self, member: M, name: str, end: Gone) -> list[Command]:
        """A member, the instance of this name, has ended."""
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
        """Its time to get resources is over."""
        if self.stage is not Stage.WAITING:
            return []
        return self.fail(f"it cannot be scheduled within {self.options.timeout} s. {why}")

    def fail(self, why: str) -> list[Command]:
        """It cannot start: none of its members lives."""
        self.stage = Stage.ENDED
        self.error = YRequestError(f"group {self.name} failed to start: {why}", CODES["group schedule failed"])
        return [End(self.error, failed=True)]

    def terminate(self) -> list[Command]:
        """All members are to end."""
        self.stage = Stage.ENDED
        return [End(terminated())]

    def freed(self) -> list[Command]:
        """No member holds anything any more. A group that has failed before its start says so where it is started."""
        if self.stage is Stage.GATHERING and self.error is not None:
            return []
        self.stage = Stage.ENDED
        return [Do.DISSOLVE]


def terminated() -> YRRuntimeError:
    """The error of calls of an instance that was ended."""
    return YRRuntimeError("this instance is terminated", CODES["instance exited"])


def too_late(limit: int, why: str, code: int) -> YRequestError:
    """The error of what has not got its resources within `limit` ms."""
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
    """The resources that a function or instance asks for, and why it cannot be.

    Args:
        options: what was asked for.
        check: refuses what the backend does not have, with an error of those that are returned.
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
        return request, YRequestError(error.message, error.code)
    except (ValueError, TypeError, NotImplementedError, YRequestError) as error:
        return request, error
    return request, None
