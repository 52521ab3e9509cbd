"""A tiny HiDream-E1-Full: the base's pipeline, Llama, and a file with a LoRA and whole tensors.

Found by `tiny.making` by the file's name; the base is made by `hidream_e1`. The names of the file, of its tensors and
of the layers in `TARGETS` are those of the real download. Tests: tests/images/test_images_engine.py,
tests/images/test_images_hidream.py.
"""

from __future__ import annotations

from pathlib import Path

from toprope.images.families.hidream.layout import FULL
from toprope.images.tiny.hidream_e1 import make_base

__all__ = ["TARGETS", "make"]

TARGETS = (
    "to_q", "to_k", "to_v", "to_out", "to_q_t", "to_k_t", "to_v_t", "to_out_t", "w1", "w2", "w3", "final_layer.linear",
)  # fmt: skip
"""The layers that the real one's LoRA is for."""


def make(folder: Path) -> None:
    """Write it."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    transformer = make_base(folder)
    tensors = {}
    for name, layer in transformer.named_modules():
        if isinstance(layer, nn.Linear) and any(name.endswith(f".{each}") or name == each for each in TARGETS):
            tensors[f"{name}.lora_A.default.weight"] = torch.randn(2, layer.in_features) / layer.in_features**0.5
            tensors[f"{name}.lora_B.default.weight"] = torch.randn(layer.out_features, 2) / 4
    for name, tensor in transformer.state_dict().items():
        if name.startswith(("x_embedder.", "t_embedder.")):
            tensors[name] = tensor + torch.randn_like(tensor) / 8
    save_file(tensors, folder / f"{FULL}.safetensors")
