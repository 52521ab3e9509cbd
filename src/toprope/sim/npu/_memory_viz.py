"""Module `torch.npu._memory_viz`: text for flame graphs of a memory snapshot.

The functions are torch's; they need no device. Tests: tests/sim/simulated/test_npu_names.py.
"""

from torch.cuda._memory_viz import (
    _block_extra,
    _block_extra_legacy,
    _frame_filter,
    _frame_fmt,
    _frames_fmt,
    _write_blocks,
    format_flamegraph,
    memory,
    segments,
)

__all__ = [
    "_block_extra",
    "_block_extra_legacy",
    "_frame_filter",
    "_frame_fmt",
    "_frames_fmt",
    "_write_blocks",
    "format_flamegraph",
    "memory",
    "segments",
]
