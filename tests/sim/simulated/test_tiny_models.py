"""Models of transformers, made tiny from their configurations alone: a step of training on the card against the CPU.

Holds csrc/torch against the CPU, one step of training of each model. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from against_cpu import CARD

transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

SIM = "910B3"

TEXT = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "type_vocab_size": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EXPERTS = TEXT | {
    "intermediate_size": 48,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1,
    "output_router_logits": True,
}  # fmt: skip
LATENT = EXPERTS | {
    "kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "output_router_logits": False,
}  # fmt: skip
VISION = {
    "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 37, "num_labels": 5,
}  # fmt: skip
LM, CLASSES = "ForCausalLM", "ForImageClassification"

# kind: what it is made for, and what it is made of
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "opt", "gpt_neox", "phi"), (LM, TEXT)),
    "gemma2": (LM, TEXT | {"head_dim": 8}),
    "gpt2": (LM, {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "bloom": (LM, {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": (LM, TEXT | {"alibi": False, "new_decoder_architecture": False}),
    "mamba": (LM, {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "pad_token_id": 0}),
    "mamba2": (
        LM,
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8,
             "n_groups": 1, "chunk_size": 8, "pad_token_id": 0},
    ),
    "qwen2_moe": (LM, EXPERTS),
    "qwen3_moe": (LM, EXPERTS | {"head_dim": 8}),
    "mixtral": (LM, EXPERTS),
    "olmoe": (LM, EXPERTS),
    "deepseek_v3": (LM, LATENT),
    "bert": ("ForMaskedLM", TEXT),
    "roberta": ("ForMaskedLM", TEXT),
    "modernbert": (
        "ForMaskedLM",
        TEXT | {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "deberta-v2": ("ForMaskedLM", TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "t5": (
        "ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
         "decoder_start_token_id": 0},
    ),
    "bart": (
        "ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 37,
         "decoder_ffn_dim": 37, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "max_position_embeddings": 64},
    ),
    "longformer": ("ForMaskedLM", TEXT | {"attention_window": 4}),
    "whisper": (
        "ForSpeechSeq2Seq",
        {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 37,
         "decoder_ffn_dim": 37, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8,
         "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0, "decoder_start_token_id": 1},
    ),
    "wav2vec2": (
        "ForCTC",
        {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
         "conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [8, 4], "num_conv_pos_embeddings": 8,
         "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "ctc_zero_infinity": True},
    ),
    "clip": ("Model", {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16}),
    "siglip": ("Model", {"text_config": TEXT | {"projection_size": 32}, "vision_config": VISION}),
    "vit_mae": (
        "ForPreTraining",
        VISION | {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
                  "decoder_intermediate_size": 16},
    ),
    "vit": (CLASSES, VISION),
    "dinov2": (CLASSES, VISION),
    "swin": (CLASSES, {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
                       "window_size": 4, "num_labels": 5}),
    "convnext": (CLASSES, {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 5}),
    "segformer": (CLASSES, {"num_labels": 5, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
                            "num_attention_heads": [1, 1, 2, 2]}),
}  # fmt: skip


def made(kind: str) -> tuple[Any, dict[str, Any]]:
    """A model of this kind without dropout, and a batch for it."""
    task, parts = MODELS[kind]
    config = transformers.AutoConfig.for_model(kind, **parts)
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("drop" in name or name == "layerdrop"):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    auto: Callable[..., Any] = {
        LM: transformers.AutoModelForCausalLM,
        "ForMaskedLM": transformers.AutoModelForMaskedLM,
        "ForConditionalGeneration": transformers.AutoModelForSeq2SeqLM,
        "ForSpeechSeq2Seq": transformers.AutoModelForSpeechSeq2Seq,
        "ForCTC": transformers.AutoModelForCTC,
        "ForPreTraining": transformers.AutoModelForPreTraining,
        "Model": transformers.AutoModel,
        CLASSES: transformers.AutoModelForImageClassification,
    }[task].from_config
    model = auto(config).float()
    if task == CLASSES:
        size = parts.get("image_size", 64)
        return model, {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 3])}
    if task == "ForPreTraining":
        return model, {"pixel_values": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)}
    if task == "ForCTC":
        return model, {"input_values": torch.randn(2, 400), "labels": torch.randint(1, 20, (2, 3))}
    tokens = torch.randint(3, 99, (2, 12))
    if task == "Model":
        return model, {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}
    if task == "ForSpeechSeq2Seq":
        return model, {"input_features": torch.randn(2, 8, 40), "labels": tokens}
    return model, {"input_ids": tokens, "labels": tokens}


def step(model: Any, batch: dict[str, Any], device: Any) -> tuple[float, dict[str, torch.Tensor]]:
    model = copy.deepcopy(model).to(device).train()
    here = {name: each.to(device) if isinstance(each, torch.Tensor) else each for name, each in batch.items()}
    loss = model(**here).loss
    loss.backward()
    return loss.item(), {name: each.grad.cpu() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_of_training_is_the_cpus(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, batch = made(kind)
        loss, gradients = step(model, batch, "cpu")
        card_loss, card_gradients = step(model, batch, CARD)
    assert card_loss == pytest.approx(loss, rel=1e-5)
    assert card_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(card_gradients[name], gradient, rtol=1e-3, atol=1e-5), name
