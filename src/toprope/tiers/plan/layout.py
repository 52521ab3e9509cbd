"""Read the groups of a model folder for the planner; groups and their order are inferred from the tensors' names.

Only for `toprope tiers plan FOLDER`, which has no model to ask: an attached model is divided by
`engine.model.model_groups`. A tensor with a number in its name belongs to a block: "model.layers.3.mlp.up_proj.weight"
to "model.layers.3". Tensors without a number are grouped by module. As names do not tell the order of the blocks,
`Layout.said` states the order that is assumed. Names are those of published models; how they are read is free. Tests:
tests/tiers/test_tiers_layout.py, with names of real models.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprope.errors import WeightsError
from toprope.tiers.plan.model import Group, Kind, Member
from toprope.tiers.store.headers import Stored, read_folder

__all__ = ["Layout", "read_layout"]

_BLOCK = re.compile(r"(.*?)\.?\b(\d+)\.")
# Modules without a number that run before the blocks: embeddings of all kinds, and projections of inputs.
_BEFORE = re.compile(
    r"embed|wte|wpe|\bshared\b|patch|conv_in|\bstem\b|proj_in|time_|(^|\.)(img|txt|x|context)_in\b|rotary|positional|"
    r"pre_layernorm|preprocessor"
)
# Words in the names of lists of blocks, in the order in which they run; other lists run like those of the second row.
_ORDER = (
    ("vision", "visual", "image_encoder", "encoder", "down"),
    ("projector", "connector", "mid", "double"),
    ("language_model", "decoder", "up", "single"),
)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|shared)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
_BUFFER = re.compile(r"(running_(mean|var)|num_batches_tracked|inv_freq|position_ids|masked_bias|rotary_emb\..*)$")


@dataclass(frozen=True)
class Layout:
    """The groups of a model folder, in the order of a pass.

    Attributes:
        folder: the folder.
        groups: the groups in the order assumed for a pass, each used once.
        tensors: the stored tensors by name, with file and position.
        dtypes: bytes by dtype, the largest first.
        bytes: bytes of all weights, tied ones once.
        said: a sentence, without a full stop, about how groups and order were found.
    """

    folder: Path
    groups: tuple[Group, ...]
    tensors: Mapping[str, Stored]
    dtypes: Mapping[str, int]
    bytes: int
    said: str

    @property
    def order(self) -> tuple[str, ...]:
        """The groups' names in the order of a pass."""
        return tuple(each.name for each in self.groups)

    def computing(self, seconds: float) -> tuple[Group, ...]:
        """The groups with the computing time of a pass divided among them by their bytes."""
        total = sum(each.bytes for each in self.groups) or 1
        return tuple(replace(each, compute_seconds=seconds * each.bytes / total) for each in self.groups)


def read_layout(folder: str | os.PathLike[str]) -> Layout:
    """Read a model folder: *.safetensors, with or without an index, and config.json if there is one.

    Raises:
        WeightsError: the folder has no weights that can be read, or its config.json cannot.
    """
    path = Path(folder)
    tensors = {each.name: each for each in read_folder(path)}
    config = _config(path)
    roots = _roots(tensors)
    members: dict[str, list[Member]] = {}
    size = _computed_in(config)
    for name, tensor in tensors.items():
        if size and name.endswith("_scale_inv"):
            continue  # scales stay on the host
        coded = size is not None and f"{name}_scale_inv" in tensors
        member = Member(name, tensor.bytes, _kind(tensor))
        if size is not None and coded:
            member = replace(member, bytes=tensor.bytes * size, coded=tensor.bytes)
        members.setdefault(_group(name, roots), []).append(member)
    tied = _tie(members, tensors, config)
    names = sorted(members, key=_Rank(members, tensors))
    groups = tuple(Group(name, tuple(members[name])) for name in names)
    dtypes = Counter[str]()
    for tensor in tensors.values():
        dtypes[tensor.dtype] += tensor.bytes
    storages = {each.key: each.bytes for group in groups for each in group.members}
    patterns = list(dict.fromkeys(_list_of(name) for name in names if _list_of(name)))
    said = f"order and groups from the names of layers ({', '.join(f'{each}.N' for each in patterns) or 'no blocks'})"
    if size is not None:
        said += "; FP8 is dequantised on the device"
    if tied:
        said += f"; {tied} counted once"
    return Layout(path, groups, tensors, dict(dtypes.most_common()), sum(storages.values()), said)


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{file} cannot be read: {error}.", do="check that it was downloaded whole") from None
    return found if isinstance(found, dict) else {}


def _computed_in(config: dict[str, Any]) -> int | None:
    """Bytes of a decoded FP8 value on the device; None for a model without FP8 codes."""
    method = config.get("quantization_config")
    if not isinstance(method, dict) or method.get("quant_method") != "fp8":
        return None
    return 4 if config.get("dtype", config.get("torch_dtype")) == "float32" else 2


def _kind(tensor: Stored) -> Kind:
    if _BUFFER.search(tensor.name):
        return "buffer"
    if tensor.name.endswith(".bias"):
        return "bias"
    whole = tensor.dtype in ("U8", "I8")  # codes of a few bits are weights in any shape
    return "norm" if len(tensor.shape) <= 1 and not whole else "weight"


def _list_of(name: str) -> str:
    """ "model.layers" of "model.layers.3"; empty for a name without a number."""
    found = re.fullmatch(r"(.*)\.(\d+)|(\d+)", name)
    return "" if found is None else found[1] or ""


def _roots(names: Iterable[str]) -> set[str]:
    """The modules around lists of blocks, such as "model"."""
    roots = set()
    for name in names:
        found = _BLOCK.match(name)
        parts = found[1].split(".") if found else []
        roots |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return roots


def _group(name: str, roots: set[str]) -> str:
    found = _BLOCK.match(name)
    if found is not None:
        return f"{found[1]}.{found[2]}".lstrip(".")
    parts = name.split(".")[:-1]
    for count in range(1, len(parts) + 1):
        if ".".join(parts[:count]) not in roots:
            return ".".join(parts[:count])
    return ".".join(parts) or name


def _tie(members: dict[str, list[Member]], tensors: Mapping[str, Stored], config: dict[str, Any]) -> str:
    """Tie the head to the embedding if the config says so or the head is not in the files; return a note about it."""
    embeddings = [name for name in tensors if _EMBEDDING.search(name)]
    heads = [name for name in tensors if _HEAD.search(name) and not _BLOCK.match(name)]
    text = config.get("text_config")
    said = config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    named = " ".join(str(each) for each in config.get("architectures") or ())
    generates = bool(re.search(r"CausalLM|LMHead|ConditionalGeneration", named))
    if not embeddings:
        return ""
    table = max(embeddings, key=lambda name: tensors[name].bytes)
    if not heads and generates and said is not False:
        members["lm_head"] = [Member("lm_head.weight", tensors[table].bytes, storage=table)]
        return f"lm_head.weight = {table}"
    same = [each for each in heads if said and tensors[each].shape == tensors[table].shape]
    for name in same:
        for group in members.values():
            group[:] = [replace(each, storage=table) if each.name == name else each for each in group]
    return ", ".join(f"{name} = {table}" for name in same)


class _Rank:
    """Sort key that puts groups into the order of a pass."""

    def __init__(self, members: Mapping[str, Sequence[Member]], tensors: Mapping[str, Stored]) -> None:
        places = {name: place for place, name in enumerate(tensors)}
        self.place = {
            group: min((places[each.name] for each in some if each.name in places), default=len(places))
            for group, some in members.items()
        }
        self.lists: dict[str, int] = {}
        for group, place in self.place.items():
            name = _list_of(group) or group
            self.lists[name] = min(place, self.lists.get(name, place))

    def __call__(self, group: str) -> tuple[int, int, int, str, int, int]:
        blocks = _list_of(group)
        number = int(group.rsplit(".", 1)[-1]) if group.rsplit(".", 1)[-1].isdigit() else 0
        numbered = group.rsplit(".", 1)[-1].isdigit()
        when = 1 if numbered else 0 if _BEFORE.search(group) else 2
        tower = self._tower(group)
        tower = -1 if when == 0 and tower > 0 else tower  # embeddings of the model itself, such as BERT's
        return (tower, when, self._within(blocks or group), blocks, number, self.place[group])

    def _tower(self, group: str) -> int:
        """Rank of the part of the model: vision and encoder first, then projectors, then text and decoder."""
        found = re.search(r"(^|\.)(vision\w*|visual|image_encoder|audio\w*|encoder)(\.|$)", group)
        if found is not None:
            return 0
        later = re.search(r"(^|\.)(multi_modal_projector|connector|mm_projector)(\.|$)", group)
        return 1 if later is not None else 2

    def _within(self, blocks: str) -> int:
        last = blocks.rsplit(".", 1)[-1]
        for rank, words in enumerate(_ORDER):
            if any(last.startswith(word) or f".{word}" in f".{blocks}" for word in words):
                return rank
        return 1
