"""LoRAs with random numbers for tiny pipelines. Not a test.

Used by tests of `images.lora`, of the memory ladder and of `toprope edit`.
"""

from pathlib import Path

LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "v_proj")


def tensors(pipeline, rank: int = 4, seed: int = 0, parts=("unet", "transformer", "text_encoder"), size: float = 0.4):
    """Both matrices for every layer of those names, as diffusers and peft call them."""
    import torch
    from torch import nn

    random, found = torch.Generator().manual_seed(seed), {}
    for part in parts:
        model = getattr(pipeline, part, None)
        if part not in pipeline._lora_loadable_modules or model is None:
            continue
        for name, layer in model.named_modules():
            if name.endswith(LAYERS) and isinstance(layer, nn.Linear):
                shapes = {"A": (rank, layer.in_features), "B": (layer.out_features, rank)}
                for side, shape in shapes.items():
                    found[f"{part}.{name}.lora_{side}.weight"] = torch.randn(shape, generator=random) * size
    return found


def save(file: Path, some, metadata=None) -> Path:
    """Write tensors to a file."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(some, file, metadata=metadata)
    return file
