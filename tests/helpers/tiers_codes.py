"""Folders of FP8 weights with scales, as checkpoints have them, and what their values are."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

QUANTISED = ("_proj.weight", "w1.weight", "w2.weight", "w3.weight")
"""Ends of the names of weights that are quantised."""


def quantised(value: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, the scales of blocks, and the values in fp32 that they stand for; the last blocks may be smaller."""
    rows, columns = value.shape
    scales = torch.zeros(-(-rows // block), -(-columns // block))
    codes, values = torch.zeros_like(value), torch.zeros_like(value)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            where = (slice(row * block, (row + 1) * block), slice(column * block, (column + 1) * block))
            scales[row, column] = value[where].abs().max() / 448
            codes[where] = (value[where] / scales[row, column]).to(torch.float8_e4m3fn).float()
            values[where] = codes[where] * scales[row, column]
    return codes.to(torch.float8_e4m3fn), scales, values


def quantise(folder: Path, block: int, ends: tuple[str, ...] = QUANTISED) -> dict[str, torch.Tensor]:
    """Rewrite the safetensors file of a folder with codes; returns the values by their names in the file."""
    state, values = {}, {}
    for name, value in load_file(folder / "model.safetensors").items():
        state[name] = values[name] = value
        if name.endswith(ends):
            state[name], state[f"{name}_scale_inv"], values[name] = quantised(value, block)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    file = folder / "config.json"
    config: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block]}
    file.write_text(json.dumps(config))
    return values


def net(layers: int = 6, width: int = 64) -> nn.Module:
    """Linear layers, each with a bias."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def folder_of_net(folder: Path, block: int = 16, **sizes: int) -> nn.Module:
    """Write the linear layers with codes; returns them with the values that the codes stand for."""
    whole = net(**sizes)
    save_file(whole.state_dict(), folder / "model.safetensors")
    whole.load_state_dict(quantise(folder, block, (".weight",)))
    return whole
