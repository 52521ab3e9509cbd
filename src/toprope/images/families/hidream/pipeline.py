"""The editing pipeline: encodes texts and the picture, runs the steps of both stages, and decodes the result.

The transformer sees noise and picture next to each other, as one picture of double width; only its prediction for the
left half is used. While it refines, it sees only the noise, and the text that describes the result.

`loading` makes it; `HiDreamE1.encode` and `run` call it. It follows the authors' pipeline, and the parts' names and
calls are those of diffusers' HiDreamImagePipeline, its base class; which weights compute a step is up to `stages`.
Tests: tests/images/test_images_authors.py, tests/images/test_images_hidream.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from toprope.images.families.base import OnStep
from toprope.images.families.hidream.guidance import AUTHORS, OURS

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Texts", "edit", "pipeline_class", "target_of"]

TARGET = "Target Image Description:"


def target_of(instruction: str, *, exactly: bool = False) -> str:
    """Get the description of the result: the text after "Target Image Description:", else the whole instruction.

    Args:
        instruction: the whole instruction.
        exactly: read it as the authors' pipeline does: with this exact spelling, up to the next label, even if empty.
    """
    if exactly:
        return instruction.split(TARGET)[1].strip() if TARGET in instruction else instruction
    found = re.search(re.escape(TARGET), instruction, re.IGNORECASE)
    return (instruction[found.end() :].strip() if found else "") or instruction


@dataclass(frozen=True)
class Texts:
    """Encoded texts for the transformer, one row each.

    Attributes:
        t5: T5's embeddings, (rows, words, width).
        llama: Llama's hidden states of every layer, (rows, layers, words, width).
        pooled: pooled embeddings of both CLIPs, concatenated, (rows, width).
    """

    t5: torch.Tensor
    llama: torch.Tensor
    pooled: torch.Tensor

    @staticmethod
    def rows(*some: Texts) -> Texts:
        """Join several to one, in this order."""
        return Texts(
            torch.cat([each.t5 for each in some]),
            torch.cat([each.llama for each in some]),
            torch.cat([each.pooled for each in some]),
        )


@dataclass(frozen=True)
class _Guidance:
    """Guided prediction of a step. If guidance has no effect, one prediction is made instead of three."""

    text: float
    picture: float
    norm: bool
    authors: bool = False

    @property
    def off(self) -> bool:
        """True if there is no guidance in the edit stage."""
        return self.off_by_text if self.authors else self.text == 1 and self.picture == 1

    @property
    def off_by_text(self) -> bool:
        """True if there is no guidance in the refine stage; the authors' scripts have none at all for 1 and less."""
        return self.text <= 1 if self.authors else self.text == 1

    def _predict(
        self, transformer: Any, inputs: torch.Tensor, timestep: torch.Tensor, texts: Texts, width: int
    ) -> torch.Tensor:
        predicted = _predict(transformer, inputs, timestep, texts, width)
        return predicted if self.authors else predicted.float()

    def texts(self, wanted: Texts, avoided: Texts) -> Texts:
        """Texts for the predictions of `edit`, in their order, like the authors' scripts."""
        if self.off:
            return wanted
        return Texts.rows(wanted if self.norm else avoided, avoided, wanted)

    def edit(
        self, transformer: Any, latents: torch.Tensor, seen: torch.Tensor, timestep: torch.Tensor, texts: Texts
    ) -> torch.Tensor:
        """Predict in the edit stage, with the picture next to the noise."""
        width = latents.shape[-1]
        if self.off:
            return self._predict(transformer, torch.cat([latents, seen], dim=-1), timestep, texts, width)
        inputs = torch.cat([torch.cat([latents] * 3), torch.cat([torch.zeros_like(seen), seen, seen])], dim=-1)
        nothing, picture, everything = self._predict(transformer, inputs, timestep, texts, width).chunk(3)
        way = AUTHORS if self.authors else OURS
        guided = way.with_norm if self.norm else way.plain
        return guided(nothing, picture, everything, self.text, self.picture)

    def refine(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Predict in the refine stage, by the base, which sees only the noise."""
        width = latents.shape[-1]
        if self.off_by_text:
            return self._predict(transformer, latents, timestep, texts, width)
        nothing, everything = self._predict(transformer, torch.cat([latents] * 2), timestep, texts, width).chunk(2)
        return (AUTHORS if self.authors else OURS).by_text(nothing, everything, self.text)


def edit(
    pipeline: Any,
    pictures: Sequence[Image],
    wanted: Texts,
    avoided: Texts,
    target: Texts,
    generators: Sequence[torch.Generator],
    *,
    steps: int,
    guidance: float,
    image_guidance: float,
    refine_strength: float,
    cfg_norm: bool,
    on_step: OnStep,
    authors: bool = False,
) -> torch.Tensor:
    """Edit pictures of one size.

    Args:
        pipeline: a `pipeline_class` on its device.
        pictures: RGB pictures with sides that suit the transformer.
        wanted, avoided, target: a row for each picture: the instruction, the description of what to avoid, and the
            description of the result, which only the refine stage uses.
        generators: one random generator for each picture.
        steps: number of denoising steps.
        guidance, image_guidance: see `guidance`; 1 and 1 for none, which is three times as fast.
        refine_strength: the part of the steps that the base does; 0 for none.
        cfg_norm: True to bound text guidance.
        on_step: called after each step, with the stage.
        authors: compute like the authors' scripts: noise, latents and guidance in the model's dtype, and refining with
            the edit weights.

    Returns:
        Floats from 0 to 1, (pictures, 3, height, width).
    """
    device, scheduler = pipeline._execution_device, pipeline.scheduler
    seen = _latents_of(pipeline, pictures)
    if not authors:
        seen = seen.float()
    seen = _scaled(pipeline, seen)
    latents = _noise(seen, generators)
    timesteps = _timesteps(scheduler, steps, device, pipeline.transformer.max_seq)
    begin = (AUTHORS if authors else OURS).refine_from(len(timesteps), refine_strength)
    how = _Guidance(guidance, image_guidance, cfg_norm, authors)
    texts = how.texts(wanted, avoided)
    with ExitStack() as stack:
        transformer, stage = pipeline.transformer, "edit"
        for number, timestep in enumerate(timesteps):
            if number == begin:
                refining = pipeline.stages.refining(pipeline, edit_weights=authors)
                transformer, stage = stack.enter_context(refining), "refine"
                texts = target if how.off_by_text else Texts.rows(avoided, target)
            if stage == "edit":
                guided = how.edit(transformer, latents, seen, timestep, texts)
            else:
                guided = how.refine(transformer, latents, timestep, texts)
            latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
            on_step(number + 1, len(timesteps), latents, stage)
    return _pictures_of(pipeline, latents)


def _predict(transformer: Any, inputs: torch.Tensor, timestep: torch.Tensor, texts: Texts, width: int) -> torch.Tensor:
    """The transformer's prediction for the left part of its inputs, negated, as HiDream's has the opposite sign."""
    dtype = texts.pooled.dtype
    predicted: torch.Tensor = transformer(
        hidden_states=inputs.to(dtype),
        timesteps=timestep.expand(inputs.shape[0]),
        encoder_hidden_states_t5=texts.t5,
        encoder_hidden_states_llama3=texts.llama.transpose(0, 1),
        pooled_embeds=texts.pooled,
        return_dict=False,
    )[0]
    return -predicted[..., :width]


def _latents_of(pipeline: Any, pictures: Sequence[Image]) -> torch.Tensor:
    """Encode pictures with the VAE; the mode of its distribution is used, without sampling."""
    vae = pipeline.vae
    pixels = pipeline.image_processor.preprocess(list(pictures)).to(pipeline._execution_device, vae.dtype)
    latents: torch.Tensor = vae.encode(pixels).latent_dist.mode()
    return latents


def _scaled(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    config = pipeline.vae.config
    scaled: torch.Tensor = (latents - config.shift_factor) * config.scaling_factor
    return scaled


def _pictures_of(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    vae = pipeline.vae
    unscaled = latents / vae.config.scaling_factor + vae.config.shift_factor
    decoded = vae.decode(unscaled.to(vae.dtype), return_dict=False)[0]
    images: torch.Tensor = pipeline.image_processor.postprocess(decoded, output_type="pt")
    return images


def _noise(like: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Draw noise in the latents' dtype, for each picture from its generator; float32 is the same for all models."""
    drawn = [
        torch.randn((1, *like.shape[1:]), generator=each, device=each.device, dtype=like.dtype) for each in generators
    ]
    return torch.cat([each.to(like.device) for each in drawn])


def _timesteps(scheduler: Any, steps: int, device: torch.device, tokens: int) -> Any:
    """Set the scheduler's steps, with the shift that HiDream has; return them."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.hidream_image.pipeline_hidream_image import calculate_shift

    # The shift is always the one for the largest number of tokens; UniPC has a shift of its own.
    shift = {"mu": calculate_shift(tokens)} if isinstance(scheduler, FlowMatchEulerDiscreteScheduler) else {}
    scheduler.set_timesteps(steps, device=device, **shift)
    return scheduler.timesteps


@cache
def pipeline_class() -> Any:
    """The class of our pipeline, a subclass of diffusers'; made at the first call, as importing diffusers is slow."""
    from diffusers import HiDreamImagePipeline

    class HiDreamImageEditingPipeline(HiDreamImagePipeline):  # type: ignore[misc]
        """HiDream's parts, with a refiner where base and edit weights are two transformers, and their stages."""

        _optional_components = ("refiner",)
        stages: Any = None

        def __init__(
            self,
            scheduler: Any,
            vae: Any,
            text_encoder: Any,
            tokenizer: Any,
            text_encoder_2: Any,
            tokenizer_2: Any,
            text_encoder_3: Any,
            tokenizer_3: Any,
            text_encoder_4: Any,
            tokenizer_4: Any,
            transformer: Any,
            refiner: Any = None,
        ) -> None:  # diffusers reads the names of a pipeline's parts from here
            super().__init__(
                scheduler, vae, text_encoder, tokenizer, text_encoder_2, tokenizer_2, text_encoder_3, tokenizer_3,
                text_encoder_4, tokenizer_4, transformer,
            )  # fmt: skip
            self.register_modules(refiner=refiner)

        def _get_llama3_prompt_embeds(
            self,
            prompt: Any = None,
            max_sequence_length: int = 128,
            device: torch.device | None = None,
            dtype: torch.dtype | None = None,
        ) -> torch.Tensor:
            """Hidden states of every layer for the words, without the attentions and logits, which are not used."""
            words = self.tokenizer_4(
                [prompt] if isinstance(prompt, str) else prompt,
                padding="max_length",
                max_length=min(max_sequence_length, self.tokenizer_4.model_max_length),
                truncation=True,
                return_tensors="pt",
            )
            done = self.text_encoder_4(
                words.input_ids.to(device),
                attention_mask=words.attention_mask.to(device),
                output_hidden_states=True,
                use_cache=False,
                logits_to_keep=1,
            )
            return torch.stack(done.hidden_states[1:])

        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            """Edit pictures; see `edit`."""
            return edit(self, *args, **kwargs)

    return HiDreamImageEditingPipeline
