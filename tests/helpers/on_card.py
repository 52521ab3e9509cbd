"""Fixtures for modules of tests/*/simulated: simulated cards in the process, and a known state of torch for each test.

Only tests/sim/test_simulated.py runs those modules, each in a process of its own.
"""

import os
from collections.abc import Iterator

import pytest

if not os.environ.get("TOPROPE_SIM"):
    import toprope.sim

    toprope.sim.install("910B3", count=4, refuse=False)
import torch  # with TOPROPE_SIM, this installs the card


@pytest.fixture(autouse=True)
def known_state() -> Iterator[None]:
    """Seeds torch, and checks that a test leaves the current card and the default device as it found them."""
    torch.manual_seed(0)
    yield
    left = torch.npu.current_device(), torch.get_default_device(), torch.npu.current_stream().stream_id
    torch.npu.set_device(0)
    torch.set_default_device(None)
    torch.npu.set_stream(torch.npu.default_stream())
    assert left == (0, torch.device("cpu"), 0)
