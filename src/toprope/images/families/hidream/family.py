"""The family of HiDream-E1 and E1.1: the engine's interface to this model, its knobs, defaults and texts.

Found by `families.finding`. The work is in the modules next to it. Defaults, the form of instructions and the limit of
tokens follow the authors' scripts; the remarks are our own. Tests: tests/images/test_images_authors.py,
tests/images/test_images_hidream.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import UsageError
from toprope.images.families.base import Family, Native, OnStep, Prompt
from toprope.images.request import EditRequest
from toprope.images.truncation import Reader

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["HiDreamE1"]

TOKENS = 128
"""Largest number of tokens for each text encoder, as in the authors' pipeline."""

# The authors' own: inference.py (E1-Full) and inference_e1_1.py of their repository.
DEFAULTS: dict[str, dict[str, Any]] = {
    "full": {"negative": "low resolution, blur", "guidance": 5.0, "image_guidance": 4.0},
    "1.1": {"negative": "low quality, blurry, distorted", "guidance": 3.0, "image_guidance": 1.5},
}


class HiDreamE1(Family):
    """A transformer of 17 billion parameters with four text encoders; the base model can do the last steps."""

    name = "hidream-e1"
    pipelines = ("HiDreamImagePipeline", "HiDreamImageEditingPipeline")
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
    denoiser = "transformer"
    alternates = ("refiner",)
    options = frozenset({"negative", "steps", "guidance", "image_guidance", "refine_strength", "cfg_norm"})
    likes = frozenset({"authors"})

    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """The defaults of the authors' scripts; without a base there is no refine stage."""
        refines = pipeline.stages.can_refine
        return DEFAULTS[pipeline.variant] | {"steps": 28, "refine_strength": 0.3 if refines else 0.0, "cfg_norm": True}

    def describe(self, pipeline: Any) -> Mapping[str, Any]:
        """The edition, and how base and edit weights are combined."""
        return {"variant": pipeline.variant, "stages": pipeline.stages.describe()}

    def folders(self, folder: Path) -> Sequence[Path]:
        """The model's folder, and the folders of the base and of Llama if they are next to it."""
        from toprope.images.families.hidream.layout import find_layout

        found = find_layout(folder)
        parts = [folder]
        for part in (found.pipeline, found.base, found.edit, found.llama):
            if part is not None and not any(part.resolve().is_relative_to(each.resolve()) for each in parts):
                parts.append(part)
        return parts

    def native(self, pipeline: Any) -> Native:
        """E1.1 has the base's size in any shape; E1-Full a square of 9/16 of that, 768 of 1024. More is not seen."""
        cell = pipeline.vae_scale_factor * 2
        pixels = pipeline.transformer.max_seq // 2 * cell * cell
        return Native(pixels, cell, square=pipeline.variant == "full", max_pixels=pixels)

    def check(self, pipeline: Any, request: EditRequest) -> None:
        """Refuse refining without the base.

        Raises:
            UsageError: refine_strength is above 0, and the folder has the edit weights alone.
        """
        # The authors' script of E1.1 refines with the edit weights, which are there.
        alone = pipeline.variant == "1.1" and request.like == "authors"
        if request.refine_strength and not (pipeline.stages.can_refine or alone):
            raise UsageError(
                f"refine_strength is {request.refine_strength:g}, and this model has no base to refine with.",
                looked_at="the edit weights are there, HiDream-I1-Full is neither in the model's folder nor next to it",
                do="give refine_strength 0, or download HiDream-ai/HiDream-I1-Full next to the model's folder",
            )

    def readers(self, pipeline: Any) -> Sequence[Reader]:
        """The tokenizers of two CLIPs, T5 and Llama."""
        names = ("CLIP", "CLIP", "T5", "Llama")
        tokenizers = (pipeline.tokenizer, pipeline.tokenizer_2, pipeline.tokenizer_3, pipeline.tokenizer_4)
        return [
            Reader(name, each, TOKENS if name == "CLIP" else min(TOKENS, each.model_max_length))
            for name, each in zip(names, tokenizers, strict=True)
        ]

    def remarks(self, pipeline: Any, request: EditRequest) -> Sequence[str]:
        """Remark for E1-Full, which was trained with a description of the result, on an instruction without one."""
        from toprope.images.families.hidream.pipeline import target_of

        if pipeline.variant != "full" or target_of(request.instruction) != request.instruction:
            return ()
        return (
            "E1-Full was trained with 'Editing Instruction: ... Target Image Description: ...', and the instruction has"
            " no description: write one, or have --refiner write it",
        )

    def worded(self, pipeline: Any, instruction: str, description: str) -> str:
        """Join instruction and description for E1-Full; E1.1 was trained with instructions alone."""
        if pipeline.variant != "full" or not description:
            return instruction
        return f"Editing Instruction: {instruction}. Target Image Description: {description}"

    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """Load the pipeline with base and edit weights, after checking the edit weights."""
        from toprope.images.families.hidream.loading import load_pipeline

        return load_pipeline(folder, dtype, components)

    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Encode the instruction, the text of what to avoid, and the description of the result, with four encoders."""
        from toprope.images.families.hidream.pipeline import target_of

        wanted, avoided = _encoded(pipeline, instruction, negative)
        target, described = wanted, target_of(instruction, exactly=like == "authors")
        if described != instruction:
            target, _ = _encoded(pipeline, described, None)
        return Prompt({**_named("", wanted), **_named("avoided_", avoided), **_named("target_", target)})

    def run(
        self,
        pipeline: Any,
        pictures: Sequence[Image],
        request: EditRequest,
        prompt: Prompt,
        generators: Sequence[torch.Generator],
        on_step: OnStep,
    ) -> torch.Tensor:
        """One call of the pipeline for all pictures."""
        from toprope.images.families.hidream.pipeline import Texts

        def texts(which: str) -> Texts:
            parts = {name: prompt.arguments[which + name] for name in ("t5", "llama", "pooled")}
            return Texts(**{name: tensor.to(pipeline.transformer.dtype) for name, tensor in parts.items()})

        edited: torch.Tensor = pipeline(
            pictures,
            texts(""),
            texts("avoided_"),
            texts("target_"),
            generators,
            steps=request.steps,
            guidance=request.guidance,
            image_guidance=request.image_guidance,
            refine_strength=request.refine_strength,
            cfg_norm=request.cfg_norm,
            authors=request.like == "authors",
            on_step=on_step,
        )
        return edited


def _encoded(pipeline: Any, text: str, avoided: str | None) -> tuple[Any, Any]:
    """The embeddings of a text, and of the text of what to avoid unless that is None."""
    from toprope.images.families.hidream.pipeline import Texts

    t5, no_t5, llama, no_llama, pooled, no_pooled = pipeline.encode_prompt(
        prompt=text,
        negative_prompt=avoided,
        device=pipeline._execution_device,
        do_classifier_free_guidance=avoided is not None,
    )
    if avoided is None:
        return Texts(t5, llama.transpose(0, 1), pooled), None
    return Texts(t5, llama.transpose(0, 1), pooled), Texts(no_t5, no_llama.transpose(0, 1), no_pooled)


def _named(which: str, texts: Any) -> dict[str, Any]:
    return {which + name: getattr(texts, name) for name in ("t5", "llama", "pooled")}
