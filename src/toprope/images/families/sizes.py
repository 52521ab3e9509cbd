"""Bytes of a pipeline's weights, from the headers of its files: known in milliseconds, before anything is loaded.

`Family.least_bytes` calls it, for `images.pipeline_manager`, which refuses a model that cannot fit before loading it:
what is uncertain must not be counted. The headers are those of safetensors, the files' names those of diffusers and
transformers. Tests: tests/images/test_images_memory.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["least_bytes"]

SINGLE = ("diffusion_pytorch_model.safetensors", "model.safetensors")


def least_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Count the bytes that the weights of a pipeline take at least.

    Only files that are certainly loaded are counted: for each part in model_index.json, the files of its index or its
    single safetensors file. Unknown files are not counted.

    Args:
        folder: has model_index.json.
        dtype: that weights are loaded in.
    """
    try:
        parts = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
        named = [name for name, value in parts.items() if isinstance(value, list) and value and value[0]]
    except (OSError, ValueError, AttributeError):
        return 0
    return sum(_elements(file) for name in named for file in _files(folder / name)) * dtype.itemsize


def _files(part: Path) -> list[Path]:
    """The files of weights of one component: those of an index, or a single one."""
    for name in SINGLE:
        index = part / f"{name}.index.json"
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return [part / each for each in sorted(set(listed))]
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            if (part / name).is_file():
                return [part / name]
    return []


def _elements(file: Path) -> int:
    """Numbers in the tensors of a file of safetensors; 0 where it cannot be read."""
    try:
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, 2**27)))
        return sum(math.prod(row["shape"]) for name, row in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
