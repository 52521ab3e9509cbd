"""The architectures of ../test_tiers_models.py on a simulated card: the same bits as on a card that holds them."""

import pytest

import tiers_models

pytest.importorskip("transformers", reason="the models are those of transformers and diffusers")
pytest.importorskip("diffusers", reason="the models are those of transformers and diffusers")
pytest.importorskip("peft", reason="adapters are those of peft")

pytestmark = pytest.mark.filterwarnings("ignore")

SIM = "910B3"


@pytest.mark.parametrize("action", tiers_models.ACTIONS)
@pytest.mark.parametrize("name", tiers_models.CASES)
def test_a_model_with_part_of_its_memory_gives_the_bits_of_the_card(name, action):
    tiers_models.accepted(name, action, tiers_models.check(name, action, "npu"))
