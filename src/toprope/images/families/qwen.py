"""Qwen-Image-Edit: a transformer whose instruction is read by a language model that sees the picture too.

Found by `families.finding` and called by the engine. Arguments, rounding and bounds are those of diffusers'
QwenImageEditPipeline, which resizes its input itself; defaults are the model card's. Tests:
tests/images/test_images_qwen.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import PackageError, UsageError
from toprope.images.families.base import Family, Native, OnStep, Prompt, diffusers_callback
from toprope.images.families.loading import from_folder
from toprope.images.request import EditRequest

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["QwenEdit"]

PIXELS = 1024 * 1024
"""Number of pixels that the model sees, always: the pipeline resizes the input itself."""


class QwenEdit(Family):
    """QwenImageEdit. Its text encoder sees the picture, so prompts are kept for one picture, and edits run alone."""

    name = "qwen"
    pipelines = ("QwenImageEditPipeline",)
    encoders = ("text_encoder",)
    denoiser = "transformer"
    options = frozenset({"negative", "steps", "guidance"})
    batches = False
    prompt_sees_picture = True

    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """The defaults of the model's card: 50 steps, true guidance 4, a space as the negative text."""
        return {"negative": " ", "steps": 50, "guidance": 4.0}

    def native(self, pipeline: Any) -> Native:
        """A million pixels; sides are multiples of 32, which the pipeline rounds the input to."""
        return Native(PIXELS, 32)

    def check(self, pipeline: Any, request: EditRequest) -> None:
        """Refuse a bound that the pipeline would not keep to."""
        if request.max_pixels is not None and request.max_pixels < PIXELS:
            raise UsageError(
                f"max_pixels is {request.max_pixels}, and this pipeline always gives the model {PIXELS} pixels.",
                looked_at="QwenImageEditPipeline of diffusers, which resizes its input itself",
                do="leave max_pixels out, or use a model of another family",
            )

    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """The pipeline; its processor needs torchvision."""
        if find_spec("torchvision") is None and "processor" not in (components or {}):
            raise PackageError(
                "Qwen-Image-Edit needs torchvision, which is not installed.",
                looked_at="Qwen2VLProcessor of transformers, whose part for videos is made with it",
                do="install the torchvision that belongs to your torch, with `pip install --no-deps torchvision==...`",
            )
        return from_folder("QwenImageEditPipeline", folder, dtype, components)

    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Embeddings of the instruction and of the negative text, both with the picture, like the pipeline's own."""
        from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as module

        wide, high, _ = module.calculate_dimensions(PIXELS, pictures[0].width / pictures[0].height)
        seen = pipeline.image_processor.resize(pictures[0], high, wide)
        found: dict[str, Any] = {}
        for name, text in (("prompt", instruction), ("negative_prompt", negative or " ")):
            embeds, mask = pipeline.encode_prompt(text, image=seen, device=pipeline._execution_device)
            found[f"{name}_embeds"] = embeds
            found[f"{name}_embeds_mask"] = embeds.new_ones(embeds.shape[:2]).long() if mask is None else mask
        return Prompt(found)

    def run(
        self,
        pipeline: Any,
        pictures: Sequence[Image],
        request: EditRequest,
        prompt: Prompt,
        generators: Sequence[torch.Generator],
        on_step: OnStep,
    ) -> torch.Tensor:
        """One call of the pipeline."""
        done = pipeline(
            image=pictures[0],
            width=pictures[0].width,
            height=pictures[0].height,
            num_inference_steps=request.steps,
            true_cfg_scale=request.guidance,
            generator=generators[0],
            output_type="pt",
            **prompt.arguments,
            **diffusers_callback(on_step),
        )
        images: torch.Tensor = done.images
        return images
