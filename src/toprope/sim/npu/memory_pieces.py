"""Function `torch.npu.memory_snapshot`: the pieces of memory that the allocators hold, and their blocks.

Also used by history.py and pools.py. The numbers are in the order of `Heap::snapshot` in csrc/core/heap.h. Tests:
tests/sim/simulated/test_memory_history.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from toprope.sim.native import native
from toprope.sim.npu._state import lazy_init

__all__ = ["memory_snapshot"]


def memory_snapshot(mempool_id: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The pieces of all cards with their blocks, in the form of `torch.cuda.memory_snapshot`.

    Args:
        mempool_id: a private pool; None for all of them and the ordinary one.
    """
    lazy_init()
    pieces = [piece for device in range(native().device_count()) for piece in _pieces(device)]
    return pieces if mempool_id is None else [piece for piece in pieces if piece["segment_pool_id"] == mempool_id]


_STATES = ("inactive", "active_allocated", "active_awaiting_free")


def _pieces(device: int) -> Iterator[dict[str, Any]]:
    numbers = iter(_numbers(device))
    for address in numbers:
        size, stream, large, pool, count = (next(numbers) for _ in range(5))
        blocks = []
        place = address
        for _ in range(count):
            length, asked, state = next(numbers), next(numbers), next(numbers)
            blocks.append(
                {"address": place, "size": length, "requested_size": asked if state else 0, "state": _STATES[state]}
            )
            place += length
        used = [block for block in blocks if block["state"] == "active_allocated"]
        active = [block for block in blocks if block["state"] != "inactive"]
        yield {
            "device": device,
            "address": address,
            "total_size": size,
            "allocated_size": sum(block["size"] for block in used),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in used),
            "stream": stream,
            "segment_type": "large" if large else "small",
            "segment_pool_id": (pool >> 32, pool & 0xFFFFFFFF),
            "is_expandable": False,
            "blocks": blocks,
        }


def _numbers(device: int) -> list[int]:
    """The pieces as the native part lists them; asked again where another thread allocated between two answers."""
    room: int = native().memory_snapshot(device, None, 0)
    while True:
        raw = (ctypes.c_int64 * room)()
        length: int = native().memory_snapshot(device, raw, room)
        if length <= room:
            return raw[:length]
        room = length
