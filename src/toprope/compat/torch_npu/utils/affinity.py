"""Facade module: CPU affinity of the calling thread, by `torch_npu._C`.

Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import _C
from .._error_codes import ErrCode, pta_error

__all__: list[str] = []


def _set_thread_affinity(core_range: list[int] | list[list[int]] | None = None) -> None:
    """Let the calling thread run on some CPU cores only, where CPU_AFFINITY_CONF switches binding on.

    Args:
        core_range: first and last core, a list of such pairs, or None for all cores that the process started with.

    Raises:
        ValueError: it has none of these forms, or a pair is negative or falls.
    """
    if core_range is None:
        _C._npu_set_thread_affinity(-1, -1)
        return
    cores = {core for first, last in _pairs(core_range) for core in range(first, last + 1)}
    _C._npu_set_thread_affinity(sorted(cores))


def _reset_thread_affinity() -> None:
    """Let the calling thread run on all cores that the process started with."""
    _C._npu_reset_thread_affinity()


def _pairs(core_range: object) -> Sequence[tuple[int, int]]:
    entries = [core_range] if _is_pair(core_range) else core_range
    if not isinstance(entries, list) or not entries or not all(_is_pair(entry) for entry in entries):
        raise ValueError(f"Invalid core range: {core_range}" + pta_error(ErrCode.PARAM))
    for first, last in entries:
        if not 0 <= first <= last:
            raise ValueError(f"Invalid core range values: [{first}, {last}]" + pta_error(ErrCode.VALUE))
    return entries


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(core, int) for core in entry)
