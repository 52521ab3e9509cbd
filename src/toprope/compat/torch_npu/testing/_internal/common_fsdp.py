"""Facade module: base class for tests of FSDP on cards, as torch_npu's own tests use it.

Importing it has torch's own helpers of FSDP use cards and hccl. Tests: tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.testing._internal.common_fsdp as torchs
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.common_fsdp import FSDPTest

from ..._facade import current_npu

__all__: list[str] = []

torchs.DEVICE_TYPE = "npu"
torchs.DISTRIBUTED_BACKEND = "hccl"
torchs.DEVICE_COUNT = current_npu().device_count()


class FSDPNPUTest(FSDPTest):
    """torch's base class, whose processes each take a card and join by hccl."""

    @classmethod
    def _run(  # type: ignore[override]  # torch names it so, too
        cls, rank: int, test_name: str, file_name: str, pipe: Any, **kwargs: Any
    ) -> None:
        npu = current_npu()
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        print(f"dist init r={self.rank}, world={self.world_size}")
        try:
            self._join(fake=kwargs.get("fake_pg", False))
        except RuntimeError as error:
            if "recompile" in str(error):
                sys.exit(TEST_SKIPS["backend_unavailable"].exit_code)
            raise
        card = rank % int(npu.device_count())
        npu.set_device(card)
        dist.barrier(device_ids=[card])  # a test that ends at once must not leave others alone
        torch._dynamo.reset()
        self.run_test(test_name, pipe)
        torch._dynamo.reset()
        dist.barrier(device_ids=[card])
        dist.destroy_process_group()

    def _join(self, *, fake: bool) -> None:
        size = int(self.world_size)
        if fake:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group(backend="fake", world_size=size, rank=self.rank, store=FakeStore())
        else:
            dist.init_process_group(init_method=self.init_method, backend="hccl", world_size=size, rank=self.rank)
