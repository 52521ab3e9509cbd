"""Move tensors that forward saves for backward to a store, and fetch them back before their use.

`training.training` makes one for a model whose activations leave the device. `pack` and `unpack` are for
`torch.autograd.graph.saved_tensors_hooks`. A saved tensor is identified by its call of `pack`, never by its address,
which is reused as soon as a tensor is freed. Views of one memory share an entry if one of them covers the others and
nothing was written in between; the memory is identified by a weak reference, so that other memory at the same address
is not mistaken for it. The newest entries, up to `keep` bytes, stay on the device, as backward asks for them first.
Entries are fetched from the last to the first, up to `ahead` bytes before their use. Which entries move when is free;
values and torch's error for a tensor that was changed in place are not. Tests:
tests/tiers/test_tiers_training_activations.py.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from toprope.tiers.store.base import Pending, Store

__all__ = ["Activations", "Packed"]


@dataclass(eq=False)
class _Entry:
    """A range of memory that was saved: on the device, in the store, or in both while it is fetched."""

    number: int
    start: int
    stop: int
    device: torch.device
    version: int
    counter: torch.Tensor
    values: torch.Tensor | None
    """Its bytes on the device; None while they are only in the store."""
    pending: Pending | None = None
    stored: bool = False
    packed: int = 0
    """Number of saved tensors in it."""
    taken: int = 0
    """Number of saved tensors that were unpacked since it was fetched."""
    changed: str = ""
    """The error when it was to be moved out; empty if there was none."""

    @property
    def key(self) -> str:
        return f"activation/{self.number}"

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(eq=False)
class Packed:
    """Object that autograd keeps instead of a saved tensor."""

    entry: _Entry | None
    value: torch.Tensor | None
    """The tensor itself if it stays on the device; else None."""
    version: int
    counter: torch.Tensor
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    """Bytes from the start of its entry."""
    __weakref__: object = field(init=False, repr=False)

    def check(self) -> None:
        """Raise torch's error if the saved tensor was changed in place."""
        if self.counter._version != self.version:
            raise _changed(self.dtype, self.shape, self.counter._version, self.version)


def _changed(dtype: torch.dtype, shape: torch.Size, now: int, then: int) -> RuntimeError:
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"a tensor of {dtype} and shape {list(shape)} is at version {now}; expected version {then} instead."
    )


class Activations:
    """Moves saved tensors out and back.

    Args:
        store: the store that they are moved to.
        keep: bytes of the newest tensors that stay on the device.
        ahead: bytes that may be fetched before they are asked for.
        smallest: tensors with fewer bytes stay on the device, and are not counted.
        skip: returns True for saved tensors that must not be moved, such as weights.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep: int = 0,
        ahead: int = 2**26,
        smallest: int = 2**16,
        skip: Callable[[torch.Tensor], bool] | None = None,
    ) -> None:
        self.store, self.keep, self.ahead, self.smallest, self.skip = store, keep, ahead, smallest, skip
        self.moved = self.moved_bytes = self.waited = 0
        """Entries and bytes that were moved out; entries whose fetch began only when backward asked for them."""
        self.peak = self.on_device = 0
        """Bytes on the device, peak and now: kept, or fetched and not yet unpacked by all saved tensors."""
        self._numbers = itertools.count()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._kept: OrderedDict[int, _Entry] = OrderedDict()
        self._memories: dict[int, tuple[StorageWeakRef, list[_Entry]]] = {}
        self._dropped: deque[_Entry] = deque()  # appended to without the lock
        self._kept_bytes = self._fetched = 0
        self._lock = threading.Lock()

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context manager that moves out tensors saved for backward in it."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    # Forward

    def pack(self, tensor: torch.Tensor) -> Packed | torch.Tensor:
        """Return the object that autograd keeps instead of a tensor that it saves."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        with torch.no_grad():
            # A saved tensor must not keep its autograd node alive; a leaf has no node.
            value = tensor if tensor.is_leaf else tensor.detach()
            if not _movable(tensor) or tensor.nbytes < self.smallest or (self.skip is not None and self.skip(tensor)):
                return Packed(None, value, tensor._version, value, tensor.dtype, tensor.shape, (), 0)
            counter = _version_counter(tensor)
            with self._held():
                entry = self._entry_of(tensor, counter)
                offset = int(tensor.storage_offset()) * tensor.dtype.itemsize - entry.start
                packed = Packed(
                    entry, None, tensor._version, counter, tensor.dtype, tensor.shape, tensor.stride(), offset
                )
                entry.packed += 1
                weakref.finalize(packed, self._released, entry).atexit = False
                self._move_out_oldest()
                return packed

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock; entries that autograd has released are forgotten before and after."""
        with self._lock:
            self._forget()
            yield
            self._forget()

    def forget_released(self) -> None:
        """Forget entries that autograd has released, which is also done at the next call of a hook."""
        with self._held():
            pass

    def _released(self, entry: _Entry) -> None:
        """Record that autograd has released a saved tensor; the garbage collector may call this at any moment."""
        self._dropped.append(entry)

    def _forget(self) -> None:
        while self._dropped:
            entry = self._dropped.popleft()
            entry.packed -= 1
            entry.taken -= 1
            if entry.packed > 0:
                continue
            self._entries.pop(entry.number, None)
            if self._kept.pop(entry.number, None) is not None:
                self._kept_bytes -= entry.nbytes
            if entry.values is not None:
                if entry.pending is not None:
                    entry.pending.wait()
                self._fetched -= entry.nbytes if entry.stored else 0
                self._count(-entry.nbytes)
                entry.values = None
            if entry.stored and self.store.contains(entry.key):
                self.store.drop(entry.key)

    def _entry_of(self, tensor: torch.Tensor, counter: torch.Tensor) -> _Entry:
        storage = tensor.untyped_storage()
        start, stop = _byte_range(tensor)
        found = self._memories.get(storage._cdata)
        if found is not None and found[0].expired():  # type: ignore[no-untyped-call]
            found = None
        entries = found[1] if found is not None else []
        for entry in entries:
            covered = entry.start <= start and stop <= entry.stop and (start - entry.start) % tensor.dtype.itemsize == 0
            if covered and entry.version == tensor._version and entry.number in self._entries:
                return entry
        if stop - start > tensor.nbytes:  # a view with gaps, which other views may fill
            base = tensor._base
            if base is not None and _movable(base) and base.nbytes <= 8 * tensor.nbytes:
                start, stop = min(start, _byte_range(base)[0]), max(stop, _byte_range(base)[1])
        values = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)[start:stop]
        entry = _Entry(next(self._numbers), start, stop, tensor.device, tensor._version, counter, values)
        if found is None:
            self._forget_freed_memory()
            self._memories[storage._cdata] = (StorageWeakRef(storage), [entry])  # type: ignore[no-untyped-call]
        else:
            entries.append(entry)
        self._entries[entry.number] = self._kept[entry.number] = entry
        self._kept_bytes += entry.nbytes
        self._count(entry.nbytes)
        return entry

    def _forget_freed_memory(self) -> None:
        """Forget freed memory, once many records have collected."""
        if len(self._memories) > 2 * len(self._entries) + 64:
            gone = [key for key, (memory, _) in self._memories.items() if memory.expired()]  # type: ignore[no-untyped-call]
            for key in gone:
                del self._memories[key]

    def _move_out_oldest(self) -> None:
        while self._kept and self._kept_bytes > self.keep:
            _, entry = self._kept.popitem(last=False)
            self._kept_bytes -= entry.nbytes
            self._move_out(entry)

    def _move_out(self, entry: _Entry) -> None:
        assert entry.values is not None
        if entry.counter._version == entry.version:  # else backward raises, or never asks for it
            self.store.put(entry.key, entry.values)
            entry.stored = True
            self.moved += 1
            self.moved_bytes += entry.nbytes
        entry.values = None
        self._count(-entry.nbytes)

    # Backward

    def unpack(self, packed: Packed | torch.Tensor) -> torch.Tensor:
        """Return the saved tensor for backward."""
        if isinstance(packed, torch.Tensor):
            return packed
        packed.check()
        if packed.value is not None:
            return packed.value
        entry = packed.entry
        assert entry is not None
        with self._held(), torch.no_grad():
            self._fetch(entry, asked=True)
            self._fetch_before(entry.number)
            if entry.pending is not None:
                entry.pending.wait()
                entry.pending = None
            assert entry.values is not None
            value = _viewed(entry.values, packed)
            entry.taken += 1
            if entry.stored and entry.taken >= entry.packed:
                self._release(entry)
            return value

    def _fetch(self, entry: _Entry, asked: bool = False) -> None:
        """Begin to fetch an entry to the device."""
        if entry.values is not None or not entry.stored:
            return
        entry.values = torch.empty(entry.nbytes, dtype=torch.uint8, device=entry.device)
        entry.pending = self.store.read(entry.key, entry.values)
        entry.taken = 0
        self.waited += asked
        self._fetched += entry.nbytes
        self._count(entry.nbytes)

    def _fetch_before(self, number: int) -> None:
        """Begin to fetch entries that were packed before this one, up to `ahead` bytes."""
        for earlier in reversed(self._entries):
            if earlier >= number:
                continue
            entry = self._entries[earlier]
            if entry.values is None and entry.stored and entry.taken < entry.packed:
                if self._fetched + entry.nbytes > self.ahead:
                    return
                self._fetch(entry)

    def _release(self, entry: _Entry) -> None:
        """Free an entry's memory on the device, once all its saved tensors were unpacked."""
        entry.values = None
        self._fetched -= entry.nbytes
        self._count(-entry.nbytes)

    def _count(self, nbytes: int) -> None:
        self.on_device += nbytes
        self.peak = max(self.peak, self.on_device)


def _movable(tensor: torch.Tensor) -> bool:
    """True if a tensor's values are plain bytes of a storage."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Buffer)
        and not isinstance(tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor without memory that shares the version counter of another one."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Begin and end of a tensor's elements in its storage, in bytes."""
    if not tensor.numel():
        return 0, 0
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.dtype.itemsize, (last + 1) * tensor.dtype.itemsize


def _viewed(values: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Make the saved tensor, with its shape and strides, as a view of its entry."""
    itemsize = packed.dtype.itemsize
    offset = values.storage_offset() + packed.offset
    made = torch.empty(0, dtype=packed.dtype, device=values.device)
    return made.set_(values.untyped_storage(), offset // itemsize, packed.shape, packed.stride)
