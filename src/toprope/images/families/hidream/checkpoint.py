"""The edit weights in their files: whole tensors, and for E1-Full a LoRA as well. Checked before anything is loaded.

Of a file only the header is read at first. `check` compares names and shapes with the transformer's; only what passes
is read, tensor by tensor.
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
        file: which.
        key: its name there.
        shape: its shape.
    """

    file: Path
    key: str
    shape: tuple[int, ...]


@dataclass
class LowRank:
    """What a LoRA adds to a linear layer: two matrices, the second applied to the result of the first.

    Attributes:
        down: (rank, inputs); None where the file lacks it.
        up: (outputs, rank); None where the file lacks it.
    """

    down: Stored | None = None
    up: Stored | None = None


@dataclass
class EditWeights:
    """What is in the files.

    Attributes:
        path: of the file or the folder.
        tensors: whole ones, by their name in the transformer.
        lora: by the name of the linear layer. The scale is 1: the authors train with alpha equal to the rank.
    """

    path: Path
    tensors: dict[str, Stored] = field(default_factory=dict)
    lora: dict[str, LowRank] = field(default_factory=dict)

    def load(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors one after the other, on the host; those of one file together."""
        yield from _load(((name, self.tensors[name]) for name in names), dtype)

    def load_lora(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """The LoRA's layers with their matrices, the first applied first. `check` must have passed."""
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
    """The names and shapes in a file of safetensors, or in a transformer's folder with one or several.

    Raises:
        WeightsError: a file is missing or cannot be read, or the index names what is not there.
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
    """Files, each with the names that are to be taken from it; None for all."""
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
        weights: what is in the files.
        transformer: that they are for.
        whole: whether they must have every tensor of it.

    Raises:
        WeightsError: with all that is wrong, and the first example of each.
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
    told = [f"{len(names)} {what}, such as {names[0]}" for what, names in wrong.items() if names]
    if not weights.tensors and not weights.lora:
        told.append("no tensor at all")
    if told:
        raise WeightsError(
            f"{weights.path} is not made for this transformer.",
            looked_at="; ".join(told),
            do="give the edit weights and the base that belong together",
        )
