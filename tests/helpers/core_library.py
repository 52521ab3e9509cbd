"""The core of the simulated card by itself, and its allocator's rules once more in Python. No torch here.

The rules are those of torch_npu's caching allocator: the size of a block, the size of a piece taken from the card, the
smallest free block of the stream that fits, what is cut off it, neighbours that grow together again once free.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from ctypes import POINTER, byref, c_double, c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

MIB = 2**20
OUT_OF_MEMORY = 207001
TASK = ctypes.CFUNCTYPE(c_int, c_void_p)

GROUPS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
POOLS = ("all", "small_pool", "large_pool")
FIGURES = ("current", "peak", "allocated", "freed")


class Core:
    """The C functions of libtoprope_core.so, and a few C++ ones that only torch's side calls."""

    def __init__(self, path: str, cards: int = 1, capacity: int = 64 * MIB, padding: int = 32, limit_s: int = 60):
        library = ctypes.CDLL(path)

        def function(name, result, *arguments):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        self.configure = function("ts_configure", c_int, c_int, c_uint64, c_uint64)
        self.set_wait_limit_ms = function("ts_set_wait_limit_ms", None, ctypes.c_uint32)
        self.use_cards = function("ts_use_cards", None)
        self.device_count = function("ts_device_count", c_int)
        self.is_initialised = function("ts_is_initialised", c_int)
        self.physical_id = function("ts_physical_id", c_int, c_int)
        self.current_device = function("ts_current_device", c_int)
        self.set_device = function("ts_set_device", c_int, c_int)
        self.exchange_device = function("ts_exchange_device", c_int, c_int)
        self.forked_after_use = function("ts_forked_after_use", c_int)
        self.release = function("ts_release", None, c_void_p)
        self.device_of = function("ts_device_of", c_int, c_void_p)
        self.empty_cache = function("ts_empty_cache", None, c_int)
        self.reset_peaks = function("ts_reset_peaks", None, c_int)
        self.reset_totals = function("ts_reset_totals", None, c_int)
        self.set_fraction = function("ts_set_fraction", None, c_int, c_double)
        self.fraction = function("ts_fraction", c_double, c_int)
        self._launch = function("ts_launch", c_int, c_int, c_int64, TASK, c_void_p)
        self.wait_for_device = function("_ZN7toprope3sim15wait_for_deviceEi", c_int, c_int)
        self._stream = function("_ZN7toprope3sim6streamEil", c_void_p, c_int, c_int64)
        self._wait = function("_ZN7toprope3sim6Stream4waitEv", c_int, c_void_p)
        self._used_by_stream = function("_ZN7toprope3sim14used_by_streamEPvl", None, c_void_p, c_int64)
        self._allocate = function("ts_allocate", c_int, c_int, c_int64, c_uint64, POINTER(c_void_p))
        self._memory_stats = function("ts_memory_stats", None, c_int, POINTER(c_int64))
        if cards:
            assert self.configure(cards, capacity, padding) == 0
        self.set_wait_limit_ms(limit_s * 1000)

    def launch(self, card: int, stream: int, task: Any, argument: Any) -> int:
        return int(self._launch(card, stream_id(stream), task, argument))

    def used_by_stream(self, address: int | None, stream: int) -> None:
        self._used_by_stream(address, stream_id(stream))

    def wait_for_stream(self, card: int, stream: int) -> int:
        return self._wait(self._stream(card, stream_id(stream)))

    def status_of_allocation(self, size: int, stream: int = 0, card: int = 0) -> tuple[int, int | None]:
        data = c_void_p()
        status = self._allocate(card, stream_id(stream), size, byref(data))
        return status, data.value

    def allocate(self, size: int, stream: int = 0, card: int = 0) -> int | None:
        """The address of a new block, None when the card is out of memory."""
        status, address = self.status_of_allocation(size, stream, card)
        assert status in (0, OUT_OF_MEMORY), status
        assert (address is None) == (status != 0)
        return address

    def stats(self, card: int = 0) -> dict[str, int]:
        """The figures by the names that torch.npu.memory_stats gives them."""
        raw = (c_int64 * (len(GROUPS) * len(POOLS) * len(FIGURES) + 2))()
        self._memory_stats(card, raw)
        values = iter(raw)
        flat = {f"{group}.{pool}.{figure}": next(values) for group in GROUPS for pool in POOLS for figure in FIGURES}
        return flat | {"num_alloc_retries": next(values), "num_ooms": next(values)}

    def current(self, group: str, card: int = 0) -> int:
        return self.stats(card)[f"{group}.all.current"]


def stream_id(number: int) -> int:
    """Number of a stream as the core has it, which numbers them as torch_npu does: 32 of normal priority from 96 on,
    then those of high priority; 0 is the default stream.
    """
    return number and 95 + number


def block_size(requested: int, padding: int = 32) -> int:
    return max(512, -(-(requested + padding) // 512) * 512)


def piece_size(size: int) -> int:
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


@dataclass(eq=False)
class Block:
    address: int
    size: int
    stream: int
    small: bool
    free: bool = True
    requested: int = 0
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


class VendorHeap:
    """One card's allocator by the vendor's rules. Where a new piece lies is the core's choice."""

    def __init__(self, capacity: int, padding: int = 32):
        self.limit, self.padding = capacity, padding
        self.blocks: set[Block] = set()
        self.retries = self.ooms = 0

    @property
    def reserved(self) -> int:
        return sum(block.size for block in self.blocks)

    def allocate(self, requested: int, stream: int, address: int | None) -> Block | None:
        """The block that has to be handed out; the address is the one the core gave, None when it gave none."""
        size = block_size(requested, self.padding)
        small = size <= MIB
        fits = [b for b in self.blocks if b.free and b.small == small and b.stream == stream and b.size >= size]
        if fits:
            block = min(fits, key=lambda b: (b.size, b.address))
            assert address == block.address, f"{block} was to be used, the core chose {address}"
        else:
            piece = piece_size(size)
            if self.reserved + piece > self.limit:
                self.retries += 1
                self.empty_cache()
            if self.reserved + piece > self.limit:
                self.ooms += 1
                assert address is None, f"there is no room for {size} bytes"
                return None
            assert address is not None, f"there is room for {size} bytes: {self.reserved} of {self.limit} are taken"
            assert address % (2 * MIB) == 0, "a new piece begins at a multiple of 2 MiB"
            block = Block(address, piece, stream, small)
            assert not any(b.address < address + piece and address < b.address + b.size for b in self.blocks)
            self.blocks.add(block)
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            after = Block(address + size, rest, stream, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = after
            block.after, block.size = after, size
            self.blocks.add(after)
        block.free, block.requested = False, requested
        return block

    def release(self, block: Block) -> None:
        block.free = True
        for first, second in ((block.before, block), (block, block.after)):
            if first is not None and second is not None and first.free and second.free:
                kept, gone = (first, second) if second is block else (block, second)
                self.blocks.remove(gone)
                kept.size += gone.size
                kept.after = gone.after
                if gone.after is not None:
                    gone.after.before = kept
                block = kept

    def empty_cache(self) -> None:
        self.blocks = {block for block in self.blocks if not block.free or block.is_split}

    def figures(self) -> dict[str, int]:
        """What the core's figures have to be now."""
        out = {}
        for pool, chosen in (
            ("all", self.blocks),
            ("small_pool", {b for b in self.blocks if b.small}),
            ("large_pool", {b for b in self.blocks if not b.small}),
        ):
            used = [b for b in chosen if not b.free]
            split = [b for b in chosen if b.free and b.is_split]
            pieces = [b for b in chosen if b.before is None]
            values = {
                "allocation": len(used), "allocated_bytes": sum(b.size for b in used),
                "active": len(used), "active_bytes": sum(b.size for b in used),
                "requested_bytes": sum(b.requested for b in used),
                "segment": len(pieces), "reserved_bytes": sum(b.size for b in chosen),
                "inactive_split": len(split), "inactive_split_bytes": sum(b.size for b in split),
            }  # fmt: skip
            out.update({f"{group}.{pool}.current": value for group, value in values.items()})
        return out | {"num_alloc_retries": self.retries, "num_ooms": self.ooms}


def soak() -> bool:
    return os.environ.get("TOPROPE_SOAK") == "1"


class Pattern:
    """Bytes of its own in a block: all of a small one, three places of a large one."""

    LENGTH = 4096

    def __init__(self, address: int, size: int, number: int):
        self.places = [(address, size)]
        if size > 4 * self.LENGTH:
            self.places = [(address + at, self.LENGTH) for at in (0, size // 2, size - self.LENGTH)]
        self.mark = (number % (2**32)).to_bytes(4, "little") + address.to_bytes(8, "little")

    def _bytes(self, length: int) -> bytes:
        return (self.mark * (length // len(self.mark) + 1))[:length]

    def write(self) -> None:
        for address, length in self.places:
            ctypes.memmove(address, self._bytes(length), length)

    def check(self) -> None:
        for address, length in self.places:
            assert ctypes.string_at(address, length) == self._bytes(length), "another block wrote here"


def run_case(cases: Mapping[str, object]) -> None:
    """Runs the case that the command line names; the library's path is its second word."""
    cases[sys.argv[1]]()
    assert "torch" not in sys.modules
