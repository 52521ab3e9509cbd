"""Part of `torch.npu.memory`: history of the allocator with places in the program, for torch's memory visualiser.

csrc/torch/history.cpp records it and writes the JSON that `snapshot` reads; `_ACTIONS` are in the order of Happened in
csrc/core/memory.h, `_SETTINGS` the keys of csrc/torch/allocator_settings.cpp. The snapshot has the form that torch's
`_memory_viz` reads. Tests: tests/sim/simulated/test_memory_history.py.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any, Literal

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import PARAMETER, lazy_init, message
from toprope.sim.npu.memory_pieces import memory_snapshot

__all__ = [
    "dump_snapshot",
    "is_recording",
    "record_memory_history",
    "set_allocator_settings",
    "snapshot",
    "warn_of_expandable",
]

_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot")
_MOST = 1 << 20
"""Events that are kept of a card if the program names no number."""

_SETTINGS = frozenset(
    (
        "base_addr_aligned_kb", "expandable_segments", "garbage_collection_threshold", "large_segment_size_mb",
        "max_non_split_rounding_mb", "max_split_size_mb", "multi_stream_lazy_reclaim", "page_size",
        "per_process_memory_fraction", "pin_memory_expandable_segments", "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb", "pinned_mem_register", "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads", "release_lock_on_npumalloc", "roundup_power2_divisions", "segment_size_mb",
        "throw_on_npumalloc_oom",
    )
)  # fmt: skip
"""Keys of PYTORCH_NPU_ALLOC_CONF (NPUAllocatorConfig.cpp of Ascend/pytorch)."""

_log = logging.getLogger("toprope")
_recording = False


def record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = _MOST,
    device: Any = None,
) -> None:
    """Begin to record what the allocator does, or stop it.

    Args:
        enabled: None stops; "state" and "all" record all events.
        context: None leaves out where the program was.
        stacks: "all" adds the frames of C++.
        max_entries: events that are kept of each card, the last ones.
        device: accepted; all cards are recorded.

    Raises:
        RuntimeError: an argument is none of these.
    """
    global _recording
    lazy_init()
    for name, value, known in (
        ("enabled", enabled, (None, "state", "all")),
        ("context", context, (None, "state", "alloc", "all")),
        ("stacks", stacks, ("python", "all")),
    ):
        if value not in known:
            raise RuntimeError(message(f"expected {name} to be one of {', '.join(map(repr, known))}", PARAMETER))
    _recording = enabled is not None
    places = 0 if context is None else 2 if stacks == "all" else 1
    native().record_history(min(max_entries, _MOST) if _recording else 0, places)


def is_recording() -> bool:
    """Return True while what the allocator does is recorded."""
    return _recording


def snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """State of the allocators of all cards, and what was recorded.

    Args:
        device: accepted; all cards are in it.
        augment_with_fx_traces: whether frames of generated code get the lines of the model they come from.

    Returns:
        `segments` with their blocks, `device_traces` by card, `allocator_settings`, `external_annotations`.
    """
    segments = memory_snapshot()
    blocks = [block for segment in segments for block in segment["blocks"]]
    addresses = (ctypes.c_int64 * len(blocks))(*(block["address"] for block in blocks))
    found = json.loads(native().history(addresses, len(blocks)))
    frames = [{"filename": file, "line": line, "name": name} for file, line, name in found["frames"]]
    stacks = [[frames[number] for number in stack] for stack in found["tracebacks"]]
    for block, stack in zip(blocks, found["blocks"], strict=True):
        block["frames"] = stacks[stack] if stack >= 0 else []
    for segment in segments:
        segment["frames"] = []
    result: Any = {
        "segments": segments,
        "device_traces": [[_event(each, stacks) for each in events] for events in found["events"]],
        "allocator_settings": {"PYTORCH_NPU_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        result = _augment_memory_snapshot_stack_traces(result)
    return dict(result)


def _event(numbers: list[int], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    what, address, size, stream, pool, time_us, stack = numbers
    return {
        "action": _ACTIONS[what],
        "addr": address,
        "size": size,
        "stream": stream,
        "pool_id": (pool >> 32, pool & 0xFFFFFFFF),
        "time_us": time_us,
        "frames": stacks[stack] if stack >= 0 else [],
    } | ({"device_free": 0} if _ACTIONS[what] == "oom" else {})


def dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Write the snapshot for https://pytorch.org/memory_viz or torch/cuda/_memory_viz.py."""
    with Path(filename).open("wb") as file:
        pickle.dump(snapshot(augment_with_fx_traces=augment_with_fx_traces), file)


def set_allocator_settings(settings: str) -> None:
    """Change settings, which are as PYTORCH_NPU_ALLOC_CONF has them: "key:value,key:value".

    Raises:
        RuntimeError: there is no such setting.
    """
    for key in re.findall(r"(\w+)\s*:", re.sub(r"\[.*?\]", "", settings)):
        if key not in _SETTINGS:
            raise RuntimeError(message(f"Unrecognized CachingAllocator option: {key}", PARAMETER))
    torch._C._accelerator_setAllocatorSettings(settings)
    warn_of_expandable(settings)


@functools.cache
def warn_of_expandable(settings: str) -> None:
    """Say once that expandable segments are not simulated, where these settings of the allocator ask for them."""
    if re.search(r"\bexpandable_segments\s*:\s*True\b", settings):  # not pin_memory_expandable_segments
        _log.warning(
            "expandable_segments:True of PYTORCH_NPU_ALLOC_CONF is not simulated: memory is cached in segments as "
            "without it, so that a program may run out of memory here where the card would not."
        )
