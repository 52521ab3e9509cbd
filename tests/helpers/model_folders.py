"""Model folders for tests: safetensors files of zeros, and the names that some families give their tensors."""

import json
import struct
from pathlib import Path

from toprope.tiers.store.headers import BITS

Shapes = dict[str, tuple[int, ...]]


def write(file: Path, shapes: Shapes, dtype: str = "BF16") -> None:
    """A safetensors file of zeros."""
    at, header = 0, {}
    for name, shape in shapes.items():
        size = BITS[dtype] // 8
        for each in shape:
            size *= each
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def blocks(prefix: str, count: int, *parts: str) -> Shapes:
    found: Shapes = {}
    for number in range(count):
        block = f"{prefix}.{number}".lstrip(".")
        found |= {f"{block}.{part}.weight": (8, 8) for part in parts} | {f"{block}.norm.weight": (8,)}
    return found


FAMILIES: dict[str, tuple[Shapes, list[str]]] = {
    "llama": (
        {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,), "lm_head.weight": (16, 8)}
        | blocks("model.layers", 11, "self_attn.q_proj", "mlp.experts.3.w1"),
        ["model.embed_tokens", *(f"model.layers.{n}" for n in range(11)), "model.norm", "lm_head"],
    ),
    "gpt2": (
        {"wte.weight": (16, 8), "wpe.weight": (4, 8), "ln_f.weight": (8,)}
        | blocks("h", 3, "attn.c_attn"),
        ["wpe", "wte", "h.0", "h.1", "h.2", "ln_f"],
    ),
    "t5": (
        {"shared.weight": (16, 8), "encoder.final_layer_norm.weight": (8,), "decoder.final_layer_norm.weight": (8,)}
        | blocks("encoder.block", 2, "layer.0.k")
        | blocks("decoder.block", 2, "layer.0.k"),
        ["shared", "encoder.block.0", "encoder.block.1", "encoder.final_layer_norm", "decoder.block.0",
         "decoder.block.1", "decoder.final_layer_norm"],
    ),
    "flux": (
        {"x_embedder.weight": (8, 8), "time_text_embed.linear_1.weight": (8, 8), "proj_out.weight": (8, 8)}
        | blocks("transformer_blocks", 2, "attn.to_out.0")
        | blocks("single_transformer_blocks", 2, "attn.to_q"),
        ["time_text_embed", "x_embedder", "transformer_blocks.0", "transformer_blocks.1",
         "single_transformer_blocks.0", "single_transformer_blocks.1", "proj_out"],
    ),
    "bert": (
        {"bert.embeddings.word_embeddings.weight": (16, 8), "bert.pooler.dense.weight": (8, 8)}
        | blocks("bert.encoder.layer", 2, "output.dense"),
        ["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "bert.pooler"],
    ),
    "sequential": (blocks("", 3, "linear"), ["0", "1", "2"]),
}  # fmt: skip
