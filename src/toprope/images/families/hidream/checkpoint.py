"""Read the files of edit weights: whole tensors, and for E1-Full a LoRA as well. They are checked before loading.

At first only the headers of the files are read. `check` compares names and shapes with the transformer's; then tensors
are read one by one. The files' names and those of tensors are fixed by safetensors, diffusers, peft and what the
model's authors have published.

Called by `loading`, and by `stages` for the tensors themselves. Tests: tests/images/test_images_hidream.py.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toprope.errors import WeightsError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["EditWeights", "LowRank", "Stored", "check", "read_checkpoint"]

Name = TypeVar("Name")

_LORA = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_INDEX = "diffusion_pytorch_model.safetensors.index.json"
_SINGLE = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        file: the file.
        key: its name in the file.
        shape: its shape.
    """

    file: Path
    key: str
    shape: tuple[int, ...]


@dataclass
class LowRank:
    """A LoRA's two matrices for a linear layer; the second is applied to the result of the first.

    Attributes:
        down: matrix (rank, inputs); None if the file lacks it.
        up: matrix (outputs, rank); None if the file lacks it.
    """

    down: Stored | None = None
    up: Stored | None = None


@dataclass
class EditWeights:
    """Contents of the files.

    Attributes:
        path: the file or the folder.
        tensors: whole tensors by their name in the transformer.
        lora: matrices by the name of the linear layer. The scale is 1: the authors train with alpha equal to the rank.
    """

    path: Path
    tensors: dict[str, Stored] = field(default_factory=dict)
    lora: dict[str, LowRank] = field(default_factory=dict)

    def load(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Load whole tensors one by one to the host, file by file."""
        yield from _load(((name, self.tensors[name]) for name in names), dtype)

    def load_lora(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Load the LoRA: layer, first matrix and second matrix. `check` must have passed."""
        sides: list[tuple[tuple[str, str], Stored]] = []
        for module, pair in self.lora.items():
            assert pair.down is not None
            assert pair.up is not None
            sides += [((module, "down"), pair.down), ((module, "up"), pair.up)]
        waiting: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for (module, side), tensor in _load(sides, dtype):
            waiting[module][side] = tensor
            if len(waiting[module]) == 2:
                pair_of = waiting.pop(module)
                yield module, pair_of["down"], pair_of["up"]


def _load(wanted: Iterable[tuple[Name, Stored]], dtype: torch.dtype) -> Iterator[tuple[Name, torch.Tensor]]:
    """Yield tensors in a dtype; each file is opened once."""
    by_file: dict[Path, list[tuple[Name, Stored]]] = defaultdict(list)
    for name, stored in wanted:
        by_file[stored.file].append((name, stored))
    for file, some in by_file.items():
        with _opened(file) as opened:
            for name, stored in some:
                yield name, opened.get_tensor(stored.key).to(dtype)


def _opened(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file} cannot be read: {error}.", looked_at=str(file), do="download it again") from error


def read_checkpoint(path: Path) -> EditWeights:
    """Read the names and shapes in a safetensors file, or in a transformer's folder with such files.

    Raises:
        WeightsError: a file is missing or cannot be read, or the index has a tensor that is not in its file.
    """
    found = EditWeights(path)
    for file, keys in _files(path).items():
        with _opened(file) as opened:
            there = set(opened.keys())
            for key in sorted(there if keys is None else keys):
                if key not in there:
                    raise WeightsError(
                        f"{file} lacks {key}, which the index has there.",
                        looked_at=str(file.parent / _INDEX),
                        do="download the folder again",
                    )
                _add(found, Stored(file, key, tuple(opened.get_slice(key).get_shape())))
    return found


def _files(path: Path) -> dict[Path, list[str] | None]:
    """The files, each with the names to read from it; None for all."""
    if path.is_file():
        return {path: None}
    index = path / _INDEX
    if not index.is_file():
        if not (path / _SINGLE).is_file():
            raise WeightsError(
                f"{path} has no weights.",
                looked_at=f"neither {_INDEX} nor {_SINGLE} is there",
                do="download the folder again",
            )
        return {path / _SINGLE: None}
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files: dict[Path, list[str] | None] = {}
        for key, file in names.items():
            kept = files.setdefault(path / file, [])
            assert kept is not None
            kept.append(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{index} cannot be read: {type(error).__name__}: {error}.", looked_at=str(index), do="download it again"
        ) from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(
            f"{path} lacks {len(missing)} of its {len(files)} files of weights, such as {missing[0]}.",
            looked_at=str(index),
            do="download them too",
        )
    return files


def _add(found: EditWeights, stored: Stored) -> None:
    """Add a tensor of a file: a whole one, or one side of a LoRA."""
    name = stored.key.removeprefix("transformer.").replace(".base_layer.", ".")
    matched = _LORA.fullmatch(name)
    if matched is None:
        found.tensors[name] = stored
        return
    pair = found.lora.setdefault(matched["module"], LowRank())
    if matched["side"] == "A":
        pair.down = stored
    else:
        pair.up = stored


def check(weights: EditWeights, transformer: nn.Module, *, whole: bool) -> None:
    """Compare names and shapes with a transformer, which may be on meta. Nothing is loaded and nothing is changed.

    Args:
        weights: the contents of the files.
        transformer: the transformer.
        whole: True if they must have all its tensors.

    Raises:
        WeightsError: they do not match; it lists all kinds of mismatch with an example of each.
    """
    from torch import nn

    shapes = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    linear = {name: each for name, each in transformer.named_modules() if isinstance(each, nn.Linear)}
    wrong: dict[str, list[str]] = defaultdict(list)
    for name, stored in weights.tensors.items():
        if name not in shapes:
            wrong["unknown"].append(name)
        elif stored.shape != shapes[name]:
            wrong["of another shape"].append(f"{name}, which is {list(stored.shape)} and not {list(shapes[name])}")
    if whole:
        wrong["missing"] += [name for name in shapes if name not in weights.tensors]
    for module, pair in weights.lora.items():
        layer = linear.get(module)
        if layer is None:
            wrong["LoRAs for what is no linear layer"].append(module)
        elif pair.down is None or pair.up is None:
            wrong["halves of a LoRA without the other"].append(f"{module}.lora_{'A' if pair.up is None else 'B'}")
        else:
            rank = pair.down.shape[0] if pair.down.shape else 0
            if (pair.down.shape, pair.up.shape) != ((rank, layer.in_features), (layer.out_features, rank)) or rank < 1:
                wrong["LoRAs of another shape"].append(
                    f"{module}, {list(pair.down.shape)} and {list(pair.up.shape)} for "
                    f"{layer.in_features} inputs and {layer.out_features} outputs"
                )
    facts = [f"{len(names)} {what}, such as {names[0]}" for what, names in wrong.items() if names]
    if not weights.tensors and not weights.lora:
        facts.append("no tensor at all")
    if facts:
        raise WeightsError(
            f"{weights.path} is not made for this transformer.",
            looked_at="; ".join(facts),
            do="give the edit weights and the base that belong together",
        )
