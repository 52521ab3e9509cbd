"""Copy of the next batch to the card while the model works on this one.

Programs import `Prefetcher` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/prefetcher.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._operators import npu

__all__ = ["Prefetcher"]


class Prefetcher:
    """Batches of a loader on the card.

    Args:
        loader: gives pairs of input and target.
        stream: for the copies; None for a new one.
    """

    def __init__(self, loader: Iterable[Any], stream: Any = None) -> None:
        self.loader = iter(loader)
        self.stream = npu().Stream() if stream is None else stream
        self.next_input: Any = None
        self.next_target: Any = None
        self.preload()

    def preload(self) -> None:
        """Start the copy of the next batch; None where the loader has ended."""
        self.next_input, self.next_target = next(self.loader, (None, None))
        if self.next_input is None and self.next_target is None:
            return
        with npu().stream(self.stream):
            self.next_input = self.next_input.npu(non_blocking=True)
            self.next_target = self.next_target.npu(non_blocking=True)

    def next(self) -> tuple[Any, Any]:
        """Give the next batch, when its copy is done; (None, None) at the end."""
        npu().current_stream().wait_stream(self.stream)
        found = self.next_input, self.next_target
        if found[1] is not None:
            self.preload()
        return found
