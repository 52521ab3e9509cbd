"""A tiny InstructPix2Pix over SDXL: with a second text encoder, and the picture's size as an input of the U-Net.

Found by `tiny.making` by the file's name. The sizes are free within what diffusers' classes take. Tests:
tests/images/test_images_engine.py.
"""

from __future__ import annotations

from pathlib import Path

from toprope.images.tiny.parts import clip_config, clip_tokenizer

__all__ = ["make"]


def make(folder: Path) -> None:
    """Write it."""
    from diffusers import (
        AutoencoderKL,
        EulerDiscreteScheduler,
        StableDiffusionXLInstructPix2PixPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    unet = UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=2, sample_size=32, in_channels=8, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(2, 4), use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=8, transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=80, cross_attention_dim=64,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=[32, 64], down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4, sample_size=64,
    )  # fmt: skip
    pipeline = StableDiffusionXLInstructPix2PixPipeline(
        vae=vae, unet=unet, scheduler=EulerDiscreteScheduler(timestep_spacing="leading"),
        text_encoder=CLIPTextModel(clip_config()), tokenizer=clip_tokenizer(),
        text_encoder_2=CLIPTextModelWithProjection(clip_config()), tokenizer_2=clip_tokenizer(),
    )  # fmt: skip
    pipeline.save_pretrained(folder)
