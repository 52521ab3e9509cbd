"""Dispatch of calls to workers, and of their results: a part of the local session.

Instances and pools call `send`; the reactor calls `handle` with the messages that it has read. The contents of messages
are agreed with `local.worker.worker_process` alone: change both. Calls of one worker keep their order, and what a
message lends is counted before it is sent. Tests: tests/functions/test_functions_objects.py,
tests/functions/test_functions_generators.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import read_error
from toprope.functions.local.process import SEVERAL, Call, Process, Stream
from toprope.functions.objects import Entry, Value
from toprope.functions.transport.wire import Closed, Kind, Message

if TYPE_CHECKING:
    from toprope.functions.local.object_store import ObjectStore
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.session_state import SessionState
    from toprope.functions.local.worker_requests import Requests

__all__ = ["Dispatcher"]


class Dispatcher:
    """Sends calls of a session, and handles messages of workers. The caller of `send` holds the session's lock."""

    def __init__(self, session: SessionState, reactor: Reactor, store: ObjectStore, requests: Requests) -> None:
        self._session = session
        self._reactor = reactor
        self._store = store
        self._requests = requests
        self._numbers = itertools.count(1)

    def send(self, process: Process, call: Call) -> None:
        """Send a call to a worker, now or when fewer are in flight. Its argument objects must be available."""
        call.process = process
        for entry in call.entries:
            entry.source = process
        backlog = process.backlog
        if not backlog and len(process.pending) < process.burst:
            self._transmit(process, call)
            return
        backlog.append(call)  # it goes with others now, or at the latest when a result comes
        if len(backlog) % SEVERAL == 0:
            if len(process.pending) < process.window:
                self._send_backlog(process)
            else:
                self._reactor.read_available(process)

    def _transmit(self, process: Process, call: Call) -> None:
        value = call.value
        data = value.data
        if data is not None and not call.refs and not value.refs and not value.spec and call.kind == Kind.CALL:
            call.number = number = next(self._numbers)
            process.pending[number] = call
            try:
                process.channel.send(Kind.CALL, number, (call.target, call.returns), (data,))
            except Closed:
                self._undelivered(process, call)
            return
        specs, parts = [], []
        if value.data is not None:
            parts.append(value.data)
        parts += value.parts
        for entry in call.refs:
            found = entry.value
            assert found is not None
            ids = tuple(self._session.expose(each, process) for each in found.refs)
            specs.append((found.spec, found.data is not None, ids))
            parts += [found.data] if found.data is not None else []
            parts += found.parts
            self._store.lend(found.spec, process)
        if value.spec:
            self._store.lend(value.spec, process)
        held = tuple(self._session.expose(each, process) for each in value.refs)
        call.number = next(self._numbers)
        process.pending[call.number] = call
        code = call.code
        try:
            if code is not None and code.key not in process.codes:
                process.codes.add(code.key)
                process.channel.send(Kind.CODE, 0, code.key, [code.blob()])
            if call.kind == Kind.CREATE:
                meta: tuple[Any, ...] = (call.target, value.spec, tuple(specs), held, value.data is not None)
            else:
                meta = (call.target, value.spec, tuple(specs), held, call.returns, value.data is not None)
            process.channel.send(call.kind, call.number, meta, parts)
        except Closed:
            self._undelivered(process, call)

    def _undelivered(self, process: Process, call: Call) -> None:
        """A worker ended before a call was sent to it: the call has not begun."""
        del process.pending[call.number]
        process.backlog.appendleft(call)
        self._reactor.lost(process)

    def handle(self, process: Process, messages: Sequence[Message]) -> None:
        """Handle messages of a worker. Never blocks."""
        with self._session.lock:
            for message in messages:
                kind, number, meta, given = message
                if kind == Kind.RESULT:
                    call = process.pending.pop(number, None)
                    if call is None:
                        continue
                    if meta is None:
                        call.entries[0].finish(Value(given[0]))
                    else:
                        parts = iter(given)
                        values = [
                            self._store.received(has_data, spec, ids, parts, process) for has_data, spec, ids in meta
                        ]
                        for entry, value in zip(call.entries, values, strict=False):
                            entry.finish(value)
                    self._ended(process, call, None)
                else:
                    self._handle(process, message)
            if process.backlog and len(process.pending) < process.window:
                self._send_backlog(process)
        self._store.free_released()

    def _send_backlog(self, process: Process) -> None:
        """Send the waiting calls in one system call, under the session's lock."""
        process.channel.gather()
        try:
            while process.backlog and len(process.pending) < process.window:
                self._transmit(process, process.backlog.popleft())
            process.channel.send_gathered()
        except Closed:
            self._reactor.lost(process)

    def _handle(self, process: Process, message: Message) -> None:
        kind, number = message.kind, message.number
        if kind == Kind.FAIL:
            is_ours, leaves = message.meta
            if leaves:  # before the caller has its answer: its next call is not for this worker
                self._reactor.exits_by_itself(process)
            call = process.pending.pop(number, None)
            if call is not None:
                self._stream_ended(process, call)
                self._ended(process, call, read_error(message.parts[0], is_ours=is_ours))
        elif kind in (Kind.ITEM, Kind.END):
            call = process.pending.get(number)
            if call is None or call.stream is None:
                return
            if kind == Kind.END:
                del process.pending[number]
                self._stream_ended(process, call)
                call.stream.add(None)
                self._ended(process, call, None)
                return
            entry = Entry()
            has_data, spec, ids = message.meta[0]
            entry.finish(self._store.received(has_data, spec, ids, iter(message.parts), process))
            call.stream.add(entry)
        elif kind == Kind.RELEASE:
            for key in message.meta:
                if process.lent[key] > 0:
                    process.lent[key] -= 1
                    self._store.returned(key)
        elif kind == Kind.REFS:
            for name, times in message.meta:
                held = process.held.get(name)
                if held is not None:
                    held[1] -= times
                    if held[1] <= 0:
                        del process.held[name]
        else:
            self._requests.receive(process, message)

    def close_stream(self, stream: Stream) -> None:
        """Stop a generator: its call ends after the current item, or never starts."""
        call = stream.call
        stream.close()
        if call is None:
            return
        process = call.process
        if process is not None and process.pending.get(call.number) is call:
            self._send_cancel(process, call, is_unwanted=True)
        elif process is not None and call in process.backlog:
            process.backlog.remove(call)
            call.fail(call.cancel_error())
        else:
            call.owner.withdraw(call)

    def release(self, process: Process) -> None:
        """Release what an ended worker has borrowed: blocks, objects, and generators."""
        for key, times in process.lent.items():
            if times > 0:
                self._store.returned(key, times)
        process.lent.clear()
        process.held.clear()
        for stream in process.streams.values():
            self.close_stream(stream)
        process.streams.clear()

    def _stream_ended(self, process: Process, call: Call) -> None:
        """Tell a worker to forget its request to stop a generator: the call has ended."""
        if call.stream is not None and call.stream.closed:
            self._send_cancel(process, call, is_unwanted=False)

    def _send_cancel(self, process: Process, call: Call, *, is_unwanted: bool) -> None:
        try:
            process.channel.send(Kind.CANCEL, call.number, is_unwanted)
        except Closed:
            self._reactor.lost(process)

    def _ended(self, process: Process, call: Call, error: BaseException | None) -> None:
        if not call.owner.ended(process, call, error):
            call.value.refs = call.refs = []
