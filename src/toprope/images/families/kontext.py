"""FLUX.1 Kontext: a transformer that sees the input picture's tokens after those of the noise.

Found by `families.finding` and called by the engine. Arguments, shapes and the limit of words are those of diffusers'
FluxKontextPipeline, the default guidance is the model card's. Tests: tests/images/test_images_engine.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.images.families.base import Family, Native, OnStep, Prompt, diffusers_callback, noise_multiple
from toprope.images.families.loading import from_folder
from toprope.images.request import EditRequest
from toprope.images.truncation import Reader

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["Kontext"]

TOKENS = 512
"""The most words of a prompt for T5, as the pipeline has it."""


class Kontext(Family):
    """FluxKontext. Its guidance is an input of the model and costs nothing; there is nothing to avoid."""

    name = "kontext"
    pipelines = ("FluxKontextPipeline",)
    encoders = ("text_encoder", "text_encoder_2")
    denoiser = "transformer"
    options = frozenset({"steps", "guidance"})

    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """28 steps as the pipeline has it, guidance 2.5 as in the model's card."""
        return {"steps": 28, "guidance": 2.5}

    def native(self, pipeline: Any) -> Native:
        """The VAE's size; for the real one, the shapes that the model was trained on."""
        edge = int(pipeline.vae.config.sample_size)
        sizes: tuple[tuple[int, int], ...] = ()
        if edge == 1024:
            from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

            sizes = tuple(PREFERRED_KONTEXT_RESOLUTIONS)
        factor = int(pipeline.vae_scale_factor)
        return Native(edge * edge, noise_multiple(2 * factor, factor, pipeline.latent_channels), sizes=sizes)

    def readers(self, pipeline: Any) -> Sequence[Reader]:
        """The tokenizers of CLIP and T5. CLIP gives only a pooled embedding; T5 may read a part that CLIP cuts."""
        return [
            Reader("CLIP", pipeline.tokenizer, pipeline.tokenizer.model_max_length),
            Reader("T5", pipeline.tokenizer_2, _words(pipeline)),
        ]

    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """The pipeline."""
        return from_folder("FluxKontextPipeline", folder, dtype, components)

    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Embeddings of every word by T5, and of the whole by CLIP."""
        words, whole, _ = pipeline.encode_prompt(
            instruction, None, pipeline._execution_device, max_sequence_length=_words(pipeline)
        )
        return Prompt({"prompt_embeds": words, "pooled_prompt_embeds": whole})

    def run(
        self,
        pipeline: Any,
        pictures: Sequence[Image],
        request: EditRequest,
        prompt: Prompt,
        generators: Sequence[torch.Generator],
        on_step: OnStep,
    ) -> torch.Tensor:
        """One call of the pipeline for all pictures, at the size that they have."""
        wide, high = pictures[0].size
        done = pipeline(
            image=list(pictures),
            width=wide,
            height=high,
            max_area=wide * high,
            _auto_resize=False,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance,
            generator=list(generators),
            output_type="pt",
            **prompt.arguments,
            **diffusers_callback(on_step),
        )
        images: torch.Tensor = done.images
        return images


def _words(pipeline: Any) -> int:
    """The most tokens that T5 is given."""
    return min(TOKENS, int(pipeline.tokenizer_2.model_max_length))
