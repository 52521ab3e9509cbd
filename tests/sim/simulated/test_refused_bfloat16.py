"""A chip without bfloat16 (310P3) refuses it, and says what it takes instead.

Holds support/refusals.toml on a card against the vendor's error on a 310P3. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import pytest
import torch

SIM = "310P3"


def test_bfloat16_is_refused():
    assert not torch.npu.is_bf16_supported()
    with pytest.raises(RuntimeError, match=r"EZ1001.*not implemented for DT_BFLOAT16") as error:
        torch.ones(4, 4, dtype=torch.bfloat16, device="npu") + torch.ones(4, 4, dtype=torch.bfloat16, device="npu")
    assert "DT_FLOAT16" in str(error.value)


def test_float16_runs():
    half = torch.ones(4, 4, dtype=torch.float16, device="npu")
    assert (half @ half).sum().item() == 64


def test_a_cast_to_bfloat16_is_refused_too():
    """LLaMA-Factory#4165; it passed, and a later operator was blamed."""
    half = torch.ones(4, dtype=torch.float16, device="npu")
    for cast in (half.bfloat16, lambda: half.to(torch.bfloat16), torch.nn.Linear(2, 2, device="npu").bfloat16):
        with pytest.raises(RuntimeError, match=r"aclnnCast failed.*161002"):
            cast()
    assert torch.ones(4).bfloat16().device.type == "cpu"
