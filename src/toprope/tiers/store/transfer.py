"""Threads that move bytes: a load is a list of chunks, which free threads take in the order of the loads.

All transfers of an attached model, its stores and a stack's disk go through a `Transfers`. The error of a load is
raised in the thread that waits for it. Urgent loads, which a thread waits for already, are done before prefetches:
`plan.clock` predicts by the same order, so change both. Waiting must survive KeyboardInterrupt at any moment
(`_OnceEvent`), and the threads end before Python does. Tests: tests/tiers/test_tiers_ring.py,
tests/tiers/test_tiers_faults.py, tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from toprope.device import Device
from toprope.errors import TierBusyError, TierError
from toprope.tiers.store.disk_file import BLOCK, Buffer
from toprope.tiers.store.memory import Memory

__all__ = ["LIMIT", "Chunk", "Clock", "Link", "Load", "Transfers", "Worker", "forked", "queued"]

LIMIT = 120.0
"""Seconds after which a transfer that has not ended is an error."""

CHUNK = 4 * 2**20
"""Size of a request to the disk in bytes."""


_STACK = 2**20
_END_LIMIT = 5.0
"""Time for the threads to end before Python does, in seconds."""
_STARTING = threading.Lock()


class Clock:
    """Elapsed time of transfers: a second in which two threads move bytes counts as one second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moving = self._waited = self._since = 0.0
        self._active = 0
        self.moved: Counter[str] = Counter()
        """Bytes that callers copied themselves, by link."""
        self.busy: defaultdict[str, float] = defaultdict(float)
        """Seconds that these copies took."""

    def start(self) -> None:
        """Record that a thread begins to move bytes."""
        with self._lock:
            if not self._active:
                self._since = time.perf_counter()
            self._active += 1

    def stop(self) -> None:
        """Record that it has ended."""
        with self._lock:
            self._active -= 1
            if not self._active:
                self._moving += time.perf_counter() - self._since

    def wait(self, seconds: float) -> None:
        """Record that a caller has waited for a transfer."""
        with self._lock:
            self._waited += seconds

    def copied(self, link: str, nbytes: int, seconds: float) -> None:
        """Record that a caller has copied bytes itself, which counts as waiting too."""
        with self._lock:
            self.moved[link] += nbytes
            self.busy[link] += seconds
            self._waited += seconds
            if not self._active:
                self._moving += seconds

    @property
    def moving(self) -> float:
        """Seconds in which anything was moved."""
        with self._lock:
            return self._moving + (time.perf_counter() - self._since if self._active else 0.0)

    @property
    def waited(self) -> float:
        """Seconds that callers waited for transfers."""
        return self._waited


class Chunk(Protocol):
    """A part of a load: the unit of work that one thread takes."""

    def run(self, worker: Worker, load: Load) -> None:
        """Move the bytes of this part, in the thread of `worker`."""


class _OnceEvent:
    """Event that is set once; safe if a KeyboardInterrupt ends a wait at any moment.

    An interrupted waiter of threading.Event may keep the event's internal lock: the thread that sets the event would
    then wait for ever. Here the lock itself is the event: it is locked until `set` releases it. A waiter takes it only
    to give it back. One that was interrupted in between keeps it, so the others look at `was_set` once a second.
    """

    __slots__ = ("_lock", "was_set")

    def __init__(self) -> None:
        self.was_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        if not self.was_set:
            self.was_set = True
            self._lock.release()

    def wait(self, limit: float) -> bool:
        until = time.perf_counter() + limit
        while not self.was_set and (left := until - time.perf_counter()) > 0:
            if self._lock.acquire(timeout=min(left, 1.0)):
                self._lock.release()
        return self.was_set


class Load:
    """A transfer that was begun: its chunks, its end and its error.

    Args:
        label: name for errors.
        chunks: the work.
        after: events of the device that must have happened before its memory is written.
        count: number of calls of `finish`; by default one for each chunk.
    """

    def __init__(
        self, label: str, chunks: Sequence[Chunk], after: Sequence[Any] = (), count: int | None = None
    ) -> None:
        self.label, self.after = label, after
        self.arrived: dict[Worker, Any] = {}
        """By worker, the event after the last copy on its stream."""
        self.error: BaseException | None = None
        self.begin = self.end = 0.0
        self.left = len(chunks) if count is None else count
        self.waiting = deque(chunks)
        self.clock: Clock | None = None
        """Clock of the threads that carry it out."""
        self._done = _OnceEvent()
        self._then: list[Callable[[Load], None]] = []
        self._lock = threading.Lock()
        if not self.left:
            self._done.set()

    @property
    def events(self) -> list[Any]:
        """Events after which the bytes are on the device; all of them once the load has ended."""
        return list(self.arrived.values())

    @property
    def done(self) -> bool:
        """True once it has ended, with or without an error."""
        return self._done.was_set

    def then(self, call: Callable[[Load], None]) -> None:
        """Call a function when it has ended, in the thread that ends it."""
        with self._lock:
            if not self.done:
                self._then.append(call)
                return
        call(self)

    def finish(self, error: BaseException | None = None) -> None:
        """Record the end of a chunk; the last one ends the load."""
        with self._lock:
            if error is not None and self.error is None:
                self.error = error
            self.left -= 1
            if self.left:
                return
            self.end = time.perf_counter()
            calls, self._then = self._then, []  # they may refer to the slot, which refers to this load
            self._done.set()
        for each in calls:
            each(self)

    def join(self, limit: float = LIMIT) -> None:
        """Wait until it has ended, with or without an error.

        Raises:
            TierBusyError: it takes longer than `limit` seconds.
        """
        if self._done.was_set:
            return
        begin = time.perf_counter()
        ended = self._done.wait(limit)
        if self.clock is not None:
            self.clock.wait(time.perf_counter() - begin)
        if not ended:
            raise TierBusyError(
                f"a transfer of {self.label} has not ended in {limit:.0f} s.",
                looked_at=f"{self.left} chunks are left",
                do="check the disk and its file system",
            )

    def wait(self, limit: float = LIMIT) -> None:
        """Wait until it has ended, and raise its error."""
        self.join(limit)
        if self.error is not None:
            raise self.error


class Link:
    """Emulated link between host and device that is slower than the real one, for tests and measurements.

    Args:
        bytes_per_second: its speed.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._free = 0.0
        self._lock = threading.Lock()

    def carry(self, nbytes: int, since: float) -> None:
        """Sleep until this link would have copied `nbytes` since the time `since`."""
        with self._lock:
            self._free = max(self._free, since) + nbytes / self.bytes_per_second
            until = self._free
        left = until - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Worker:
    """State of one transfer thread: its stream of the device, and its buffer.

    Attributes:
        buffer: memory of the host, which is pinned if the device benefits from that.
        memory: the same memory.
        device: the device with its own memory that it copies to; None for none.
        stream: its stream of the device.
    """

    def __init__(self, owner: _Queue) -> None:
        self.device, self.link = owner.device, owner.link
        self._memory: Memory | None = None
        self._buffer: Buffer | None = None
        self.stream: Any = None if self.device is None else self.device.stream()
        self.moved: Counter[str] = Counter()
        self.busy: defaultdict[str, float] = defaultdict(float)

    @property
    def memory(self) -> Memory:
        """The buffer as memory."""
        if self._memory is None:
            self._memory = Memory.host(CHUNK + 2 * BLOCK, self.device)
        return self._memory

    @property
    def buffer(self) -> Buffer:
        """Buffer for reads that cannot go directly into their target."""
        if self._buffer is None:
            assert self.memory.address is not None
            self._buffer = Buffer(self.memory.address, self.memory.nbytes, self._memory)
        return self._buffer


class _Queue:
    """State shared by the threads; they refer to nothing else, so that `Transfers` can be freed."""

    def __init__(self, device: Device | None, link: Link | None, disturb: Callable[[], None] | None) -> None:
        self.device, self.link, self.disturb = device, link, disturb
        self.clock = Clock()
        # Callers that may be interrupted take the lock itself, as entering a Condition is not atomic.
        self.lock = threading.RLock()
        self.ready = threading.Condition(self.lock)
        self.urgent: deque[Load] = deque()
        self.ahead: deque[Load] = deque()
        self.closed = False
        self.workers: list[Worker] = []
        self.process = os.getpid()

    def next(self) -> tuple[Load, Chunk] | None:
        load: Load | None
        with self.ready:
            while True:
                for loads in (self.urgent, self.ahead):
                    while loads:
                        load = loads[0]
                        if load.waiting:
                            return load, load.waiting.popleft()
                        loads.popleft()
                if self.closed:
                    return None
                load = None  # it would keep its slot's memory alive while the thread waits
                self.ready.wait()

    def work(self) -> None:
        worker: Worker | None = None
        while (found := self.next()) is not None:
            load, chunk = found
            try:
                if worker is None:
                    worker = Worker(self)
                    self.workers.append(worker)
                if load.error is not None:  # the rest of the load is not needed any more
                    load.finish()
                    continue
                if not load.begin:
                    load.begin = time.perf_counter()
                self.clock.start()
                try:
                    if self.disturb is not None:
                        self.disturb()
                    chunk.run(worker, load)
                    if self.disturb is not None:
                        self.disturb()
                finally:
                    self.clock.stop()
            except BaseException as error:
                load.finish(_bare(error))
            else:
                load.finish()
            del found, load, chunk


def _bare(error: BaseException) -> BaseException:
    """The error without its traceback, whose frames would keep memory alive as long as the error."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


class Transfers:
    """Threads that move bytes between tiers.

    Args:
        device: the device, if it has its own memory; else None.
        threads: number of threads.
        link: an emulated link to the device.
        disturb: called before and after each chunk; for tests.
    """

    def __init__(
        self,
        device: Device | None = None,
        *,
        threads: int = 2,
        link: Link | None = None,
        disturb: Callable[[], None] | None = None,
    ) -> None:
        self._queue = _Queue(device, link, disturb)
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._queue.work, name=f"toprope-tiers-{number}", daemon=True)
            for number in range(threads)
        ]
        with _STARTING:
            before = threading.stack_size(_STACK)  # the usual 8 MiB count if a process's memory is limited
            try:
                for each in self._threads:
                    each.start()
            finally:
                threading.stack_size(before)
        self._finalizer = weakref.finalize(self, _close, self._queue)
        _queues.add(self._queue)
        _threads.update(self._threads)

    def begin(self, load: Load, *, urgent: bool = False) -> Load:
        """Queue a load, and return it."""
        if os.getpid() != self._process:
            raise forked(self._process)
        queue = self._queue
        load.clock = queue.clock
        with queue.lock:
            if queue.closed:
                raise TierError("the tiers of this model are closed.", do="attach it again")
            (queue.urgent if urgent else queue.ahead).append(load)
            queue.ready.notify(len(load.waiting))  # wakes no more threads than there are chunks
        return load

    def hasten(self, load: Load) -> None:
        """Make a load urgent, as a caller waits for it now."""
        queue = self._queue
        with queue.lock:
            if load.waiting and load not in queue.urgent:
                queue.urgent.append(load)

    @property
    def clock(self) -> Clock:
        """Elapsed and waited time of all transfers."""
        return self._queue.clock

    @property
    def moved(self) -> Counter[str]:
        """Bytes by link."""
        return sum((each.moved for each in list(self._queue.workers)), Counter(self.clock.moved))

    @property
    def busy(self) -> dict[str, float]:
        """Busy seconds of the threads, by link."""
        found = dict(self.clock.busy)
        for worker in list(self._queue.workers):
            for name, seconds in worker.busy.items():
                found[name] = found.get(name, 0.0) + seconds
        return found

    def close(self) -> None:
        """End the threads; loads that have not begun fail."""
        self._finalizer()
        for each in self._threads:
            if each is not threading.current_thread() and self._process == os.getpid():
                each.join(5)


def queued(device: Device | None) -> list[Any]:
    """Record an event after everything queued on a device's current stream, which may use the memory until then.

    Args:
        device: a device with its own memory; None for no event.
    """
    if device is None:
        return []
    event = device.event()
    event.record(device.current_stream())
    return [event]


def forked(process: int) -> TierError:
    """Error for a forked process, which has no threads of its parent."""
    return TierError(
        "a model with tiers cannot be used in a process that was forked.",
        looked_at=f"attached in process {process}",
        do="attach it in the process that uses it, or start processes by spawn",
    )


def _close(queue: _Queue) -> None:
    with queue.lock:
        queue.closed = True
        for load in (*queue.urgent, *queue.ahead):
            load.error = load.error or TierError("the tiers of this model are closed.", do="attach it again")
        queue.ready.notify_all()


_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Let the threads end before Python does, which would end them inside torch's code: that aborts the process."""
    for queue in list(_queues):
        if queue.process == os.getpid():
            _close(queue)
    until = time.monotonic() + _END_LIMIT
    for thread in list(_threads):
        thread.join(max(until - time.monotonic(), 0))
