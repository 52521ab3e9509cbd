"""Find the files of a HiDream-E1 model: two or three downloads, next to each other or inside each other. No torch here.

Three repositories make one model: HiDream-I1-Full (the base, with all parts but one text encoder), the edit weights
(HiDream-E1-Full or HiDream-E1-1), and Llama-3.1-8B-Instruct, which is the fourth text encoder. A model's folder is

* the folder of HiDream-I1-Full, with `HiDream-E1-Full.safetensors` or `HiDream-E1-1/transformer` in it, or
* the folder of HiDream-E1-Full or HiDream-E1-1 with its own `model_index.json`, and HiDream-I1-Full in or next to it.

Llama is in `text_encoder_4` and `tokenizer_4` of that folder, or in a folder of its own name in it or next to it.
Without the base a model still edits, but cannot refine. The names are those of the repositories; docs/hidream.md shows
users the same layouts, so more may be taken, and none dropped.

Called by `family` and `loading`, and by `images.tiny`, which writes such folders. Tests:
tests/images/test_images_hidream.py, tests/images/simulated/test_images_hidream.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toprope.errors import UsageError, WeightsError
from toprope.images.families.finding import index_of

__all__ = ["BASE", "FULL", "LLAMA", "ONE", "Layout", "find_layout"]

Variant = Literal["full", "1.1"]

BASE = "HiDream-I1-Full"
"""The name of the base's repository."""

FULL = "HiDream-E1-Full"
"""The first edition: its file has a LoRA and whole tensors."""

ONE = "HiDream-E1-1"
"""The second edition, 1.1: a whole transformer in several files."""

LLAMA = ("Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct")
"""Names of the fourth text encoder's repository."""


@dataclass(frozen=True)
class Layout:
    """The parts of a model.

    Attributes:
        variant: the edition.
        pipeline: the folder whose model_index.json names the parts.
        edit: the file or the folder with the edit weights.
        base: the folder of the base's transformer; None if it is missing.
        llama: the folder of the fourth text encoder and its tokenizer; None if the pipeline's folder has them.
    """

    variant: Variant
    pipeline: Path
    edit: Path
    base: Path | None
    llama: Path | None


def find_layout(folder: Path) -> Layout:
    """Find the parts of the model in a folder.

    Raises:
        UsageError: there are no edit weights, or those of two editions.
        WeightsError: a part is missing.
    """
    base: Path | None
    if index_of(folder).get("_class_name") == "HiDreamImagePipeline":
        variant, edit = _edit_in_base(folder)
        pipeline, base = folder, _transformer(folder)
    else:
        variant, edit, base = _base_of_edit(folder)
        pipeline = folder if base is None or (folder / "vae").is_dir() else base.parent
    return Layout(variant, pipeline, edit, base, _llama(folder, pipeline))


def _edit_in_base(folder: Path) -> tuple[Variant, Path]:
    """Find the one set of edit weights in a base's folder."""
    files = [folder / f"{FULL}.safetensors", folder / FULL / f"{FULL}.safetensors"]
    found: list[tuple[Variant, Path]] = [("full", file) for file in files if file.is_file()]
    if (folder / ONE / "transformer").is_dir():
        found.append(("1.1", folder / ONE / "transformer"))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{folder} has the edit weights of {len(found)} models.",
            looked_at=", ".join(path.relative_to(folder).as_posix() for _, path in found),
            do="keep one of them there",
        )
    raise UsageError(
        f"{folder} holds HiDream-I1, which makes pictures from texts alone; the weights for editing are not there.",
        looked_at=f"neither {FULL}.safetensors nor {ONE}/transformer is in it",
        do=f"download HiDream-ai/{ONE} to {folder / ONE}, or {FULL}.safetensors of HiDream-ai/{FULL} to {folder}",
    )


def _base_of_edit(folder: Path) -> tuple[Variant, Path, Path | None]:
    file = folder / f"{FULL}.safetensors"
    variant: Variant = "full" if file.is_file() or folder.name.startswith(FULL) else "1.1"
    for each in (folder / BASE, folder.resolve().parent / BASE):
        if (each / "transformer").is_dir():
            return variant, file if file.is_file() else _transformer(folder), each / "transformer"
    return variant, _transformer(folder), None


def _transformer(folder: Path) -> Path:
    path = folder / "transformer"
    if not path.is_dir():
        raise WeightsError(
            f"{folder} has no transformer.", looked_at=f"{path} is not there", do="download the model again"
        )
    return path


def _llama(folder: Path, pipeline: Path) -> Path | None:
    """Find the folder of Llama; None if the pipeline has it as a component."""
    parts = index_of(pipeline)
    if all(parts.get(name) and (pipeline / name).is_dir() for name in ("text_encoder_4", "tokenizer_4")):
        return None
    around = folder.resolve().parent
    for where in (folder, pipeline, around, around.parent / "meta-llama"):
        for name in LLAMA:
            if (where / name / "config.json").is_file():
                return where / name
    raise WeightsError(
        f"the model in {folder} has no fourth text encoder, which is {LLAMA[0]}.",
        looked_at=f"neither text_encoder_4 and tokenizer_4 nor {LLAMA[0]} are in {folder} or {around}",
        do=f"download meta-llama/{LLAMA[0]} to {folder / LLAMA[0]}",
    )
