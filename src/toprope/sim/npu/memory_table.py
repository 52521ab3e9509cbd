"""Function `torch.npu.memory_summary`: the allocator's figures as a table, in torch_npu's layout.

Tests: tests/sim/simulated/test_allocator_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from toprope.sim.npu._state import allocator_index, lazy_init
from toprope.sim.npu.memory import memory_stats

__all__ = ["memory_summary"]

_WIDTH = 75
_FIGURES = ("current", "peak", "allocated", "freed")


def _scaled(amount: int, largest: int, limit: int, step: int, units: tuple[str, ...]) -> tuple[int, str]:
    """An amount in the unit in which the largest of its table's part is below the limit."""
    unit = 0
    while largest >= limit and unit + 1 < len(units):
        amount, largest, unit = amount // step, largest // step, unit + 1
    return amount, units[unit]


def _size(amount: int, largest: int) -> str:
    number, unit = _scaled(amount, largest, 768 * 1024, 1024, ("B ", "KB", "MB", "GB", "TB", "PB"))
    return f"{number:7d} {unit}"


def _count(amount: int, largest: int) -> str:
    number, unit = _scaled(amount, largest, 750 * 1000, 1000, (" ", "K", "M"))
    return f"{number:7d} {unit} "


_Format = Callable[[int, int], str]
_GROUPS: tuple[tuple[str, str, _Format], ...] = (
    ("allocated_bytes", "Allocated memory", _size),
    ("active_bytes", "Active memory", _size),
    ("reserved_bytes", "NPU reserved memory", _size),
    ("inactive_split_bytes", "Non-releasable memory", _size),
    ("allocation", "Allocations", _count),
    ("active", "Active allocs", _count),
    ("segment", "NPU reserved segments", _count),
    ("inactive_split", "Non-releasable allocs", _count),
)
_OVERSIZE: tuple[tuple[str, str, _Format], ...] = (
    ("oversize_allocations", "Oversize allocations", _count),
    ("oversize_segments", "Oversize NPU segments", _count),
)
_POOLS = ((".all", None), (".large_pool", "      from large pool"), (".small_pool", "      from small pool"))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of what the allocator holds: now, at most, and taken and freed in all.

    Args:
        device: the card, None for the current one.
        abbreviated: True leaves out the parts of large and small blocks.

    Raises:
        RuntimeError: no card of that number.
    """
    lazy_init()
    index = allocator_index(device)
    stats = memory_stats(index)
    lines = [
        "=" * _WIDTH,
        f" {'':16} PyTorch NPU memory summary, device ID {index:<18d} ",
        "-" * _WIDTH,
        f"  {'':9} NPU OOMs: {stats['num_ooms']:<13d} | {'':6} npuMalloc retries: {stats['num_alloc_retries']:<9d}  ",
        "=" * _WIDTH,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for group, name, form in _GROUPS:
        lines.append("-" * _WIDTH)
        most = [stats[f"{group}.all.{figure}"] for figure in _FIGURES]
        for pool, label in _POOLS[: 1 if abbreviated else None]:
            values = [stats[f"{group}{pool}.{figure}"] for figure in _FIGURES]
            lines += _row(label or name, values, most, form)
    for group, name, form in _OVERSIZE:
        lines.append("-" * _WIDTH)
        values = [stats[f"{group}.{figure}"] for figure in _FIGURES]
        lines += _row(name, values, values, form)
    lines.append("=" * _WIDTH)
    return "".join(f"|{line}|\n" for line in lines)


def _row(name: str, values: list[int], most: list[int], form: _Format) -> Iterator[str]:
    cells = (form(value, largest) for value, largest in zip(values, most, strict=True))
    yield f" {name:<21} | {' | '.join(cells)} "
