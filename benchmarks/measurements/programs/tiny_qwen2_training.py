"""candle-org/candle#562: a training step of a tiny Qwen2 in float16.

A program of benchmarks/measurements/models.toml: benchmarks/model_estimates.py runs it on the simulated card, and
compares the estimate with the time that this issue reports. It does what is described there and is not tuned.

No test runs it: it is what was measured.
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

config = Qwen2Config(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
model = Qwen2ForCausalLM(config).half().to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 128, (1, 8), device="npu")
for _ in range(6):
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
