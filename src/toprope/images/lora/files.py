"""Read a LoRA's file, and compare it with the model before any weight of the model is changed.

Called by `adapters`, and by the page's form for specifications. The names of tensors are fixed by the programs that
train LoRAs (peft, diffusers, ComfyUI, ai-toolkit): those of another one are added in `renamed` and `unwrapped`. Only
safetensors are read, as other files can run code. Tests: tests/images/test_images_lora.py.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import LoraError

if TYPE_CHECKING:
    import torch

    from toprope.images.memory.placement import Loaded

__all__ = ["LoraFile", "Report", "Spec", "check_scale", "inspect", "read_spec", "renamed"]

SUFFIX = ".safetensors"

MOST_SCALE = 100.0
"""Largest scale; a larger one is taken for a forgotten decimal point."""


@dataclass(frozen=True)
class Spec:
    """Specification of a LoRA: "path" or "path:scale".

    Attributes:
        path: the file, or a folder with one file.
        scale: factor with which it is added; 1 is as it was trained.
    """

    path: Path
    scale: float = 1.0


def read_spec(text: str) -> Spec:
    """Read "path" or "path:scale". A path may have colons: what is not a number after the last one belongs to it.

    Raises:
        LoraError: the scale is invalid.
    """
    path, colon, number = text.rpartition(":")
    if not colon or not path:
        return Spec(Path(text))
    try:
        scale = float(number)
    except ValueError:
        return Spec(Path(text))
    return Spec(Path(path), check_scale(scale))


def check_scale(scale: float) -> float:
    """Check a scale, and return it as a float.

    Raises:
        LoraError: it is invalid.
    """
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise LoraError(f"{scale!r} is no scale of a LoRA.", do="give a number such as 0.8")
    if abs(scale) > MOST_SCALE:
        raise LoraError(f"a scale of {scale:g} is too large for a LoRA.", do=f"give at most {MOST_SCALE:g}")
    return float(scale)


@dataclass
class Report:
    """Contents of a file, and its mismatches with a model.

    Attributes:
        path: the file.
        bytes: size of the file.
        sha256: hash of the file.
        tensors: number of tensors.
        modules: number of layers that it changes, by the pipeline's component.
        targets: names of these layers within their blocks, such as "to_q".
        ranks: the ranks in the file.
        scales: the quotients alpha / rank in the file: the factor at a scale of 1.
        unexpected: names that belong to no layer of the model, or are not of a LoRA.
        missing: matrices whose other half is missing.
        shapes: tensors with another shape than the model's layer.
        values: tensors with numbers that are not finite.
    """

    path: Path
    bytes: int
    sha256: str
    tensors: int
    modules: dict[str, int] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    unexpected: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """True if it can be loaded."""
        return bool(self.modules) and not (self.unexpected or self.missing or self.shapes or self.values)

    def as_json(self) -> dict[str, Any]:
        """The report for JSON."""
        return vars(self) | {"path": str(self.path), "fits": self.fits}

    def check(self) -> None:
        """Refuse a file that does not fit.

        Raises:
            LoraError: it does not fit; the error lists all kinds of mismatch with the first of each.
        """
        if self.fits:
            return
        wrong = [
            f"{len(names)} {what}: {names[0]}{', ...' if names[1:] else ''}"
            for names, what in (
                (self.unexpected, f"key{'s' * (len(self.unexpected) > 1)} that belong to no layer of it"),
                (self.missing, f"half pair{'s' * (len(self.missing) > 1)}, whose other half is missing"),
                (self.shapes, f"tensor{'s' * (len(self.shapes) > 1)} of another shape"),
                (self.values, f"tensor{'s' * (len(self.values) > 1)} with numbers that are not finite"),
            )
            if names
        ]
        raise LoraError(
            f"{self.path.name} does not fit the model; none of its weights was touched.",
            looked_at="; ".join(wrong) or "it has no tensor",
            do="use a LoRA that was trained on this model",
        )


@dataclass
class LoraFile:
    """A file that was read, with diffusers' names.

    Attributes:
        report: the report on it.
        tensors: tensors by component and name.
        alphas, metadata: facts about scales in the file, in diffusers' form.
    """

    report: Report
    tensors: dict[str, torch.Tensor]
    alphas: dict[str, float] | None
    metadata: dict[str, Any] | None


def find_file(path: Path) -> Path:
    """Find the file of a path.

    Raises:
        LoraError: there is none, or several, or it is of a kind that can run code when it is read.
    """
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))
        if len(found) != 1:
            raise LoraError(
                f"{path} has {len(found) or 'no'} LoRA{'s' if found[1:] else ''}.",
                looked_at=", ".join(each.name for each in found[:8]) or f"no *{SUFFIX} is in it",
                do="name the file",
            )
        return found[0]
    if not path.is_file():
        named, colon, scale = str(path).rpartition(":")
        if colon and Path(named).exists():
            raise LoraError(f"{scale!r} is no scale of a LoRA.", looked_at=str(path), do="give a number such as 0.8")
        raise LoraError(f"{path} is not there.", do=f"name a file ({SUFFIX}): PATH or PATH:SCALE")
    if path.suffix != SUFFIX:
        raise LoraError(
            f"{path.name} is no {SUFFIX} file; others can run code when they are read.",
            do=f"convert it to {SUFFIX}, or download it so",
        )
    return path


def inspect(loaded: Loaded, path: Path) -> LoraFile:
    """Read a LoRA and compare it with a model. Nothing of the model is changed.

    Args:
        loaded: the model; it may have LoRAs already.
        path: of a file or a folder.

    Raises:
        LoraError: there is no file, it cannot be read, or the model takes no LoRA. Whether it fits is in the report.
    """
    pipeline = loaded.pipeline
    if not hasattr(pipeline, "lora_state_dict"):
        raise LoraError(
            f"models of the family {loaded.family.name} take no LoRA.",
            looked_at=f"{type(pipeline).__name__} of diffusers has no loader for them",
            do="leave it out",
        )
    file = find_file(path)
    raw, tensors, alphas, metadata = _read(pipeline, file)
    data = file.read_bytes()
    report = Report(file, len(data), hashlib.sha256(data).hexdigest(), len(raw))
    # Keys that diffusers would drop with a warning, or without.
    wrong = [name for name in raw if "dora_scale" in name or "magnitude_vector" in name]
    loadable = getattr(pipeline, "_lora_loadable_modules", ())
    by_part: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part in loadable and getattr(pipeline, part, None) is not None:
            by_part[part][rest] = tensor
        else:
            wrong.append(name)
    report.unexpected = tuple(dict.fromkeys(wrong))
    for part, some in by_part.items():
        _compare(report, part, getattr(pipeline, part), _as_peft(some, getattr(pipeline, part)))
    report.scales = tuple(sorted(_scales(report.ranks, alphas, metadata)))
    return LoraFile(report, tensors, alphas, metadata)


def _read(pipeline: Any, file: Path) -> tuple[list[str], dict[str, Any], Any, Any]:
    """The names in a file, its tensors with the names of diffusers, alphas and metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            raw = sorted(opened.keys())
            own = unwrapped({name: opened.get_tensor(name) for name in raw})
        known = renamed(own, pipeline)
        if known is None and own.keys() != set(raw):
            known = own
        options: dict[str, Any] = {"weight_name": file.name, "local_files_only": True, "return_lora_metadata": True}
        if any("lora_unet_" in name for name in raw) and hasattr(pipeline, "unet"):
            options["unet_config"] = pipeline.unet.config
        if type(pipeline).__name__.startswith("Flux"):
            options["return_alphas"] = True
        got = pipeline.lora_state_dict(str(file.parent) if known is None else known, **options)
    except (OSError, SafetensorError) as error:
        raise LoraError(
            f"{file.name} cannot be read.", looked_at=" ".join(str(error).split())[:300], do="download it again"
        ) from error
    except (
        ValueError,
        KeyError,
        AttributeError,
        IndexError,
        AssertionError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise LoraError(
            f"{file.name} has keys that are none of a LoRA for {type(pipeline).__name__}.",
            looked_at=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            do="use a LoRA that was trained on this model",
        ) from error
    tensors, *more = got
    metadata = more[-1] or None
    return raw, dict(tensors), more[0] if len(more) == 2 else None, metadata


_FOREIGN = "diffusion_model."
"""How names begin in files of ComfyUI and of ai-toolkit, in place of the component's name."""

_PART = re.compile(r"(?P<module>.+)\.(?:(?P<side>lora_A|lora_B|lora_down|lora_up)\.weight|(?P<alpha>alpha))")
_SIDES = {"lora_A": "lora_A", "lora_down": "lora_A", "lora_B": "lora_B", "lora_up": "lora_B"}


_WRAPPERS = re.compile(r"(^|\.)(?:base_model\.model|_orig_mod|module)(?=\.)")
"""Names that peft, torch.compile and DistributedDataParallel put before those of the model that they wrap."""

_ADAPTER = re.compile(r"\.(lora_[AB])\.(?!weight$|bias$)(?P<name>[^.]+)\.(weight|bias)$")
"""The name of the adapter, as in a state dict of peft that was saved without its `get_peft_model_state_dict`."""


def unwrapped(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a LoRA by the names of the model's own layers, without those of what it was wrapped in while trained.

    Args:
        tensors: of the file, by their names there.

    Raises:
        ValueError: the file has several adapters, so that it is not clear which one is meant.
    """
    adapters = {found["name"] for name in tensors if (found := _ADAPTER.search(name))}
    if len(adapters) > 1:
        raise ValueError(f"it has {len(adapters)} adapters: {', '.join(sorted(adapters))}")

    def own(name: str) -> str:
        return _ADAPTER.sub(r".\1.\3", _WRAPPERS.sub(r"\1", name).replace("..", ".").lstrip("."))

    return {own(name): tensor for name, tensor in tensors.items()}


def renamed(tensors: Mapping[str, torch.Tensor], pipeline: Any) -> dict[str, torch.Tensor] | None:
    """A LoRA of ComfyUI or ai-toolkit in names that the pipeline's loader reads; None where it is of another kind.

    Names of layers are the model's own, after "diffusion_model." or bare; or, for FLUX, those of its first authors,
    which diffusers converts where the two matrices are called down and up. What is added is scaled by alpha / rank.

    Args:
        tensors: of the file, by their names there.
        pipeline: of diffusers.
    """
    part = "transformer" if getattr(pipeline, "transformer", None) is not None else "unet"
    layers = {name for name, _ in getattr(pipeline, part).named_modules()}
    found: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    others: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        matched = _PART.fullmatch(name.removeprefix(_FOREIGN))
        if matched is not None and matched["module"] in layers:
            found[matched["module"]][_SIDES.get(matched["side"], "alpha")] = tensor
        else:
            others[name] = tensor
    if not found:
        if type(pipeline).__name__.startswith("Flux") and any(name.startswith(_FOREIGN) for name in others):
            return {
                name.replace(".lora_A.", ".lora_down.").replace(".lora_B.", ".lora_up."): tensor
                for name, tensor in others.items()
            }
        return None
    for module, sides in found.items():
        alpha = sides.pop("alpha", None)
        if alpha is not None and len(sides) == 2 and alpha.numel() == 1:
            sides["lora_B"] = sides["lora_B"] * (float(alpha) / sides["lora_A"].shape[0])
        elif alpha is not None:
            others[f"{module}.alpha"] = alpha  # reported as belonging to no layer
        others |= {f"{part}.{module}.{side}.weight": tensor for side, tensor in sides.items()}
    return others


def _as_peft(some: dict[str, Any], model: Any) -> dict[str, Any]:
    """Tensors of one component with the names that peft has, as diffusers converts them when it loads them."""
    from diffusers.utils.state_dict_utils import (
        convert_state_dict_to_diffusers,
        convert_state_dict_to_peft,
        convert_unet_state_dict_to_peft,
    )

    if any("lora_A" in name for name in some):
        return some
    try:
        if hasattr(model, "load_lora_adapter"):
            return dict(convert_unet_state_dict_to_peft(some))
        converted = convert_state_dict_to_peft(convert_state_dict_to_diffusers(some))
    except ValueError:  # names in no known form: they are reported unchanged
        return some
    if not hasattr(model, "text_model"):
        return {name.removeprefix("text_model."): tensor for name, tensor in converted.items()}
    return dict(converted)


_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.(?P<what>weight|bias)")


def _compare(report: Report, part: str, model: Any, some: Mapping[str, torch.Tensor]) -> None:
    """Compare a LoRA's tensors for one component with the model, and add mismatches to the report."""
    import torch

    layers = dict(model.named_modules())
    unexpected, shapes, values = [], [], []
    sides: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in some.items():
        found = _KEY.fullmatch(name)
        layer = None if found is None else _linear(layers.get(found["module"]))
        if found is None or layer is None or (found["what"] == "bias" and found["side"] == "A"):
            unexpected.append(f"{part}.{name}")
            continue
        if not bool(torch.isfinite(tensor).all()):
            values.append(f"{part}.{name}")
        if found["what"] == "weight":
            sides[found["module"]][found["side"]] = tensor
        elif tuple(tensor.shape) != (layer.weight.shape[0],):
            shapes.append(f"{part}.{name}, which is {list(tensor.shape)} and not {[layer.weight.shape[0]]}")
    missing = []
    ranks = set(report.ranks)
    for module, pair in sides.items():
        if len(pair) < 2:
            missing.append(f"{part}.{module}.lora_{'A' if 'A' in pair else 'B'}.weight")
            continue
        rank = int(pair["A"].shape[0]) if pair["A"].ndim else 0
        wanted = _shapes(_linear(layers[module]), rank)
        if (tuple(pair["A"].shape), tuple(pair["B"].shape)) != wanted or rank < 1:
            shapes.append(
                f"{part}.{module}, {list(pair['A'].shape)} and {list(pair['B'].shape)} for a layer of"
                f" {list(_linear(layers[module]).weight.shape)}"
            )
        ranks.add(rank)
    report.modules[part] = len(sides)
    report.ranks = tuple(sorted(ranks))
    report.targets = tuple(sorted({*report.targets, *(_target(module) for module in sides)}))
    report.unexpected += tuple(unexpected)
    report.missing += tuple(missing)
    report.shapes += tuple(shapes)
    report.values += tuple(values)


def _linear(layer: Any) -> Any:
    """The layer that a LoRA can change, without the LoRAs on it; None if LoRAs cannot change it."""
    from torch import nn

    while layer is not None and not isinstance(layer, nn.Linear | nn.Conv2d):
        layer = getattr(layer, "base_layer", None)
    return layer


def _shapes(layer: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a layer's two matrices with a rank."""
    out, *rest = layer.weight.shape
    return (rank, *rest), (out, rank, *(1 for _ in rest[1:]))


def _target(module: str) -> str:
    """The last parts of a layer's name: "to_out.0" of "blocks.3.attn.to_out.0"."""
    names = module.split(".")
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]


def _scales(ranks: Iterable[int], alphas: Any, metadata: Any) -> set[float]:
    ranks = [each for each in ranks if each]
    if alphas:
        return {round(float(alpha) / rank, 6) for alpha in alphas.values() for rank in ranks}
    given = [value for name, value in (metadata or {}).items() if name.rpartition(".")[2] == "lora_alpha"]
    return {round(float(alpha) / rank, 6) for alpha in given for rank in ranks} or ({1.0} if ranks else set())
