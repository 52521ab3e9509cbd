"""Codec of messages between processes: data inside the message, in shared memory, or, on a device, by reference.

`edge.links` and the runner use one for each process. The sender fills blocks of shared memory (`Lender`), and receivers
read them in place (`Borrower`). In front of a block are flags, one for each receiver, which it sets when nothing there
uses the block any more: giving a block back costs no message. Segments are mapped once and stay mapped. A block with
several readers must not be written to: arrays in it are read-only, as a sign.

`Sealed.meta` must stay plain values, as `edge.ring_buffer` sends it by marshal, and `edge.links` reads it by position.
The forms of payloads are known here only, and the sizes at which memory is shared are free. Pickles are only ever read
from sockets in the graph's private folder, which this user alone can enter, and from connections to other machines that
have authenticated with the graph's secret: keep it so. Tests: tests/flow/test_flow_edge.py,
tests/flow/test_flow_far.py, tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toprope.flow.stage.spec import EMPTY, FAILURE, PICKLED, TENSOR, TORCH, Failure, Head, Message
from toprope.functions.exceptions import describe
from toprope.functions.transport.arena import Arena, Block, Reader
from toprope.functions.transport.serialization import BlockKey, pack, unpack

__all__ = ["INLINE", "RECEIVERS", "Borrower", "Codec", "Lender", "Own", "Sealed"]

# Host memory

RECEIVERS = 64
"""Most receivers of one block, and the bytes in front of it."""

_MAPPED = 32
"""Segments of others that stay mapped without a block in use."""

_CELLS = 64
"""Blocks without bytes that are made at once."""

_UNSET = bytes(RECEIVERS)

_LOOK = 16
"""Blocks that are looked at, at each sending, whether they have been given back."""


class Lender(Arena):
    """The blocks that this process fills."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, f"memory-{name}", keep=128 * 2**20)
        self._flags: dict[tuple[str, int], memoryview] = {}
        self._out: deque[tuple[Block, int, Any]] = deque()
        self._cells: list[Block] = []
        self._guard = threading.Lock()

    def new(self, size: int) -> tuple[Block, memoryview]:
        """Allocate a block of this size; returns it, and the bytes to fill."""
        if len(self._out) > _LOOK:
            self.collect()
        block, room = super().new(size + RECEIVERS)
        room[:RECEIVERS] = _UNSET
        self._flags[block.segment, block.offset + RECEIVERS] = room[:RECEIVERS]
        return Block(block.segment, block.offset + RECEIVERS, size), room[RECEIVERS:]

    def new_flags(self) -> Block:
        """Allocate flags for a block of another process that is forwarded without copying."""
        if not self._cells:
            block, room = super().new(RECEIVERS * _CELLS)
            for place in range(0, RECEIVERS * _CELLS, RECEIVERS):
                cell = Block(block.segment, block.offset + place + RECEIVERS, 0)
                self._flags[cell.segment, cell.offset] = room[place : place + RECEIVERS]
                self._cells.append(cell)
        cell = self._cells.pop()
        self._flags[cell.segment, cell.offset][:] = _UNSET
        return cell

    def free(self, block: Block) -> None:
        """Free a block."""
        if not block.size:
            self._cells.append(block)
            return
        self._flags.pop((block.segment, block.offset), None)
        super().free(Block(block.segment, block.offset - RECEIVERS, block.size + RECEIVERS))

    def lent(self, blocks: Sequence[Block], receivers: int, kept: Any = None) -> None:
        """Free blocks once this number of receivers has released them, and keep an object alive until then."""
        with self._guard:
            self._out += [(block, receivers, kept) for block in blocks]

    def give_back(self, block: Block, place: int) -> None:
        """Release a block for a receiver that cannot."""
        flags = self._flags.get((block.segment, block.offset))
        if flags is not None:
            flags[place] = 1

    def collect(self) -> None:
        """Free the released blocks, the oldest first."""
        if not self._out:
            return
        with self._guard:
            for _ in range(min(_LOOK, len(self._out))):
                block, receivers, kept = self._out.popleft()
                flags = self._flags.get((block.segment, block.offset))
                if flags is None:
                    continue
                if all(flags[:receivers]):
                    self.free(block)
                else:
                    self._out.append((block, receivers, kept))

    def close(self) -> None:
        """Remove the files; what is mapped stays readable until it is released."""
        self._flags.clear()
        self._out.clear()
        super().close()


class _Mapped:
    """A segment of another process."""

    def __init__(self, path: Path) -> None:
        import numpy

        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.bytes = memoryview(mmap.mmap(file, os.fstat(file).st_size))
        finally:
            os.close(file)
        self.begin = int(numpy.frombuffer(self.bytes, numpy.uint8).__array_interface__["data"][0])
        self.end = self.begin + len(self.bytes)


@functools.cache
def _lent_type() -> Any:
    """The class of arrays that say, with their last view, that a block is not used any more.

    numpy lets a view name the array at the bottom for its base in place of the one it was made of, but only as long as
    that is an array too: below this one lies a memoryview.
    """
    import numpy

    class Lent(numpy.ndarray[Any, Any]):
        unused: Callable[[], None] | None = None  # views of this type have none
        flag: memoryview | None = None

        def __del__(self) -> None:
            if self.flag is not None:
                self.flag[0] = 1
            elif self.unused is not None:
                self.unused()

    return Lent


class Borrower(Reader):
    """Blocks of other processes, mapped into this one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._segments: OrderedDict[str, _Mapped] = OrderedDict()
        self._guard = threading.Lock()

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """Map the bytes of a block; `unused` is called once they are no longer used here."""
        return self.writable(block, unused).toreadonly()

    def writable(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """Map the bytes of a block that no other process reads. As `view`."""
        piece = _lent_type()((block.size,), "u1", self._segment(block.segment).bytes, block.offset)
        piece.unused = unused
        return memoryview(piece)

    def array(self, key: BlockKey, flags: BlockKey, place: int, dtype: str = "u1", shape: Sequence[int] = ()) -> Any:
        """Map a block as an array of numpy; the block is released with the array's last view.

        Args:
            key: the block, or any piece of a segment.
            flags: the block whose flags record the release.
            place: index of this process among the receivers.
            dtype: of numpy.
            shape: of the array; of bytes for none.
        """
        segment, offset, size = key
        found = _lent_type()(shape or (size,), dtype, self._segment(segment).bytes, offset)
        begin = flags[1] - RECEIVERS + place
        found.flag = self._segment(flags[0]).bytes[begin : begin + 1]
        return found

    def locate(self, address: int, size: int) -> BlockKey | None:
        """Find bytes of this process in memory that it has borrowed; None if they are its own."""
        with self._guard:
            for name, mapped in self._segments.items():
                if mapped.begin <= address and address + size <= mapped.end:
                    return name, address - mapped.begin, size
        return None

    def give_back(self, place: int, key: BlockKey) -> None:
        """Release a block for one receiver."""
        self._segment(key[0]).bytes[key[1] - RECEIVERS + place] = 1

    def _segment(self, name: str) -> _Mapped:
        with self._guard:
            found = self._segments.get(name)
            if found is None:
                found = self._segments[name] = _Mapped(self._folder / name)
                if len(self._segments) > _MAPPED:
                    self._segments.popitem(last=False)
            else:
                self._segments.move_to_end(name)
            return found


class Own(Reader):
    """Writable blocks of other processes.

    Args:
        borrower: the blocks.
        copies: whether other processes read them too, so that writes need a copy.
    """

    def __init__(self, borrower: Borrower, *, copies: bool) -> None:
        self._borrower = borrower
        self._copies = copies

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """Map or copy the bytes of a block; `unused` is called once the block is no longer used here."""
        if self._copies:
            return memoryview(bytearray(self._borrower.view(block, unused)))
        return self._borrower.writable(block, unused)


# Messages

INLINE = 8 * 1024
"""Size from which an array, a tensor or a user's type is passed in shared memory, in bytes."""

_LONG = 256 * 1024
"""Size from which a copy takes longer than the wake-up of a process, in bytes."""

_Place = tuple[BlockKey | None, BlockKey | None]
"""The piece of shared memory with the bytes, and the block with its flags; None for both: in the message."""

_NONE, _BYTES, _ARRAY, _HOST_TENSOR, _PICKLE, _ON_CARD = range(6)


_OF_NUMPY = frozenset(
    {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"}
)
"""Types of tensors that have the same name in numpy."""


class Sealed:
    """A serialized message with the blocks of shared memory that it uses.

    Attributes:
        meta: plain values: the head, the kind, and the location of the payload.
        parts: bytes that travel in the message.
        size: bytes of the payload, as far as they are known.
        to_host: copies from a card to the host that it took.
        shared: tensors in it that are passed by reference.
        blocks: shared memory that it lies in.
        kept: objects that must live until the receivers have taken it.
        windows: number of senders' ends that keep it.
        soon: called before anything that takes long.
    """

    __slots__ = (
        "_head", "blocks", "kept", "meta", "parts", "place", "receivers", "shared", "size", "soon", "to_host",
        "windows",
    )  # fmt: skip

    def __init__(self, meta: tuple[Any, ...], parts: list[Any], size: int = 0) -> None:
        self.meta = meta
        self.parts = parts
        self.size = size
        self.to_host = 0
        self.shared = 0
        self.blocks: list[Block] = []
        self.kept: Any = None
        self.windows = 1
        self.receivers = 1
        self.place = 0
        self.soon: Callable[[], None] | None = None
        self._head: Head | None = None

    @property
    def head(self) -> Head:
        """The head, which travels with the message."""
        if self._head is None:
            self._head = Head(*self.meta[:7])
        return self._head

    @property
    def replayed(self) -> bool:
        """True if it may have been sent before."""
        return bool(self.meta[9])


class Codec:
    """Makes messages of values, and values of messages, for one process.

    Args:
        folder: where shared memory lies.
        name: of the process.
        forwards: whether received blocks are forwarded without a copy. For stages, whose functions have returned; a
            program may change what it has fed.
    """

    def __init__(self, folder: Path, name: str, *, forwards: bool = False) -> None:
        self._forwards = forwards
        self._lender = Lender(folder, name)
        self._borrower = Borrower(folder)
        self._on_card: Any = None  # made when the first tensor on a card is met: the driver never needs it

    # Out

    def seal(
        self, message: Message, receivers: int, on_host: bool, soon: Callable[[], None] | None = None
    ) -> Sealed:  # fmt: skip
        """Serialize a message.

        Args:
            message: the message.
            receivers: number of processes that it will be sent to.
            on_host: whether a tensor has to leave its card.
            soon: called before anything that takes long.

        Raises:
            Whatever pickling raises.
        """
        sealed = Sealed((), [])
        sealed.soon = soon
        sealed.windows = sealed.receivers = receivers
        form = self._packed_form(message, sealed, on_host)
        head = message.head
        sealed.meta = (
            head.transaction_id, head.start_time, head.end_time, head.flags, head.user_data, head.data_size,
            head.data_label, message.ret_code, message.kind, message.replayed, form,
        )  # fmt: skip
        return sealed

    def _packed_form(self, message: Message, sealed: Sealed, on_host: bool) -> tuple[Any, ...]:
        kind, payload = message.kind, message.payload
        if kind == EMPTY:
            return (_NONE,)
        if kind == TORCH:
            return self._tensor(payload, sealed, on_host)
        if kind == FAILURE:
            payload = _portable(payload)
        elif kind == TENSOR and payload.dtype.kind in "biufc":
            if not payload.flags.c_contiguous:
                payload = payload.copy()
            place = self._forward_borrowed(payload, payload.__array_interface__["data"][0], payload.nbytes, sealed)
            is_shared = sealed.receivers > 1 or place is not None
            place = place or self._bytes(memoryview(payload.reshape(-1)), sealed)
            return (_ARRAY, payload.dtype.str, payload.shape, is_shared, *place)
        elif kind not in (TENSOR, PICKLED):
            return (_BYTES, *self._bytes(memoryview(payload), sealed))
        packed = pack(payload, self._lender)
        sealed.blocks += [Block(*key) for key in packed.blocks()]
        if packed.data is not None:
            sealed.parts.append(packed.data)
        sealed.parts += packed.parts
        sealed.size += sum(map(len, sealed.parts)) + sum(each.size for each in sealed.blocks)
        return (_PICKLE, packed.data is not None, packed.spec, sealed.receivers > 1)

    def _tensor(self, tensor: Any, sealed: Sealed, on_host: bool) -> tuple[Any, ...]:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.device.type != "cpu":
            if not on_host:
                sealed.kept, form = self._cards().lend(tensor)
                sealed.shared, sealed.size = 1, tensor.numel() * tensor.element_size()
                return (_ON_CARD, form)
            tensor, sealed.to_host = tensor.cpu(), 1
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        size = tensor.nbytes
        place = self._forward_borrowed(tensor, tensor.data_ptr(), size, sealed)
        if place is None:
            place = self._bytes(_tensor_bytes(tensor) if size else memoryview(b""), sealed)
        return (_HOST_TENSOR, _name(tensor.dtype), tuple(tensor.shape), *place)

    def _forward_borrowed(self, value: Any, address: int, size: int, sealed: Sealed) -> _Place | None:
        """Forward a received block: its location, and a block for its flags only; None for our own memory."""
        found = self._borrower.locate(address, size) if self._forwards and size >= INLINE else None
        if found is None:
            return None
        flags = self._lender.new_flags()
        sealed.blocks.append(flags)
        sealed.kept, sealed.size = value, size
        return found, (flags.segment, flags.offset, flags.size)

    def _bytes(self, raw: memoryview, sealed: Sealed) -> _Place:
        """Put bytes into the message, or into a block. Return the block twice: it holds the bytes and the flags."""
        size = raw.nbytes
        sealed.size += size
        if size and raw.format != "B":
            raw = raw.cast("B")
        if size < INLINE:
            sealed.parts.append(bytes(raw))
            return None, None
        block, room = self._lender.new(size)
        if size >= _LONG and sealed.soon is not None:
            sealed.soon()
        room[:] = raw
        sealed.blocks.append(block)
        key = block.segment, block.offset, block.size
        return key, key

    def collect(self) -> None:
        """Free the blocks that receivers have released."""
        self._lender.collect()

    def done(self, sealed: Sealed) -> None:
        """Count down the senders' ends that keep a message."""
        sealed.windows -= 1
        if sealed.windows <= 0:
            if sealed.blocks:
                self._lender.lent(sealed.blocks, sealed.receivers, None if sealed.shared else sealed.kept)
                sealed.blocks = []
            if sealed.shared:
                self._cards().lent(sealed.kept)
            sealed.kept = None

    def give_back(self, sealed: Sealed, place: int) -> None:
        """Release a message's blocks for a receiver that has died."""
        for block in sealed.blocks:
            self._lender.give_back(block, place)
        self.done(sealed)

    def flat(self, sealed: Sealed) -> tuple[tuple[Any, ...], list[Any]]:
        """Serialize a message on the host for another machine: its meta data, and all of its bytes."""
        *head, form = sealed.meta
        if form[0] == _PICKLE:
            inline = iter(sealed.parts)
            first = [next(inline)] if form[1] else []
            parts = [next(inline) if key is None else self._bytes_at(key) for key in form[2]]
            return (*head, (_PICKLE, form[1], (None,) * len(parts), form[3])), first + parts
        if form[0] == _NONE or form[-2] is None:
            return sealed.meta, sealed.parts
        return (*head, (*form[:-2], None, None)), [self._bytes_at(form[-2])]

    def _bytes_at(self, key: BlockKey) -> memoryview:
        return self._borrower.view(Block(*key), _nothing)

    # In

    def arrived(self, place: int, meta: tuple[Any, ...], parts: list[bytes]) -> Sealed:
        """Return a received message, not yet deserialized.

        Args:
            place: index of this process among the receivers.
            meta, parts: as they were sent.
        """
        sealed = Sealed(meta, parts)
        sealed.place = place
        form = meta[10]
        if form[0] == _ON_CARD:
            self._cards().meet(form[1])  # memory that is opened now stays valid if the sender dies
        return sealed

    def open(self, sealed: Sealed) -> tuple[Message, int]:
        """Deserialize a message. Return it with the number of copies from card to card that it will take."""
        kind, form = sealed.meta[8], sealed.meta[10]
        between = 0
        try:
            if form[0] == _ON_CARD:
                payload, between = self._cards().borrow(form[1])
            else:
                payload = self._value(form, sealed)
        except Exception as error:
            # the sender is gone with its memory, or the payload cannot be read here: this message fails, no other
            kind, payload = FAILURE, Failure(error, describe(error)[1])
        head = sealed.head
        code = payload.code if kind == FAILURE else sealed.meta[7]
        return Message(kind, payload, head, code, sealed.meta[9]), between

    def _value(self, form: tuple[Any, ...], sealed: Sealed) -> Any:
        what = form[0]
        if what == _NONE:
            return None
        if what == _PICKLE:
            parts = list(sealed.parts)
            data = parts.pop(0) if form[1] else None
            # unpickled objects are the receiver's own, and writable
            own = Own(self._borrower, copies=form[3])
            return unpack(
                data, form[2], [bytearray(each) for each in parts], own, self._give_back_of(sealed.place), own=True
            )
        key = form[-2]
        if what == _BYTES:
            return memoryview(sealed.parts[0] if key is None else self._array(form, sealed)).toreadonly()
        if what == _ARRAY:
            import numpy

            if key is not None:
                found = self._array(form, sealed, form[1], form[2]).view(numpy.ndarray)
            else:
                found = numpy.frombuffer(bytearray(sealed.parts[0]), dtype=form[1]).reshape(form[2])
            # other processes may read the same memory; a stage may hold what it forwards
            found.flags.writeable = not form[3] and not self._forwards
            return found
        import torch

        dtype = getattr(torch, form[1])
        if key is not None:
            if form[1] in _OF_NUMPY:
                return torch.from_numpy(self._array(form, sealed, form[1], form[2]))
            return torch.from_numpy(self._array(form, sealed)).view(dtype).reshape(form[2])
        raw = sealed.parts[0]
        if not raw:
            return torch.empty(form[2], dtype=dtype)
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(form[2])

    def _array(self, form: tuple[Any, ...], sealed: Sealed, dtype: str = "u1", shape: Any = ()) -> Any:
        return self._borrower.array(form[-2], form[-1], sealed.place, dtype, shape)

    def _give_back_of(self, place: int) -> Any:
        return functools.partial(self._borrower.give_back, place)

    def _cards(self) -> Any:
        if self._on_card is None:
            from toprope.flow.edge.device_tensors import Cards

            self._on_card = Cards()
        return self._on_card

    def close(self) -> None:
        """Remove the shared memory of this process."""
        self._lender.close()


def _nothing() -> None:
    pass


@functools.cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_bytes(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor."""
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _portable(failure: Failure) -> Failure:
    """Return a failure whose error can be unpickled in another process, whatever its constructor takes."""
    found, text = describe(failure.error)
    error: Any = found  # pickled here, and an exception where it arrives
    return Failure(error, failure.traceback or text, failure.stage, failure.code)
