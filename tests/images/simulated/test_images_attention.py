"""Attention by npu_fusion_attention on the simulated card: the same pictures, and the choice is shown.

Holds `images.execution.fused_attention`; the measure is torch's own attention on the CPU.
"""

import numpy
import pytest
import torch

import toprope.compat
import toprope.sim
from images_tiny import QUIET, picture, tiny
from toprope import device
from toprope.images import EditRequest, Engine
from toprope.images.execution.fused_attention import FusedAttention, why_not

SIM = "910B3x1"
pytestmark = QUIET
sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(scope="module", autouse=True)
def facade():
    """torch_npu's operators, as `toprope run` gives them."""
    toprope.compat.install()
    import torch_npu

    yield torch_npu
    toprope.compat.uninstall()


@pytest.fixture
def fused():
    card = device.get("npu")
    return FusedAttention(card.fused_attention(), card.kind)


def some(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("npu", dtype)


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("keys", [12, 20])
def test_it_computes_what_torch_computes(fused, dtype, apart, keys) -> None:
    query, key, value = some(2, 3, 12, 16, dtype=dtype), *(some(2, 3, keys, 16, dtype=dtype, seed=at) for at in (1, 2))
    masks = [None, torch.rand(2, 1, 12, keys) > 0.3, torch.rand(2, 3, 12, keys) > 0.3, torch.rand(12, keys) > 0.3]
    for mask in masks:
        if mask is not None:
            mask[..., 0] = True  # a row without anything is no attention
            mask = mask.to("npu")
        for scale in (None, 0.3):
            wanted = sdpa(query, key, value, attn_mask=mask, scale=scale)
            with fused:
                got = sdpa(query, key, value, attn_mask=mask, scale=scale)
            assert got.dtype == dtype
            assert float((got.float() - wanted.float()).abs().max()) <= apart
    assert fused.used == 8
    assert not fused.passed


def test_what_it_cannot_do_is_left_to_torch_with_the_reason(fused) -> None:
    query = some(1, 2, 8, 16)
    with fused:
        for options, reason in (
            ({"is_causal": True}, "a causal mask"),
            ({"attn_mask": torch.zeros(8, 8, device="npu")}, "a mask of numbers"),
        ):
            assert torch.equal(sdpa(query, query, query, **options).cpu(), sdpa(query, query, query, **options).cpu())
            assert reason in fused.describe()["why"]
    assert fused.used == 0
    assert fused.describe()["calls"] == 0
    wide = some(1, 1, 4, 1024)
    assert why_not(wide, wide, wide, None, 0.0, False) == "heads of 1024 channels"


def test_an_operator_that_refuses_is_passed_by_and_memory_that_runs_out_is_not() -> None:
    query = some(1, 2, 8, 16)

    def refuses(*arguments, **named):
        raise RuntimeError("EZ9999: inner error")

    def full(*arguments, **named):
        raise torch.OutOfMemoryError("NPU out of memory.")

    with FusedAttention(refuses, "npu") as found:
        sdpa(query, query, query)
    assert "it was refused: EZ9999" in found.describe()["why"]
    with pytest.raises(torch.OutOfMemoryError), FusedAttention(full, "npu"):
        sdpa(query, query, query)


@pytest.mark.parametrize("family", ["ip2p", "kontext", "hidream-e1"])
@pytest.mark.parametrize(("dtype", "apart"), [("fp32", 1), ("bf16", 24)])
def test_edits_are_the_same_and_the_record_says_who_computed(family, dtype, apart) -> None:
    asked = EditRequest(picture(48, 40), "make it snow", steps=2, seed=3, max_pixels=1024)
    made = {}
    for attention in ("auto", "torch"):
        with Engine.open(tiny(family), device="npu", dtype=dtype, attention=attention) as engine:
            result = engine.edit(asked)
            made[attention] = numpy.asarray(result.pictures[0]).astype(int)
            told = result.record["engine"]["attention"]
        if attention == "auto":
            assert told["chosen"] == "npu_fusion_attention"
            assert told["calls"] > 0
            assert told["path"].startswith("fused by the NPU")
        else:
            assert (told["chosen"], told["why"]) == ("torch's own", "it was asked for")
    assert numpy.abs(made["auto"] - made["torch"]).max() <= apart
