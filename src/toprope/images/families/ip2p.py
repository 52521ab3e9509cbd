"""InstructPix2Pix, over Stable Diffusion and over SDXL.

Found by `families.finding` and called by the engine. Names, arguments and the order of embeddings are those of
diffusers' two pipelines; defaults follow their pages, but for fewer steps. Tests: tests/images/test_images_demo.py,
tests/images/test_images_engine.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.images.families.base import (
    Family,
    Native,
    OnStep,
    Prompt,
    counted_steps,
    diffusers_callback,
    noise_multiple,
)
from toprope.images.families.finding import index_of
from toprope.images.families.loading import from_folder
from toprope.images.request import EditRequest
from toprope.images.samplers import DIFFUSION
from toprope.images.truncation import Reader

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["InstructPix2Pix"]

XL = "StableDiffusionXLInstructPix2PixPipeline"


class InstructPix2Pix(Family):
    """InstructPix2Pix (Brooks et al., 2023): a U-Net that sees the input picture's latents next to the noise."""

    name = "ip2p"
    pipelines = ("StableDiffusionInstructPix2PixPipeline", XL)
    encoders = ("text_encoder", "text_encoder_2")
    denoiser = "unet"
    options = frozenset({"negative", "steps", "guidance", "image_guidance"})
    samplers = DIFFUSION

    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """Those of the pipelines' documentation; fewer steps than its 100, as in the authors' own demo."""
        # diffusers' documentation of either pipeline: guidance 7.5 and 1.5 (SD), 5.0 and 1.5 (SDXL).
        return {"negative": "", "steps": 50, "guidance": 5.0 if _is_xl(pipeline) else 7.5, "image_guidance": 1.5}

    def native(self, pipeline: Any) -> Native:
        """The size of the U-Net's latents times the VAE's scale factor."""
        factor = int(pipeline.vae_scale_factor)
        edge = int(pipeline.unet.config.sample_size) * factor
        deepest = 2 ** (len(pipeline.unet.config.block_out_channels) - 1)
        return Native(edge * edge, noise_multiple(factor * deepest, factor, pipeline.vae.config.latent_channels))

    def readers(self, pipeline: Any) -> Sequence[Reader]:
        """CLIP's tokenizers, one or two."""
        found = (pipeline.tokenizer, getattr(pipeline, "tokenizer_2", None))
        return [Reader("CLIP", each, each.model_max_length) for each in found if each is not None]

    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """The pipeline that the folder names; without its safety checker, which paints pictures black."""
        kind = index_of(folder)["_class_name"]
        given = dict(components or {})
        if kind != XL:
            given |= {"safety_checker": None, "requires_safety_checker": False}
        return from_folder(kind, folder, dtype, given)

    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Embeddings of the instruction and of the negative text, one row each; SDXL has zeros for an empty text."""
        device = pipeline._execution_device
        if _is_xl(pipeline):
            names = (
                "prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds",
            )  # fmt: skip
            return Prompt(
                dict(
                    zip(
                        names, pipeline.encode_prompt(instruction, None, device, 1, True, negative or None), strict=True
                    )
                )
            )
        rows = pipeline._encode_prompt(instruction, device, 1, True, negative)  # text, negative, negative
        return Prompt({"prompt_embeds": rows[:1], "negative_prompt_embeds": rows[1:2]})

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
        arguments: dict[str, Any] = {
            "image": list(pictures),
            "num_inference_steps": request.steps,
            "guidance_scale": request.guidance,
            "image_guidance_scale": request.image_guidance,
            "generator": list(generators),
            "output_type": "pt",
            **prompt.arguments,
        }
        if _is_xl(pipeline):
            with counted_steps(pipeline, on_step):
                done = pipeline(height=pictures[0].height, width=pictures[0].width, **arguments)
        else:
            done = pipeline(**arguments, **diffusers_callback(on_step))
        images: torch.Tensor = done.images
        return images


def _is_xl(pipeline: Any) -> bool:
    return type(pipeline).__name__ == XL
