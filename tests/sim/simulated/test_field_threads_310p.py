"""Public troubles of users with a chip that has no bfloat16, each named for its thread.

Holds all of sim against public issues; the thread is in each test's docstring. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import copy

import pytest
import torch

import toprope.sim

SIM = "310P3"
REFUSED = r"EZ1001.*not implemented for DT_BFLOAT16, should be in dtype support list"


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def test_llamafactory_4165_bfloat16_is_refused_on_an_older_chip() -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/4165"""
    assert not torch.npu.is_bf16_supported()
    with pytest.raises(RuntimeError, match=REFUSED):
        model().bfloat16().npu()(torch.ones(1, 8, dtype=torch.bfloat16, device="npu"))


def test_vllm_ascend_6490_a_model_in_float16_makes_no_bfloat16_tensor_and_a_forgotten_one_is_found() -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/6490: "model was converted to fp16", and yet it is refused."""
    half = model().half().npu()
    x = torch.ones(1, 8, dtype=torch.float16, device="npu")
    with toprope.sim.trace() as recorded:
        half(x)
    dtypes = {record.dtype for record in recorded.trace.operators()}
    assert "float16" in dtypes
    assert "bfloat16" not in dtypes
    # one layer that the conversion missed is where it is refused
    mixed = copy.deepcopy(half)
    with pytest.raises(RuntimeError, match=REFUSED):
        mixed[1].bfloat16()
