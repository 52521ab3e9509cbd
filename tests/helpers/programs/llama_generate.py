"""Generate with a tiny Llama on whatever device transformers' Trainer would choose; print the tokens as JSON."""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
set_seed(0)
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
WEIGHTS = LlamaForCausalLM(CONFIG).state_dict()
DEVICE = TrainingArguments("unused", report_to="none").device
# The second prompt is shorter than the first: it is padded on the left.
PROMPTS = torch.tensor([[1, 5, 9, 33, 17, 40], [0, 0, 1, 8, 21, 12]])


def tokens(attention):
    model = LlamaForCausalLM._from_config(CONFIG, attn_implementation=attention)
    model.load_state_dict(WEIGHTS)
    model.to(DEVICE).eval()
    prompts = PROMPTS.to(DEVICE)
    given = {"input_ids": prompts, "attention_mask": (prompts != 0).long(), "max_new_tokens": 24}
    return {
        "greedy": model.generate(**given, do_sample=False).tolist(),
        "beams": model.generate(**given, do_sample=False, num_beams=3).tolist(),
    }


kinds = ["eager", "sdpa"]
if DEVICE.type == "npu":
    kinds.append("flash_attention_2")  # transformers maps it to torch_npu.npu_fusion_attention
print(json.dumps({"device": str(DEVICE), **{kind: tokens(kind) for kind in kinds}}))
