"""Measurements on a device without memory: an error that says who holds it, not a finding about the device.

Held: `plan.links` and `modes.attention`.
"""

from unittest import mock

import pytest
import torch

from toprope import device
from toprope.errors import DeviceFullError
from toprope.tiers.modes.attention import why_not_fused
from toprope.tiers.plan.links import measure_device


@pytest.mark.parametrize(("measure", "allocates"), [(why_not_fused, "ones"), (measure_device, "zeros")])
def test_out_of_memory_was_taken_for_a_finding_or_said_nothing_of_who_holds_it(measure, allocates):
    cpu = device.get("cpu")
    cpu.best_dtype()  # tried before the memory is gone
    made = getattr(torch, allocates)

    def full(*size, **options):
        if "device" in options:
            raise torch.OutOfMemoryError("full")
        return made(*size, **options)

    with mock.patch.object(torch, allocates, full), pytest.raises(DeviceFullError, match="cpu has no memory left to"):
        measure(cpu)
