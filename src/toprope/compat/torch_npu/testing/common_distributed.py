"""Facade module: helpers of torch_npu's distributed tests: skip without enough cards, and process groups for a test.

Names, exit codes and texts of skips are torch_npu's, for test files written for it. Tests:
tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

import functools
import os
import unittest
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from .._facade import current_npu

__all__: list[str] = []

TestSkip = namedtuple("TestSkip", "exit_code, message")

TEST_SKIPS = {
    "multi-npu": TestSkip(75, "Multi-NPU condition not satisfied"),
    **{f"multi-npu-{count}": TestSkip(75, f"Need at least {count} ASCEND devices") for count in range(1, 9)},
    "hccl": TestSkip(76, "c10d not compiled with HCCL support"),
    "known_issues": TestSkip(77, "Test skipped due to known issues"),
}
"""Reasons for which a process of a test ends early, with their exit codes."""


def skipIfUnsupportMultiNPU(npu_number_needed: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that skips a test where there are fewer cards.

    Args:
        npu_number_needed: number of cards.
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if current_npu().device_count() < npu_number_needed:
                raise unittest.SkipTest(f"Multi-NPU {npu_number_needed} condition not satisfied")
            return func(self, *args, **kwargs)

        return wrapper

    return decorate


def with_comms(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that gives a test a process group: on the cards, or on the CPU where there are too few.

    Args:
        func: method of a test with `world_size`, `rank`, `file_name` and `destroy_pg`.

    Raises:
        RuntimeError: it is None.
    """
    if func is None:
        raise RuntimeError("Test function is None.")

    @functools.wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        npu = current_npu()
        backend = "hccl" if npu.device_count() >= self.world_size else "gloo"
        init_pg(backend=backend, world_size=self.world_size, rank=self.rank, file_name=self.file_name)
        npu.manual_seed(0)
        func(self, *args, **kwargs)
        self.destroy_pg()

    return wrapper


def init_pg(backend: str = "hccl", world_size: int = 1, rank: int = 0, file_name: str = "file://") -> None:
    """Make the process group of a test, and with hccl the card of this process the current one.

    Args:
        backend: "hccl" or "gloo".
        world_size: number of processes.
        rank: number of this one.
        file_name: path of the file by which they find each other.

    Raises:
        RuntimeError: another backend, or fewer cards than processes.
    """
    npu = current_npu()
    if backend == "hccl" and npu.device_count() < world_size:
        raise RuntimeError(TEST_SKIPS.get(f"multi-npu-{world_size}", TEST_SKIPS["multi-npu"]).message)
    if backend not in ("hccl", "gloo"):
        raise RuntimeError(f"Backend {backend} not supported!")
    dist.init_process_group(backend=backend, world_size=world_size, rank=rank, init_method=f"file://{file_name}")
    if backend == "hccl":
        npu.set_device(rank)


@contextmanager
def _dynamo_dist_per_rank_init(rank: int, world_size: int, init_pg_: bool = True) -> Iterator[None]:
    """Context of one process of a test of compiled collectives: its card, its group, and a compiler without memory."""
    current_npu().set_device(rank)
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "6789"
    if init_pg_:
        dist.init_process_group(backend="hccl", rank=rank, world_size=world_size)
    _forget()
    try:
        yield
    finally:
        _forget()
        if init_pg_:
            dist.destroy_process_group()


def _forget() -> None:
    from torch import _dynamo
    from torch._dynamo.utils import counters

    _dynamo.reset()
    counters.clear()
