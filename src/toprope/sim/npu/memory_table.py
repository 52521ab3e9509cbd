"""`torch.npu.memory_summary`: the allocator's figures as a table to read."""

from __future__ import annotations

from typing import Any

from toprope.sim.npu._state import check_index, lazy_init
from toprope.sim.npu.memory import memory_stats

__all__ = ["memory_summary"]

_BYTES = (
    ("allocated_bytes", "tensors hold"),
    ("requested_bytes", "tensors asked for"),
    ("active_bytes", "held or awaited"),
    ("reserved_bytes", "taken from the card"),
    ("inactive_split_bytes", "free, not returnable"),
)
_BLOCKS = (
    ("allocation", "blocks tensors hold"),
    ("active", "blocks held or awaited"),
    ("segment", "pieces from the card"),
    ("inactive_split", "blocks not returnable"),
)
_POOLS = (("large_pool", "large"), ("small_pool", "small"))
_FIGURES = ("current", "peak", "allocated", "freed")
_WIDTH = 74


def _size(amount: int) -> str:
    """Bytes in the unit that leaves one to four digits before the point."""
    value = float(amount)
    for unit in ("B  ", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{amount if unit == 'B  ' else round(value, 1)} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of what the allocator holds: now, at most, and taken and freed in all.

    Args:
        device: the card, None for the current one.
        abbreviated: True leaves out the parts of large and small blocks.

    Raises:
        AssertionError: no card of that number.
    """
    lazy_init()
    index = check_index(device)
    stats = memory_stats(index)
    lines = [
        f"Memory of NPU {index} in this process",
        f"out of memory: {stats['num_ooms']}   retries after emptying the cache: {stats['num_alloc_retries']}",
        None,
        _row("", ("now", "peak", "taken", "freed")),
    ]
    for groups, show in ((_BYTES, _size), (_BLOCKS, str)):
        lines.append(None)
        for group, name in groups:
            lines.append(_row(name, [show(stats[f"{group}.all.{figure}"]) for figure in _FIGURES]))
            for pool, part in () if abbreviated else _POOLS:
                lines.append(_row(f"  {part}", [show(stats[f"{group}.{pool}.{figure}"]) for figure in _FIGURES]))
    rule = f"+{'-' * _WIDTH}+"
    body = [rule if line is None else f"| {line:<{_WIDTH - 2}} |" for line in lines]
    return "\n".join([rule, *body, rule]) + "\n"


def _row(name: str, figures: Any) -> str:
    return f"{name:<24}" + "".join(f"{figure:>12}" for figure in figures)
