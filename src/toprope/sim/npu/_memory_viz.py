"""Text for flame graphs of a memory snapshot, under torch_npu's name: torch's functions ask for no device."""

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
