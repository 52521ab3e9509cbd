"""Tensors of torchao in an attached model: they go to the card with all of their parts, and back."""

import pytest
import torch

import tiers_codes
from toprope.tiers import attach

SIM = "910B3"


def run(model):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randn(3, 64).to("npu")).cpu()


def test_tensors_of_torchao_go_to_the_card_with_their_parts_and_back():
    """The parameter was on the card, and its codes and scales were left on the host: the first product failed."""
    quantization = pytest.importorskip("torchao.quantization")
    model, whole = tiers_codes.net(), tiers_codes.net()
    for each in (model, whole):
        quantization.quantize_(each[1:4], quantization.Int8WeightOnlyConfig())
    weight = model[1].weight
    weight.note = "of the program"
    with attach(model, "60kB", "1MB", on="npu", small=1000) as handle:
        assert handle.plan.slots
        assert {getattr(weight, name).device.type for name in weight.__tensor_flatten__()[0]} == {"npu"}
        for _ in range(2):
            assert torch.equal(run(model), run(whole.to("npu")))
    assert model[1].weight is weight
    assert weight.note == "of the program"
    assert {getattr(weight, name).device.type for name in weight.__tensor_flatten__()[0]} == {"cpu"}
    with torch.no_grad():
        assert torch.equal(model(torch.ones(1, 64)), whole.cpu()(torch.ones(1, 64)))
