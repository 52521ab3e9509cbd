"""Fused experts on a card without room for a layer: loaded one by one, with the same bits (`prefetch.row_pieces`)."""

from dataclasses import replace

import pytest
import torch

import tiers_models
from toprope.tiers import attach

pytest.importorskip("transformers", reason="the models are those of transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SIM = "910B3"

MODELS = {
    "mixtral": tiers_models.EXPERTS,
    "deepseek_v3": tiers_models.LATENT | {"moe_intermediate_size": 96},
}


@pytest.mark.parametrize("name", MODELS)
def test_fused_experts_come_to_the_card_one_by_one(name):
    case = replace(tiers_models.CASES[name], build=tiers_models.of_transformers(name, tiers_models.LM, MODELS[name]))
    models = [case.build().eval() for _ in range(2)]
    for each in models:
        each.set_experts_implementation("eager")
    model, whole = models[0], models[1].to("npu")
    budget = max(each.nbytes for each in model.parameters() if each.dim() == 3) * 3 // 4
    batch = {key: each.to("npu") for key, each in case.batch().items()}
    with attach(model, budget, "10MB", on="npu", small=200, poison=True) as handle, torch.no_grad():
        assert 3 in {each.like.dim() for each in handle._engine.pieces.tiers}
        for _ in range(3):
            assert torch.equal(model(**batch).logits.cpu(), whole(**batch).logits.cpu())
        assert handle.stats().peak_bytes["device"] <= budget
