"""Helpers for tests of the card's memory in tests/sim/simulated."""

import gc
import sys
import traceback

import torch


def empty(size: int, device: str = "npu") -> torch.Tensor:
    """A tensor of that many bytes."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def left_over() -> list[int]:
    """What the tensors of each card take, once circles of references and a failed test's variables are gone."""
    trace = getattr(sys, "last_traceback", None)
    if trace is not None:
        traceback.clear_frames(trace)
        for frame, _ in traceback.walk_tb(trace):
            frame.f_locals  # noqa: B018 - brings the dictionary that pytest asked for up to date: empty
    cards = range(torch.npu.device_count())
    allocated = [torch.npu.memory_allocated(card) for card in cards]
    if any(allocated):
        gc.collect()
        allocated = [torch.npu.memory_allocated(card) for card in cards]
    return allocated


def start_afresh() -> None:
    """Cards that hold nothing at all, and figures that start again."""
    assert not any(left_over()), "left by a test before"
    for card in range(torch.npu.device_count()):
        torch.npu.synchronize(card)
    torch.npu.empty_cache()
    for card in range(torch.npu.device_count()):
        assert torch.npu.memory_reserved(card) == 0
        torch.npu.reset_peak_memory_stats(card)
        torch.npu.reset_accumulated_memory_stats(card)
