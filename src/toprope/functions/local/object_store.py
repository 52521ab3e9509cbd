"""Object store of a local session: packs and unpacks values, and counts the readers of their shared memory.

A part of the session, in the driver. Blocks are `transport.arena`'s, pickles `transport.serialization`'s; a block is
given back to its creator once no process reads it. `forget` and the release of a view may come from the garbage
collector at any moment: they only queue, and `free_released` does the work. Tests:
tests/functions/test_functions_objects.py.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local.folder import shared_folder
from toprope.functions.objects import ObjectRef, SharedValue, Value
from toprope.functions.transport.arena import Arena, Block, Reader
from toprope.functions.transport.serialization import BlockKey, Packed, pack, plain, unpack

if TYPE_CHECKING:
    from toprope.functions.local.process import Process
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.session_state import SessionState

__all__ = ["DONE", "NOTHING", "ObjectStore", "shared_folder"]


NOTHING = Value(pickle.dumps(((), {}), 5))
"""The arguments of a call that has none."""

DONE = Value(pickle.dumps(True, 5))
"""The value of an object that carries no information."""


class ObjectStore:
    """The driver's side of shared memory.

    A block is free again when the value in it is gone and nobody reads it any more: neither a worker, nor an array of
    this process that lies in it.

    Args:
        session: whose values they are.
        reactor: the way to workers whose memory it is.
    """

    def __init__(self, session: SessionState, reactor: Reactor) -> None:
        self._session = session
        self._reactor = reactor
        self._arena = Arena(session.folder, "driver")
        self._reader = Reader(session.folder)
        self._lends: Counter[BlockKey] = Counter()
        self._unwanted: dict[BlockKey, int] = {}  # blocks whose value is gone but that are still read: their owner
        self._gone: deque[tuple[int, tuple[BlockKey | None, ...]]] = deque()
        self._released: deque[BlockKey] = deque()

    def pack(self, value: Any) -> Value:
        """Pack a value of this process."""
        data = plain(value)
        if data is not None:
            return Value(data)
        packed = pack(value, self._arena)
        refs = [ref._entry for ref in packed.refs]
        if any(ref._backend is not self._session for ref in packed.refs):
            self.forget(0, packed.spec)
            raise YRRuntimeError("an object of a session that has ended cannot be used", CODES["finalized"])
        if not packed.spec:
            return Value(packed.data, (), packed.parts, refs)
        return SharedValue(packed, refs, 0, self.forget)

    def received(self, has_data: bool, spec: Any, ids: Sequence[int], parts: Iterator[bytes], owner: Process) -> Value:
        """Register a value that a worker has sent."""
        data = next(parts) if has_data else None
        inline = [next(parts) for key in spec if key is None]
        refs = [self._session.object(number, owner) for number in ids]
        if not spec:
            return Value(data, (), (), refs)
        self._reactor.owns(owner.number, sum(key is not None for key in spec))
        return SharedValue(Packed(data, spec, inline), refs, owner.number, self.forget)

    def forget(self, owner: int, spec: tuple[BlockKey | None, ...]) -> None:
        """Release a value. May be called at any moment, in any thread, so the work is deferred."""
        self._gone.append((owner, spec))

    def free_released(self) -> None:
        """Free the memory of released values."""
        if not self._gone and not self._released:
            return
        with self._session.lock:
            while self._released:
                self.returned(self._released.popleft())
            free: dict[int, list[BlockKey]] = {}
            while self._gone:
                owner, spec = self._gone.popleft()
                for key in spec:
                    if key is None:
                        continue
                    if self._lends[key] > 0:
                        self._unwanted[key] = owner
                    else:
                        del self._lends[key]
                        free.setdefault(owner, []).append(key)
            for owner, keys in free.items():
                self._free(owner, keys)

    def lend(self, spec: Sequence[BlockKey | None], to: Process | None = None) -> None:
        """Count a reader of these blocks: a worker, or this process."""
        for key in spec:
            if key is not None:
                self._lends[key] += 1
                if to is not None:
                    to.lent[key] += 1

    def returned(self, key: BlockKey, times: int = 1) -> None:
        """Count down the readers of a block."""
        self._lends[key] -= times
        if self._lends[key] <= 0:
            del self._lends[key]
            owner = self._unwanted.pop(key, None)
            if owner is not None:
                self._free(owner, [key])

    def _free(self, owner: int, keys: list[BlockKey]) -> None:
        if not owner:
            for key in keys:
                self._arena.free(Block(*key))
            return
        self._reactor.free(owner, keys)

    def unpack(self, value: Value) -> Any:
        """The value itself, for this process; large arrays in it are read where they lie."""
        if not value.spec and not value.refs and value.data is not None:
            return unpack(value.data, (), (), self._reader, self._released.append)
        with self._session.lock:
            self.lend(value.spec)
        refs = [ObjectRef(self._session, entry) for entry in value.refs]
        return unpack(value.data, value.spec, value.parts, self._reader, self._released.append, refs)

    @property
    def used(self) -> int:
        """Bytes of this process's memory that hold values."""
        self.free_released()
        return self._arena.used

    def close(self) -> None:
        """Remove this process's memory; what is mapped stays readable."""
        self._arena.close()
