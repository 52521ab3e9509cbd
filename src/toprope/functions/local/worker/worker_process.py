"""A worker: one process that runs one instance, or functions one after the other.

The forkserver forks it and calls `main`. It reads the dispatcher's messages from its socket, runs the user's code,
and sends results. Calls of the API that this code makes go by `relay`. The contents of messages are agreed with
`local.dispatcher`: change both. The hook and the texts about a wrong number of values are openYuanrong's. Tests:
tests/functions/test_functions_objects.py, tests/functions/test_functions_instances.py,
tests/functions/test_functions_generators.py.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toprope.functions import context
from toprope.functions.arguments import lower
from toprope.functions.exceptions import YRError, describe
from toprope.functions.generators import iterate
from toprope.functions.local.worker.concurrency import HOOK, AnswerSignal, Loop, Threads
from toprope.functions.local.worker.relay import Relay
from toprope.functions.transport.arena import Arena, Block, Reader
from toprope.functions.transport.serialization import BlockKey, Packed, dumps, pack, plain, unpack
from toprope.functions.transport.wire import Channel, Closed, Kind, Message, Outgoing

__all__ = ["main"]


def main(sock: socket.socket, folder: str, number: int) -> None:
    """Serve the driver until it ends the worker or is gone."""
    worker = Worker(Channel(sock), Path(folder), number)
    signal.signal(signal.SIGTERM, worker.on_terminate)
    os.register_at_fork(after_in_child=worker.channel.close)  # a fork of a worker does not talk to its driver
    context.set_backend(worker.relay)
    try:
        worker.serve()
    except Closed:
        pass
    if worker.terminated:
        raise SystemExit(128 + worker.terminated)  # it may have been raised where the socket was, and lost to Closed


class Worker:
    """The state of this worker process: its socket, its instance or functions, and its calls."""

    def __init__(self, channel: Channel, folder: Path, number: int) -> None:
        self.channel = channel
        self.number = number
        self.arena = Arena(folder, f"w{number}")
        self.reader = Reader(folder)
        self.codes: dict[str, bytes] = {}
        self.loaded: dict[str, Any] = {}
        self.instance: Any = None
        self.calls: deque[Message] = deque()
        self.released: deque[BlockKey] = deque()
        self.relay = Relay(self)
        self.run: Callable[[Message], None] = self.run_here
        self.stopped = False
        self.terminated = 0  # the signal that ended it
        self._deferring = False
        self.leaving = False  # whether a call has requested the end: no other call starts
        self.always_reads = False  # whether the main thread runs no calls
        self.unwanted: set[int] = set()  # generators that were closed
        self.answer_signal = AnswerSignal()

    # Messages

    def serve(self) -> None:
        """Run what comes, one after the other, or hand it to threads or the event loop."""
        self.channel.send(Kind.READY, 0, (os.getpid(),))
        while not self.stopped:
            if self.calls:
                self.run(self.calls.popleft())
                if self.released or self.relay.dropped:
                    self.send_releases()
                continue
            self.wait_for(lambda: bool(self.calls), None)

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, in any thread of this process, until something is done. Return True if it is.

        The thread reads the socket itself if no other does.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self.channel.reading.acquire(blocking=False):
                try:
                    if not done():
                        self.take(left)
                finally:
                    self.channel.reading.release()
                    self.answer_signal.notify()
            else:
                self.answer_signal.wait(done, 0.05 if left is None else min(left, 0.05))
        return True

    def take(self, timeout: float | None) -> bool:
        """Read the available messages; True if there are any. For the thread that holds `channel.reading`."""
        messages = self.channel.receive(timeout)
        for message in messages:
            kind = message.kind
            if kind == Kind.REPLY:
                self.relay.answered(message)
            elif kind == Kind.FREE:
                for key in message.meta:
                    self.arena.free(Block(*key))
            elif kind == Kind.CANCEL:
                (self.unwanted.add if message.meta else self.unwanted.discard)(message.number)
            elif kind == Kind.CODE:
                self.codes[message.meta] = message.parts[0]
            else:
                self.calls.append(message)
        self.answer_signal.notify()
        return bool(messages)

    def send_releases(self) -> None:
        """Send the releases to the driver."""
        releases = self.unused()
        if releases:
            self.channel.send_all(releases)

    def unused(self) -> list[Outgoing]:
        """Return the messages that release unused blocks, objects and streams."""
        messages: list[Outgoing] = []
        if self.released:
            messages.append((Kind.RELEASE, 0, tuple(_taken(self.released)), ()))
        if self.relay.unfinished or self.relay.dropped:
            messages += self.relay.unused()
        return messages

    # Running

    def run_here(self, message: Message) -> None:
        """Run a message in this thread, and send the result."""
        if message.kind == Kind.STOP:
            self.stop(message.meta)
            return
        try:
            if message.kind == Kind.CREATE:
                self.send_values(Kind.RESULT, message.number, [self.create(message)])
                return
            function, arguments, keywords, returns = self.prepare(message)
            result = function(*arguments, **keywords)
            del arguments, keywords
            data = plain(result) if returns == 1 else None
            if data is not None:
                self._send_with_releases((Kind.RESULT, message.number, None, (data,)))
                return
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            if inspect.isasyncgen(result):
                result = iterate(result)
            self.answer(message.number, result, returns)
        except Closed:
            raise
        except BaseException as error:
            self.leaving = self.leaving or isinstance(error, SystemExit)
            self.fail(message.number, error)
            if isinstance(error, SystemExit):
                raise

    def prepare(self, message: Message) -> tuple[Any, tuple[Any, ...], dict[str, Any], int | None]:
        """Return the callable of a message, its arguments, and the expected number of values."""
        if len(message.meta) == 2:  # no shared memory and no references
            target, returns = message.meta
            arguments, keywords = unpack(message.parts[0], (), (), self.reader, self.released.append)
            return getattr(self.instance, target), arguments, keywords, returns
        target, spec, value_specs, held, returns, has_data = message.meta
        arguments, keywords = self.arguments(spec, value_specs, held, has_data, message.parts)
        function = self.code(target) if message.kind == Kind.FUNCTION else getattr(self.instance, target)
        return function, arguments, keywords, returns

    def arguments(
        self,
        spec: tuple[Any, ...],
        value_specs: tuple[Any, ...],
        held: tuple[int, ...],
        has_data: bool,
        parts: list[bytes],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with the objects of those that are references."""
        place = 0

        def value(spec: tuple[Any, ...], has_data: bool, values: list[Any]) -> Any:
            nonlocal place
            data = None
            if has_data:
                data = parts[place]
                place += 1
            inline = sum(key is None for key in spec)
            buffers = parts[place : place + inline]
            place += inline
            return unpack(data, spec, buffers, self.reader, self.released.append, values)

        # own arguments come first in the message, but need the others to be unpacked
        first = place + has_data + sum(key is None for key in spec)
        mine, place = parts[:first], first
        values = [value(each, data, [self.relay.ref(id) for id in ids]) for each, data, ids in value_specs]
        parts, place = mine, 0
        arguments, keywords = value(spec, has_data, [self.relay.ref(id) for id in held])
        return lower(arguments, keywords, values) if values else (arguments, keywords)

    def code(self, key: str) -> Any:
        """The function or class of a key."""
        found = self.loaded.get(key)
        if found is None:
            found = self.loaded[key] = pickle.loads(self.codes[key])
        return found

    def create(self, message: Message) -> bytes | None:
        """Create the instance of this process. Return its checkpoint if it can be restarted."""
        setup, spec, value_specs, held, has_data = message.meta
        key, environment, unset, folder, path, at_once, is_async, recoverable, state = setup
        for name in unset:
            os.environ.pop(name, None)
        os.environ.update(environment)
        if folder:
            os.chdir(folder)
        sys.path[:0] = [each for each in path if each not in sys.path]
        if not key:
            if at_once > 1:
                self.run, self.always_reads = Threads(self, at_once, ahead=True).run, True
            return None
        arguments, keywords = self.arguments(spec, value_specs, held, has_data, message.parts)
        target = self.code(key)
        if state is None:
            self.instance = target(*arguments, **keywords)
        else:
            self.instance = pickle.loads(state)
        if is_async or at_once > 1:
            self.run = Loop(self, at_once).run if is_async else Threads(self, at_once).run
            self.always_reads = True
        return self.checkpoint() if recoverable else None

    def checkpoint(self) -> bytes:
        """Pickle the instance for another process."""
        return dumps(self.instance)

    def answer(self, number: int, result: Any, returns: int | None) -> None:
        """Send the result of a call.

        Args:
            number: of the call.
            result: what was returned.
            returns: how many values the caller expects; None for a generator.
        """
        if returns is None:
            items, count, end = iter(result), 0, object()
            while not self.is_unwanted(number) and (each := next(items, end)) is not end:
                self.send_values(Kind.ITEM, number, [each])
                count += 1
            if hasattr(items, "close"):
                items.close()  # the user's `finally`, where there was to be more
            self.channel.send(Kind.END, number, count)
            return
        values = [result] if returns == 1 else _split(result, returns)
        self.send_values(Kind.RESULT, number, values)

    def is_unwanted(self, number: int) -> bool:
        """True if the generator of a call was closed. Reads available messages, unless another thread does."""
        if self.channel.reading.acquire(blocking=False):
            try:
                self.take(0)
            finally:
                self.channel.reading.release()
        return number in self.unwanted

    def send_values(self, kind: int, number: int, values: list[Any]) -> None:
        """Send values for the driver to store."""
        meta, parts = [], []
        for packed in self.pack_all(values):
            meta.append((packed.data is not None, packed.spec, tuple(self.relay.id(ref) for ref in packed.refs)))
            parts += [packed.data] if packed.data is not None else []
            parts += packed.parts
        self._send_with_releases((kind, number, tuple(meta), parts))

    def _send_with_releases(self, message: Outgoing) -> None:
        """Send the releases and a message together, which wakes the driver only once."""
        if self.released or self.relay.unfinished or self.relay.dropped:
            self.channel.send_all([*self.unused(), message])
        else:
            self.channel.send(*message)

    def pack_all(self, values: list[Any]) -> list[Packed]:
        """Pack all values; if one cannot be sent, raise and keep no memory."""
        done: list[Packed] = []
        try:
            for each in values:
                done.append(pack(each, self.arena))
        except BaseException:
            for packed in done:
                for key in packed.blocks():
                    self.arena.free(Block(*key))
            raise
        return done

    def fail(self, number: int, error: BaseException) -> None:
        """Send the error that the user's code raised, and whether this process ends with it."""
        meta = isinstance(error, YRError), isinstance(error, SystemExit)
        self.channel.send(Kind.FAIL, number, meta, [dumps(describe(error))])

    # Ending

    def stop(self, grace: float) -> None:
        """Stop as requested, after the user's hook."""
        self.stopped = True
        hook = getattr(self.instance, HOOK, None)
        if hook is not None:
            try:
                result = hook(grace)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            except Exception:
                traceback.print_exc()

    def on_terminate(self, number: int, frame: Any) -> None:
        """SIGTERM: the hook, then the end."""
        self.terminated = number
        if self._deferring:
            return
        if not self.stopped:
            self.run(Message(Kind.STOP, 0, 30.0, []))
        raise SystemExit(128 + number)

    def undisturbed(self, action: Callable[[], object]) -> None:
        """Run an action that SIGTERM must not interrupt; a signal that arrives meanwhile is handled afterwards."""
        self._deferring = True
        try:
            action()
        finally:
            self._deferring = False
        if self.terminated:
            self.on_terminate(self.terminated, None)


def _split(result: Any, returns: int) -> list[Any]:
    """Split a result into the expected number of values."""
    if not returns:
        return []
    try:
        values = list(result)
    except TypeError:
        raise TypeError(f"cannot unpack non-iterable {type(result)} object") from None
    if len(values) != returns:  # the vendor says so of too many, too
        raise ValueError(f"not enough values to unpack (expected {returns}, got {len(values)})")
    return values


def _taken(queue: deque[Any]) -> list[Any]:
    """Take all entries out of a queue; other threads may add to it meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]
