"""Facade module: base class for tests of DTensor on cards, as torch_npu's own tests use it.

Tests: tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

from ..._facade import current_npu

__all__: list[str] = []


class NPUDTensorTestBase(DTensorTestBase):
    """torch's base class on cards: as many processes as there are cards, at most 4."""

    @property
    def device_type(self) -> str:
        """The device of the tests."""
        return "npu"

    @property
    def world_size(self) -> int:
        """Number of processes; 4 where there is one card or none, which the tests then skip."""
        count = int(current_npu().device_count())
        return min(4, count) if count > 1 else 4
