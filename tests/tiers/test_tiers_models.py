"""Fourteen architectures that people offload, whole and attached, with budgets of 8 to 60 %: the same bits."""

import pytest

import tiers_models

pytest.importorskip("transformers", reason="the models are those of transformers and diffusers")
pytest.importorskip("diffusers", reason="the models are those of transformers and diffusers")
pytest.importorskip("peft", reason="adapters are those of peft")

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


def test_the_list_of_models_is_the_one_that_was_asked_for():
    assert list(tiers_models.CASES) == [
        "gpt2", "llama", "qwen2_moe", "mixtral", "deepseek_v3", "t5", "whisper", "mamba", "vit", "clip",
        "clip of OpenAI", "unet", "flux", "vae",
    ]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("action", tiers_models.ACTIONS)
@pytest.mark.parametrize("name", tiers_models.CASES)
def test_a_model_with_part_of_its_memory_gives_the_bits_of_the_whole(name, action):
    tiers_models.accepted(name, action, tiers_models.check(name, action, "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "action"), [("llama", "train"), ("unet", "forward"), ("mixtral", "generate")])
def test_some_of_the_models_in_every_check(name, action):
    tiers_models.accepted(name, action, tiers_models.check(name, action, "cpu", (0.2, 0.6)))
